"""Cells of several seeds are one row: neither the lowest seed nor the best one."""

import pandas as pd
import pytest

from spec_bench.metrics.intervals import rate_ratio_interval, ratio_interval
from spec_bench.report.claims import check_claims
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import read_results
from spec_bench.report.data.seeds import mean_of_seeds, pooled
from spec_bench.report.papers.paper import find_table
from spec_bench.report.plain import write_report
from spec_bench.report.tables.build import build_table
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.render import markdown
from tests.report.rows import EMBEDDED, around, frame, record, row, write

FIRST = [[1, 2], [0, 1], [2, 2], [1, 1], [1, 0], [1, 2]]
SECOND = [[2, 2], [2, 1], [3, 2], [2, 3], [2, 2], [3, 2]]


def seeds(*cells, **same):
    """The same cell with seeds 0, 1, ..."""
    made = [row("sd", "2", **{**EMBEDDED, **same, **cell}) for cell in cells]
    return [{**cell, "seed": seed, "run_id": f"sd-{seed}"} for seed, cell in enumerate(made)]


def test_one_seed_is_left_as_it_is():
    rows = frame(*seeds({"token_rate": 40.0}), row("ar", **EMBEDDED))
    assert pooled(rows) is rows


def test_without_records_the_mean_of_all_seeds_is_shown():
    rates = ({"token_rate": around(49.0, 1.0)}, {"token_rate": around(51.0, 1.0)})
    (found,) = pooled(frame(*seeds(*rates, prompts=12))).to_dict("records")
    assert (found["token_rate"], found["seed"], found["seeds"]) == (50.0, 0, "0,1")
    assert (found["run_id"], found["prompts"]) == ("sd-0,sd-1", 12)
    assert found["token_rate_low"] < 45.0 < 55.0 < found["token_rate_high"]  # t of one degree


def test_two_seeds_that_are_far_apart_have_a_mean_that_nothing_is_known_of():
    rates = ({"token_rate": around(40.0, 1.0)}, {"token_rate": around(60.0, 1.0)})
    (found,) = pooled(frame(*seeds(*rates, prompts=12))).to_dict("records")
    assert found["token_rate"] == 50.0
    assert pd.isna([found["token_rate_low"], found["token_rate_high"]]).all()  # 0 to 177


def test_the_interval_over_seeds_is_at_least_as_wide_as_that_over_prompts():
    alike = mean_of_seeds([(2.0, 1.8, 2.4)] * 3, prompts=30)
    assert alike == pytest.approx((2.0, 1.8, 2.4))
    apart = mean_of_seeds([(1.9, 1.7, 2.3), (2.0, 1.8, 2.4), (2.1, 1.9, 2.5)], prompts=30)
    assert apart[0] == pytest.approx(2.0)
    assert apart[1] < 1.8 and apart[2] > 2.4
    points = mean_of_seeds([(1.0, 1.0, 1.0), (3.0, 3.0, 3.0)], prompts=30)
    assert points == pytest.approx((2.0, 2.0 - 12.7062, 2.0 + 12.7062))  # t of one degree
    assert mean_of_seeds([(1.0, 1.0, 1.0)] * 2, prompts=30) == (1.0, 1.0, 1.0)
    unknown = mean_of_seeds([(1.0, 0.9, 1.1), (3.0, float("nan"), float("nan"))], prompts=30)
    assert unknown[0] == 2.0 and unknown[1] != unknown[1]


def recorded_seeds(folder):
    """AR and a chain with two seeds each, whose rows say nothing that the records do not."""
    cells = seeds({"block_efficiency": 9.0, "token_rate": 9.0, "speedup": 9.0}, {}, mbsu=9.0)
    cells[1] |= {"block_efficiency": 9.5, "token_rate": 9.5, "speedup": 9.5}
    base = [
        row("ar", **EMBEDDED, seed=seed, run_id=f"ar-{seed}", token_rate=1.0, speedup=1.0)
        for seed in (0, 1)
    ]
    write(folder, "rsd-exp1", *base, *cells)
    file = folder / "rsd-exp1" / "results.csv"
    for seed, counts in enumerate((FIRST, SECOND)):
        record(file, f"sd-{seed}", counts, depth=3, rate=10 + seed / 2)
        record(file, f"ar-{seed}", [[0] * 4] * 6, depth=0, rate=10)
    return file


def test_records_are_pooled_over_seeds_and_prompts_with_prompts_as_blocks(tmp_path):
    file = recorded_seeds(tmp_path)
    base, chain = pooled(read_results(file), Records(file)).to_dict("records")
    emitted = [[sum(counts) + 2 for counts in seed] for seed in (FIRST, SECOND)]
    taus = ratio_interval(emitted, [[2.0] * 6] * 2)
    assert taus is not None
    own = tuple(chain[f"block_efficiency{end}"] for end in ("", "_low", "_high"))
    assert taus.low and taus.high and taus.low < 1.0 < 3.0 < taus.high
    assert own == pytest.approx((taus.value, 1.0, 3.0))  # of a chain of two
    assert taus.value == pytest.approx(sum(map(sum, emitted)) / 24)
    seconds = [[n / rate for n in seed] for seed, rate in zip(emitted, (10, 10.5), strict=True)]
    fours = [[4.0] * 6] * 2
    gain = rate_ratio_interval(emitted, seconds, fours, [[0.4] * 6] * 2)
    assert gain is not None
    own = tuple(chain[f"speedup{end}"] for end in ("", "_low", "_high"))
    assert own == pytest.approx((gain.value, gain.low, gain.high))
    assert base["speedup"] == pytest.approx(1.0)


def test_a_seed_that_failed_is_left_out_and_said():
    cells = seeds({"token_rate": 40.0}, {"token_rate": 60.0}, {"status": "failed", "reason": "X"})
    (found,) = pooled(frame(*cells)).to_dict("records")
    assert (found["token_rate"], found["seeds"]) == (50.0, "0,1")
    assert found["reason"] == "seed: 2 failed and left out"
    (alone,) = pooled(frame(cells[0], cells[2])).to_dict("records")
    assert (alone["token_rate"], alone["seeds"]) == (40.0, "0")


def test_seeds_of_two_files_or_settings_are_not_pooled():
    first, second = seeds({"token_rate": 40.0}, {"token_rate": 60.0})
    apart = frame({**first, "file": "a/results.csv"}, {**second, "file": "b/results.csv"})
    assert len(pooled(apart)) == 2
    assert len(pooled(frame({**first, "batch_size": 1}, {**second, "batch_size": 4}))) == 2


def test_tables_say_that_seeds_are_pooled(tmp_path):
    rates = ({"block_efficiency": around(2.0, 0.1)}, {"block_efficiency": around(2.2, 0.1)})
    cells = [{**cell, "pair": "llama2_7b"} for cell in seeds(*rates)]
    write(tmp_path, "rsd-exp1", *cells)
    grid = build_table(find_table("rsd/1"), Measured.below(tmp_path))
    assert "| 2 | SD | 2 | 2.166 | 2.100 [" in markdown(grid)
    assert any("seed 0, 1," in note for note in grid.notes)
    assert any(note.startswith("Seeds are pooled") for note in grid.notes)
    write_report(tmp_path / "rsd-exp1" / "results.csv", tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert text.count("| sd | 2 |") == 1
    assert "seeds 0, 1" in text and "Seeds are pooled" in text


def test_a_claim_is_checked_on_the_seeds_that_both_cells_have(tmp_path):
    file = tmp_path / "rsd-exp1" / "results.csv"
    cells = [
        row(name, spec, **EMBEDDED, seed=seed, run_id=f"{name}-{seed}", block_efficiency=2.0)
        for name, spec in (("spectr", "3x3"), ("sd", "3"))
        for seed in (0, 1, 2)
    ][:5]
    for number, cell in enumerate(cells):
        record(file, str(cell["run_id"]), SECOND if number < 3 else FIRST)
    checks = check_claims("rsd", frame(*cells), file)
    (check,) = [c for c in checks if "spectr > sd" in c.claim and "length 3" in c.claim]
    gap = (sum(map(sum, SECOND)) - sum(map(sum, FIRST))) / 12
    assert check.evidence.startswith(f"{gap:+.3f} [")
    assert check.verdict == "holds"
