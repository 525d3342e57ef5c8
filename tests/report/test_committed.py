"""What is committed keeps its word: no interval says what a number cannot be."""

import pandas as pd
import pytest

from spec_bench.metrics.interval import FEWEST, WIDEST
from spec_bench.records import parquet
from spec_bench.report.claims import measured
from spec_bench.report.claims.ask import Ask
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import most_of, read_rows, rows_of
from spec_bench.system import files
from spec_bench.vocabulary.columns import ENDS, apart_in, columns_in

ROOT = files.package_folder("results")
TABLES = sorted([*ROOT.glob("embedded/*/results.csv"), *ROOT.glob("*/results.csv")])
SCREENED = sorted(ROOT.glob("embedded/*/screening.csv"))
ROUNDING = 1e-9


def read(path):
    return pd.read_csv(path, dtype={"spec": str, "run_id": str}, low_memory=False)


def test_there_is_something_to_look_at():
    assert len(TABLES) > 10
    assert SCREENED


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_every_interval_encloses_its_number_and_stays_within_its_columns_range(path):
    rows = read(path)
    deepest = pd.Series([most_of(row) for row in rows_of(rows)], rows.index, dtype=float)
    for each in columns_in(rows.columns):
        names = [each.name, *(f"{each.name}{end}" for end in ENDS)]
        if not each.interval or not set(names) <= set(rows.columns):
            continue
        value, low, high = (rows[name] for name in names)
        known = low.notna()
        assert (known == high.notna()).all(), each.name
        assert (rows.prompts[known] >= FEWEST).all(), each.name
        value, low, high = value[known], low[known], high[known]
        slack = ROUNDING * value.abs().clip(lower=1)
        assert ((low <= value + slack) & (value <= high + slack)).all(), each.name
        least, most = each.limits
        if least is not None:
            assert (low >= least - ROUNDING).all(), each.name
        if most is not None:
            assert (high <= most + ROUNDING).all(), each.name
        elif least is not None:
            assert (high <= WIDEST * low + slack).all(), each.name
        if each.name == "block_efficiency":
            assert not (high > deepest[known] + ROUNDING).any()


@pytest.mark.parametrize("path", SCREENED, ids=lambda path: path.parent.name)
def test_what_a_search_screened_has_no_intervals_and_no_records(path):
    screened, table = read(path), path.with_name("results.csv")
    assert set(screened.stage) == {"screen"}
    assert not [name for name in screened if name.endswith(ENDS)]
    kept = set(parquet.read(files.records_file(table)).run_ids)
    assert kept
    assert not kept & set(screened.run_id)
    rest = read(table)
    assert not (rest.stage == "screen").any()
    assert not set(rest.run_id) & set(screened.run_id)


def test_no_claim_of_any_paper_looks_at_what_was_screened():
    rows = read_rows(path.with_name("results.csv") for path in SCREENED)
    assert (rows.stage == "screen").any()
    assert "stage" in [column.name for column in apart_in(rows)]  # so that no seeds are pooled
    scope = Ask(measured(rows), Records(ROOT))
    assert len(scope.of().rows)
    assert not (scope.of().rows.stage == "screen").any()
