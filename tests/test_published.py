"""The papers' printed numbers: one schema, nothing lost from the copies that were checked."""

from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from spec_bench.vocabulary.published import COLUMNS, FILE, KEYS, read_published, side_by_side
from tests.said import naming

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def numbers_of(paper):
    return read_published(EXPERIMENTS / paper / FILE)


# How many numbers the checked copies of the papers' tables hold, and their sum.
CHECKED = {
    "rsd": {
        "block_efficiency": (1968, "4215.627"),
        "mbsu": (1968, "4047.520"),
        "token_rate": (1968, "50495.215"),
        "rouge2": (881, "115.011"),
        "bleu": (872, "320.119"),
    },
    "mcsd": {
        "acceptance_rate": (184, "106.65"),
        "acceptance_rate_gain": (76, "13.06"),
        "speedup": (128, "188.91"),
        "block_efficiency": (128, "245.12"),
    },
    "redrafter": {
        "token_rate": (10, "764.43"),
        "block_efficiency": (10, "28.57"),
        "speedup": (21, "55.16"),
        "judge_score": (21, "71.80"),
        "drafter_size": (10, "6.30"),
    },
    "eagle": {
        "speedup": (23, "78.52"),
        "block_efficiency": (6, "25.32"),
        "speedup_mt_bench": (5, "14.24"),
        "speedup_translation": (5, "9.81"),
        "speedup_summarization": (5, "12.11"),
        "speedup_qa": (5, "11.13"),
        "speedup_math_reasoning": (5, "14.12"),
        "speedup_rag": (5, "11.04"),
    },
    "dsbd": {
        "exact_match": (8, "580"),
        "execution_accuracy": (8, "90"),
        "perplexity": (16, "27.06"),
        "token_rate": (16, "489.92"),
        "energy_j_per_token": (16, "130.35"),
    },
}


@pytest.mark.parametrize("paper", CHECKED)
def test_every_printed_number_of_the_checked_copies_is_here(paper):
    values = {}
    for row in numbers_of(paper):
        if row["value"]:
            values.setdefault(row["metric"], []).append(Decimal(row["value"].rstrip("B")))
    assert {name: (len(own), str(sum(own))) for name, own in values.items()} == CHECKED[paper]


def test_rsd_has_1998_cells_in_54_tables():
    cells = side_by_side(numbers_of("rsd"))
    tables = Counter(int(cell["table"]) for cell in cells)
    assert tables == {table: 33 if table < 28 else 41 for table in range(1, 55)}


def test_every_number_without_a_value_says_why_it_is_lost():
    lost = [row for paper in CHECKED for row in numbers_of(paper) if not row["value"]]
    assert Counter(row["reason"] for row in lost) == {"row_lost": 105, "order_unknown": 8}
    assert all(row["candidates"] for row in lost if row["reason"] == "order_unknown")


@pytest.mark.parametrize("paper", CHECKED)
def test_a_cells_metric_is_printed_once(paper):
    keys = Counter((*(row[key] for key in KEYS), row["metric"]) for row in numbers_of(paper))
    assert {key: count for key, count in keys.items() if count > 1} == {}


def test_a_file_with_other_columns_is_refused(tmp_path):
    file = tmp_path / FILE
    file.write_text("table,valeu\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=naming("reference.csv", "table,target")):
        read_published(file)


def test_side_by_side_has_a_column_for_each_number_of_a_cell():
    empty = dict.fromkeys(COLUMNS, "")
    rows = [
        {**empty, "table": "1", "decoder": "sd", "spec": spec, "metric": metric, "value": value}
        for spec, metric, value in (("2", "mbsu", "1.5"), ("2", "bleu", "0.3"), ("3", "mbsu", "2"))
    ]
    shown = [{k: v for k, v in cell.items() if v} for cell in side_by_side(rows)]
    assert shown == [
        {"table": "1", "decoder": "sd", "spec": "2", "mbsu": "1.5", "bleu": "0.3"},
        {"table": "1", "decoder": "sd", "spec": "3", "mbsu": "2"},
    ]
