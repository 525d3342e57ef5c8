"""ReDrafter's figures: which heads, which correlation, which curves, whose marks."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from spec_bench.report.beams import head_beams
from spec_bench.report.figures import draw
from spec_bench.report.figures.accuracy_speed import correlation
from spec_bench.report.figures.batch_sizes import attention_curves, decoder_curves
from spec_bench.report.figures.choose import usable
from spec_bench.report.figures.head_accuracy import half_width
from spec_bench.report.figures.head_beams import with_width
from spec_bench.report.heads import best_heads, grid_of, heads_of
from spec_bench.report.load import groups_of
from spec_bench.report.page.headline import headline
from spec_bench.report.page.pictures import drawings
from spec_bench.report.papers.index import find_item, load_paper
from spec_bench.report.papers.measured import Measured
from tests.report.frames import frame
from tests.report.redrafter_rows import around, batches, beams, cell, grid, head


def test_each_figure_becomes_a_png_and_a_pdf(tmp_path: Path) -> None:
    for number, rows, name in (
        ("3", grid(tmp_path / "a"), "redrafter-fig3"),
        ("4", grid(tmp_path / "b"), "redrafter-fig4-embedded"),
        ("5", beams(), "redrafter-fig5-embedded"),
        ("6", batches(), "redrafter-fig6-embedded"),
    ):
        png, pdf = draw("redrafter", number, rows, tmp_path / "figures")
        assert (png.name, pdf.name) == (f"{name}.png", f"{name}.pdf")
        assert png.read_bytes().startswith(b"\x89PNG")


def test_heads_lie_beside_the_rows_or_are_the_rows(tmp_path: Path) -> None:
    rows = grid(tmp_path)
    assert len(heads_of(rows)) == 9
    own = pd.DataFrame([head("medusa")])
    assert heads_of(own) is own
    assert heads_of(rows.assign(file="nowhere/results.csv")).empty


def test_of_each_kind_the_head_that_is_best_in_validation_is_shown() -> None:
    heads = pd.DataFrame([head("redrafter", "a", 0.3), head("medusa"), head("redrafter", "b", 0.6)])
    best = best_heads(heads)
    assert list(best) == ["medusa", "redrafter"]
    assert best["redrafter"]["folder"] == "b"


def test_half_a_shares_interval() -> None:
    assert half_width(0.5, 100) == pytest.approx(0.098)


def test_cells_and_heads_are_joined_by_the_heads_folder(tmp_path: Path) -> None:
    rows = grid(tmp_path)
    rows.loc[0, "draft"] = "heads/redrafter-0/"  # as a user may write it
    rows.loc[1, "draft"] = "heads/of-someone-else"
    joined = grid_of(heads_of(rows), rows)
    assert len(joined) == 7
    assert joined.iloc[0]["validation t+5"] == pytest.approx(0.45)


def test_correlation_is_pearsons_and_needs_three_heads() -> None:
    heads = pd.DataFrame({"validation t+5": [0.1, 0.2, 0.3], "token_rate": [10.0, 30.0, 20.0]})
    assert correlation(heads, "token_rate") == pytest.approx(0.5)
    assert correlation(heads.head(2), "token_rate") is None
    assert correlation(heads.assign(token_rate=10.0), "token_rate") is None


def test_cells_of_several_heads_are_several_cells(tmp_path: Path) -> None:
    assert len(usable(grid(tmp_path), find_item("figure", "redrafter/4"))) == 8


def test_beams_are_ordered_by_width_and_count_their_tokens() -> None:
    rows = with_width(beams().iloc[::-1])
    assert list(rows.width) == [1, 1, 2, 2, 4, 4]
    assert list(rows.tokens) == [5, 5, 10, 10, 20, 20]
    assert head_beams("15x5") == (15, 5)
    with pytest.raises(ValueError, match=r"no beams '4-4'.*8x5"):
        head_beams("4-4")


def test_curves_with_tree_attention_are_apart_from_those_without() -> None:
    assert list(decoder_curves(batches())) == ["AR", "ReDrafter 8x5"]
    both = attention_curves(batches())
    assert list(both) == ["ReDrafter 8x5, tree attention", "ReDrafter 8x5, beams as rows"]
    assert [list(part.token_rate) for part in both.values()] == [[50.0, 100.0], [30.0, 60.0]]


def test_a_curve_of_approximate_cells_says_so() -> None:
    typical = [
        cell("redrafter-batches", "redrafter_typical", "8x5", batch_size=size) for size in (1, 4)
    ]
    (name,) = decoder_curves(frame(*typical))
    assert name.endswith("8x5 (approximate)")


def test_one_batch_size_is_no_figure(tmp_path: Path) -> None:
    rows = batches()
    with pytest.raises(ValueError, match=r"nothing measured for figure redrafter/6"):
        draw("redrafter", "6", rows[rows.batch_size == 1], tmp_path)


def test_the_grids_page_has_figures_3_and_4_for_any_pair(tmp_path: Path) -> None:
    paper = load_paper("redrafter")
    items = [item for item in paper.items if "redrafter-grid" in item.experiments]
    found = drawings(paper, items, Measured(grid(tmp_path)))
    assert [drawing.item.number for drawing in found] == [3, 4]


def test_the_headline_is_the_exact_cell_even_where_the_approximate_one_is_faster() -> None:
    (group,) = groups_of(
        frame(
            cell("redrafter-temperatures", "ar", speedup=around(1.0, 0.0)),
            cell("redrafter-temperatures", "redrafter", "8x5", speedup=around(1.1, 0.1)),
            cell("redrafter-temperatures", "redrafter_typical", "8x5", speedup=around(1.5, 0.1)),
        )
    )
    found = headline(group)
    assert found is not None
    assert (found.decoder, found.value) == ("ReDrafter 8x5", "1.10×")
    assert found.sure == "the only exact one"
