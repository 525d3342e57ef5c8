"""The papers' claims: what holds, what does not, and what the evidence says."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from spec_bench.report.claims import check_claims, check_generally
from spec_bench.report.claims.ask import Ask, cells
from spec_bench.report.claims.contrast import Contrast, Difference, difference
from spec_bench.report.claims.general import exact_scores_of
from spec_bench.report.claims.verdict import judged as judged_together
from spec_bench.report.claims.verdict import summary_of
from spec_bench.report.cli.command_line import main
from spec_bench.report.data.counts import Records
from spec_bench.report.data.rows import Group, rows_of
from spec_bench.report.papers.paper import Claim, code_of, load_paper, paper_names, read_claims
from spec_bench.system import files
from tests.report import rows as cells_of
from tests.report.rows import EMBEDDED, frame, record, recorded, write
from tests.said import naming

row = partial(cells_of.row, half=0.1, **EMBEDDED)
HIGH = [[3, 3, 2], [3, 2, 3], [3, 3, 3], [2, 3, 3]] * 2
LOW = [[1, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]] * 2


@pytest.fixture
def results(tmp_path):
    return tmp_path / "rsd-exp1" / "results.csv"


def found(checks, *words):
    return [check for check in checks if all(word in check.claim for word in words)]


def only(checks, *words):
    (check,) = found(checks, *words)
    return check


def cell(decoder, spec, tau, **values):
    return row(decoder, spec, block_efficiency=tau, mbsu=tau, token_rate=tau * 10, **values)


def judged(paper, rows, results):
    """The claims on cells whose records say what the rows do."""
    return check_claims(paper, recorded(results, rows), results)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"), [(HIGH, LOW, "holds"), (LOW, HIGH, "does not hold")]
)
def test_an_ordering_follows_the_records(ours, theirs, verdict, results):
    rows = frame(cell("spectr", "3x3", 2.0), cell("sd", "3", 2.0))
    record(results, "spectr-3x3", ours)
    record(results, "sd-3", theirs)
    check = only(check_claims("rsd", rows, results), "spectr > sd in block", "draft length 3")
    assert check.verdict == verdict
    assert "no interval" not in check.evidence
    assert check.where == "xsum"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [(3.0, 2.0, "holds"), (2.0, 3.0, "does not hold"), (2.05, 2.0, "within noise")],
)
def test_the_records_decide_and_without_them_there_is_a_value_but_no_verdict(
    ours, theirs, verdict, results
):
    rows = frame(cell("spectr", "3x3", ours), cell("sd", "3", theirs))
    alone = only(check_claims("rsd", rows, results), "spectr > sd in block", "draft length 3")
    assert alone.verdict == "not decided"
    no_interval = f"{ours - theirs:+.3f} (no interval: no records by prompt to pair the cells)"
    assert alone.evidence.startswith(no_interval)
    check = only(judged("rsd", rows, results), "spectr > sd in block", "draft length 3")
    assert check.verdict == verdict
    assert f"{ours - theirs:+.3f} [" in check.evidence


@pytest.mark.parametrize(
    ("sitting", "told"),
    [("first", "["), ("second", "(no interval: the cells were not timed in turn)")],
)
def test_seconds_of_two_cells_are_paired_where_one_sitting_timed_them(sitting, told, results):
    theirs, ours = rows_of(frame(row("ar", token_rate=1.0), row("sd", "3", token_rate=2.0)))
    record(results, "ar--", HIGH, rate=1.0, sitting="first")
    record(results, "sd-3", HIGH, rate=2.0, sitting=sitting)
    found = difference([[Contrast((ours,), (theirs,))]], "token_rate", Records(results))
    assert str(found).startswith("+100.0% " + told)
    counted = difference([[Contrast((ours,), (theirs,))]], "block_efficiency", Records(results))
    assert "no interval" not in str(counted)


def test_only_prompts_that_both_cells_have_are_compared(results):
    rows = frame(cell("spectr", "3x3", 2.0), cell("sd", "3", 2.0))
    record(results, "spectr-3x3", [[1]] * 5 + [[3]] * 2)
    record(results, "sd-3", [[1]] * 5)
    check = only(check_claims("rsd", rows, results), "spectr > sd in block", "draft length 3")
    assert check.evidence.startswith("+0.000 [+0.000, +0.000]")


def test_the_best_tree_is_named_with_how_many_it_was_picked_from(results):
    rows = frame(
        cell("rsd_s", "2x2", 2.2),
        cell("rsd_s", "3x2", 2.9),
        cell("rsd_c", "2-1", 2.0),
        cell("rsd_c", "2-2", 2.1),
        cell("rsd_c", "3-1", 2.3),
    )
    picked = "each tree picked on one half of the prompts and compared on the other"
    trees = "rsd_s 3x2 (best of 2 on all prompts) against rsd_c 3-1 (best of 3 on all prompts)"
    unrecorded = only(check_claims("rsd", rows, results), "rsd_s > rsd_c", "draft length 2")
    assert trees in unrecorded.evidence
    assert picked not in unrecorded.evidence
    checks = judged("rsd", rows, results)
    best = only(checks, "rsd_s > rsd_c", "draft length 2")
    assert best.evidence.startswith("+0.600 [")
    assert best.evidence.endswith(f"{trees}; {picked}")
    fixed = only(checks, "rsd_s > rsd_c", "trees of one size, mean over draft lengths")
    assert picked not in fixed.evidence
    # Four nodes: 2x2 and 2-1. Six nodes: 3x2 and 2-2, 3x2 and 3-1.
    assert fixed.evidence.startswith(f"{(0.2 + 0.8 + 0.6) / 3:+.3f}")


def test_trees_that_both_experiments_share_are_a_run_of_neither(results):
    shared = frame(cell("rsd_s", "3x2", 3.0), cell("spectr", "3x2", 2.0))
    assert check_claims("rsd", shared, results) == []
    with_exp1 = pd.concat([shared, frame(cell("sd", "2", 1.5))])
    claims = [check.claim for check in check_claims("rsd", with_exp1, results)]
    assert claims
    assert not [claim for claim in claims if "budget" in claim]


def test_rsd_s_must_be_ahead_of_chains_and_iid_paths_in_speed_too(results):
    slow = {"mbsu": 2.0, "draft_calls": 2, "parameter_ratio": 0.25, "token_rate": 5.0}
    ours = row("rsd_s", "3x3", block_efficiency=3.0, **slow)
    rows = frame(ours, cell("spectr", "3x3", 1.5), cell("sd", "3", 2.5))
    checks = [c for c in judged("rsd", rows, results) if "for all performance" in c.statement]
    verdicts = {tuple(c.claim.split(",")[0].split(" in ")): c.verdict for c in checks}
    assert verdicts == {
        ("rsd_s > spectr", "block efficiency"): "holds",
        ("rsd_s > sd", "block efficiency"): "holds",
        ("rsd_s > spectr", "MBSU"): "holds",
        ("rsd_s > spectr", "token rate"): "does not hold",
        ("rsd_s > sd", "MBSU"): "does not hold",
        ("rsd_s > sd", "token rate"): "does not hold",
    }


def test_luck_on_one_half_of_the_prompts_does_not_make_a_tree_the_best_on_the_other(results):
    """Two trees that differ by luck only: their best is not ahead of one of them."""
    record(results, "rsd_s-2x2", [[3], [1], [3], [1], [2], [0], [2], [0]])
    record(results, "rsd_s-3x2", [[1], [3], [1], [3], [0], [2], [0], [2]])
    record(results, "sd-2", [[2], [2], [1], [1], [2], [2], [1], [1]])
    left = (row("rsd_s", "2x2"), row("rsd_s", "3x2"))
    contrast = Contrast(left, (row("sd", "2"),))
    gap = difference([[contrast]], "block_efficiency", Records(results))
    assert gap.value == pytest.approx(0.5 - 1.5)
    single = difference(
        [[Contrast(left[:1], contrast.right)]], "block_efficiency", Records(results)
    )
    assert single.value == pytest.approx(0.0)


def test_tasks_are_pooled_where_both_have_records(results):
    rows = frame(
        *(
            cell(decoder, spec, 2.0, task=task, run_id=f"{decoder}-{task}")
            for task in ("xsum", "dolly")
            for decoder, spec in (("spectr", "3x3"), ("sd", "3"))
        )
    )
    for task in ("xsum", "dolly"):
        record(results, f"spectr-{task}", HIGH)
        record(results, f"sd-{task}", LOW)
    checks = found(check_claims("rsd", rows, results), "spectr > sd in block", "draft length 3")
    assert [check.where for check in checks] == ["xsum", "dolly", "all tasks, pair embedded"]
    unrecorded = check_claims("rsd", rows.assign(run_id="gone"), results)
    assert {
        check.where for check in found(unrecorded, "spectr > sd in block", "draft length 3")
    } == {"xsum", "dolly"}


def exp2(sd, rsd_c, rsd_s):
    cells = [cell("sd", str(budget), sd) for budget in (6, 14, 30)]
    for budget, trees in {6: ("2x3", "3-1"), 14: ("2x7", "7-1"), 30: ("5x6", "6-1-1-1-1")}.items():
        assert budget
        cells += [cell("rsd_s", trees[0], rsd_s), cell("rsd_c", trees[1], rsd_c)]
        cells += [cell("spectr", trees[0], 2.0)]
    return frame(*cells)


def ahead_at(rsd_s, results):
    """RSD-S has these numbers at budgets 6, 14, 30; the best of all others has 3 at each."""
    rows = exp2(2.0, 3.0, 1.0)
    names = ["block_efficiency", "mbsu", "token_rate"]
    for spec, tau in zip(("2x3", "2x7", "5x6"), rsd_s, strict=True):
        own = (rows.decoder == "rsd_s") & (rows.spec == spec)
        rows.loc[own, names] = [tau, tau, 10 * tau]
    return judged("rsd", rows, results)


@pytest.mark.parametrize(
    ("rsd_s", "won", "verdict"),
    [
        ((4.0, 4.0, 2.0), "2 of 3", "holds"),
        ((4.0, 2.0, 2.0), "1 of 3", "does not hold"),
        ((4.0, 3.0, 2.0), "1 of 3", "within noise"),
    ],
)
def test_a_claim_about_most_budgets_is_held_against_most_and_not_each(rsd_s, won, verdict, results):
    checks = found(ahead_at(rsd_s, results), "all others", "at most budgets")
    assert [check.verdict for check in checks] == [verdict] * 3  # three metrics, one task
    assert all(f"ahead at {won} budgets: 6: " in check.evidence for check in checks)


@pytest.mark.parametrize(
    ("rsd_s", "verdict"), [((4.0, 4.0, 4.0), "holds"), ((4.0, 4.0, 1.5), "does not hold")]
)
def test_a_claim_about_every_budget_fails_at_one(rsd_s, verdict, results):
    check = only(ahead_at(rsd_s, results), "token rate at every budget")
    assert check.verdict == verdict
    assert "strictly outperforms our baselines" in check.statement


@pytest.mark.parametrize(
    ("sd", "verdict"), [(4.0, "holds"), (3.0, "within noise"), (2.0, "does not hold")]
)
def test_chains_must_be_ahead_at_small_budgets(sd, verdict, results):
    checks = judged("rsd", exp2(sd, 3.0, 3.0), results)
    check = only(checks, "sd > rsd_c in MBSU at budgets 6 and 10")
    assert check.verdict == verdict
    assert "at budget 6: " in check.evidence
    assert "14: " not in check.evidence


def test_mbsu_charges_each_draft_call(results):
    extra = {"draft_calls": 3, "parameter_ratio": 0.5}
    record(results, "a", HIGH)
    record(results, "b", HIGH)
    left = pd.Series(row("rsd_c", "3-1", run_id="a", draft_calls=0, parameter_ratio=0.5))
    right = pd.Series(row("sd", "3", run_id="b", **extra))
    gap = difference([[Contrast((left,), (right,))]], "mbsu", Records(results))
    tau = (sum(map(sum, HIGH)) + 24) / 24
    assert gap.value == pytest.approx(tau - tau / 2.5)


def test_token_rates_are_compared_as_a_share(results):
    record(results, "a", HIGH, rate=30)
    record(results, "b", HIGH, rate=20)
    sides = [(pd.Series(row("sd", "3", run_id=name)),) for name in "ab"]
    gap = difference([[Contrast(*sides)]], "token_rate", Records(results))
    assert gap.value == pytest.approx(0.5)
    assert str(gap).startswith("+50.0% [")


def scored(count=1):
    """AR and so many exact decoders; what they score is in their records."""
    cells = [row("sd", str(index), rouge2=0.5) for index in range(count)]
    return Group("xsum", frame(row("ar", rouge2=0.5), *cells))


def of_scores(results, *better):
    """The check of decoders whose prompts score so much more than AR's, whatever AR's do."""
    theirs = [0.2 + 0.6 * (prompt * 7 % 40) / 40 for prompt in range(40)]
    for place, gaps in enumerate(([0.0] * 40, *better)):
        own = {str(n): each + gap for n, (each, gap) in enumerate(zip(theirs, gaps, strict=False))}
        run_id = f"sd-{place - 1}" if place else "ar--"
        record(results, run_id, [[0]] * len(own))
        files.write_json(results.parent.parent / "runs" / run_id / "scores.json", {"rouge2": own})
    (check,) = exact_scores_of(scored(len(better)), Records(results))
    return only(judged_together([check]))


@pytest.mark.parametrize(
    ("better", "verdict"),
    [
        ([0.1, -0.1] * 20, "holds"),
        ([0.0] * 40, "holds"),
        ([0.0] * 12, "within noise"),  # equal answers to some prompts do not make sure of all
        ([0.4, -0.4] * 20, "within noise"),
        ([0.06] * 12, "does not hold"),  # however far scores of single prompts lie apart
        ([0.02] * 40, "does not hold"),  # by little, but on every prompt: another law
        ([0.02] * 5 + [0.0] * 35, "holds"),  # a few signs say little
    ],
)
def test_scores_of_one_law_differ_by_little_and_not_always_in_one_direction(
    better, verdict, results
):
    check = of_scores(results, better)
    assert check.verdict == verdict
    assert check.claim == "rouge2 of exact decoders is that of ar, within 0.05"


def test_one_decoder_of_several_that_scores_otherwise_is_seen_and_luck_of_one_is_not(results):
    either, lucky, never = [0.1, -0.1] * 20, [0.1] * 27 + [-0.1] * 13, [0.1] * 38 + [-0.1] * 2
    assert of_scores(results, lucky).evidence.endswith("most lopsided by prompt: sd 0, p = 0.038")
    check = of_scores(results, either, either, either, lucky)
    assert check.verdict == "holds"
    assert check.evidence.startswith("mean of 4 decoders, +0.009 [")
    check = of_scores(results, either, either, either, never)
    assert check.verdict == "does not hold"
    assert check.evidence.endswith("sd 3, p = 1.5e-09")


def test_scores_without_records_are_compared_and_not_decided():
    (check,) = exact_scores_of(scored(), Records(Path("results.csv")))
    assert check.verdict == "not decided"
    assert check.p_values is None
    assert check.evidence.startswith("+0.000 (no interval: no records")


@pytest.mark.parametrize("lossless", ["simulated", "approximate", "exact_beam"])
def test_quality_says_nothing_of_decoders_that_are_not_exact(lossless):
    group = scored(2)
    group.rows.loc[1:, "lossless"] = lossless
    assert not list(exact_scores_of(group, Records(Path("results.csv"))))


@pytest.mark.parametrize(
    ("falling", "rising", "verdict"), [(2.5, 2.0, "holds"), (2.0, 2.5, "does not hold")]
)
def test_falling_widths_are_compared_with_rising_ones_of_the_same_factors(
    falling, rising, verdict, results
):
    rows = frame(
        cell("mcsd_wor", "4-2", falling),
        cell("mcsd_wor", "2-4", rising),
        cell("mcsd_wor", "4-2-1", falling),
        cell("mcsd_wor", "1-2-4", rising),
        cell("mcsd_wor", "2-4-1", 9.0),
        cell("mcsd_wor", "4-4", 9.0),
    )
    checks = judged("mcsd", rows, results)
    check = only(checks, "falling k-configurations", "block efficiency")
    assert check.verdict == verdict
    assert check.evidence.startswith(f"{falling - rising:+.3f}")
    assert "mean of 2 sets of factors" in check.evidence
    assert only(checks, "falling k-configurations", "token rate").verdict == verdict


@pytest.mark.parametrize(
    ("taus", "verdict"), [((2.5, 2.2, 1.5), "holds"), ((1.5, 2.2, 2.5), "does not hold")]
)
def test_verification_rules_are_compared_on_the_same_tree(taus, verdict, results):
    decoders = ("mcsd_wor", "mcsd", "mcns")
    rows = frame(*(cell(name, "4-2-1", tau) for name, tau in zip(decoders, taus, strict=True)))
    checks = judged("mcsd", rows, results)
    verdicts = {check.verdict for check in found(checks, "block efficiency")}
    assert verdicts == {verdict}
    assert len(found(checks, "naive sampling behind", "block efficiency")) == 2


def test_tree_attention_is_about_speed_and_not_block_efficiency(results):
    same = {"tree_attention": False, "run_id": "rows"}
    rows = frame(
        row("mcsd", "4-2-1", block_efficiency=2.0, token_rate=20.0),
        row("sd", "3"),  # so that the other two are recorded with the same tokens
        row("mcsd", "4-2-1", block_efficiency=2.0, token_rate=10.0, **same),
    )
    checks = judged("mcsd", rows, results)
    assert only(checks, "leaves block efficiency").verdict == "holds"
    assert only(checks, "raises the token rate").verdict == "holds"
    rows.loc[2, ["block_efficiency", "token_rate"]] = [1.0, 40.0]
    checks = judged("mcsd", rows, results)
    assert only(checks, "leaves block efficiency").verdict == "does not hold"
    assert only(checks, "raises the token rate").verdict == "does not hold"


@pytest.mark.parametrize(
    ("alphas", "verdict"),
    [
        ((0.2, 0.5, 0.8), "holds"),
        ((0.2, 1.0, 1.0), "holds"),
        ((0.2, 0.25, 0.3), "within noise"),
        ((0.2, 0.8, 0.5), "does not hold"),
    ],
)
def test_acceptance_must_rise_with_k_and_fall_at_no_step(alphas, verdict, results):
    cells = zip(("16", "2", "4"), (alphas[2], *alphas[:2]), strict=True)
    rows = frame(*(row("mcsd_wor", k, acceptance_rate=alpha) for k, alpha in cells))
    check = only(judged("mcsd", rows, results), "rises with the number of candidates")
    assert check.verdict == verdict
    assert check.evidence.startswith(f"2 to 16: {alphas[2] - alphas[0]:+.3f}")
    assert "2 to 4 +" in check.evidence
    assert "4 to 16 " in check.evidence


def test_a_tuned_draft_is_compared_with_the_plain_one_at_every_k(results):
    rows = frame(
        row("mcsd_wor", "1", acceptance_rate=0.8),
        row("mcsd_wor", "4", acceptance_rate=0.9),
        row("mcsd_wor", "1", acceptance_rate=0.5, pair="embedded_plain"),
        row("mcsd_wor", "4", acceptance_rate=0.6, pair="embedded_plain"),
    )
    check = only(judged("mcsd", rows, results), "the draft of embedded ahead")
    assert (check.verdict, check.evidence[:6]) == ("holds", "+0.300")


def test_every_pair_with_a_tuned_draft_is_compared_with_the_plain_one():
    names = {path.stem for path in (files.package_folder("conf") / "pair").glob("*.yaml")}
    tuned = {name: name.replace("_ft", "_") for name in names if "_ft" in name}
    compared = code_of(load_paper("mcsd").folder, "claims").TUNED
    assert compared == {**tuned, "embedded": "embedded_plain"}


def test_simulated_acceptance_is_no_evidence(results):
    rows = frame(cell("spectr", "3x3", 3.0, lossless="simulated"), cell("sd", "3", 2.0))
    assert check_claims("rsd", rows, results) == []


def test_failed_cells_and_empty_frames_claim_nothing(results):
    failed = frame(cell("spectr", "3x3", 2.0, status="failed"), cell("sd", "3", 2.0))
    assert check_claims("rsd", failed, results) == []
    assert check_claims("mcsd", pd.DataFrame(), results) == []


def test_an_unknown_paper_is_an_error_that_names_the_known_ones(results):
    with pytest.raises(ValueError, match="'nothing'; known: beyond, dsbd"):
        check_claims("nothing", pd.DataFrame(), results)


def test_a_claim_stays_within_its_experiment_and_counts_a_cell_once():
    rows = pd.concat(
        [
            frame(row("sd", "3", prompts=10)).assign(experiment="mcsd-search"),
            frame(row("sd", "3", prompts=50)).assign(experiment="quickstart"),
            frame(row("sd", "3", prompts=20)).assign(experiment="mcsd-search"),
        ],
        ignore_index=True,
    )
    ask = Ask(rows, Records(Path("results.csv")))
    assert list(ask.of("mcsd-search").rows.prompts) == [20]
    assert list(ask.of("rsd-exp1").rows.prompts) == [50]
    assert ask.of("rsd-exp1", only=True).rows.empty


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (HIGH, LOW, "holds"),
        (LOW, HIGH, "does not hold"),
        ([[3, 0], [0, 3]] * 4, [[0, 3], [3, 0]] * 4, "within noise"),
    ],
)
def test_any_results_file_has_its_orderings_checked_where_records_are_there(
    ours, theirs, verdict, results
):
    rows = frame(cell("rsd_s", "3x3", 1.0), cell("rsd_s", "4x3", 9.0), cell("rsd_c", "2-2-2", 1.0))
    assert check_generally(rows, results) == []
    record(results, "rsd_s-3x3", ours)
    record(results, "rsd_c-2-2-2", theirs)
    (check,) = check_generally(rows, results)
    assert check.claim == "rsd_s > rsd_c in block efficiency"
    assert check.evidence.startswith("difference ")
    assert check.verdict == verdict


def test_orderings_of_any_results_file_are_pooled_over_tasks(results):
    cells = [
        cell(decoder, "3", 1.0, task=task, run_id=f"{decoder}-{task}")
        for task in ("xsum", "dolly")
        for decoder in ("spectr", "sd")
    ]
    for task in ("xsum", "dolly"):
        record(results, f"spectr-{task}", HIGH)
        record(results, f"sd-{task}", LOW)
    checks = check_generally(frame(*cells), results)
    assert [check.where for check in checks] == ["xsum", "dolly", "all tasks"]


@pytest.mark.parametrize(
    ("rate", "said", "verdict"),
    [
        (14.0, "+40.0% [", "holds"),
        (10.05, "+0.5% [-", "within noise"),
        (8.0, "-20.0% [", "does not hold"),
    ],
)
def test_the_fastest_decoder_is_compared_with_the_baseline(rate, said, verdict, results):
    def checked(*cells):
        checks = check_generally(recorded(results, frame(*cells)), results)
        return only(checks, "the fastest beats ar")

    cells = [
        row("ar", speedup=1.0, token_rate=10.0),
        row("sd", "3", speedup=rate / 10, token_rate=rate),
        row("sd", "2"),
    ]
    check = checked(*cells)
    assert check.evidence.startswith(said)
    on_all = f"on all prompts sd 3, {rate / 10:.2f} times"
    assert check.evidence.endswith(f"] against ar's token rate; {on_all}, on 8 prompts")
    assert check.verdict == verdict
    cells.append(row("sd", "4", speedup=0.5, token_rate=5.0))
    check = checked(*cells)
    how = "picked on one half of the prompts and timed on the other"
    assert check.evidence.startswith(said)
    assert check.evidence.endswith(f", {how}; {on_all}, best of 2 on 8 prompts")
    theirs = row("hf_assisted", "3", speedup=9.0, token_rate=90.0, lossless="unaudited")
    assert checked(*cells, theirs) == check


def test_the_fastest_of_few_prompts_is_named_and_not_decided(results):
    rows = frame(
        row("ar", speedup=1.0, token_rate=10.0), row("sd", "3", speedup=2.0, token_rate=20.0)
    )
    (check,) = check_generally(rows, results)
    assert (check.verdict, check.p_values) == ("not decided", None)
    assert check.evidence.startswith("+100.0% (no interval: no records")


@pytest.fixture
def asking(results):
    """Cells with records, of which claims can be asked."""

    def made(rows):
        return Ask(recorded(results, rows), Records(results)).of()

    return made


def asked(ask, left="sd", right="spectr", metric="token_rate", **how):
    """The checks of a claim, as if alone on a page."""
    text = how.pop("text", "{left} beats {right} in {metric}")
    return judged_together(list(ask.ahead(text, left, right, metric, same="depth", **how)))


def test_a_claim_is_asked_of_trees_that_agree_in_a_part_of_their_shorthand(asking):
    rows = frame(cell("sd", "3", 3.0), cell("spectr", "4x3", 2.0), cell("spectr", "4x2", 9.0))
    (check,) = asked(asking(rows))
    assert check.claim == "sd beats spectr in token rate"
    assert check.evidence == "+50.0% [+46.6%, +53.4%], sd 3 against spectr 4x3"
    assert (check.where, check.verdict) == ("xsum", "holds")


@pytest.mark.parametrize(
    ("expect", "verdict"),
    [
        ({}, "holds"),
        ({"expect": Difference.below}, "does not hold"),
        ({"expect": lambda gap: None}, "not decided"),
        ({"expect": lambda gap: gap.above(0.4)}, "holds"),
        ({"expect": lambda gap: gap.above(0.6)}, "does not hold"),
        ({"expect": lambda gap: gap.within(0.6)}, "holds"),
        ({"expect": lambda gap: gap.within(0.1)}, "does not hold"),
    ],
)
def test_a_claim_says_which_difference_it_expects(expect, verdict, asking):
    rows = frame(cell("sd", "3", 3.0), cell("spectr", "4x3", 2.0))
    (check,) = asked(asking(rows), **expect)
    assert check.verdict == verdict


def test_cells_are_chosen_by_any_column_or_part_of_the_tree(asking):
    rows = frame(*(cell("spectr", spec, 2.0) for spec in ("2x3", "4x3")), cell("sd", "3", 3.0))
    wide = cells("spectr", width=lambda width: width >= 3, seed=0)
    (check,) = asked(asking(rows), right=wide)
    assert check.evidence.endswith("sd 3 against spectr 4x3")
    assert not asked(asking(rows), right=cells("spectr", seed=(1, 2)))


def test_another_engine_is_compared_only_where_a_side_names_it(asking):
    theirs = cell("hf_assisted", "3", 9.0, lossless="unaudited")
    rows = frame(cell("sd", "3", 3.0), cell("spectr", "4x3", 2.0), theirs)
    (check,) = asked(asking(rows), left=cells(decoder=lambda name: name != "spectr"))
    assert check.evidence.endswith("sd 3 against spectr 4x3")
    (check,) = asked(asking(rows), left="hf_assisted")
    assert check.evidence.endswith("hf_assisted 3 against spectr 4x3")


def test_a_claim_may_ask_for_settings_of_its_cells(asking):
    rows = frame(cell("sd", "3", 3.0), cell("spectr", "4x3", 2.0))
    warm = {"given": lambda row: row["temperature"] >= 0.7}
    assert not asked(asking(rows).of(**warm))
    assert asked(asking(rows.assign(temperature=1.0)).of(**warm))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"text": "{feild}"}, "'{feild}' names 'feild'; there are left, right, metric, place"),
        ({"metric": "token_rat"}, "no column 'token_rat'"),
        ({"each": "lenght"}, "no column 'lenght'"),
    ],
)
def test_an_unknown_name_in_a_claim_is_said(wrong, words, asking):
    rows = frame(cell("sd", "3", 3.0), cell("spectr", "4x3", 2.0))
    with pytest.raises(ValueError, match=words):
        asked(asking(rows), **wrong)


def own_claims(folder, text):
    folder.mkdir()
    (folder / "claims.py").write_text(text, encoding="utf-8")
    return read_claims(folder)


def test_a_papers_claims_are_the_functions_of_its_file_and_their_docstrings_the_statements(
    tmp_path,
):
    quoted, ours, reported = own_claims(
        tmp_path / "mine",
        '''
from spec_bench.report.claims.ask import best
def faster(ask):
    """“Ours is faster (by
    far).” (Section 1)

    A remark.
    """
def beside(ask):
    """What the paper does not say."""
def summed(ask):
    """reported, in a summary's words: 5% faster (arXiv 1, abstract)"""
def _helper(ask): ...
''',
    )
    assert (quoted.statement, quoted.section) == ("“Ours is faster (by far).”", "Section 1")
    assert (ours.statement, ours.section) == ("", "")
    assert reported.statement == "reported, in a summary's words: 5% faster"
    assert reported.section == "arXiv 1, abstract"
    beyond = [claim.statement for claim in load_paper("beyond").claims if claim.statement]
    assert beyond and all(said.startswith("reported") and "“" not in said for said in beyond)


@pytest.mark.parametrize("said", ["", '"""“Ours is faster.”"""', '"""reported, 5% (1)"""'])
def test_a_claim_without_its_statements_place_is_a_line_that_names_file_and_function(
    said, tmp_path
):
    with pytest.raises(ValueError, match=naming("claims.py", "faster", "(Section 5)")) as raised:
        own_claims(tmp_path / "mine", f"def faster(ask):\n    {said or 'pass'}\n")
    assert len(str(raised.value).splitlines()) == 1


def test_an_error_in_a_claim_names_the_claim_and_its_paper(results, monkeypatch):
    wrong = replace(load_paper("rsd"))
    claim = Claim(lambda ask: ask.of(axis="length"), "", "")
    wrong.__dict__["claims"] = (claim,)
    monkeypatch.setattr("spec_bench.report.claims.load_paper", lambda name: wrong)
    with pytest.raises(
        ValueError, match="claim <lambda> of rsd: no axis 'length'; the paper has: draft"
    ):
        check_claims("rsd", frame(cell("sd", "3", 3.0)), results)


def test_every_paper_has_claims_that_are_its_own_or_said_to_be_ours():
    known = {paper: load_paper(paper).claims for paper in paper_names()}
    assert all(known.values()) and sum(map(len, known.values())) > 40
    stated = [(each.statement, each.section) for own in known.values() for each in own]
    quoted = [each for each in stated if each[0]]
    assert len(set(quoted)) == len(quoted) > 30  # a function a statement


def test_sides_that_were_measured_otherwise_are_not_compared_and_it_is_said(results):
    fast = {"batch_size": 4, "batching": "continuous"}
    rows = frame(
        cell("spectr", "3x3", 3.0, batching="static"),
        cell("sd", "3", 2.0, **fast),
        cell("sd", "3", 2.0, task="dolly", **fast),
        cell("spectr", "3x3", 3.0, task="dolly", **fast),
    )
    checks = found(judged("rsd", rows, results), "spectr > sd in block", "draft length 3")
    assert [check.where for check in checks] == ["dolly, batch size 4, batching continuous", "xsum"]
    assert checks[0].verdict == "holds"
    assert checks[1].verdict == "not comparable"
    said = "not comparable: batch size 1 and 4; batching static and continuous"
    assert checks[1].evidence.startswith(said)


def test_runs_that_a_setting_tells_apart_are_not_pooled(results):
    rows = frame(
        *(
            cell(decoder, spec, tau, task=task, batch_size=size)
            for size in (1, 4)
            for task in ("xsum", "dolly")
            for decoder, spec, tau in (("spectr", "3x3", 3.0), ("sd", "3", 2.0))
        )
    )
    checks = found(judged("rsd", rows, results), "spectr > sd in block", "draft length 3")
    pooled = [check.where for check in checks if check.where.startswith("all tasks")]
    assert pooled == [f"all tasks, pair embedded, batch size {size}" for size in (1, 4)]
    assert len(checks) == 6


def test_a_summary_counts_verdicts_and_claims_that_nothing_was_measured_for(results):
    rows = frame(cell("spectr", "3x3", 3.0), cell("sd", "3", 2.0))
    checks = judged("rsd", rows, results)
    summary = summary_of(checks, load_paper("rsd"))
    count = len(load_paper("rsd").claims)
    measured = len({check.number for check in checks})
    assert summary.sentence == (
        f"RSD: of {len(checks)} checks, {len(checks)} hold; corrected for {len(checks)} made "
        f"together (Holm): 1 page in 20 has a false verdict; {count - measured} of its {count} "
        "claims not measured here."
    )
    assert summary.verdicts == ("holds", "not measured")
    lines = {statement: counts for (statement, _), counts in summary.lines.items()}
    (trees,) = [cells for said, cells in lines.items() if "tree-based methods" in said]
    assert trees == [str(len(checks)), ""]
    assert lines["“RSD-S always outperforms SD, SpecTr and RSD-C.”"] == ["", "x"]
    assert list(lines)[-1] == ""  # what the paper does not say


def test_checks_on_the_console_begin_with_the_summary_and_quote_the_paper(results, capsys):
    folder = results.parents[1]
    rows = recorded(results, frame(cell("rsd_s", "3x3", 3.0), cell("sd", "3", 2.0)))
    write(folder, "rsd-exp1", *rows.to_dict("records"))
    assert main(["checks", "rsd", "--results", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("RSD: of ")
    assert "“RSD-S strictly outperforms both SD and SpecTr for all performance metrics” (Sec" in out
    assert "not said by the paper, checked beside it" in out
