"""Figures: which rows are chosen, what is plotted and written, and what files come out."""

import warnings
from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from spec_bench.report.data.rows import compute_error_bars, group_rows, read_results_file
from spec_bench.report.figures import draw_figure_files, draw_item_figures, sweep
from spec_bench.report.figures.cells import (
    FigureCells,
    add_figure_columns,
    list_figure_pairs,
    read_printed_cells,
    select_valid_experiment_rows,
    shows_other_pairs,
)
from spec_bench.report.figures.grid import draw_panels
from spec_bench.report.figures.panels import panels as old_panels
from spec_bench.report.figures.style import (
    GREY,
    figure_settings_applied,
    fill_template,
    format_inexact_marks,
    save_figure,
)
from spec_bench.report.papers.paper import Paper, get_figure, load_paper
from spec_bench.vocabulary import names
from spec_bench.vocabulary.decoders import COLOURS
from spec_bench.vocabulary.names import get_decoder_or_task_title
from tests.report.rows import around, frame
from tests.report.rows import embedded as row
from tests.report.rows import row as any_row
from tests.report.shown import (
    EMBEDDED,
    all_series,
    committed_figures,
    figure_from,
    figure_of,
    panels,
    points,
    series_of,
)
from tests.said import naming

EXP1 = frame(
    row("ar", block_efficiency=1.0, mbsu=1.0, speedup=1.0, rouge2=0.5),
    row("sd", "2", block_efficiency=2.0, mbsu=1.8, speedup=1.5, rouge2=0.4),
    row("rsd_s", "2x2", block_efficiency=2.2, mbsu=2.1, speedup=1.7, rouge2=0.6),
    row("rsd_s", "3x2", block_efficiency=2.4, mbsu=2.2, speedup=1.6, rouge2=0.5),
    row("rsd_s", "4x3", block_efficiency=2.7, mbsu=2.5, speedup=1.4, rouge2=0.5),
)
MCSD = frame(
    *(row("mcsd_wor", spec, acceptance_rate=0.7) for spec in ("4", "1")),
    *(row("mcsd_wor", spec, block_efficiency=2.0, speedup=1.2) for spec in ("4-2", "2-4", "2-2")),
    row("mcsd_wor", "4-2-1", block_efficiency=2.0, speedup=1.2),
    row("mcsd", "4", acceptance_rate=0.7),
    row("mcsd", "4-2", block_efficiency=2.0, speedup=1.2),
)
TREES = (("ar", "-", 0.0, 1.0), ("sd", "3", 3.0, 2.0), ("rsd_s", "4x3", 12.0, 3.0),
         ("rsd_s", "2x2", 4.0, 2.5))  # fmt: skip
CELLS = frame(
    *(
        any_row(name, spec, task=task, nodes_per_call=nodes, block_efficiency=around(tau, 1))
        for task in ("xsum", "dolly")
        for name, spec, nodes, tau in TREES
    )
)
SMALLEST = (CELLS, "nodes_per_call", "block_efficiency")
FIG4, FIG5 = get_figure("rsd/4"), get_figure("rsd/5")
NOTHING = pd.DataFrame()


def printed(figure):
    return any(series.printed for series in all_series(*panels(figure)))


def test_the_best_tree_is_picked_panel_by_panel_but_for_accuracy_by_block_efficiency():
    taus, _, speeds, scores = figure_of("rsd/4", EXP1).grid[0]
    (best,) = series_of(taus, decoder="rsd_s")
    assert list(best.rows.spec) == ["3x2", "4x3"]
    for panel, drawn in (
        (taus, [(2, 2.4), (3, 2.7)]),
        (speeds, [(2, 1.7), (3, 1.4)]),
        (scores, [(2, 1.0), (3, 1.0)]),  # not the luckiest
    ):
        assert points(*series_of(panel, decoder="rsd_s")) == drawn


def test_accuracy_is_relative_to_the_baseline_with_its_interval():
    panel = figure_of("rsd/4", EXP1).grid[0][3]
    (series,) = series_of(panel, decoder="sd")
    assert series.points("cell.relative") == [pytest.approx((0.8, 0.6, 1.0))]
    (band,) = panel.plot.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((0.8, 1.2))
    alone = figure_of("rsd/4", EXP1[EXP1.decoder != "ar"])
    assert [panel.y for panel in panels(alone)] == ["block_efficiency", "mbsu", "speedup"]
    assert alone.missing == ("no score",)


def test_the_papers_points_are_those_of_its_table():
    rows = read_printed_cells("mcsd", ["llama_13b_68m", "embedded"])
    assert set(rows.pair) == {"llama_13b_68m"}
    own = rows[(rows.task == "alpaca") & (rows.temperature == 0) & (rows.spec == "4")]
    assert list(own.acceptance_rate) == [0.88]


def test_the_papers_numbers_stand_beside_cells_that_were_sampled_as_the_papers():
    figure = figure_of("rsd/6", EXP1.assign(pair="llama2_7b"))
    assert printed(figure)
    (theirs,) = series_of(panels(figure)[2], decoder="spectr")
    assert theirs.printed
    assert points(theirs)[0] == (2, round(53.346 / 37.269, 6))
    assert not printed(figure_of("rsd/6", EXP1.assign(pair="llama2_7b", temperature=0.5)))
    assert not printed(figure_of("rsd/6", EXP1))


def test_a_figure_shows_its_own_pairs_or_else_all():
    assert list_figure_pairs(FIG4) == ["llama2_70b", "llama2_chat_70b"]
    both = pd.concat([EXP1, EXP1.assign(pair="llama2_70b")], ignore_index=True)
    assert set(FigureCells(FIG4, both).rows().pair) == {"llama2_70b"}
    assert set(FigureCells(FIG4, EXP1).rows().pair) == {"embedded"}


def test_a_cell_measured_twice_is_shown_once_and_from_its_own_experiment_alone():
    cells = (
        ("6", "quickstart", {"prompts": 90}),
        ("6", "rsd-exp2", {"prompts": 30}),
        ("6", "rsd-exp2", {"prompts": 20}),
        ("10", "quickstart", {"prompts": 20}),
        ("10", "quickstart", {"prompts": 50, "task": "dolly"}),
    )
    rows = frame(*(row("sd", spec, experiment=name, **more) for spec, name, more in cells))
    shown = select_valid_experiment_rows(rows, FIG5)
    assert list(zip(shown.task, shown.prompts, strict=True)) == [("xsum", 30)]
    alone = select_valid_experiment_rows(rows[rows.experiment == "quickstart"], FIG5)
    assert list(zip(alone.spec, alone.prompts, strict=True)) == [("6", 90), ("10", 20), ("10", 50)]


def test_failed_cells_and_paths_as_rows_are_not_shown():
    rows = frame(
        row("sd", "2"), row("sd", "3", status="failed"), row("rsd_c", "2-2", tree_attention=False)
    )
    assert list(select_valid_experiment_rows(rows, FIG4).spec) == ["2"]
    assert (
        len(
            select_valid_experiment_rows(frame(row("sd", "2")).drop(columns="tree_attention"), FIG4)
        )
        == 1
    )


def test_error_bars_are_lengths_and_nothing_where_an_end_is_unknown():
    nan = float("nan")
    below, above = compute_error_bars([(2.0, 1.5, 2.25), (1.0, nan, nan)])
    assert (below[0], above[0]) == (0.5, 0.25) and pd.isna([below[1], above[1]]).all()


def test_a_bar_without_an_interval_has_no_caps():
    rows = [any_row("ar", speedup=1.0), any_row("sd", "2", speedup=1.4)]
    known = any_row("sd", "3", speedup=around(1.2, 0.1))
    figure = pictured(frame(*rows, known))
    assert "with 95% intervals where known;" in figure.get_suptitle()
    assert "with 95% intervals;" in pictured(frame(rows[0], known)).get_suptitle()
    assert "intervals" not in pictured(frame(*rows)).get_suptitle()
    (bars,) = figure.axes[0].containers[1:]
    caps = [x for line in bars.lines[1] for x in line.get_xdata()]
    assert sorted(x for x in caps if pd.notna(x)) == pytest.approx([1.1, 1.3])


def test_rows_that_are_not_exact_are_marked_and_another_engine_is_named():
    assert (
        format_inexact_marks(frame(row("ar"), row("sd", "2", lossless="simulated")))
        == " (simulated)"
    )
    assert format_inexact_marks(EXP1) == ""
    theirs, ours = row("hf_generate", lossless="unaudited"), row("sd", "2")
    assert format_inexact_marks(frame(row("ar"), theirs)) == " (another engine)"
    name = get_decoder_or_task_title("hf_generate")
    assert format_inexact_marks(frame(row("ar"), theirs, ours)) == f" ({name}: another engine)"


def test_two_columns_are_a_figure_with_a_colour_per_decoder_and_a_panel_per_task():
    figure = figure_from(*SMALLEST, {"across": "task", "title": "{task}"})
    ((xsum, dolly),) = figure.grid
    assert (xsum.title, dolly.title) == ("XSum", "Dolly")
    assert [series.label for series in xsum.drawn] == ["AR", "SD", "RSD-S"]
    trees = all_series(xsum)[2]
    assert points(trees) == [(12.0, 3.0), (4.0, 2.5)]
    assert trees.points("block_efficiency")[0] == (3.0, 2.0, 4.0)
    assert [axes.get_xlabel() for axes in figure.axes] == ["nodes", "nodes"]
    assert figure.axes[0].get_ylabel() == "block efficiency (tokens/call)"


def test_a_line_goes_along_x_and_cells_of_other_settings_are_lines_of_their_own():
    (plot,) = figure_from(*SMALLEST, mark="line").axes
    lines = [line.get_xydata().tolist() for line in plot.lines if len(line.get_xdata()) == 2]
    assert [line for line in lines if line[0][0] == 4.0] == [[[4.0, 2.5], [12.0, 3.0]]] * 2


def test_a_list_of_columns_is_a_panel_each():
    several = ["block_efficiency", "nodes_per_call"]
    assert [panel.y for panel in panels(figure_from(*SMALLEST[:2], several))] == several


def test_a_score_is_relative_to_plain_decoding_of_the_same_run_and_task():
    cells = frame(
        *(any_row(name, task=task, rouge2=score, batch_size=size)
          for task, size, scores in (("xsum", 1, (0.5, 0.4)), ("xsum", 2, (0.2, 0.4)),
                                     ("dolly", 1, (1.0, 0.1)))
          for name, score in zip(("ar", "sd"), scores, strict=True))
    )  # fmt: skip
    assert list(add_figure_columns(cells)["cell.relative"]) == pytest.approx([1, 0.8, 1, 2, 1, 0.1])


@pytest.mark.parametrize(
    ("said", "look", "named"),
    [
        ({}, {"mark": "cloud"}, "mark .* front, got 'cloud'"),
        ({}, {"marksize": 3}, r"unknown .*\.marksize; did you mean .*markersize"),
        ({"titel": "a"}, {}, r"unknown .*\.titel; "),
    ],
)
def test_what_a_figure_cannot_be_is_one_line_that_names_it(said, look, named, monkeypatch):
    def drawn(cells):
        yield figure_from(*SMALLEST, said, **look)

    monkeypatch.setattr(Paper, "find_drawing_function", lambda *_: drawn)
    with pytest.raises(ValueError, match=rf"^figure mcsd/3: {named}"):
        draw_item_figures(get_figure("mcsd/3"), CELLS)


def test_a_figure_that_calls_the_old_panels_is_told_where_the_new_function_is(monkeypatch):
    monkeypatch.setattr(
        Paper, "find_drawing_function", lambda *_: lambda cells: old_panels(cells, "x", "y")
    )
    with pytest.raises(ValueError, match=naming("draw_panels", "experiments/README.md")):
        draw_item_figures(get_figure("mcsd/3"), CELLS)


def test_texts_name_columns_of_the_rows():
    assert (
        fill_template("{task}, temperature {temperature:g}", CELLS[:2]) == "XSum, temperature 0.3"
    )
    assert fill_template("{decoder} {spec}", CELLS[1:2]) == "SD 3"
    assert fill_template("{decoder} {spec}", CELLS[2:4]) == "RSD-S"
    assert fill_template("{decoders}", CELLS) == "AR, SD, RSD-S"
    assert fill_template("{prompts:prompt}", CELLS) == "30 prompts"
    assert fill_template("{seed:seed}", CELLS.assign(seed=1)) == "1 seed"


def grid_rows():
    rules = {"multi_round": 0.5, "k_seq": 0.6, "otm": 0.7, "recursive_rejection": 1.0}
    steps = (0.0, 0.5, 1.0)
    return frame(*({"p": p, "q": q, **rules, "otm": 1 - p * q} for p in steps for q in steps))


def test_a_figure_becomes_a_png_and_a_pdf_of_several_pairs_or_one_each(tmp_path):
    def drawn(name, rows, **asked):
        paths = draw_figure_files(get_figure(name), rows, tmp_path / "new", **asked)
        return [path.name for path in paths if path.stat().st_size > 1000]

    def both(rows):
        return pd.concat([rows, rows.assign(pair="llama2_70b")], ignore_index=True)

    assert drawn("rsd/1", grid_rows()) == ["rsd-fig1.png", "rsd-fig1.pdf"]
    png = {"formats": ["png"]}
    assert drawn("rsd/6", both(EXP1), **png) == ["rsd-fig6-embedded.png", "rsd-fig6-llama2_70b.png"]
    assert drawn("mcsd/3", both(MCSD), **png) == ["mcsd-fig3.png"]
    assert drawn("rsd/4", both(EXP1), pair="embedded", **png) == ["rsd-fig4-embedded.png"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rsd/5", "nothing measured for figure rsd/5; to measure it: .*rsd=exp2"),
        ("rsd/1", "nothing measured for figure rsd/1; .*rsd/bernoulli.py"),
        ("dsbd/4", "nothing measured for figure dsbd/4; .*dsbd=fronts"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_line(name, message, tmp_path):
    length_only = EXP1[EXP1.spec.isin(["-", "3x2", "4x3"])]
    with pytest.raises(ValueError, match=message):
        draw_figure_files(get_figure(name), length_only, tmp_path)
    for alone in (False, name == "dsbd/4"):  # nor is what the paper prints nowhere
        with pytest.raises(ValueError, match="nothing measured"):
            draw_figure_files(get_figure(name), NOTHING, tmp_path, allow_printed_only=alone)
    with pytest.raises(ValueError, match=naming("'opt_13b'", "embedded")):
        draw_figure_files(get_figure("rsd/4"), EXP1, tmp_path, pair="opt_13b")


def test_printed_numbers_are_drawn_alone_and_the_heading_says_so():
    figures = draw_item_figures(get_figure("rsd/7"), NOTHING, printed_only=True)
    assert len(figures) == 6  # OPT 13B, 30B and 66B with either draft
    assert {figure.setting for figure in figures} == {"as printed"}
    first = next(figure for figure in figures if set(figure.rows.pair) == {"opt_13b"})
    (series,) = series_of(first.grid[0][0], decoder="rsd_s")
    table = pd.DataFrame(load_paper("rsd").get_numbers_or_places(16)).query(
        "decoder == 'rsd_s' and value != ''"
    )
    taus = table[table.metric == "block_efficiency"].astype({"axis_value": float, "value": float})
    assert first.grid[0][0].rows.task.iloc[0] == table.task.iloc[0]
    assert dict(points(series)) == taus.groupby("axis_value").value.max().to_dict()
    assert not printed(first)


def test_a_figure_of_other_pairs_is_drawn_once_and_not_under_each_number(tmp_path):
    same = {"task": "alpaca", "temperature": 1.0, "acceptance_rate": 0.5}
    rows = frame(*(row("mcsd_wor", k, **same) for k in ("1", "4")))
    asked = (get_figure("mcsd/5"), rows, tmp_path)
    (theirs,) = draw_figure_files(*asked, formats=("png",), allow_printed_only=True)
    assert theirs.name == "mcsd-fig5-as-printed.png"
    (ours,) = draw_figure_files(*asked, pair="embedded", formats=("png",), allow_printed_only=True)
    assert ours.name == "mcsd-fig5-embedded.png"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("rsd/4", True), ("rsd/7", False), ("rsd/5", True), ("rsd/8", False), ("mcsd/5", False),
     ("dsbd/6", True), ("dsbd/5", False), ("redrafter/3", True), ("rsd/1", True)],
)  # fmt: skip
def test_which_figures_are_for_pairs_that_they_do_not_have(name, shown):
    assert shows_other_pairs(get_figure(name)) is shown


TAUS = {"sd": 2.0, "rsd_c": 2.5, "rsd_s": 5.0}
CROWDED = frame(
    *(any_row(name, "10x8@59", block_efficiency=tau, speedup=1.1) for name, tau in TAUS.items())
)


def drawn(said=None, /, **look):
    figure = figure_from(
        CROWDED, "block_efficiency", "speedup", {"width": 0.5, **(said or {})}, **look
    )
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize(("counts", "said"), [(8, " 8"), ([8, 8, 12, 12, 12], " 8 to 12")])
def test_a_figure_says_on_how_many_prompts_each_cell_was_measured(counts, said):
    figure = figure_of("rsd/4", EXP1.assign(prompts=counts))
    assert figure.get_supxlabel().endswith(f"{said} prompts a cell.")


def test_a_text_beside_the_last_mark_stays_in_its_panel():
    (axes,) = drawn(write="{spec}").axes
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == len(CROWDED)
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


def test_a_legend_lists_the_series_of_one_row_of_panels_after_those_of_another():
    rows = [{"keep": {"decoder": ["rsd_s", "sd"]}}, {"keep": {"decoder": ["rsd_c"]}}]
    (legend,) = drawn({"by_row": rows}).legends
    assert [text.get_text() for text in legend.get_texts()] == ["RSD-S", "SD", "RSD-C"]


DRAWN = sorted({path.parents[1].name for path in EMBEDDED.glob("*/figures/*.png")})


def marks_of(figure):
    """Places on paper, in points, and half sizes of all marks, with their panel and line."""
    figure.draw_without_rendering()
    for plot in figure.axes:
        for line in plot.lines:
            if line.get_marker() not in ("None", "", None, "_", "|"):
                at = line.get_transform().transform(line.get_xydata()) * 72 / figure.dpi
                yield plot, line, at, line.get_markersize() / 2


def assert_complete(figure, name):
    """Nothing leaves its canvas, no mark is cut at an axis, and no panel is empty."""
    for plot, _, at, half in marks_of(figure):
        low, high = (np.array(edge) * 72 / figure.dpi for edge in (plot.bbox.min, plot.bbox.max))
        assert ((at > low + half - 0.1) & (at < high - half + 0.1)).all(), name
    inches, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    edges = (inches.x0, inches.y0, width - inches.x1, height - inches.y1)
    assert min(edges) > -0.02, f"{name}: {edges}"
    assert all(plot.has_data() or not plot.axison for plot in figure.axes), name


@pytest.mark.parametrize("experiment", DRAWN)
def test_nothing_of_a_committed_figure_leaves_its_canvas_and_no_panel_is_empty(experiment):
    figures = committed_figures(experiment)
    assert figures
    for name, figure in figures.items():
        with figure_settings_applied():
            assert_complete(figure, name)


@pytest.mark.parametrize("name", ["quickstart", "qwen_coder", "smollm2"])
def test_nothing_of_a_committed_picture_leaves_its_canvas_and_no_panel_is_empty(name):
    file = EMBEDDED.parent / name / "results.csv"
    with figure_settings_applied():
        assert_complete(sweep.draw_sweep_bars(group_rows(read_results_file(file))), name)


def test_confirmed_cells_are_drawn_over_grey_screened_ones_in_their_shapes():
    stages = [MCSD.assign(stage="screen", prompts=2), MCSD[:3].assign(stage="confirm", prompts=40)]
    (panel,) = panels(figure_of("mcsd/4", pd.concat(stages, ignore_index=True)))
    told = [(one.label, one.look.colour, one.look.marker, *one.rows.spec) for one in panel.drawn]
    assert told == [
        ("screened", GREY, "s", "4-2", "2-4"),  # 8 paths
        ("screened", GREY, "o", "2-2"),
        ("decreasing widths", COLOURS["blue"].light, "s", "4-2"),
    ]


SPEEDS = frame(
    row("ar", speedup=1.0),
    row("sd", "3", speedup=around(1.2, 0.1), block_efficiency=2.0),
    row("rsd_s", "4x3", speedup=around(1.5, 0.2), lossless="simulated"),
    row("eagle3_sd", "5", speedup=around(1.4, 0.1), draft="heads"),
    row("prompt_lookup", "1x10", speedup=around(0.8, 0.1), draft=""),
    row("hf_generate", speedup=0.9, lossless="unaudited", draft=""),
    row("spectr", "2x3", status="failed", reason="ValueError: x"),
)


def pictured(*parts):
    figure = sweep.draw_sweep_bars(group_rows(pd.concat(parts, ignore_index=True)))
    return figure


def test_the_picture_of_a_results_file_has_a_bar_a_decoder_the_fastest_on_top():
    figure = pictured(SPEEDS.assign(device="cpu"))
    (plot,) = figure.axes
    wanted = ["prompt lookup 1x10", "transformers generate (hf_generate)", "SD 3", "EAGLE-3, SD 5"]
    labels = [text.get_text() for text in plot.get_yticklabels()]
    assert labels == [*wanted, "RSD-S 4x3 (simulated)"]
    by_place = sorted(plot.patches, key=lambda bar: bar.get_y())
    assert [bar.get_width() for bar in by_place] == [0.8, 0.9, 1.2, 1.4, 1.5]
    assert len({bar.get_facecolor() for bar in by_place}) == 5  # a family each
    (intervals,) = plot.collections
    assert [1.3, 1.7] in [[round(x, 6) for x, _ in line] for line in intervals.get_segments()]
    assert figure.get_suptitle().endswith("\nembedded, XSum, 8 prompts, CPU")


STALLED = "speedup: stalled: 1 of 12 windows, median says 0.81; repeats: 1"


def test_a_stalled_row_is_marked_in_pictures_and_its_times_are_left_out_of_figures():
    stalled = any_row("rsd_s", "4x3", speedup=6.0, block_efficiency=2.0, reason=STALLED)
    figure = pictured(frame(any_row("sd", "2", speedup=1.4), stalled))
    assert "RSD-S 4x3" in [text.get_text() for text in figure.axes[0].get_yticklabels()]
    hatched = [bar.get_width() for bar in figure.axes[0].patches if bar.get_hatch()]
    assert hatched == [6.0]
    assert figure.legends[0].get_texts()[-1].get_text() == "stalled or disturbed: decides nothing"
    rows = EXP1.copy()
    rows.loc[rows.spec == "2x2", "reason"] = STALLED
    figure = figure_of("rsd/4", rows)
    assert figure.missing == (f"times in doubt, rsd_s 2x2: {STALLED[9:-12]}",)
    (speeds,) = series_of(figure.grid[0][2], "rsd_s")
    assert points(speeds)[0] == (2.0, 1.6), "the best of those that did not stall"


def test_panels_of_one_bar_under_long_titles_have_room(tmp_path):
    files = [f"the_questions_of_my_application_{n}.jsonl" for n in range(7)]
    parts = [frame(any_row("sd", "3", speedup=1.4)).assign(data_file=each) for each in files]
    with figure_settings_applied(), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = pictured(*parts)
        save_figure(figure, tmp_path, "many", ["png"])
    titles = [plot.get_title(loc="left") for plot in figure.axes]
    assert len(titles) == 7 and all(title.count("\n") for title in titles)
    assert min(plot.get_position().height for plot in figure.axes) > 0


def test_without_speed_ups_it_shows_block_efficiency_and_without_either_nothing():
    rows = frame(row("ar"), row("sd", "3", block_efficiency=2.0, speedup=2.0)).assign(speedup=None)
    assert pictured(rows).axes[0].get_xlabel().startswith("block efficiency")
    assert sweep.draw_sweep_bars(group_rows(rows.assign(block_efficiency=None))) is None


def test_a_task_without_numbers_is_no_empty_panel_and_screened_cells_are_left_out():
    unmeasured = SPEEDS.assign(task="squad", speedup=float("nan"))
    figure = pictured(SPEEDS, SPEEDS.assign(task="dolly"), unmeasured)
    assert [plot.get_title(loc="left") for plot in figure.axes] == ["XSum", "Dolly"]
    assert len(pictured(*(SPEEDS.assign(stage=each) for each in ("screen", "confirm"))).axes) == 1


def test_a_figure_takes_the_rows_that_its_tables_take_and_names_other_temperatures():
    warm = EXP1.assign(temperature=1.0, speedup=9.0)
    both = figure_of("rsd/4", pd.concat([EXP1, warm], ignore_index=True))
    assert set(both.rows.temperature) == {0.3} and both.missing == ()
    alone = figure_of("rsd/4", warm)
    assert alone.missing == ("measured at temperature 1, which the paper has not",)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda cells: draw_panels(cells, "draft_cals", "mbsu"), "did you mean draft_calls"),
    ],
)
def test_a_mistake_in_a_papers_figures_is_one_line(drawn, said, monkeypatch):
    monkeypatch.setattr(Paper, "find_drawing_function", lambda *_: drawn)
    rows = EXP1.assign(draft_calls=2.0)
    with pytest.raises(ValueError, match=f"figure rsd/4: .*{said}"):
        draw_item_figures(get_figure("rsd/4"), rows)


def test_printed_points_are_hollow_and_panels_keep_the_papers_order_of_tasks():
    figure = figure_of("rsd/6", EXP1.assign(pair="llama2_7b"))
    faces = [line.get_markerfacecolor() for plot in figure.axes for line in plot.get_lines()]
    assert "none" in faces and any(face != "none" for face in faces)
    item = next(each for each in load_paper("beyond").figures if len(each.tasks) > 1)
    cells = [row("ar", task=task) for task in reversed(item.tasks)]
    assert list(FigureCells(item, frame(*cells)).rows().task) == list(item.tasks)


def test_a_lost_number_of_the_paper_is_drawn_as_lost_and_said_in_the_note():
    figures = draw_item_figures(get_figure("rsd/6"), NOTHING, printed_only=True)
    named = {figure.rows.pair.iloc[0]: figure for figure in figures}
    chat = named["llama2_chat_7b"]
    some, none = (chat.grid[n][0] for n in (0, 1))  # XSum lacks 12x5, WMT18 De-En 6x5 too
    assert [panel.rows.task.iloc[0] for panel in (some, none)] == ["xsum", "wmt18_deen"]
    (hollow,), (missing,) = (series_of(panel, "rsd_s") for panel in (some, none))
    assert (hollow.unreadable_x, points(hollow)[-1][0]) == ((5.0,), 5.0)
    assert (missing.unreadable_x, points(missing)[-1][0]) == ((5.0,), 4.0)
    assert not series_of(some, "sd")[0].unreadable_x
    assert "Hollow: the best of what could be read" in chat.get_supxlabel()
    marks = [
        [
            line.get_marker()
            for line in plot.lines
            if line.get_markerfacecolor() == "white" and len(line.get_xdata())
        ]
        for plot in (chat.axes[0], chat.axes[4])
    ]
    assert marks == [["D"], ["x"]]
    assert "Hollow" not in named["llama2_7b"].get_supxlabel()


def test_a_note_says_of_bars_and_bands_only_where_they_are_drawn():
    note = figure_of("rsd/4", EXP1).get_supxlabel()
    assert "Bars: 95%" in note and "Grey band" in note and "Accuracy is that of" in note
    bare = EXP1[EXP1.decoder != "ar"].drop(columns=[c for c in EXP1 if c.endswith("_low")])
    note = figure_of("rsd/4", bare).get_supxlabel()
    assert not any(said in note for said in ("Bars", "Grey band", "Accuracy", "Dashed"))
    assert "best of the decoder's trees" in note


def test_figure_1_has_the_papers_letters():
    (figure,) = draw_item_figures(get_figure("rsd/1"), grid_rows())
    assert figure.axes[0].get_ylabel() == "draft's probability p"
    assert figure.axes[0].get_xlabel() == "target's probability q"


def test_a_decoder_has_one_colour_in_all_figures():
    ours = [name for name in DRAWN if not name.startswith(("eagle", "today"))]  # own colours
    figures = [each for name in ours for each in committed_figures(name).values()]
    shown = [s for each in figures for s in all_series(*panels(each)) if "decoder" in s.rows]
    own = [
        s for s in shown if s.label.startswith(get_decoder_or_task_title(s.rows.decoder.iloc[0]))
    ]
    assert len(own) > 60
    for series in own:
        (decoder,) = series.rows.decoder.unique()
        assert series.look.colour == names.get_decoder_style(decoder).colour.light, decoder
    (rates,) = committed_figures("redrafter-batches").values()
    looks = {s.label: s.look for panel in rates.grid[0] for s in panel.drawn}
    assert (looks["AR"].colour, looks["SD 3"].colour) == ("#000000", COLOURS["blue"].light)
    same = {(look.colour, look.marker) for look in looks.values()}
    assert len(same) == len(looks), "two trees of one decoder have a marker each"


@pytest.mark.parametrize("experiment", ["redrafter-beams", "redrafter-grid"])
def test_no_legend_lies_over_a_panel(experiment):
    for figure in committed_figures(experiment).values():
        with figure_settings_applied():
            figure.draw_without_rendering()
        legends = [*figure.legends, *filter(None, (plot.get_legend() for plot in figure.axes))]
        places = [plot.bbox for plot in figure.axes]
        assert legends
        assert not any(each.get_tightbbox().overlaps(box) for each in legends for box in places)


def test_squares_of_beam_sampling_do_not_hide_each_other():
    for name, figure in committed_figures("dsbd-fronts").items():
        if "beam_sampling" not in set(figure.rows.decoder):
            continue
        with figure_settings_applied():
            for _, line, at, half in marks_of(figure):
                apart = [abs(a - b).max() for a, b in combinations(at, 2)]
                assert line.get_marker() != "s" or min(apart) > half, name
