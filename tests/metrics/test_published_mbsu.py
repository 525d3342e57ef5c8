"""MBSU recomputed from the RSD paper's block efficiencies gives the paper's MBSU."""

import csv
from pathlib import Path

import pytest

from spec_bench.metrics.calls import mbsu
from spec_bench.vocabulary.published import FILE, read_published, side_by_side

RSD = Path(__file__).parents[2] / "experiments" / "rsd"
CELLS = side_by_side(read_published(RSD / FILE))


def draft_calls(spec):
    """L of a spec: 3 -> 3, 4x3 (four paths or beams of length 3) -> 3, 2-2-1 -> 3 levels."""
    if "x" in spec:
        return int(spec.split("x")[1])
    return len(spec.split("-")) if "-" in spec else int(spec)


@pytest.mark.parametrize(("spec", "calls"), [("3", 3), ("4x5", 5), ("2-2-1", 3), ("12-1", 2)])
def test_draft_calls_of_a_spec(spec, calls):
    assert draft_calls(spec) == calls


def test_mbsu_reproduces_all_1914_checkable_rows_of_the_rsd_paper_within_0_002():
    with (RSD / "speed_ratio.csv").open(newline="", encoding="utf-8") as stream:
        ratio = {(r["target"], r["draft"]): float(r["r"]) for r in csv.DictReader(stream)}
    rows = [
        row for row in CELLS if row["decoder"] != "ar" and row["block_efficiency"] and row["mbsu"]
    ]
    errors = [
        abs(
            mbsu(
                float(row["block_efficiency"]),
                draft_calls(row["spec"]),
                ratio[row["target"], row["draft"]],
            )
            - float(row["mbsu"])
        )
        for row in rows
    ]
    assert len(rows) == 1914
    assert max(errors) < 0.002


def test_the_54_autoregressive_rows_print_one():
    rows = [row for row in CELLS if row["decoder"] == "ar"]
    assert len(rows) == 54
    assert {(row["block_efficiency"], row["mbsu"]) for row in rows} == {("1.000", "1.000")}
