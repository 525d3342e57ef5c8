"""Any frame of rows is drawn from Python: bars, lines along a setting, points."""

import matplotlib
import pandas as pd
import pytest
from matplotlib.backends import backend_agg
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure

import spec_bench
from spec_bench.api.jobs import select_columns
from spec_bench.report.data.rows import read_results_file
from spec_bench.report.figures import style
from spec_bench.system.files import get_data_folder
from tests.said import naming, one_line

EXP2 = read_results_file(get_data_folder("results") / "embedded/rsd-exp2/results.csv")
XSUM = EXP2.query("task == 'xsum' and decoder != 'ar'")
OWN = pd.DataFrame(
    {
        "decoder": ["ar", "sd", "sd", "rsd_s"],
        "spec": ["-", 3, 5, "3x2"],
        "block_efficiency": [1.0, 2.0, 2.5, 2.25],
    }
)
ENDS = {"block_efficiency_low": [1, 1.5, 2, 2], "block_efficiency_high": [1, 2.5, 3, 2.5]}


def drawn(rows, *columns, **words):
    """What a panel's lines show: the name in the legend -> its points."""
    plot = spec_bench.plot(rows, *columns, ax=Figure().subplots(), **words)
    handles, labels = plot.get_legend_handles_labels()
    points = [handle.lines[0].get_xydata() for handle in handles]
    return dict(zip(labels, ([(*map(float, xy),) for xy in each] for each in points), strict=True))


def test_rows_without_columns_named_are_the_reports_bars_the_fastest_on_top():
    rows = select_columns(XSUM, "main")
    assert "draft" not in rows
    figure = spec_bench.plot(rows)
    (plot,) = figure.axes
    widths = [bar.get_width() for bar in sorted(plot.patches, key=lambda bar: bar.get_y())]
    assert widths == pytest.approx(sorted(rows.speedup)[-30:])
    families = [text.get_text() for text in figure.legends[0].get_texts()]
    assert families == ["draft model, one path", "draft model, tree"]
    assert "95% intervals" in figure.get_suptitle()


def test_a_metric_goes_along_the_nodes_of_the_trees_of_each_decoder():
    points = drawn(OWN, "nodes")
    # Decoders stand side by side, a hundredth of the axis apart.
    assert points["SD"] == [(pytest.approx(3, abs=0.1), 2.0), (pytest.approx(5, abs=0.1), 2.5)]
    assert points["RSD-S"] == [(pytest.approx(6, abs=0.1), 2.25)]
    figure = spec_bench.plot(OWN.assign(**ENDS), "nodes")
    assert [plot.get_ylabel() for plot in figure.axes] == ["block efficiency (tokens/call)"]
    assert figure.axes[0].get_xlabel() == "nodes" and "95% interval" in figure.get_supxlabel()


def test_a_figure_without_intervals_does_not_speak_of_any():
    assert "interval" not in spec_bench.plot(OWN, "nodes").get_supxlabel()


def test_along_a_setting_each_tree_has_a_line_and_each_other_setting_a_panel():
    warm = [OWN.assign(temperature=t, block_efficiency=OWN.block_efficiency - t) for t in (0, 0.5)]
    rows = pd.concat(warm)
    points = drawn(rows, "temperature")
    assert [y for _, y in points["SD 3"]] == [2.0, 1.5] and len(points["RSD-S 3x2"]) == 2
    several = pd.concat([rows.assign(batch_size=size) for size in (1, 8)])
    titles = [plot.get_title() for plot in spec_bench.plot(several, "temperature").axes]
    assert titles == ["batch size 1", "batch size 8"]


def test_two_measured_columns_are_points_with_their_trees():
    rows = OWN.assign(**ENDS, mbsu=OWN.block_efficiency / 2)
    figure = spec_bench.plot(rows, "block_efficiency", "mbsu")
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert texts == {"3", "5", "3x2"}
    assert drawn(rows, "block_efficiency", "mbsu")["SD"] == [(2.0, 1.0), (2.5, 1.25)]


def test_best_draws_the_best_tree_of_each_budget():
    points = drawn(XSUM, "nodes", mark="line", best="y")["RSD-S"]
    best = XSUM.query("decoder == 'rsd_s'").block_efficiency.max()
    assert len(points) == 5 and max(y for _, y in points) == best


def test_axes_of_ones_own_take_a_single_panel_and_are_returned():
    own = Figure().subplots()
    assert spec_bench.plot(XSUM, ax=own) is own
    with one_line(naming("ax", "XSum", "Dolly")):
        spec_bench.plot(EXP2, "nodes", ax=Figure().subplots())


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (("nodez",), ("'nodez'", "did you mean nodes", "block_efficiency")),
        (("nodes", "speedup"), ("'speedup'", "block_efficiency")),
        (("nodes", "empty"), ("'empty'", "block_efficiency")),
    ],
)
def test_a_column_that_is_missing_or_empty_is_a_line_with_those_that_are_there(columns, named):
    with one_line(naming(*named)):
        spec_bench.plot(OWN.assign(empty=None), *columns)
    with one_line(naming("decoder", "block_efficiency")):
        spec_bench.plot(OWN.drop(columns="decoder"), *columns)


def test_a_notebook_shows_the_figure_and_its_backend_stays():
    backend = matplotlib.get_backend()
    figure = spec_bench.plot(OWN)
    assert figure._repr_png_().startswith(b"\x89PNG") and matplotlib.get_backend() == backend


def test_disturbed_rows_are_one_note_and_none_where_no_time_is_drawn():
    busy = XSUM.assign(reason=[f"speedup: disturbed: waited {n}%" for n in range(len(XSUM))])
    assert "isturbed" not in spec_bench.plot(busy, "nodes", mark="line", best="y").get_supxlabel()
    note = spec_bench.plot(busy, "nodes", "token_rate").get_supxlabel()
    assert note.count("rows are") == 1 and f"{len(XSUM)} rows are disturbed" in note


def test_a_budget_is_the_nodes_of_a_tree():
    with pytest.raises(ValueError, match="did you mean nodes"):
        spec_bench.plot(OWN, "budget")


def test_what_lays_a_figure_out_draws_it_and_measures_each_text_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        backend_agg, "RendererAgg", lambda *size: made.append(size) or RendererAgg(*size)
    )
    figure = style.ReportFigure((1, 1), layout="constrained")
    figure.subplots()
    style.save_figure(figure, tmp_path, "one", ("png",))
    assert made == [(200.0, 200.0, 200)]


def test_a_notes_lines_end_where_matplotlib_ends_them_and_saving_leaves_the_note(tmp_path):
    figure = style.ReportFigure((4, 2), layout="constrained")
    figure.subplots()
    said = (
        "Bars: 95% intervals over prompts. A sentence that is longer than a line is.\nShort. " * 6
    )
    note = figure.supxlabel(said, fontsize=6.5, x=0.1, ha="left", wrap=True)
    style.save_figure(figure, tmp_path, "one", ("png", "pdf"))
    assert note.get_text() == said and note.get_wrap()
    lines = style.wrap_note(figure, note, said).split("\n")
    assert len(lines) > 6 and lines == note._get_wrapped_text().split("\n")
