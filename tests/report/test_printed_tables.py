"""Without any measurement the papers' tables are printed again, number for number."""

import csv
import io

import pytest

from spec_bench.report.data.rows import read_rows
from spec_bench.report.papers.items import read_recipe, recipe_cells
from spec_bench.report.papers.paper import find_table, load_paper, paper_names
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
    for line, row in zip(grid.lines, rows, strict=True):
        assert (line.labels[0], line.labels[2]) == (row["axis_value"], row["spec"])
        score = {"xsum": ["rouge2"], "wmt18_deen": ["bleu"], "dolly": []}[row["task"]]
        metrics = ["block_efficiency", "mbsu", "token_rate", *score]
        assert [cell.printed for cell in line.cells] == [row[metric] for metric in metrics]
        names = [column.name for column in grid.columns]
        assert names == [name if name not in score else "accuracy" for name in metrics]


@pytest.mark.parametrize("number", range(1, 8))
def test_every_mcsd_number_stands_in_its_table(number):
    cells = printed(f"mcsd/{number}").cells
    numbers = [cell.printed for cell in cells if cell.printed and cell.number != "tree"]
    assert sorted(numbers) == sorted(row["value"] for row in load_paper("mcsd").numbers_of(number))


@pytest.mark.parametrize(("name", "n"), [("redrafter/1", 50), ("redrafter/2", 22), ("dsbd/1", 64)])
def test_all_printed_numbers_stand_in_the_other_tables(name, n):
    assert sum(cell.printed != "" for cell in printed(name).cells) == n


def test_the_113_cells_that_were_lost_say_so():
    lost = {
        (str(number), line.labels[2], cell.number)
        for number in range(1, 55)
        for line in printed(f"rsd/{number}").lines
        for cell in line.cells
        if cell.lost
    }
    gaps = [number for number in load_paper("rsd").numbers if number["reason"]]
    assert len(lost) == len(gaps) == 113
    assert lost == {(gap["table"], gap["spec"], gap["metric"]) for gap in gaps}


SHOWN = [  # the best of a block and column is bold, what fine-tuning improves underlined
    ("rsd/1", "| RSD-S | 3x2 | **2.432** | **2.350** | 55.465 | 0.140 |"),
    ("rsd/1", "| RSD-C | 2-2 | 2.398 | 2.317 | **56.609** | 0.143 |"),
    ("mcsd/2", "|  | MCSD | 0 | 4x2x2x1x1 | **3.06** | **3.93** | 8x2x1x1 | **2.06** | **2.56** |"),
    ("mcsd/7", "| 0.75 | <u>0.90</u> | **0.14** | <u>0.56</u> | <u>0.69</u> | 0.13 |"),
    ("redrafter/2", "ours: exact match) | 0.1 | 2.58 ±0.06 | 1.00 ±0.02 |"),
    ("rsd/8", "| RSD-S | 6x5 | lost | lost | lost | lost |"),
    ("rsd/8", "no line for RSD-S 6x5. Its twin table prints for the same tree: block efficiency"),
]


@pytest.mark.parametrize(("name", "line"), SHOWN)
def test_marks_and_layout_are_the_papers(name, line):
    text = markdown(printed(name))
    assert line in text
    if name == "mcsd/7":
        assert text.count("<u>") == 36  # the paper's 35 and the one that the note names
        assert text.count("**") == 2 * 18


def test_every_pair_of_the_papers_that_have_recipes_has_a_config():
    for item in (item for paper in ("rsd", "mcsd", "dsbd") for item in load_paper(paper).tables):
        for line in printed(item.name).lines:
            assert line.extra or all(cell.asked for cell in line.cells), (item.name, line)


def test_every_recipe_that_is_named_exists():
    for item in (item for paper in paper_names() for item in load_paper(paper).items):
        assert len(item.experiments) == len(item.recipes)


def test_csv_has_a_line_for_every_line():
    rows = list(csv.DictReader(io.StringIO(comma(printed("rsd/7")))))
    assert len(rows) == 33
    assert rows[1]["block_efficiency_paper"] == load_paper("rsd").numbers_of(7)[4]["value"]
    assert rows[-1]["token_rate_paper"] == "lost"


def test_no_number_stands_under_a_model_that_its_source_does_not_name():
    rows = load_paper("today").numbers_of(1)
    assert {each["target"] for each in rows} == {"Qwen3-8B"}
    assert [each["value"] for each in rows] == ["145", "422", "443"]


@pytest.mark.parametrize(("number", "recipe"), [(4, "eagle=rules"), (5, "eagle=heads")])
def test_a_table_that_nobody_printed_has_the_lines_of_its_recipe(number, recipe):
    grid = printed(f"eagle/{number}")
    first = [line.cells[0].asked[0] for line in grid.lines]
    assert sorted(f"{each.decoder}:{each.spec}" for each in first) == sorted(recipe_cells(recipe))
    assert not any(cell.lost or cell.printed for cell in grid.cells)
    warm = {asked.temperature for cell in grid.cells for asked in cell.asked}
    swept = read_recipe(recipe)["hydra"]["sweeper"]["params"]["generation.temperature"]
    assert warm == {float(each) for each in swept.split(",")}
    assert grid.commands[0].startswith(f"spec-bench -m {recipe} pair=llama31_8b")
