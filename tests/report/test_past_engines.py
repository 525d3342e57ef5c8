"""What an earlier engine timed is not shown; what it counted is."""

import pandas as pd

from spec_bench.records.types import ENGINE, parse_reasons
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.past import archived, without_past_times
from spec_bench.report.data.rows import read_results
from spec_bench.vocabulary import columns
from tests.report.rows import EMBEDDED, frame, row, write

TIMED = {"token_rate": (80.0, 75.0, 85.0), "speedup": (1.8, 1.7, 1.9)}
COUNTED = {"block_efficiency": (2.5, 2.4, 2.6), "rouge2": (0.3, 0.2, 0.4)}


def cells(**values):
    return [row(*cell, **EMBEDDED, **TIMED, **COUNTED, **values) for cell in (("ar",), ("sd", "3"))]


def test_times_of_another_engine_are_empty_with_their_reason_and_counts_stay():
    rows = without_past_times(frame(*cells(engine=ENGINE - 1)))
    assert rows[["token_rate", "speedup", "speedup_low"]].isna().all(axis=None)
    assert list(rows.block_efficiency) == [2.5, 2.5]
    assert list(rows.rouge2_high) == [0.4, 0.4]
    (reason,) = parse_reasons(rows.reason[1])
    assert (reason.column, reason.text) == ("speedup", f"timed by an earlier engine, now {ENGINE}")


def test_no_column_of_time_or_energy_of_a_past_engine_keeps_a_number():
    names = [n for each in columns.of_kind("time", "energy") for n in each.names]
    rows = frame({**row("sd", "3", engine=0), **dict.fromkeys(names, 1.0)})
    assert len(names) > 10
    assert without_past_times(rows)[names].isna().all(axis=None)


def test_rows_of_this_engine_stay_as_they_are():
    rows = frame(*cells(engine=ENGINE))
    pd.testing.assert_frame_equal(without_past_times(rows), rows)


def test_a_file_without_the_column_is_of_an_engine_before_there_was_one(tmp_path):
    old = [{k: v for k, v in cell.items() if k != "engine"} for cell in cells()]
    rows = read_results(write(tmp_path, "old", *old) / "old" / "results.csv")
    assert rows.token_rate.isna().all()
    assert list(rows.block_efficiency) == [2.5, 2.5]


def test_an_earlier_reason_stays_beside_that_of_the_engine():
    rows = without_past_times(frame(row("sd", "3", engine=0, reason="bleu: no reference")))
    assert [reason.column for reason in parse_reasons(rows.reason[0])] == ["bleu", "speedup"]


def test_a_page_says_how_many_cells_are_archived_or_of_an_earlier_engine(tmp_path):
    file = write(tmp_path, "mine", *cells(engine=0)) / "mine" / "results.csv"
    assert archived(file) == 0
    frame(*cells()).to_csv(file.with_name("archive.csv"), index=False)
    assert archived(file) == 2
    assert main(["page", "mine", "--results", str(tmp_path)]) == 0
    page = file.with_name("page.html").read_text()
    assert "cells timed by an earlier engine: no times" in page
    assert "cells of past weights, data or engines, archived" in page
