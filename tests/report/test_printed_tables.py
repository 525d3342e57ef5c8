"""Without any measurement the papers' tables are printed again, number for number."""

import csv
import io

import pytest

from spec_bench.report.data.rows import read_rows
from spec_bench.report.papers.paper import (
    find_table,
    load_paper,
    paper_names,
    read_recipe,
    recipe_cells,
)
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import comma, markdown
from spec_bench.vocabulary.published import side_by_side

NOTHING = Measured(read_rows([]))


def printed(name):
    return build_table(find_table(name), NOTHING)


@pytest.mark.parametrize("number", range(1, 55))
def test_every_rsd_table_prints_the_reference_value_for_value(number):
    rows = side_by_side(load_paper("rsd").numbers_of(number))
    grid = printed(f"rsd/{number}")
    assert len(grid.lines) == len(rows) == (33 if number < 28 else 41)
    for (line, labels), row in zip(grid.lines.labels.items(), rows, strict=True):
        assert labels[0] == row["axis_value"]
        assert labels[2] == row["spec"]
        score = {"xsum": ["rouge2"], "wmt18_deen": ["bleu"], "dolly": []}[row["task"]]
        metrics = ["block_efficiency", "mbsu", "token_rate", *score]
        printed_here = grid.cells.printed[grid.cells.line == line].tolist()
        assert printed_here == [row[metric] for metric in metrics]
        names = [column.name for column in grid.columns]
        assert names == [name if name not in score else "accuracy" for name in metrics]


def test_the_113_cells_that_were_lost_say_so():
    lost = {
        (str(number), grid.lines.labels[cell.line][2], cell.number)
        for number in range(1, 55)
        for grid in [printed(f"rsd/{number}")]
        for cell in grid.cells[grid.cells.lost].itertuples()
    }
    gaps = [number for number in load_paper("rsd").numbers if number["reason"]]
    assert len(lost) == len(gaps) == 113
    assert lost == {(gap["table"], gap["spec"], gap["metric"]) for gap in gaps}


def test_a_lost_cell_is_explained_and_its_twin_named():
    text = markdown(printed("rsd/8"))
    assert "| RSD-S | 6x5 | lost | lost | lost | lost |" in text
    assert "no line for RSD-S 6x5. Its twin table prints" in text
    assert "block efficiency 2.335 (Table 35)" in text
    assert "35.575 and 36.278 belong to" in markdown(printed("rsd/4"))


def test_the_best_of_a_block_and_column_is_bold():
    text = markdown(printed("rsd/1"))
    assert "| SD | 2 | 2.166 | 2.093 | 51.515 | 0.143 |" in text
    assert "| RSD-S | 3x2 | **2.432** | **2.350** | 55.465 | 0.140 |" in text
    assert "| RSD-C | 2-2 | 2.398 | 2.317 | **56.609** | 0.143 |" in text
    assert "| 0 | AR | - | 1.000 | 1.000 | 37.269 | 0.141 |" in text


@pytest.mark.parametrize("number", range(1, 8))
def test_every_mcsd_number_stands_in_its_table(number):
    rows = load_paper("mcsd").numbers_of(number)
    cells = printed(f"mcsd/{number}").cells
    numbers = cells.printed[(cells.printed != "") & (cells.number != "tree")]
    assert sorted(numbers) == sorted(row["value"] for row in rows)


def test_mcsd_table_2_has_the_papers_layout():
    text = markdown(printed("mcsd/2"))
    assert "| Alpaca | AR |  |  | 1 | 1 |  | 1 | 1 |" in text
    assert (
        "|  | MCSD | 0 | 4x2x2x1x1 | **3.06** | **3.93** | 8x2x1x1 | **2.06** | **2.56** |" in text
    )


def test_mcsd_table_7_marks_what_fine_tuning_improves():
    text = markdown(printed("mcsd/7"))
    assert "| LLaMA-68M | LLaMA-13B | 0 | 0.76 | 0.88 | 0.12 | 0.55 | 0.68 | 0.13 |" in text
    rates = "0.75 | <u>0.90</u> | **0.14** | <u>0.56</u> | <u>0.69</u> | 0.13"
    assert f"| Vicuna-68M | LLaMA-13B | 0 | {rates} |" in text
    assert text.count("<u>") == 36  # the paper's 35 and the one that the note names
    assert text.count("**") == 2 * 18


@pytest.mark.parametrize(("name", "count"), [("redrafter/1", 50), ("redrafter/2", 22)])
def test_all_of_redrafters_printed_numbers_stand_in_its_tables(name, count):
    grid = printed(name)
    assert (grid.cells.printed != "").sum() == count


def test_a_papers_own_plus_minus_is_kept():
    assert (
        "| exact (paper: rejection sampling, ours: exact match) | 0.1 | 2.58 ±0.06 | 1.00 ±0.02 |"
        in markdown(printed("redrafter/2"))
    )


def test_an_unmeasured_table_ends_with_the_command_that_runs_it():
    assert printed("rsd/2").commands == (
        "spec-bench rsd=exp1 pair=llama2_7b engine=cuda task=wmt18_deen",
    )
    assert printed("mcsd/2").commands == (
        "spec-bench -m mcsd=search pair=llama_33b_68m,vicuna_33b_68m engine=cuda "
        "task=alpaca,wmt14_ende generation.temperature=0,1",
    )


def test_a_stand_in_for_an_unpublished_draft_is_named():
    assert any("in place of the paper's draft" in note for note in printed("rsd/7").notes)


def test_every_pair_of_the_papers_that_have_recipes_has_a_config():
    for paper in ("rsd", "mcsd", "dsbd"):
        for item in load_paper(paper).of_kind("table"):
            sheet = printed(item.name)
            asking = {*zip(sheet.asked.line, sheet.asked.column, strict=True)}
            for line, column in zip(sheet.cells.line, sheet.cells.column, strict=True):
                assert sheet.lines.extra[line] or (line, column) in asking, (item.name, line)


def test_every_recipe_that_is_named_exists():
    for paper in paper_names():
        for item in load_paper(paper).items:
            assert len(item.experiments) == len(item.recipes)


def test_csv_has_a_line_for_every_line():
    rows = list(csv.DictReader(io.StringIO(comma(printed("rsd/7")))))
    assert len(rows) == 33
    assert rows[1]["block_efficiency_paper"] == load_paper("rsd").numbers_of(7)[4]["value"]
    assert rows[-1]["token_rate_paper"] == "lost"


@pytest.mark.parametrize(
    ("name", "recipe"), [("eagle/4", "eagle=rules"), ("eagle/5", "eagle=heads")]
)
def test_a_table_that_nobody_printed_has_the_lines_of_its_recipe(name, recipe):
    grid = printed(name)
    first = grid.asked.drop_duplicates("line")
    assert sorted(first.decoder + ":" + first.spec) == sorted(recipe_cells(recipe))
    assert not grid.cells.lost.any() and not (grid.cells.printed != "").any()
    warm = {*grid.asked.temperature}
    swept = read_recipe(recipe)["hydra"]["sweeper"]["params"]["generation.temperature"]
    assert warm == {float(each) for each in swept.split(",")}
    assert grid.commands[0].startswith(f"spec-bench -m {recipe} pair=llama31_8b")
    assert any("Nobody has printed it" in note for note in grid.notes)
