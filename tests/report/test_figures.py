"""The papers' figures: what is plotted, which rows are chosen, and what files come out."""

import pandas as pd
import pytest

from spec_bench.report.data.statistics import error_bars
from spec_bench.report.figures import draw, drawable, figure_sheets
from spec_bench.report.figures.cells import (
    pairs_of,
    paper_pairs_first,
    printed_cells,
    shows_other_pairs,
    usable,
)  # fmt: skip
from spec_bench.report.figures.draw import draw_sheet
from spec_bench.report.figures.style import pyplot
from spec_bench.report.figures.texts import marks
from spec_bench.report.papers.claim import code_of
from spec_bench.report.papers.paper import find_figure, load_paper
from spec_bench.vocabulary.names import title
from tests.report.drawn import points, series_of, sheet_of
from tests.report.rows import EMBEDDED, frame
from tests.report.rows import row as any_row
from tests.said import naming


def row(decoder, spec="-", **values):
    return any_row(decoder, spec, half=0.1, **{**EMBEDDED, **values})


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
FIG4, FIG5 = find_figure("rsd/4"), find_figure("rsd/5")


def test_the_best_tree_is_picked_panel_by_panel():
    (taus, _, speeds, _) = sheet_of("rsd/4", EXP1).grid[0]
    (best,) = series_of(taus, decoder="rsd_s")
    assert points(best) == [(2, 2.4), (3, 2.7)]
    assert list(best.rows.spec) == ["3x2", "4x3"]
    (best,) = series_of(speeds, decoder="rsd_s")
    assert points(best) == [(2, 1.7), (3, 1.4)]


def test_accuracy_is_that_of_the_best_block_efficiency_and_not_the_luckiest():
    (best,) = series_of(sheet_of("rsd/4", EXP1).grid[0][3], decoder="rsd_s")
    assert points(best) == [(2, 1.0), (3, 1.0)]


def test_accuracy_is_relative_to_the_baseline_with_its_interval():
    panel = sheet_of("rsd/4", EXP1).grid[0][3]
    (series,) = series_of(panel, decoder="sd")
    assert series.points("cell.score") == [pytest.approx((0.8, 0.6, 1.0))]
    assert panel.band == pytest.approx((0.8, 1.2))


def test_without_a_baseline_there_is_no_accuracy():
    taus, _, _, panel = sheet_of("rsd/4", EXP1[EXP1.decoder != "ar"]).grid[0]
    assert taus.series
    assert not panel.series
    assert panel.band is None
    assert panel.panel.empty == "no score"


def test_a_tree_belongs_to_the_experiment_that_lists_it():
    axes = load_paper("rsd").axes
    lengths, budgets = axes["draft_length"], axes["target_budget"]
    assert lengths["rsd_c", "2-2"] == 2
    assert budgets["rsd_c", "2-2"] == 6
    assert budgets["sd", "30"] == 30
    assert budgets["spectr", "7x3"] == 21
    assert ("spectr", "7x3") not in lengths
    assert len(lengths) == 32
    assert len(budgets) == 40


def test_the_papers_points_are_those_of_its_table():
    rows = printed_cells("rsd", ["llama2_7b", "embedded"])
    assert set(rows.pair) == {"llama2_7b"}
    of_two = rows["paper.draft_length"] == 2
    own = rows[(rows.task == "xsum") & (rows.decoder == "spectr") & of_two]
    assert own.speedup.max() == pytest.approx(53.346 / 37.269)
    rows = printed_cells("mcsd", ["llama_13b_68m"])
    own = rows[(rows.task == "alpaca") & (rows.temperature == 0) & (rows.spec == "4")]
    assert list(own.acceptance_rate) == [0.88]


def test_the_papers_numbers_stand_beside_cells_that_were_sampled_as_the_papers():
    sheet = sheet_of("rsd/6", EXP1.assign(pair="llama2_7b"))
    assert sheet.printed
    (theirs,) = series_of(sheet.panels[2], decoder="spectr")
    assert theirs.layer.printed
    assert points(theirs)[0] == (2, round(53.346 / 37.269, 6))
    assert not sheet_of("rsd/6", EXP1.assign(pair="llama2_7b", temperature=0.5)).printed
    assert not sheet_of("rsd/6", EXP1).printed


def test_a_figure_shows_its_own_pairs_or_else_all():
    assert pairs_of(FIG4) == ["llama2_70b", "llama2_chat_70b"]
    both = pd.concat([EXP1, EXP1.assign(pair="llama2_70b")])
    assert set(paper_pairs_first(both, pairs_of(FIG4)).pair) == {"llama2_70b"}
    assert set(paper_pairs_first(EXP1, pairs_of(FIG4)).pair) == {"embedded"}


def test_a_cell_measured_twice_is_shown_once_and_from_its_own_experiment_alone():
    rows = pd.concat(
        [
            frame(row("sd", "6", prompts=90)).assign(experiment="quickstart"),
            frame(row("sd", "6", prompts=30)).assign(experiment="rsd-exp2"),
            frame(row("sd", "6", prompts=20)).assign(experiment="rsd-exp2"),
            frame(row("sd", "10", prompts=20)).assign(experiment="quickstart"),
            frame(row("sd", "10", prompts=50, task="dolly")).assign(experiment="quickstart"),
        ],
        ignore_index=True,
    )
    shown = usable(rows, FIG5)
    assert list(zip(shown.task, shown.prompts, strict=True)) == [("xsum", 30)]
    alone = usable(rows[rows.experiment == "quickstart"], FIG5)
    assert list(zip(alone.spec, alone.prompts, strict=True)) == [("6", 90), ("10", 20), ("10", 50)]


def test_failed_cells_and_paths_as_rows_are_not_shown():
    rows = frame(
        row("sd", "2"), row("sd", "3", status="failed"), row("rsd_c", "2-2", tree_attention=False)
    )
    assert list(usable(rows, FIG4).spec) == ["2"]
    older = frame(row("sd", "2")).drop(columns="tree_attention")
    assert len(usable(older, FIG4)) == 1


def test_alpha_curves_have_one_level_trees_in_the_order_of_k():
    ((panel,),) = sheet_of("mcsd/3", MCSD).grid
    (series,) = panel.series
    assert points(series) == [(1, 0.7), (4, 0.7)]
    assert panel.title == "XSum, temperature 0.3"


def test_configurations_of_two_levels_have_an_order_and_a_budget():
    ((panel,),) = sheet_of("mcsd/4", MCSD).grid
    found = [(each.rows.spec.iloc[0], each.label, each.shape) for each in panel.series]
    assert found == [
        ("4-2", "decreasing widths", "8 paths"),
        ("2-2", "equal widths", "4 paths"),
        ("2-4", "increasing widths", "8 paths"),
    ]
    looks = [each.look for each in panel.series]
    assert len({look.colour for look in looks}) == 3
    assert looks[0].marker == looks[2].marker != looks[1].marker


def test_error_bars_are_lengths_and_nothing_where_an_end_is_unknown():
    nan = float("nan")
    lengths = error_bars([(2.0, 1.5, 2.25), (1.0, nan, nan)])
    assert lengths == [[0.5, 0.0], [0.25, 0.0]]


def test_rows_that_are_not_exact_are_marked():
    rows = frame(row("ar"), row("sd", "2", lossless="simulated"))
    assert marks(rows) == " (simulated)"
    assert marks(EXP1) == ""


def test_another_engines_row_among_ours_is_named_in_the_title():
    theirs, ours = row("hf_generate", lossless="unaudited"), row("sd", "2")
    assert marks(frame(row("ar"), theirs)) == " (another engine)"
    name = title("hf_generate")
    assert marks(frame(row("ar"), theirs, ours)) == f" ({name}: another engine)"


def test_a_heat_map_has_p_down_and_q_across():
    rows = frame({"p": 1.0, "q": 0.0, "otm": 0.1}, {"p": 0.0, "q": 0.0, "otm": 1.0})
    square = code_of(load_paper("rsd").folder, "figures").square
    assert square(rows, "otm").to_numpy().tolist() == [[1.0], [0.1]]


def grid_rows():
    rules = {"multi_round": 0.5, "k_seq": 0.6, "otm": 0.7, "recursive_rejection": 1.0}
    steps = (0.0, 0.5, 1.0)
    return frame(*({"p": p, "q": q, **rules, "otm": 1 - p * q} for p in steps for q in steps))


DRAWN = [
    ("rsd", "1", grid_rows(), "rsd-fig1"),
    ("rsd", "4", EXP1, "rsd-fig4-embedded"),
]


@pytest.mark.parametrize(("paper", "figure", "rows", "name"), DRAWN)
def test_a_figure_becomes_a_png_and_a_pdf(paper, figure, rows, name, tmp_path):
    png, pdf = draw(paper, figure, rows, tmp_path / "new")
    assert [path.name for path in (png, pdf)] == [f"{name}.png", f"{name}.pdf"]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")


def test_a_figure_of_several_pairs_is_a_file_each_or_one_that_shows_them_together(tmp_path):
    def both(rows):
        return pd.concat([rows, rows.assign(pair="other")], ignore_index=True)

    apart = draw("rsd", "4", both(EXP1), tmp_path, formats=["png"])
    assert [path.stem for path in apart] == ["rsd-fig4-embedded", "rsd-fig4-other"]
    together = draw("mcsd", "3", both(MCSD), tmp_path, formats=["png"])
    assert [path.stem for path in together] == ["mcsd-fig3"]


def test_a_pair_can_be_asked_for(tmp_path):
    both = pd.concat([EXP1, EXP1.assign(pair="llama2_70b")])
    paths = draw("rsd", "4", both, tmp_path, pair="embedded")
    assert {path.stem for path in paths} == {"rsd-fig4-embedded"}


@pytest.mark.parametrize(
    ("paper", "figure", "message"),
    [
        ("rsd", "3", "'3'.* 1, 4, 5, 6, 7, 8, 9"),
        ("mcsd", "1", "'1'.* 3, 4, 5"),
        ("nothing", "1", "'nothing'.* beyond, dsbd, eagle, mcsd, redrafter, rsd, today"),
        ("rsd", "5", "nothing measured for figure rsd/5; to measure it: .*rsd=exp2"),
        ("rsd", "1", "nothing measured for figure rsd/1; .*spec_bench.audit.bernoulli"),
        ("mcsd", "3", "nothing measured for figure mcsd/3; .*mcsd=acceptance"),
        ("mcsd", "4", "nothing measured for figure mcsd/4; .*mcsd=search"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_line(paper, figure, message, tmp_path):
    length_only = EXP1[EXP1.spec.isin(["-", "3x2", "4x3"])]
    with pytest.raises(ValueError, match=message):
        draw(paper, figure, length_only, tmp_path)
    with pytest.raises(ValueError, match=r"no figure|nothing measured"):
        draw(paper, figure, pd.DataFrame(), tmp_path)


def test_a_pair_without_rows_is_an_error_that_names_those_measured(tmp_path):
    with pytest.raises(ValueError, match=naming("'opt_13b'", "embedded")):
        draw("rsd", "4", EXP1, tmp_path, pair="opt_13b")


@pytest.mark.parametrize("paper", ["dsbd", "mcsd", "redrafter", "rsd"])
def test_every_figure_of_a_paper_is_drawn(paper):
    figures = [str(item.number) for item in load_paper(paper).of_kind("figure")]
    assert list(drawable(paper)) == figures


def test_a_figure_says_on_how_many_prompts_each_cell_was_measured():
    alike = draw_sheet(sheet_of("rsd/4", EXP1))
    assert alike.get_supxlabel().endswith(" 8 prompts a cell.")
    some = draw_sheet(sheet_of("rsd/4", EXP1.assign(prompts=[8, 8, 12, 12, 12])))
    assert some.get_supxlabel().endswith(" 8 to 12 prompts a cell.")
    pyplot.close("all")


NOTHING = pd.DataFrame()
OURS = frame(
    *(row("mcsd_wor", k, task="alpaca", temperature=1.0, acceptance_rate=0.5) for k in ("1", "4"))
)


def test_printed_numbers_are_drawn_alone_and_the_heading_says_so():
    sheets = figure_sheets(find_figure("rsd/7"), NOTHING, alone=True)
    assert len(sheets) == 6  # OPT 13B, 30B and 66B with either draft
    assert {sheet.setting for sheet in sheets} == {"paper's numbers alone"}
    first = next(sheet for sheet in sheets if sheet.text("{pair}") == "opt_13b")
    (series,) = series_of(first.grid[0][0], decoder="rsd_s")
    of_table = [
        (float(n["axis_value"]), float(n["value"]))
        for n in load_paper("rsd").numbers_of(16)
        if n["decoder"] == "rsd_s" and n["metric"] == "block_efficiency" and n["value"]
    ]
    best = {place: max(v for p, v in of_table if p == place) for place, _ in of_table}
    assert first.grid[0][0].rows.task.iloc[0] == load_paper("rsd").numbers_of(16)[0]["task"]
    assert dict(points(series)) == best
    assert not any(each.layer.printed for panel in first.panels for each in panel.series)


def test_a_figure_of_other_pairs_is_drawn_once_and_not_under_each_number(tmp_path):
    """Figure 5 of LLaMA-160M used to come out as Figure 3 of whatever was measured."""
    (theirs,) = draw("mcsd", "5", OURS, tmp_path, formats=("png",), alone=True)
    assert theirs.name == "mcsd-fig5-paper-s-numbers-alone.png"
    (asked,) = draw("mcsd", "5", OURS, tmp_path, pair="embedded", formats=("png",), alone=True)
    assert asked.name == "mcsd-fig5-embedded.png"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("rsd/4", True), ("rsd/7", False), ("rsd/5", True), ("rsd/8", False), ("mcsd/5", False),
     ("dsbd/6", True), ("dsbd/5", False), ("redrafter/3", True), ("rsd/1", True)],
)  # fmt: skip
def test_which_figures_are_for_pairs_that_they_do_not_have(name, shown):
    assert shows_other_pairs(find_figure(name)) is shown


def test_what_the_paper_prints_nowhere_is_not_drawn(tmp_path):
    with pytest.raises(ValueError, match="nothing measured for figure dsbd/4"):
        draw("dsbd", "4", NOTHING, tmp_path, alone=True)
    with pytest.raises(ValueError, match="nothing measured for figure rsd/7"):
        draw("rsd", "7", NOTHING, tmp_path)
