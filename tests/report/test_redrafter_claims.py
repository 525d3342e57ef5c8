"""What ReDrafter claims, on rows whose answer is known."""

import json
from collections.abc import Callable

import pandas as pd
import pytest

from spec_bench.report.claims import check_claims
from spec_bench.report.claims.contrast import fisher
from spec_bench.report.claims.verdict import Check
from tests.report.rows import MT_BENCH, around, frame, head, record, recorded, row
from tests.report.rows import redrafter_batches as batches
from tests.report.rows import redrafter_beams as beams
from tests.report.rows import redrafter_grid as grid

Judged = Callable[[pd.DataFrame], list[Check]]


@pytest.fixture
def checks_of(tmp_path):
    """The claims on cells whose records say what the rows do."""
    results = tmp_path / "redrafter" / "results.csv"

    def judged(rows):
        return check_claims("redrafter", recorded(results, rows), results)

    return judged


def only(checks, *words):
    (check,) = [check for check in checks if all(word in check.claim for word in words)]
    return check


def decoding(decoder, spec, tau, rate, **values):
    measured = {"block_efficiency": around(tau, 0.05), "token_rate": around(rate, 2.0)}
    own = {**MT_BENCH, "experiment": "redrafter-decoding", **measured, **values}
    return row(decoder, spec, half=0.1, **own)


def test_heads_are_compared_from_t_plus_2_on(tmp_path, checks_of):
    checks = checks_of(grid(tmp_path))
    assert not [check for check in checks if "at t+1" in check.claim]
    third = only(checks, "validation accuracy at t+3")
    assert third.evidence.startswith("0.600 against 0.500, +0.100 (no interval: ")
    assert third.verdict == "not decided"
    assert only(checks, "fewer parameters").evidence.startswith("1.00M against 2.00M")


def test_the_recurrence_is_judged_on_heads_equal_in_all_else(tmp_path, checks_of):
    checks = checks_of(grid(tmp_path))
    accuracy = only(checks, "recurrence raises validation accuracy", "heads of 2 blocks")
    assert accuracy.evidence.startswith("+0.0500 (no interval: fewer than 5 pairs of heads), ")
    assert "mean of 1 pair of heads trained longest, 100 steps" in accuracy.evidence
    tokens = [check for check in checks if "recurrence raises block efficiency" in check.claim]
    assert [check.where[-8:] for check in tokens] == [f"{blocks} blocks" for blocks in range(4)]
    assert all(check.evidence.startswith("+0.500 [") for check in tokens)
    assert {check.verdict for check in tokens} == {"holds"}
    speed = next(check for check in checks if "recurrence raises token rate" in check.claim)
    assert speed.evidence.startswith("-2") and "job of its own" in speed.evidence
    assert speed.verdict == "not decided"  # whatever the interval over prompts
    follows = only(checks, "redrafter: speed follows")
    assert follows.evidence == "Pearson's r = 1.000 over 4 heads"
    assert follows.verdict == "not decided"


def test_a_correlation_over_enough_heads_is_judged_by_fishers_z():
    low, high, p_values = fisher(0.9, 8)
    assert (low, high) == (pytest.approx(0.534, abs=1e-3), pytest.approx(0.982, abs=1e-3))
    assert p_values.for_claim == pytest.approx(0.0005, abs=1e-4)  # z = 1.47 * 5 ** 0.5 = 3.29
    assert p_values.against_claim == pytest.approx(1 - p_values.for_claim)


def test_the_best_beams_are_set_against_medusas_best_tree(checks_of):
    rows = frame(
        decoding("redrafter", "8x5", 3.0, 60.0),
        decoding("redrafter", "15x5", 3.5, 50.0),
        decoding("medusa", "small", 2.5, 70.0),
        decoding("medusa", "large", 2.8, 40.0),
    )
    tau = only(checks_of(rows), "redrafter > medusa in block efficiency")
    assert tau.evidence.startswith("+0.700")
    all_ = "(best of 2 on all prompts)"
    assert f"redrafter 15x5 {all_} against medusa large {all_}; each tree picked" in tau.evidence
    assert tau.verdict == "holds"
    speed = only(checks_of(rows), "redrafter > medusa in token rate")
    assert speed.evidence.startswith("-14.3%")  # 60 / 70
    assert speed.verdict == "does not hold"


def test_typical_acceptance_is_faster_when_it_is_warm_and_is_called_approximate(checks_of):
    def at(temperature):
        return frame(
            decoding("redrafter", "8x5", 2.5, 50.0, temperature=temperature),
            decoding("redrafter_typical", "8x5", 3.0, 60.0, temperature=temperature),
        )

    assert not [check for check in checks_of(at(0.5)) if "typical" in check.claim]
    speed = only(checks_of(at(0.7)), "typical", "token rate")
    assert speed.claim == "typical acceptance (approximate) > exact rule in token rate"
    assert speed.evidence.startswith("+20.0%")
    assert speed.where == "mt_bench, temperature 0.7"
    assert speed.verdict == "holds"


def test_differences_are_paired_by_prompt_where_records_are(tmp_path):
    results = tmp_path / "redrafter-decoding" / "results.csv"
    warm = {"temperature": 0.7}
    rows = frame(
        decoding("redrafter", "8x5", 2.0, 1.0, **warm),
        decoding("redrafter_typical", "8x5", 3.0, 1.0, **warm),
    )
    record(results, "redrafter-8x5", [[1, 1]] * 5)
    record(results, "redrafter_typical-8x5", [[2, 2]] * 5)
    check = only(check_claims("redrafter", rows, results), "typical", "block efficiency")
    assert check.evidence.startswith("+1.000 [+1.000, +1.000], redrafter")
    assert "no interval" not in check.evidence


def test_wider_beams_accept_more_and_length_changes_nothing(checks_of):
    checks = checks_of(beams())
    grows = [check for check in checks if "grows with the beam width" in check.claim]
    assert [check.where for check in grows] == [
        f"mt_bench, max new tokens {limit}, temperature 0" for limit in (8, 32)
    ]
    assert grows[0].evidence.startswith("+0.150")  # steps of 0.1 and 0.2
    assert {check.verdict for check in grows} == {"holds"}
    stable = only(checks, "stable over the length")
    assert "8 to 32 tokens; stable: within 0.22 (10%)" in stable.evidence  # mean tau 2.233
    assert stable.verdict == "holds"


def test_answers_of_other_lengths_that_accept_otherwise_are_not_stable(checks_of):
    rows = beams()
    longer = rows.max_new_tokens == 32
    for end in ("", "_low", "_high"):
        rows.loc[longer, f"block_efficiency{end}"] += 1.0
    assert only(checks_of(rows), "stable over the length").verdict == "does not hold"


def test_merging_is_counted_against_all_tokens_of_the_beams(checks_of):
    checks = checks_of(beams())
    mean, _ = [check for check in checks if "mean share" in check.claim]
    assert mean.evidence.startswith("2x5 20%, 4x5 40%; counted")  # a beam alone has no prefix
    assert mean.verdict == "holds"


def test_a_width_that_saves_nothing_at_the_99th_percentile_is_said(checks_of):
    rows = beams()
    rows.loc[rows.spec == "2x5", "nodes_per_call_p99"] = 10.0
    worst, _ = [check for check in checks_of(rows) if "99th percentile" in check.claim]
    assert worst.evidence.startswith("2x5 0%, 4x5 20%")
    assert worst.verdict == "does not hold"


def test_batches_raise_throughput_and_slow_a_request(checks_of):
    checks = checks_of(batches())
    grows = only(checks, "redrafter 8x5: throughput grows")
    assert grows.evidence.startswith("batch 4 against 1 +100.0%")
    assert "tokens/s at 1: 50, 4: 100" in grows.evidence
    assert grows.verdict == "holds"
    assert only(checks, "ar: a request is slower").verdict == "holds"


def in_jobs_apart(tmp_path, paces):
    """Claims on batch sizes that were run in rounds, a job each; at 4 so many times as fast."""
    results = tmp_path / "redrafter" / "results.csv"
    rows = pd.concat([batches().assign(seed=seed) for seed in paces], ignore_index=True)
    for name in ("token_rate", "token_rate_per_request"):
        pace = rows.seed.map(paces).where(rows.batch_size == 4, 1.0)
        rows[name] = rows[name].astype(float) * pace
    rows = recorded(results, rows)
    for _, each in rows.iterrows():
        file = tmp_path / "runs" / each.run_id / "generations.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        job = f"{each.seed} {each.batch_size}"
        file.write_text("".join(json.dumps({**line, "sitting": job}) + "\n" for line in lines))
    return check_claims("redrafter", rows, results)


def test_jobs_of_their_own_are_compared_over_rounds(tmp_path):
    checks = in_jobs_apart(tmp_path, {0: 1.0, 1: 1.02, 2: 0.98})
    for decoder in ("ar", "redrafter 8x5"):
        grows = only(checks, f"{decoder}: throughput grows")
        assert grows.evidence.startswith("batch 4 against 1 +99.9% [+9")
        assert "decided from two rounds (seeds) on" in grows.evidence
        assert grows.verdict == "holds"
        assert only(checks, f"{decoder}: a request is slower").verdict == "holds"


def test_rounds_that_differ_as_much_as_the_batches_decide_nothing(tmp_path):
    # Every prompt of every round says the same of its own job, at 4 twice 0.7, 1.4 and 0.8.
    checks = in_jobs_apart(tmp_path, {0: 0.7, 1: 1.4, 2: 0.8})
    assert only(checks, "ar: throughput grows").verdict == "within noise"


def test_one_round_of_jobs_of_their_own_decides_nothing(tmp_path):
    grows = only(in_jobs_apart(tmp_path, {0: 1.0}), "ar: throughput grows")
    assert "+100.0% (no interval: the cells were not timed in turn)" in grows.evidence
    assert grows.verdict == "not decided"


def test_merged_beams_are_set_against_beams_as_rows(checks_of):
    checks = checks_of(batches())
    same = only(checks, "merging changes no block efficiency")
    assert same.verdict == "holds"
    assert only(checks, "merging saves nodes").evidence.startswith("20.0 against 40.0 a call, 50%")
    assert only(checks, "tree attention raises throughput").evidence.startswith("+66.7%")


def test_another_experiments_rows_say_nothing_of_this_one(checks_of):
    rows = beams().assign(experiment="mine")
    assert checks_of(rows) == []


def test_the_heads_that_were_trained_longest_decide_about_the_recurrence(tmp_path, checks_of):
    trained = [(120, 1, 0.5, 0.4), (120, 2, 0.6, 0.5), (800, 1, 0.63, 0.63), (800, 2, 0.62, 0.64)]
    trained += [(800, 3, 0.6, 0.59), (800, 4, 0.61, 0.62), (800, 5, 0.64, 0.63)]
    heads = [
        head(kind, f"{kind}-{steps}-{rate}", last, steps=steps, learning_rate=rate / 1000)
        for steps, rate, *shares in trained
        for kind, last in zip(("redrafter", "redrafter_no_rnn"), shares, strict=True)
    ]
    rows = grid(tmp_path)
    pd.DataFrame(heads).to_csv(tmp_path / "redrafter-heads" / "heads.csv", index=False)
    check = only(checks_of(rows), "recurrence raises validation accuracy")
    assert check.claim.endswith("heads of 2 blocks")
    assert check.evidence.startswith("-0.0020 [")
    assert "mean of 5 pairs of heads trained longest, 800 steps" in check.evidence
    assert "; 120 steps: +0.1000, mean of 2 pairs of heads" in check.evidence
    assert check.verdict == "within noise"
