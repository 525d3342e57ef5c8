"""How claims are asked and judged: contrasts, questions, p-values and their composition."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.p_values import bonferroni_ends, p_value_above
from spec_bench.records import cell_folder
from spec_bench.report.claims import (
    check_claims,
    check_general_claims,
    drop_failed_simulated_screened,
)
from spec_bench.report.claims.ask import ClaimQuery, cells
from spec_bench.report.claims.contrast import (
    Difference,
    compute_difference,
    compute_mean_difference,
    pick_counts_on_other_half,
)
from spec_bench.report.claims.general import check_exact_scores
from spec_bench.report.claims.verdict import (
    ALONE,
    DOES_NOT_HOLD,
    HOLDS,
    NOT_DECIDED,
    NOT_JUDGED,
    WITHIN_NOISE,
    Check,
    correct_verdicts,
    list_holm_verdicts,
    p_value_of_all,
    p_value_of_most,
    summarise_claims,
)
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import Group
from spec_bench.report.papers.paper import Claim, load_paper, read_claims
from spec_bench.system import files
from tests.commands import report as main
from tests.report.rows import (
    HIGH,
    LOW,
    cell,
    dsbd_cells,
    found,
    frame,
    only,
    record,
    recorded,
    write,
)
from tests.report.rows import embedded as row
from tests.said import naming, one_line


@pytest.fixture
def results(tmp_path):
    return tmp_path / "rsd-exp1" / "results.csv"


def gap_of(metric, results, *sides):
    return compute_difference([[sides]], metric, RecordReader(results))


@pytest.mark.parametrize(
    ("session", "told"),
    [("first", "["), ("second", "(no interval: the cells were not timed in turn)")],
)
def test_seconds_of_two_cells_are_paired_where_one_session_timed_them(session, told, results):
    record(results, "ar--", HIGH, rate=1.0, session="first")
    record(results, "sd-3", HIGH, rate=2.0, session=session)
    sides = [(row("sd", "3", token_rate=2.0),), (row("ar", token_rate=1.0),)]
    assert str(gap_of("token_rate", results, *sides)).startswith("+100.0% " + told)
    assert "no interval" not in str(gap_of("block_efficiency", results, *sides))


def test_mbsu_charges_each_draft_call(results):
    for name in "ab":
        record(results, name, HIGH)
    left = row("rsd_c", "3-1", run_id="a", draft_calls=0, parameter_ratio=0.5)
    right = row("sd", "3", run_id="b", draft_calls=3, parameter_ratio=0.5)
    tau = (sum(map(sum, HIGH)) + 24) / 24
    assert gap_of("mbsu", results, (left,), (right,)).value == pytest.approx(tau - tau / 2.5)


@pytest.mark.parametrize("prompts", [5, 12])
def test_a_look_up_that_hit_on_no_or_one_prompt_is_not_sure_to_be_as_plain_decoding(
    prompts, results
):
    record(results, "ar--", [[0] * 9] * prompts, depth=0)
    sides = (row("prompt_lookup", "10", run_id="looked"),), (row("ar", "-", run_id="ar--"),)
    for hits, value in (([0] * 9, 0.0), ([1] + [0] * 8, 1 / 9 / prompts)):
        record(results, "looked", [hits, *[[0] * 9] * (prompts - 1)], depth=10)
        gap = gap_of("block_efficiency", results, *sides)
        assert gap.value == pytest.approx(value)
        assert list_holm_verdicts([gap.within(0.02)]) == [WITHIN_NOISE]
        assert gap.ends_on_value_scale[1] > 1.0


def test_sides_that_are_equal_call_by_call_on_prompts_that_differ_are_exactly_equal(results):
    for name in "ab":
        record(results, name, [[0, 1], [1, 2], [3, 2], [0, 0], [2, 2]])
    gap = gap_of("block_efficiency", results, *((row("sd", "3", run_id=n),) for n in "ab"))
    assert (gap.value, gap.ends_on_value_scale, gap.prompt_count) == (0.0, (0.0, 0.0), 5)
    assert list_holm_verdicts([gap.within(0.02)]) == [HOLDS]


def test_prompts_of_one_batch_are_one_block_of_a_difference_in_times(results):
    for name, rate in (("a", 1.0), ("b", 2.0)):
        record(results, name, [[n % 4, 1] for n in range(64)], rate=rate)
    sides = [(row("sd", "3", run_id=n, token_rate=1.0, batch_size=32),) for n in "ab"]
    said = str(gap_of("token_rate", results, *sides))
    assert "no interval: seconds of fewer than 5 clocks, compared from 3 rounds on" in said


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
        run = files.get_run_folder(results.parent.parent, run_id)
        cell_folder.write_cell_json(run, {"scores": {"rouge2": own}})
    (check,) = check_exact_scores(scored(len(better)), RecordReader(results))
    return only(correct_verdicts([check]))


@pytest.mark.parametrize(
    ("better", "verdict"),
    [
        ([0.1, -0.1] * 20, "holds"),
        ([0.0] * 40, "holds"),
        ([0.0] * 12, "within noise"),  # equal answers to some prompts do not make sure of all
        ([0.4, -0.4] * 20, "within noise"),
        ([0.06] * 12, "does not hold"),  # however far scores of single prompts lie apart
        ([0.02] * 40, "does not hold"),  # by little, but on every prompt: another distribution
        ([0.02] * 5 + [0.0] * 35, "holds"),  # a few signs say little
    ],
)
def test_scores_of_one_distribution_differ_by_little_and_not_one_way(better, verdict, results):
    check = of_scores(results, better)
    assert check.verdict == verdict
    assert check.claim == "rouge2 of exact decoders is that of ar, within 0.05"


def test_one_decoder_of_several_that_scores_otherwise_is_seen_and_luck_of_one_is_not(results):
    either, lucky, never = [0.1, -0.1] * 20, [0.1] * 27 + [-0.1] * 13, [0.1] * 38 + [-0.1] * 2
    assert "sd 0, p = 0.038; about 150 prompts" in of_scores(results, lucky).evidence
    check = of_scores(results, either, either, either, lucky)
    assert check.verdict == "holds"
    assert check.evidence.startswith("mean of 4 decoders, +0.009 [")
    check = of_scores(results, either, either, either, never)
    assert check.verdict == "does not hold"
    assert check.evidence.endswith("sd 3, p = 1.5e-09")


@pytest.mark.parametrize("lossless", ["exact", "simulated", "approximate", "exact_beam"])
def test_scores_without_records_are_not_decided_and_say_nothing_of_what_is_not_exact(lossless):
    group = scored(2)
    group.rows.loc[1:, "lossless"] = lossless
    checks = list(check_exact_scores(group, RecordReader(Path("results.csv"))))
    assert len(checks) == (lossless == "exact")
    for check in checks:
        assert (check.verdict, check.p_values) == ("not decided", None)
        assert check.evidence.startswith("+0.000 (no interval: no records")


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (HIGH, LOW, "holds"),
        (LOW, HIGH, "does not hold"),
        ([[3, 0], [0, 3]] * 4, [[0, 3], [3, 0]] * 4, "within noise"),
    ],
)
def test_any_files_orderings_are_checked_where_records_are_there(ours, theirs, verdict, results):
    rows = frame(cell("rsd_s", "3x3", 1.0), cell("rsd_s", "4x3", 9.0), cell("rsd_c", "2-2-2", 1.0))
    assert check_general_claims(rows, results) == []
    record(results, "rsd_s-3x3", ours)
    record(results, "rsd_c-2-2-2", theirs)
    (check,) = check_general_claims(rows, results)
    assert check.claim == "rsd_s > rsd_c in block efficiency"
    assert check.evidence.startswith("difference ")
    assert check.verdict == verdict


def test_orderings_of_any_results_file_are_pooled_over_tasks(results):
    cells = []
    for task, (decoder, accepted) in product(("xsum", "dolly"), (("spectr", HIGH), ("sd", LOW))):
        record(results, f"{decoder}-{task}", accepted)
        cells.append(cell(decoder, "3", 1.0, task=task, run_id=f"{decoder}-{task}"))
    checks = check_general_claims(frame(*cells), results)
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
        checks = check_general_claims(recorded(results, frame(*cells)), results)
        return only(checks, "the fastest beats ar")

    baseline = row("ar", speedup=1.0, token_rate=10.0)
    cells = [baseline, row("sd", "3", speedup=rate / 10, token_rate=rate), row("sd", "2")]
    check = checked(*cells)
    on_all = f"on all prompts sd 3, {rate / 10:.2f} times"
    assert check.evidence.startswith(said)
    assert f"] against ar's token rate; {on_all}, on 8 prompts" in check.evidence
    assert check.verdict == verdict
    cells.append(row("sd", "4", speedup=0.5, token_rate=5.0))
    check = checked(*cells)
    how = "picked on one half of the prompts and timed on the other"
    assert check.evidence.startswith(said)
    assert f", {how}; {on_all}, best of 2 on 8 prompts" in check.evidence
    theirs = row("hf_assisted", "3", speedup=9.0, token_rate=90.0, lossless="unaudited")
    assert checked(*cells, theirs) == check
    (check,) = check_general_claims(frame(*cells), results.with_name("unrecorded"))
    assert (check.verdict, check.p_values) == ("not decided", None)
    assert check.evidence.startswith(f"{said.partition(' ')[0]} (no interval: no records")


@pytest.fixture
def asking(results):
    """Cells with records, of which claims can be asked."""

    def made(rows):
        return ClaimQuery(recorded(results, rows), RecordReader(results)).of()

    return made


TWO = frame(cell("sd", "3", 3.0), cell("spectr", "4x3", 2.0))


def asked(ask, left="sd", right="spectr", metric="token_rate", **how):
    """The checks of a claim, as if alone on a page."""
    text = how.pop("text", "{left} beats {right} in {metric}")
    return correct_verdicts(list(ask.ahead(text, left, right, metric, same="depth", **how)))


def test_a_claim_is_asked_of_trees_that_agree_in_a_part_of_their_shorthand(asking):
    more = frame(cell("spectr", "4x2", 9.0))
    (check,) = asked(asking(pd.concat([TWO, more], ignore_index=True)))
    assert check.claim == "sd beats spectr in token rate"
    assert check.evidence == "+50.0% [+47.9%, +51.1%], sd 3 against spectr 4x3"
    assert (check.where, check.verdict) == ("xsum", "holds")


@pytest.mark.parametrize(
    ("expect", "verdict"),
    [
        (Difference.better, "holds"),
        (Difference.below, "does not hold"),
        (lambda gap: None, "not decided"),
        (lambda gap: gap.above(0.4), "holds"),
        (lambda gap: gap.above(0.6), "does not hold"),
        (lambda gap: gap.within(0.6), "holds"),
        (lambda gap: gap.within(0.1), "does not hold"),
        (
            lambda gap: gap.within_share_of_left(0.02),
            "holds",
        ),  # of the left side's 30 tokens/s: 0.6
    ],
)
def test_a_claim_says_which_difference_it_expects(expect, verdict, asking):
    (check,) = asked(asking(TWO), expect=expect)
    assert check.verdict == verdict


def test_cells_are_chosen_by_any_column_or_part_of_the_tree(asking):
    ask = asking(frame(*(cell("spectr", spec, 2.0) for spec in ("2x3", "4x3")), cell("sd", "3", 3)))
    wide = cells("spectr", width=lambda width: width >= 3, seed=0)
    (check,) = asked(ask, right=wide)
    assert check.evidence.endswith("sd 3 against spectr 4x3")
    assert not asked(ask, right=cells("spectr", seed=(1, 2)))


def test_another_engine_is_compared_only_where_a_side_names_it(asking):
    theirs = frame(cell("hf_assisted", "3", 9.0, lossless="unaudited"))
    ask = asking(pd.concat([TWO, theirs], ignore_index=True))
    for left, said in ((cells(decoder=lambda name: name != "spectr"), "sd"), ("hf_assisted",) * 2):
        (check,) = asked(ask, left=left)
        assert check.evidence.endswith(f"{said} 3 against spectr 4x3")


def test_a_claim_may_ask_for_settings_of_its_cells(asking):
    warm = {"given": lambda row: row["temperature"] >= 0.7}
    assert not asked(asking(TWO).of(**warm))
    assert asked(asking(TWO.assign(temperature=1.0)).of(**warm))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"text": "{feild}"}, "'{feild}' names 'feild'; there are left, right, metric, place"),
        ({"metric": "token_rat"}, "no column 'token_rat'"),
        ({"each": "lenght"}, "no column 'lenght'"),
    ],
)
def test_an_unknown_name_in_a_claim_is_said(wrong, words, asking):
    with pytest.raises(ValueError, match=words):
        asked(asking(TWO), **wrong)


def test_a_claim_stays_within_its_experiment_and_counts_a_cell_once():
    known = ((10, "mcsd-search"), (50, "quickstart"), (20, "mcsd-search"))
    rows = frame(*(row("sd", "3", prompts=n, experiment=name) for n, name in known))
    ask = ClaimQuery(rows, RecordReader(Path("results.csv")))
    assert list(ask.of("mcsd-search").rows.prompts) == [20]
    assert list(ask.of("rsd-exp1").rows.prompts) == [50]
    assert ask.of("rsd-exp1", only=True).rows.empty


def test_failed_and_simulated_cells_and_empty_frames_claim_nothing(results):
    for other in ({"status": "failed"}, {"lossless": "simulated"}):
        rows = frame(cell("spectr", "3x3", 2.0, **other), cell("sd", "3", 2.0))
        assert check_claims("rsd", rows, results) == []
    assert check_claims("dsbd", dsbd_cells(status="failed"), results) == []
    assert check_claims("mcsd", pd.DataFrame(), results) == []


def own_claims(folder, text):
    folder.mkdir()
    (folder / "claims.py").write_text(text, encoding="utf-8")
    return read_claims(folder)


def test_a_papers_claims_are_its_files_functions_and_their_docstrings_statements(tmp_path):
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
def test_a_statement_without_its_place_is_a_line_that_names_file_and_function(said, tmp_path):
    with one_line(naming("claims.py", "faster", "(Section 5)")):
        own_claims(tmp_path / "mine", f"def faster(ask):\n    {said or 'pass'}\n")


def test_an_error_in_a_claim_names_the_claim_and_its_paper(results, monkeypatch):
    claim = Claim(lambda ask: ask.of(axis="length"), "", "")
    monkeypatch.setitem(load_paper("rsd").__dict__, "claims", (claim,))
    with pytest.raises(
        ValueError,
        match=r"claim <lambda> of rsd \(.*test_claims.py, line \d+\): no axis 'length'; .*draft",
    ):
        check_claims("rsd", TWO, results)


def test_a_stalled_cell_decides_no_claim_about_times_but_those_about_counts(results):
    stalled = {"reason": "speedup: stalled: 1 of 8 windows, median says 0.8"}
    cells = [cell("ar", "-", 1.0), cell("sd", "3", 2.0), cell("spectr", "3x3", 3.0, **stalled)]
    rows = recorded(
        results, frame(*(each | {"speedup": each["block_efficiency"]} for each in cells))
    )
    checks = check_claims("rsd", rows, results)
    assert [each for each in checks if "block efficiency" in each.claim]
    (left_out,) = {each.verdict for each in checks if "token rate" in each.claim}
    assert left_out == NOT_JUDGED
    fastest = only(check_general_claims(rows, results), "the fastest beats ar")
    assert "+100.0%" in fastest.evidence and "best of" not in fastest.evidence


@pytest.mark.parametrize("paper", ["rsd", "mcsd", "dsbd", "eagle"])
@pytest.mark.parametrize("state", ["stalled", "disturbed"])
def test_where_every_cell_stalled_the_claims_about_times_are_not_judged(paper, state, results):
    said = {"reason": f"speedup: {state}: 1 of 8 windows, median says 0.8"}
    trees = [("ar", "-"), ("sd", "3"), ("rsd_s", "4x3"), ("rsd_c", "2-2-1"), ("mcsd_wor", "2-1-1")]
    cells = [cell(*tree, 1.0 + at, **said) for at, tree in enumerate(trees)]
    checks = check_claims(paper, frame(*cells), results)
    timed = found(checks, "token rate")
    assert {(check.verdict, state in check.evidence) for check in timed} <= {("not judged", True)}
    assert paper != "rsd" or (timed and found(checks, "block efficiency"))
    assert (
        not timed
        or "not judged, by doubtful times" in summarise_claims(checks, load_paper(paper)).sentence
    )


def test_where_every_cell_is_disturbed_the_fastest_is_not_judged_and_simulated_ones_do_not_count(
    results,
):
    said = {"reason": "speedup: disturbed: threads waited for a core 72% of the time"}
    cells = [cell("ar", "-", 1.0, speedup=1.0), cell("sd", "3", 2.0, speedup=2.0, **said)]
    fastest = only(check_general_claims(frame(*cells), results), "the fastest beats ar")
    assert (fastest.verdict, fastest.evidence) == (NOT_JUDGED, f"sd 3: {said['reason'][9:]}")
    cells[1] |= {"lossless": "simulated", "reason": ""}
    assert not found(check_general_claims(frame(*cells), results), "the fastest beats ar")


def test_a_summary_counts_verdicts_and_claims_that_nothing_was_measured_for(results, capsys):
    rows = recorded(results, frame(cell("spectr", "3x3", 3.0), cell("sd", "3", 2.0)))
    checks = check_claims("rsd", rows, results)
    summary, n = summarise_claims(checks, load_paper("rsd")), len(checks)
    count, measured = len(load_paper("rsd").claims), len({check.number for check in checks})
    assert summary.sentence == (
        f"RSD: of {n} checks, {n - 1} hold and 1 does not hold; corrected (Holm) by pair, the "
        f"paper's claims and ours apart, {n} together: 1 such family in 20 has a false verdict; "
        f"{count - measured} of its {count} claims not measured here."
    )
    assert summary.verdicts == ("holds", "does not hold", "not measured")  # SpecTr is not slower
    lines = {statement: counts for (statement, _, _), counts in summary.counts_by_claim.items()}
    (trees,) = [cells for said, cells in lines.items() if "tree-based methods" in said]
    assert trees == [str(n - 1), "", ""]
    assert lines["“RSD-S always outperforms SD, SpecTr and RSD-C.”"] == ["", "", "x"]
    assert list(lines)[-1] == ""  # what the paper does not say
    folder = write(results.parents[1], "rsd-exp1", *rows.to_dict("records"))
    assert main(["claims", "rsd", "--results", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"RSD: of {n} checks, {n - 1} hold")


SURE, UNSURE, NEVER = 1e-9, 0.4, 1 - 1e-9
ROW = {"decoder": "sd", "spec": "2"}
PICKED = ({**ROW, "spec": "2"}, {**ROW, "spec": "3"})
YES, OPEN, NO = (SURE, NEVER), (UNSURE, 0.6), (NEVER, SURE)


def check(p_values, verdict=NOT_DECIDED):
    return Check("a", "task", "numbers", verdict, p_values=p_values)


def rates(table, left=(ROW,)):
    return compute_mean_difference([(left, (ROW,))], np.array(table), "token_rate", relative=True)


def test_the_best_of_many_needs_a_wider_interval():
    low, high = bonferroni_ends((2.0, 1.8, 2.2), 30, 1)
    assert (low, high) == (pytest.approx(1.8), pytest.approx(2.2))
    wider_low, wider_high = bonferroni_ends((2.0, 1.8, 2.2), 30, 20)
    assert 1.0 < wider_low < low and wider_high > high
    assert bonferroni_ends((2.0, float("nan"), 2.2), 30, 20) is None
    assert bonferroni_ends((2.0, 1.8, 2.2), 4, 1) is None


@pytest.mark.parametrize(
    ("p", "against", "verdict"),
    [(0.024, 0.976, HOLDS), (0.976, 0.024, DOES_NOT_HOLD), (0.026, 0.974, WITHIN_NOISE)],
)
def test_one_check_alone_is_judged_by_its_interval(p, against, verdict):
    assert list_holm_verdicts([(p, against)]) == [verdict]


def test_of_many_checks_on_a_page_one_needs_more_than_alone():
    page = [check((0.02, 0.98))] + [check((0.5, 0.5))] * 9
    assert [each.verdict for each in correct_verdicts(page)] == [ALONE] + [WITHIN_NOISE] * 9
    assert correct_verdicts([check((0.98, 0.02)), *page[1:]])[0].verdict == "contradicted alone"
    assert correct_verdicts(page)[0].evidence == "numbers; p 0.4, corrected for 10"
    page[0] = check((0.05 / 20, 0.99))
    assert correct_verdicts(page)[0].verdict == HOLDS
    # Counts and what nothing decides take no part in the correction.
    page = [check((0.02, 0.98)), *[check(None, HOLDS)] * 9, check(None)]
    assert [each.verdict for each in correct_verdicts(page)] == [HOLDS] * 10 + [NOT_DECIDED]
    page = correct_verdicts([check(YES), check((0.5, 0.5)), check(None, HOLDS)])
    assert "the paper's claims and ours apart, 2 together" in summarise_claims(page, None).sentence


def test_claims_on_another_pair_and_our_own_checks_are_families_of_their_own():
    one = check((0.02, 0.98))
    others = [replace(one, pair="b"), replace(one, statement="“it is”"), *[check(OPEN)] * 3]
    verdicts = [each.verdict for each in correct_verdicts([one, *others])]
    assert verdicts == [ALONE, HOLDS, HOLDS, *[WITHIN_NOISE] * 3]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.3, "about 80 prompts may decide"), (0.001, "10000 prompts would not decide")],
)
def test_an_open_check_says_how_many_prompts_may_decide_it(value, said):
    ends = Interval(value, value - 0.8, value + 0.8, degrees_of_freedom=19)
    gap = Difference(value, ends, is_relative=False, prompt_count=10)
    open_ = replace(check(gap.above()), of_prompts=lambda n: gap.rescale_to_prompts(n).above())
    assert correct_verdicts([open_])[0].evidence == f"numbers; {said}"


def test_all_hold_only_if_each_does_and_one_contrary_is_enough():
    assert p_value_of_all([YES, OPEN]) == (UNSURE, 1.0)
    assert p_value_of_all([YES, YES, (NEVER, 0.001)])[1] == pytest.approx(0.003)


def test_most_hold_if_more_than_half_do_and_cannot_if_half_do_not():
    assert p_value_of_most([YES, YES, YES, OPEN, OPEN])[0] < 1e-6
    assert p_value_of_most([YES, YES, OPEN, OPEN, OPEN])[0] == 1.0
    assert p_value_of_most([YES, YES, NO, NO])[1] < 1e-6
    assert p_value_of_most([YES, YES, YES, NO])[1] == 1.0


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((-0.01, 0.01), HOLDS), ((-0.3, 0.3), WITHIN_NOISE), ((0.19, 0.21), DOES_NOT_HOLD)],
)
def test_equal_is_shown_by_small_differences_and_not_by_few_prompts(ends, verdict):
    value = sum(ends) / 2
    gap = Difference(value, Interval(value, *ends, degrees_of_freedom=50), is_relative=False)
    assert list_holm_verdicts([gap.within(0.05)]) == [verdict]


def test_a_share_is_laid_out_on_its_logarithm_and_cannot_fall_below_minus_one():
    found = rates([[[[3.0, 6.0, 3.0, 6.0, 3.0]], [[1.0] * 5]], [[[5.0] * 5], [[1.0] * 5]]])
    assert found.value == pytest.approx(21 / 25 - 1)
    low, high = found.ends_on_value_scale
    assert -1 < low < found.value < high
    assert found.above(0.0)[0] == pytest.approx(p_value_above(found.tested, 0.0))


@pytest.mark.parametrize(("left", "prompts", "least"), [((ROW,), 4, 5), (PICKED, 7, 8)])
def test_few_prompts_have_a_difference_without_interval_and_pick_nothing(left, prompts, least):
    table = np.random.default_rng(0).uniform(1, 2, (len(left) + 1, 2, 1, prompts))
    found = rates(table, left)
    assert found.ends_on_value_scale is None and found.above() is None
    assert f"fewer than {least} prompts" in str(found)


def test_each_half_of_the_prompts_is_compared_on_the_cell_that_the_other_picked():
    # On the even prompts the first cell is faster, on the odd ones the second.
    counts = np.ones((2, 2, 1, 8))
    counts[:, 0, 0] = [3, 1] * 4, [2, 4] * 4
    assert pick_counts_on_other_half(PICKED, counts, "token_rate")[0, 0].tolist() == [2, 1] * 4


def test_the_best_of_equal_cells_is_not_ahead():
    rng, ahead = np.random.default_rng(3), 0
    side = tuple({**ROW, "spec": str(k)} for k in range(2, 42))
    for _ in range(60):
        table = np.ones((41, 2, 1, 20))
        table[:, 0, 0] = np.exp(0.3 * rng.standard_normal((41, 20)))
        ahead += rates(table, side).above()[0] < 0.025
    assert ahead <= 6  # of 60; picked and compared on the same prompts 60 are


def test_a_picks_mbsu_is_that_of_its_own_tree():
    cheap, dear = ({**ROW, "draft_calls": calls, "parameter_ratio": 0.5} for calls in (1, 6))
    counts = np.ones((2, 2, 1, 8))
    counts[1, 0] = 4.0  # tau 4 at 1 / (6 * 0.5 + 1): MBSU 1, of the cheap one 1 / 1.5
    found = pick_counts_on_other_half((cheap, dear), counts, "mbsu")
    assert found[0] / found[1] / 1.5 == pytest.approx(np.ones((1, 8)))


def test_what_a_search_screened_is_no_evidence():
    rows = pd.DataFrame({"status": "complete", "lossless": "exact", "stage": ["screen", "confirm"]})
    assert drop_failed_simulated_screened(rows).stage.tolist() == ["confirm"]


@pytest.mark.parametrize(("rate", "verdict"), [(10.4, "within noise"), (14.0, "holds")])
def test_no_verdict_is_on_less_than_what_one_configuration_differs_by(rate, verdict, results):
    twins = [row("rsd_c", "2-1", token_rate=9.0), row("mcsd_wor", "2-1", token_rate=9.9)]
    cells = [row("ar", token_rate=10.0, speedup=1.0), row("sd", "3", token_rate=rate), *twins]
    rows = recorded(results, frame(*cells).assign(temperature=0.3))
    ask = ClaimQuery(rows, RecordReader(results)).of()
    (check,) = correct_verdicts(list(ask.ahead("{left} beats {right}", "sd", "ar", "token_rate")))
    assert check.verdict == verdict
    said = "by chance: two names of one configuration differ by 10.0%" in check.evidence
    assert said == (verdict == "within noise")
    one_name = ClaimQuery(rows[rows.decoder != "mcsd_wor"], RecordReader(results)).of()
    (check,) = correct_verdicts(
        list(one_name.ahead("{left} beats {right}", "sd", "ar", "token_rate"))
    )
    assert check.verdict == "holds"
