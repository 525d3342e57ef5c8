"""What DSBD claims, on rows whose answer is known."""

import json
from functools import partial
from pathlib import Path

import pytest

from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.claims import check_claims
from spec_bench.report.claims.ask import Ask, Found, Question, cells
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Group, rows_of
from spec_bench.report.papers.paper import code_of, load_paper
from spec_bench.system import files
from tests.report import rows as made
from tests.report.rows import SQUAD, around, frame, recorded
from tests.report.rows import dsbd_fronts as fronts

cell = partial(made.row, half=0.1, **SQUAD)


@pytest.fixture
def results(tmp_path):
    return tmp_path / "dsbd-fronts" / "results.csv"


def only(checks, *words):
    (check,) = [check for check in checks if all(word in check.claim for word in words)]
    return check


def judged(rows, results):
    """The claims on cells whose records say what the rows do; scores have none."""
    return check_claims("dsbd", recorded(results, rows), results)


def judged_with_scores(rows, results):
    """The same where scores by prompt, a thousandth up and down, are in the records too."""
    rows = recorded(results, rows)
    for place, row in enumerate(rows_of(rows)):
        own = {str(p): row["exact_match"] + 0.001 * (-1) ** (p + place) for p in range(8)}
        run = results.parent.parent / "runs" / str(row["run_id"])
        files.write_json(run / "scores.json", {"exact_match": own})
    return check_claims("dsbd", rows, results)


def beams(*widths):
    return [cell("beam_sampling", str(width)) for width in widths]


def setting(width):
    return cell("dsbd", "6x2@0.9", beam_width=width)


def write(results, run_id, prompts):
    """Records of prompts of 2 tokens each: (seconds, log-likelihood, widths)."""
    path = results.parent.parent / "runs" / run_id / "generations.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        for number, (seconds, surprise, widths) in enumerate(prompts):
            steps = (StepRecord(2, 1, 1, 2, widths),)
            generation = Generation(
                str(number), (5, 6), "length", steps, 0.0, seconds, 0.0, 0.0, None, surprise
            )
            stream.write(json.dumps(generation.to_json()) + "\n")


def at_same_width(settings, other):
    """What is found of one group at DSBD's average widths."""
    rows = frame(*settings, *other)
    ask = Ask(rows, Records(Path("nowhere/results.csv")))
    by = code_of(load_paper("dsbd").folder, "claims")._interpolated
    asked = Question(ask, "", cells("dsbd"), cells("beam_sampling"), by=by)
    group = Group("squad", rows)
    return Found(asked, group, "token_rate", (), [*asked.cases(group).values()])


def test_beam_sampling_of_a_fractional_width_lies_between_its_neighbours():
    found = at_same_width([setting(2.25)], beams(1, 2, 3, 4))
    (contrast,) = found.contrasts
    assert [row["spec"] for row in contrast.right] == ["2", "3"]
    assert contrast.weights == (0.75, 0.25)
    assert not contrast.picks


def test_order_and_gaps_of_the_measured_widths_do_not_matter():
    found = at_same_width([setting(3.0)], beams(4, 1))
    (contrast,) = found.contrasts
    assert [row["spec"] for row in contrast.right] == ["1", "4"]
    assert contrast.weights == pytest.approx((1 / 3, 2 / 3))


@pytest.mark.parametrize(("width", "left_out"), [(4.2, 0), (4.3, 1), (0.8, 0)])
def test_a_setting_far_outside_the_measured_widths_is_left_out(width, left_out):
    found = at_same_width([setting(2.0), setting(width)], beams(1, 4))
    assert len(found.contrasts) == 2 - left_out


def test_without_beam_sampling_or_widths_nothing_is_compared():
    assert not at_same_width([setting(2.0)], []).strata
    assert not at_same_width([cell("dsbd", "4x2@0.9")], beams(1, 2)).strata


def test_settings_that_were_left_out_are_counted_in_the_evidence(results):
    rows = fronts()
    assert "left out" not in only(judged(rows, results), "match within").evidence
    rows.loc[rows.spec == "3x2@0.9", "beam_width"] = 9.0
    evidence = only(judged(rows, results), "match within").evidence
    assert "mean of 2 settings" in evidence
    assert "in its width, 1 settings outside its widths left out" in evidence


def test_quality_and_speed_are_compared_at_the_same_width(results):
    checks = judged(fronts(), results)
    # Widths 1.5, 2.5, 2.75: interpolated scores 0.55, 0.65, 0.675; speeds 25, 15, 12.5.
    near = only(checks, "exact match within 0.05")
    assert near.evidence.startswith(f"{(0.09 + 0.05 + 0.045) / 3:+.3f}")
    speed = only(checks, "faster than beam sampling of its average width")
    assert speed.evidence.startswith(f"{(1.44 * 2.0 * 1.92) ** (1 / 3) - 1:+.1%}")
    assert "one by one 1.44 to 2.00 times as fast" in speed.evidence
    assert speed.verdict == "holds"
    assert only(checks, "1.5 times as fast", "average width").verdict == "holds"


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "does not hold"), (1.0, "within noise")])
def test_a_slower_dsbd_does_not_pass(factor, verdict, results):
    rows = fronts()
    slow = rows.decoder == "dsbd"
    for name in ("token_rate", "token_rate_low", "token_rate_high"):
        rows.loc[slow, name] = factor * 15.0 + (rows.loc[slow, name] - rows.loc[slow, "token_rate"])
    rows.loc[slow, "beam_width"] = 2.5
    checks = judged(rows, results)
    faster = only(checks, "faster than beam sampling of its average width")
    assert faster.verdict == verdict
    factor_of = only(checks, "1.5 times as fast", "average width")
    assert factor_of.verdict == "does not hold"
    assert ", where +50% is claimed, " in factor_of.evidence and "claimed" not in faster.evidence


def test_a_front_none_of_whose_settings_is_faster_is_not_called_the_faster_ones(results):
    evidence = only(judged_with_scores(fronts(), results), "front above", "exact match").evidence
    assert "the best of the faster settings, or the fastest where none is faster: " in evidence


def test_being_at_or_above_single_samples_needs_the_whole_interval(results):
    check = only(judged(fronts(), results), "at or below ar in perplexity")
    assert "one by one 3 ahead, 0 behind" in check.evidence
    assert check.verdict == "holds"
    assert check.evidence.startswith("-")
    check = only(judged(fronts().assign(perplexity=1.5), results), "at or below ar in perplexity")
    assert check.verdict == "within noise"


def test_a_score_without_records_is_compared_and_not_decided(results):
    check = only(judged(fronts(), results), "at or above ar in exact match")
    assert check.evidence.startswith(f"{(0.14 + 0.2 + 0.22) / 3:+.3f} (no interval: no records")
    assert "one by one" not in check.evidence
    assert check.verdict == "not decided"


def test_the_front_is_compared_with_each_point_of_the_curve(results):
    rows = fronts()
    check = only(judged_with_scores(rows, results), "front above", "exact match")
    assert "width 1: exact match +0.140 [" in check.evidence  # 3x2@0.9: no other is faster than 30
    assert "width 3: exact match +0.020 [" in check.evidence  # 4x2@0.7
    assert "tokens/s +140.0% [" in check.evidence
    assert check.p_values.for_claim < 0.01
    rows.loc[rows.decoder == "dsbd", "token_rate"] /= 2
    check = only(judged_with_scores(rows, results), "front above", "exact match")
    assert "width 1: exact match +0.140 [" in check.evidence  # the fastest, where none is faster
    assert "tokens/s -40.0% [" in check.evidence
    assert check.verdict == "does not hold"


def test_a_front_of_perplexity_lies_below(results):
    check = only(judged(fronts(), results), "front above", "perplexity")
    assert f"width 2: perplexity {1.28 / 1.4 - 1:+.1%} [" in check.evidence
    assert check.p_values.for_claim < 0.1
    worse = fronts()
    worse.loc[worse.decoder == "dsbd", "perplexity"] = 1.9
    assert only(judged(worse, results), "front above", "perplexity").verdict == "does not hold"


def test_a_front_of_scores_without_records_is_not_decided(results):
    for words in (("front above", "exact match"), ("1.5 times", "no worse exact match")):
        check = only(judged(fronts(), results), *words)
        assert (check.verdict, check.p_values) == ("not decided", None)
        assert check.evidence.startswith("no records of 8 prompts")


def test_the_speed_at_no_worse_quality_is_that_of_the_fastest_setting_that_has_it(results):
    check = only(judged_with_scores(fronts(), results), "1.5 times", "no worse exact match")
    # 3x2@0.9 for width 2: 1.8 times as fast, 0.04 better; 4x2@0.9 for width 3: 3 times, equal.
    assert check.evidence.startswith(f"tokens/s {(1.8 * 3.0) ** 0.5 - 1:+.1%} [")
    assert "exact match +0.020 [" in check.evidence
    assert "mean of widths 2, 3; each setting picked on one half" in check.evidence
    assert check.verdict == "holds"
    rows = fronts()
    rows.loc[rows.spec == "3", ["exact_match"]] = 0.99
    check = only(judged_with_scores(rows, results), "1.5 times", "no worse exact match")
    assert "exact match -0.115 [" in check.evidence  # 4x2@0.7 is the best that there is
    assert check.p_values.against_claim < 0.05 < check.p_values.for_claim


def test_a_smaller_threshold_and_a_larger_draft_width_widen_the_beams(results):
    checks = judged(fronts(), results)
    smaller_t = only(checks, "width grows as t falls")
    assert smaller_t.evidence.startswith("+0.250")  # 4x2: 2.75 at 0.7, 2.5 at 0.9
    assert smaller_t.verdict == "holds"
    wider = only(checks, "width grows as W_S grows")
    assert wider.evidence.startswith("+1.000")  # @0.9: 2.5 at 4x2, 1.5 at 3x2
    assert only(checks, "speed falls as W_S grows").verdict == "holds"
    reversed_ = fronts()
    reversed_["spec"] = reversed_.spec.replace({"4x2@0.7": "4x2@0.9", "4x2@0.9": "4x2@0.7"})
    checks = judged(reversed_, results)
    assert only(checks, "width grows as t falls").verdict == "does not hold"
    assert only(checks, "speed falls as t falls").verdict == "does not hold"


def test_widths_perplexity_and_speed_are_paired_by_prompt(results):
    rows = frame(
        cell("dsbd", "4x2@0.7", run_id="wide", beam_width=3.0),
        cell("dsbd", "4x2@0.9", run_id="narrow", beam_width=2.0),
    )
    write(results, "wide", [(2.0, -1.0, (3, 4)), (4.0, -2.0, (3, 4))] * 3)
    write(results, "narrow", [(1.0, -1.0, (2, 3)), (2.0, -2.0, (2, 3))] * 3)
    left, right = ((row,) for row in rows_of(rows))
    gaps = {
        name: difference([[Contrast(left, right)]], name, Records(results))
        for name in ("beam_width", "token_rate", "perplexity")
    }
    assert str(gaps["beam_width"]) == "+1.000 [+1.000, +1.000]"
    assert str(gaps["token_rate"]) == "-50.0% [-50.0%, -50.0%]"
    assert str(gaps["perplexity"]) == "+0.0% [+0.0%, +0.0%]"


def test_perplexity_is_the_exponential_of_the_surprise_per_token(results):
    write(results, "a", [(1.0, -2.0, ()), (1.0, -2.0, ())])
    write(results, "b", [(1.0, -4.0, ()), (1.0, -4.0, ())])
    sides = [(cell("dsbd", "4x2@0.9", run_id=name),) for name in "ab"]
    gap = difference([[Contrast(*sides)]], "perplexity", Records(results))
    assert gap.value == pytest.approx(2.718281828 ** (1 - 2) - 1)


def test_records_without_beams_have_no_width(results):
    write(results, "a", [(1.0, -2.0, ())])
    assert Records(results).counts({"run_id": "a"}, "beam_width") is None
    assert Records(results).counts({"run_id": "a"}, "exact_match") is None
    assert Records(results).counts({"run_id": "a"}, "perplexity") == {"0": (2.0, 2.0)}


def one_cache(speed, cache):
    same = {"exact_match": around(0.5, 0.01), "perplexity": around(1.5, 0.01)}
    return frame(
        cell("ar", **same),
        cell("sd", "3", token_rate=around(40.0, 0.5), cache_bytes=1000.0, **same),
        cell(
            "dsbd_one_cache",
            "4x3@0.9",
            token_rate=around(speed, 0.5),
            cache_bytes=cache,
            exact_match=around(0.6, 0.01),
            perplexity=around(1.4, 0.01),
        ),
    )


@pytest.mark.parametrize(
    ("speed", "cache", "speed_verdict", "cache_verdict"),
    [
        (39.0, 1040.0, "holds", "holds"),
        (36.0, 1050.0, "within noise", "holds"),
        (30.0, 1060.0, "does not hold", "does not hold"),
    ],
)
def test_the_one_cache_variant_is_close_to_sd_in_speed_and_memory(
    speed, cache, speed_verdict, cache_verdict, results
):
    checks = judged(one_cache(speed, cache), results)
    assert only(checks, "slower than sd 3").verdict == speed_verdict
    memory = only(checks, "takes the cache of sd 3")
    assert memory.verdict == cache_verdict
    assert f"{cache / 1000 - 1:+.1%}" in memory.evidence


def test_the_one_cache_variant_is_above_sd_and_ar_in_quality(results):
    checks = judged(one_cache(39.0, 1000.0), results)
    for other in ("sd 3", "ar"):
        assert only(checks, f"above {other} in exact match").evidence.startswith("+0.100 (no")
        assert only(checks, f"below {other} in perplexity").verdict == "holds"


def test_energy_is_compared_where_it_was_metered(results):
    rows = fronts()
    assert not [c for c in judged(rows, results) if "J/token" in c.claim]
    rows["energy_j_per_token"] = [9.0, 5.0, 9.0, 10.0, 12.0, 4.0, 5.0, 6.0]
    rows["energy_j_per_token_low"] = rows.energy_j_per_token - 0.1
    rows["energy_j_per_token_high"] = rows.energy_j_per_token + 0.1
    check = only(judged(rows, results), "fewer J/token")
    # At widths 1.5, 2.5, 2.75 beam sampling takes 9.5, 11 and 11.5 J/token.
    assert check.evidence.startswith(f"{(4 / 9.5 * 5 / 11 * 6 / 11.5) ** (1 / 3) - 1:+.1%}")
    assert check.verdict == "holds"


def test_beams_are_no_decoders_whose_score_must_be_that_of_ar(results):
    check = only(judged_with_scores(fronts(), results), "exact decoders is that of ar")
    assert check.evidence.startswith("+0.000 [")  # SD; the beams are up to 0.22 off
    assert check.verdict == "holds"


def test_failed_cells_claim_nothing(results):
    assert judged(fronts().assign(status="failed"), results) == []
