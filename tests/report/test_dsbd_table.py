"""DSBD's Table 1: percentages, settings that the paper does not print, energy without a meter."""

import csv
import io

import pytest

from spec_bench.report.papers.paper import find_table
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import comma, latex, markdown
from tests.report.rows import row, write

SAMPLED = {"temperature": 1.0, "top_k": 10, "top_p": 0.8, "pair": "llama2_13b_68m"}
NO_METER = "energy_j_per_token: no meter"


def squad(decoder, spec, **values):
    return row(decoder, spec, **{**SAMPLED, "task": "squad", "reason": NO_METER, **values})


def table(folder, pair=None):
    return build_table(find_table("dsbd/1"), Measured.below(folder), pair)


def line_of(grid, *labels):
    start = "| " + " | ".join(labels) + " |"
    return next(line for line in markdown(grid).splitlines() if line.startswith(start))


def test_all_64_printed_numbers_stand_in_the_table(tmp_path):
    grid = table(tmp_path)
    assert (grid.cells.printed != "").sum() == 64
    assert line_of(grid, "", "Llama-2-13B", "DSBD").endswith("| 86 | 1.54 | 26.67 | 8.75 |")


def test_scores_are_percentages_beside_the_papers_with_interval_and_difference(tmp_path):
    write(
        tmp_path,
        "dsbd-one-cache",
        squad("ar", "-", exact_match=(0.58, 0.48, 0.68), perplexity=(1.5, 1.25, 2.0)),
    )
    line = line_of(table(tmp_path), "SQuAD", "Llama-2-13B", "multinomial")
    assert "| - | 74 | 58.0 [48.0, 68.0] | -16.0 | 1.82 | 1.500 [1.250, 2.000] | -0.320 |" in line


def test_energy_without_a_meter_says_so_and_with_one_is_a_number(tmp_path):
    metered = squad("sd", "3", reason="", energy_j_per_token=(8.0, 7.5, 8.5))
    write(tmp_path, "dsbd-one-cache", squad("ar", "-"), metered)
    grid = table(tmp_path)
    assert "| 12.36 | no meter |" in line_of(grid, "SQuAD", "Llama-2-13B", "multinomial")
    energy = "| 8.34 | 8.000 [7.500, 8.500] | -0.340 |"
    assert energy in line_of(grid, "", "Llama-2-13B", "SD")
    assert any("energy=nvml" in note for note in grid.notes)


def test_the_recipes_setting_is_shown_and_else_the_first_one_measured(tmp_path):
    other = squad("dsbd_one_cache", "6x2@0.7", token_rate=20.0)
    own = squad("dsbd_one_cache", "4x3@0.9", token_rate=25.0)
    write(tmp_path / "a", "dsbd-one-cache", other)
    write(tmp_path / "b", "dsbd-one-cache", other, own)
    assert "| 6x2@0.7 |" in line_of(table(tmp_path / "a"), "", "Llama-2-13B", "DSBD (beam law)")
    shown = line_of(table(tmp_path / "b"), "", "Llama-2-13B", "DSBD (beam law)")
    assert "| 4x3@0.9 |" in shown
    assert "| 26.67 | 25.00 | -1.67 |" in shown


def test_what_the_paper_does_not_state_is_called_ours(tmp_path):
    notes = " ".join(table(tmp_path).notes)
    assert "neither the depth of SD, the tree of SpecInfer, nor W_S" in notes


def test_rows_sampled_in_another_way_are_no_part_of_it(tmp_path):
    write(tmp_path, "dsbd-one-cache", squad("ar", "-", top_k=0, top_p=1.0, exact_match=0.5))
    assert not table(tmp_path).measured


def test_missing_cells_name_the_recipe(tmp_path):
    write(tmp_path, "dsbd-one-cache", squad("ar", "-", exact_match=0.5))
    grid = table(tmp_path)
    assert "| 27.11 | not run |" in line_of(grid, "", "Llama-2-13B", "SD")
    assert grid.commands == (
        "spec-bench -m dsbd=one_cache pair=llama2_13b_68m,opt_13b engine=cuda task=squad,spider",
    )


def test_another_pair_has_lines_of_its_own(tmp_path):
    cell = squad("ar", "-", pair="embedded", task="spider", execution_accuracy=0.96)
    write(tmp_path, "dsbd-one-cache", cell)
    grid = table(tmp_path, "embedded")
    assert len(grid.lines) == 16 + 8
    assert "|  | 96.0 |" in line_of(grid, "Spider", "embedded", "multinomial")


@pytest.mark.parametrize("render", [markdown, latex, comma])
def test_beam_rows_are_marked_in_every_format(render, tmp_path):
    beams = squad("dsbd_one_cache", "4x3@0.9", lossless="exact_beam", token_rate=25.0)
    write(tmp_path, "dsbd-one-cache", beams, squad("sd", "3", token_rate=26.0))
    text = render(table(tmp_path))
    if render is comma:
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [r["lossless"] for r in rows[:4]] == ["", "exact", "", "exact_beam"]
    else:
        assert "DSBD (beam law)" in text
        assert "beam law: exact for the law of beam decoding" in text
        assert "SD (beam law)" not in text
