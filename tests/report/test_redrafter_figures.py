"""ReDrafter's figures: which heads, which correlation, which curves, whose marks."""

import pandas as pd
import pytest

from spec_bench.report.data.recipe_rows import figure_rows
from spec_bench.report.data.rows import groups_of
from spec_bench.report.data.statistics import correlation, half_width
from spec_bench.report.figures import draw
from spec_bench.report.figures.cells import usable
from spec_bench.report.page.gather import drawings
from spec_bench.report.page.headline import headline
from spec_bench.report.papers.claim import code_of
from spec_bench.report.papers.paper import find_figure, find_item, load_paper
from spec_bench.report.tables.measured import Measured
from tests.report.drawn import points, sheet_of
from tests.report.rows import (
    MT_BENCH,
    around,
    frame,
    head,
    redrafter_batches,
    redrafter_beams,
    redrafter_grid,
    row,
)
from tests.said import naming

OWN = code_of(load_paper("redrafter").folder, "heads")


def test_each_figure_becomes_a_png_and_a_pdf(tmp_path):
    for number, rows, name in (
        ("3", redrafter_grid(tmp_path / "a"), "redrafter-fig3"),
        ("4", redrafter_grid(tmp_path / "b"), "redrafter-fig4-embedded"),
        ("5", redrafter_beams(), "redrafter-fig5-embedded"),
        ("6", redrafter_batches(), "redrafter-fig6-embedded"),
    ):
        png, pdf = draw("redrafter", number, rows, tmp_path / "figures")
        assert (png.name, pdf.name) == (f"{name}.png", f"{name}.pdf")
        assert png.read_bytes().startswith(b"\x89PNG")


def test_heads_lie_beside_the_rows_or_are_the_rows(tmp_path):
    rows = redrafter_grid(tmp_path)
    assert len(OWN.heads_of(rows)) == 9
    own = pd.DataFrame([head("medusa")])
    assert OWN.heads_of(own) is own
    assert OWN.heads_of(rows.assign(file="nowhere/results.csv")).empty


def test_of_each_kind_the_head_that_is_best_in_validation_is_shown():
    heads = pd.DataFrame([head("redrafter", "a", 0.3), head("medusa"), head("redrafter", "b", 0.6)])
    best = OWN.best_heads(heads)
    assert list(best) == ["medusa", "redrafter"]
    assert best["redrafter"]["folder"] == "b"


def test_redrafters_of_two_and_of_four_blocks_are_two_lines():
    heads = [
        {**head("redrafter", f"{n}{each}", each), "blocks": n}
        for n in (1, 2, 4)
        for each in (0.3, 0.6)
    ]
    rows = pd.DataFrame([head("medusa"), *heads])
    assert {k: h["folder"] for k, h in OWN.shown_heads(rows).items() if k != "medusa"} == {
        "redrafter_2": "20.6",
        "redrafter_4": "40.6",
    }
    training, _ = sheet_of("redrafter/3", rows).panels
    labels = [series.label.replace("\n", " ").partition(",")[0] for series in training.series]
    assert labels == ["Medusa 2 blocks", "ReDrafter 2 blocks", "ReDrafter 4 blocks"]
    assert len({series.look.colour for series in training.series}) == 3


def test_heads_are_found_beside_a_group_of_experiments_too(tmp_path):
    """As those of the embedded pair lie, ``results/embedded/redrafter-heads/heads.csv``."""
    file = tmp_path / "embedded" / "redrafter-heads" / "heads.csv"
    file.parent.mkdir(parents=True)
    pd.DataFrame([head("medusa")]).to_csv(file, index=False)
    item = find_figure("redrafter/3")
    assert list(figure_rows(item, pd.DataFrame(), tmp_path)["head"]) == ["medusa"]


def test_heads_are_shown_in_training_and_in_validation_which_alone_has_bars():
    training, validation = sheet_of("redrafter/3", pd.DataFrame([head("medusa")])).panels
    (series,) = training.series
    assert (training.title, series.label) == ("training", "Medusa\n2 blocks, 2.00M")
    assert points(series)[:2] == [("t+1", 0.65), ("t+2", 0.6)]
    assert not series.has_ends("accuracy")
    (series,) = validation.series
    value, low, high = series.points("accuracy")[0]
    assert high - value == value - low == pytest.approx(half_width(0.6, 800))


def test_half_a_shares_interval():
    assert half_width(0.5, 100) == pytest.approx(0.098)


def test_cells_and_heads_are_joined_by_the_heads_folder(tmp_path):
    rows = redrafter_grid(tmp_path)
    rows.loc[0, "draft"] = "heads/redrafter-0/"  # as a user may write it
    rows.loc[1, "draft"] = "heads/of-someone-else"
    joined = OWN.grid_of(OWN.heads_of(rows), rows)
    assert len(joined) == 7
    assert joined.iloc[0]["validation t+5"] == pytest.approx(0.45)


def test_correlation_is_pearsons_and_needs_three_heads_that_differ():
    x, y = pd.Series([0.1, 0.2, 0.3]), pd.Series([10.0, 30.0, 20.0])
    assert correlation(x, y) == pytest.approx(0.5)
    assert correlation(x[:2], y[:2]) is None
    assert correlation(x, pd.Series([10.0, 10.0, 10.0])) is None


def test_clouds_of_heads_bear_their_number_and_correlation(tmp_path):
    speeds, taus = sheet_of("redrafter/4", redrafter_grid(tmp_path)).panels
    labels = [series.label for series in speeds.series]
    assert labels == ["with recurrence (4 heads), r = 1.000", "without (4 heads), r = 1.000"]
    assert speeds.panel.y, taus.panel.y == ("token_rate", "block_efficiency")


def test_cells_of_several_heads_are_several_cells(tmp_path):
    assert len(usable(redrafter_grid(tmp_path), find_item("figure", "redrafter/4"))) == 8


def test_beams_are_ordered_by_width_and_count_their_tokens():
    rows = redrafter_beams().iloc[::-1].reset_index(drop=True)
    widths, merging = sheet_of("redrafter/5", rows).panels
    assert [series.label for series in widths.series] == ["up to 8 tokens", "up to 32 tokens"]
    assert [x for x, _ in points(widths.series[0])] == [1, 2, 4]
    (longest,) = merging.series
    assert points(longest) == [(5, 5), (10, 8), (20, 12)]
    assert set(longest.rows.max_new_tokens) == {32}
    assert longest.points("nodes_per_call_p50")[-1] == (12, 10, 16)
    assert [round(merged, 2) for merged in longest.rows["cell.merged"].dropna()] == [1.25, 1.67]


def test_curves_with_tree_attention_are_apart_from_those_without():
    (_, decoders), (_, both) = sheet_of("redrafter/6", redrafter_batches()).grid
    assert [series.label for series in decoders.series] == ["AR", "ReDrafter, exact match 8x5"]
    labels = [series.label for series in both.series]
    assert labels == [
        f"ReDrafter, exact match 8x5, {how}" for how in ("tree attention", "beams as rows")
    ]
    assert [points(series) for series in both.series] == [[(1, 50), (4, 100)], [(1, 30), (4, 60)]]


def test_a_curve_of_approximate_cells_says_so():
    rates = {"token_rate": around(50.0, 1.0), "token_rate_per_request": around(50.0, 1.0)}
    typical = [
        row("redrafter_typical", "8x5", **MT_BENCH, **rates, batch_size=size) for size in (1, 4)
    ]
    ((panel, _),) = sheet_of("redrafter/6", frame(*typical)).grid
    assert panel.series[0].label == "ReDrafter, typical 8x5 (approximate)"


def test_one_batch_size_is_no_figure(tmp_path):
    rows = redrafter_batches()
    with pytest.raises(ValueError, match=naming("redrafter/6")):
        draw("redrafter", "6", rows[rows.batch_size == 1], tmp_path)


def test_the_grids_page_has_figures_3_and_4_for_any_pair(tmp_path):
    paper = load_paper("redrafter")
    items = [item for item in paper.items if "redrafter-grid" in item.experiments]
    found = drawings(paper, items, Measured(redrafter_grid(tmp_path)))
    assert [drawing.item.number for drawing in found] == [3, 4]


def test_the_headline_is_the_exact_cell_even_where_the_approximate_one_is_faster():
    (group,) = groups_of(
        frame(
            row("ar", **MT_BENCH, speedup=around(1.0, 0.0)),
            row("redrafter", "8x5", **MT_BENCH, speedup=around(1.3, 0.1)),
            row("redrafter_typical", "8x5", **MT_BENCH, speedup=around(1.5, 0.1)),
        )
    )
    found = headline(group)
    assert (found.decoder, found.value) == ("ReDrafter, exact match 8x5", "1.30×")
    assert found.sure == "surely faster than AR, the only exact one"
