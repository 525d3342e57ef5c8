"""ReDrafter's tables: two temperatures in one, ratios to greedy AR, sizes, what is not judged."""

import csv
import io
import json
import shutil

import pytest

from spec_bench.report.papers.pairs import drafter_size, pair_of, written
from spec_bench.report.papers.paper import find_table, recipe_cells
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import comma, latex, markdown
from tests.report.rows import frame, recorded, row, write

RULE = "exact (paper: rejection sampling, ours: exact match)"


def cell(decoder, spec, temperature, **values):
    typical = decoder.endswith("_typical")
    same = {"pair": "vicuna_7b", "task": "mt_bench", "temperature": temperature}
    mark = {"lossless": "approximate" if typical else "exact"}
    return row(decoder, spec, **{**same, **mark, **values})


def table(folder, number, pair=None):
    return build_table(find_table(f"redrafter/{number}"), Measured.below(folder), pair)


def line_of(grid, *labels):
    start = "| " + " | ".join(labels) + " |"
    return next(line for line in markdown(grid).splitlines() if line.startswith(start))


def test_a_target_with_heads_alone_is_a_pair():
    assert pair_of("Vicuna-7B", "") == "vicuna_7b"
    assert pair_of("Vicuna-13B", "") == "vicuna_13b"


def test_greedy_lines_are_temperature_0_and_typical_ones_a_warm_one(tmp_path):
    write(
        tmp_path,
        "redrafter-decoding",
        cell("redrafter", "15x5", 0.0, token_rate=(80.0, 75.0, 85.0), block_efficiency=3.5),
        cell("redrafter", "15x5", 0.7, token_rate=60.0, block_efficiency=3.0),
        cell("redrafter_typical", "15x5", 0.0, token_rate=1.0, block_efficiency=1.0),
        cell("redrafter_typical", "15x5", 0.7, token_rate=(90.0, 85.0, 95.0), speedup=2.5),
    )
    grid = table(tmp_path, 1)
    greedy = line_of(grid, "", "ReDrafter, exact match", "greedy")
    assert "| **95.16** | 80.00 [75.00, 85.00] | -15.16 | **3.41** | 3.50 | +0.09 |" in greedy
    typical = line_of(grid, "", "ReDrafter", "typical (approximate)")
    assert "| **117.12** | 90.00 [85.00, 95.00] | -27.12 |" in typical
    assert "| **3.28** | 2.50 | -0.78 | 5.87 | not judged |" in typical
    assert "| 60.00 |" in line_of(grid, "", "ReDrafter, exact match", "exact, sampled")


@pytest.mark.parametrize("render", [markdown, latex, comma])
def test_typical_rows_are_marked_and_never_best(render, tmp_path):
    write(
        tmp_path,
        "redrafter-decoding",
        cell("medusa_typical", "mc_sim_7b_63", 0.7, token_rate=(50.0, 49.0, 51.0)),
        cell("redrafter_typical", "15x5", 0.7, token_rate=(90.0, 89.0, 91.0)),
    )
    grid = table(tmp_path, 1)
    assert not grid.cells.ours_best.any()
    text = render(grid)
    if render is comma:
        marks = {r["lossless"] for r in csv.DictReader(io.StringIO(text)) if r["lossless"]}
        assert marks == {"approximate"}
    else:
        assert "typical (approximate)" in text
        assert "approximate: the output does not follow the target's distribution." in text


def test_another_tree_has_a_line_of_its_own_and_none_where_it_is_all_there_is(tmp_path):
    small = cell("medusa", "embedded_16", 0.0, pair="embedded", token_rate=50.0)
    large = cell("medusa", "mc_sim_7b_63", 0.0, pair="embedded", token_rate=40.0)
    write(tmp_path / "one", "redrafter-decoding", small)
    write(tmp_path / "both", "redrafter-decoding", small, large)

    def trees(folder):
        grid = table(folder, 1, "embedded")
        lines = [line for line, labels in grid.lines.labels.items() if labels[:2] == PLACE]
        first = grid.cells[grid.cells.line.isin(lines) & (grid.cells.column == 0)]
        return first.text[first.ours].tolist()

    assert trees(tmp_path / "one") == ["embedded_16"]
    assert trees(tmp_path / "both") == ["mc_sim_7b_63", "embedded_16"]


PLACE = ("embedded", "Medusa")


def test_a_ratio_to_greedy_ar_is_paired_by_prompt_or_has_no_interval(tmp_path):
    rows = frame(
        cell("ar", "-", 0.0, token_rate=(40.0, 38.0, 42.0), speedup=(1.0, 1.0, 1.0)),
        cell("redrafter", "15x5", 0.9, token_rate=(60.0, 54.0, 66.0), speedup=(1.2, 1.1, 1.3)),
    )
    file = tmp_path / "redrafter-temperatures" / "results.csv"
    rows = recorded(file, rows)
    write(tmp_path, "redrafter-temperatures", *rows.to_dict("records"))
    line = line_of(table(tmp_path, 2), "", RULE, "0.9")
    # The records move by 1%, one up where the other goes down, far less than either interval.
    assert "| 15x5 | 3.43 ±0.05 | 1.50 [1.47, 1.53] | -1.93 | 1.20 [1.10, 1.30] |" in line
    shutil.rmtree(tmp_path / "runs")
    line = line_of(table(tmp_path, 2), "", RULE, "0.9")
    assert "| 15x5 | 3.43 ±0.05 | 1.50 | -1.93 | 1.20 [1.10, 1.30] |" in line
    notes = table(tmp_path, 2).notes
    assert any("no interval where the records by prompt" in note for note in notes)
    assert not any("two rates: paired" in note for note in notes)
    greedy = line_of(table(tmp_path, 2), "paper's", "greedy AR", "0")
    assert "| 1.00 | 1.00 | +0.00 | 1.00 |" in greedy


def test_without_greedy_ar_there_is_no_ratio(tmp_path):
    warm = cell("redrafter", "15x5", 0.9, token_rate=60.0, speedup=1.2)
    write(tmp_path, "redrafter-temperatures", warm)
    line = line_of(table(tmp_path, 2), "", RULE, "0.9")
    assert "| 3.43 ±0.05 | not run |" in line


def test_missing_cells_name_recipe_and_temperatures(tmp_path):
    assert table(tmp_path, 1).commands[-1] == (
        "spec-bench -m redrafter=decoding pair=vicuna_7b,vicuna_13b engine=cuda "
        "task=mt_bench generation.temperature=0,0.7"
    )


def test_a_drafters_size_is_a_share_of_a_known_target_or_its_trainings():
    known = {"decoder": "medusa", "pair": "vicuna_7b", "parameter_ratio": 0.1, "draft": "x/y"}
    assert drafter_size(known) == "0.67B"  # of 6,738,415,616
    own = {"decoder": "medusa", "pair": "embedded", "draft": "embedded:heads/medusa"}
    assert drafter_size(own) == "1.87M"
    assert drafter_size({"decoder": "ar", "pair": "embedded"}) == "0"
    assert drafter_size({"decoder": "medusa", "pair": "embedded", "draft": "no/folder"}) is None


def test_heads_of_ones_own_have_their_trainings_size(tmp_path):
    (tmp_path / "training.json").write_text(json.dumps({"parameters": 250_000_000}))
    mine = {"decoder": "redrafter", "pair": "mine", "draft": str(tmp_path)}
    assert drafter_size(mine) == "0.25B"
    assert written(99_000) == "0.10M"


def test_a_recipes_cell_with_settings_is_its_decoder_and_tree():
    assert recipe_cells("redrafter=batches").count("redrafter:8x5") == 2
