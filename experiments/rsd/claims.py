"""RSD's claims (arXiv:2402.14160) and ours beside them, in the words of ``report.claims``."""

from math import atanh, tanh

from spec_bench.report.claims.ask import (
    Checks,
    ClaimQuery,
    best,
    cells,
    describe_gap_and_trees,
    ends,
    every,
    make_unjudged_check,
    most,
    some,
)
from spec_bench.report.claims.contrast import Difference, compute_correlation_over_prompts
from spec_bench.report.claims.general import check_all_exact_scores
from spec_bench.report.claims.verdict import Check
from spec_bench.report.data.rows import get_timing_doubt
from spec_bench.vocabulary.numbers import format_ends

ALL = ("block_efficiency", "mbsu", "token_rate")
SIZE = ("depth", "nodes")
MEAN = "{left} > {right} in {metric}, trees of one size, mean over "
TO_CHAIN = "{left} > {right} in {metric}, each tree against the chain, mean over draft lengths"
NAMED = {("llama2_70b", "xsum"): 10, ("llama2_chat_70b", "dolly"): 6}
"""Section 5.2's examples: the largest budget at which SD is ahead of RSD-C there."""


def best_at_each_length(ask: ClaimQuery) -> Checks:
    """“RSD-S always outperforms SD, SpecTr and RSD-C.” (Figure 4)"""
    yield from _at_each_length(ask, "rsd_s", "rsd_c", ("block_efficiency", "token_rate"))


def orders_at_one_size(ask: ClaimQuery) -> Checks:
    """Beams before constant widths before independent paths, trees of one size."""
    for left, right in (("rsd_s", "rsd_c"), ("rsd_c", "spectr")):
        yield from _of_one_size(ask, left, right, "block_efficiency")


def constant_widths_before_paths(ask: ClaimQuery) -> Checks:
    """RSD-C before SpecTr at each draft length."""
    yield from _at_each_length(ask, "rsd_c", "spectr", "block_efficiency")


def trees_before_chains(ask: ClaimQuery) -> Checks:
    """“Our results show that tree-based methods (SpecTr, RSD-C and RSD-S) always outperform SD in
    terms of block efficiency and MBSU” (Section 5.1)
    """
    yield from _at_each_length(ask, "spectr", "sd", "block_efficiency")
    for left in ("spectr", "rsd_c", "rsd_s"):
        yield from _lengths(ask).ahead(
            "{left} > {right} in {metric} at every draft length, best trees",
            left, "sd", ("block_efficiency", "mbsu"),
            by=best, same="draft_length", each="draft_length", judge=every(2),
            evidence=lambda found: f"{found.gaps_by_place_text}{found.pick_method_text}",
        )  # fmt: skip
    yield from _lengths(ask).ahead(
        TO_CHAIN, "spectr", "sd", "block_efficiency", same="depth", pooled=True
    )


def slow_trees(ask: ClaimQuery) -> Checks:
    """“token rates for SpecTr and RSD-C can be lower than that for SD” (Section 5.1)"""
    for left in ("spectr", "rsd_c"):
        yield from _lengths(ask).ahead(
            "{left} < {right} in {metric} at some draft length, best trees",
            left, "sd", "token_rate",
            by=best, same="draft_length", each="draft_length", judge=some,
            expect=Difference.below,
            evidence=lambda found: f"{found.gaps_by_place_text}{found.pick_method_text}",
        )  # fmt: skip


def strictly_better(ask: ClaimQuery) -> Checks:
    """“RSD-S strictly outperforms both SD and SpecTr for all performance metrics” (Section 5.1)"""
    yield from _of_one_size(ask, "rsd_s", "spectr", ALL)
    yield from _lengths(ask).ahead(TO_CHAIN, "rsd_s", "sd", ALL, same="depth", pooled=True)


def rate_is_not_mbsu(ask: ClaimQuery) -> Checks:
    """“We also observe that there is no strong correlation between MBSU and token rate” (Section
    5.1)
    """
    asked = _lengths(ask)
    claim = "MBSU and token rate of the trees: Pearson's r < 0.7"
    for group in asked.groups:
        trees = asked.select_side(group, cells())
        sound = [row for row in trees if not get_timing_doubt(row, "token_rate")]
        if len(sound) <= 4 < len(trees):
            yield make_unjudged_check(claim, group, trees, "token_rate")
        if len(sound) > 4:
            yield from _correlation(claim, group, sound, len(trees) - len(sound), ask.records)


def rates_fall_with_length(ask: ClaimQuery) -> Checks:
    """“token rates in many cases are shown to decrease as the length of draft-token sequence
    becomes higher” (Section 5.1)
    """
    yield from _lengths(ask).ahead(
        "{metric} at draft length 5 below that at 2 for most decoders, best trees",
        cells(draft_length=5), cells(draft_length=2), "token_rate",
        by=best, same="decoder", each="decoder", judge=most, expect=Difference.below,
        evidence=lambda found: (
            f"so for {found.holding_place_count_text}: {found.gaps_by_place_text}"
            f"{found.pick_method_text}"
        ),
    )  # fmt: skip


def most_budgets(ask: ClaimQuery) -> Checks:
    """“RSD-S outperforms SD, SpecTr and RSD-C in the majority of cases.” (Figure 5)"""
    yield from _budgets(ask).ahead(
        "rsd_s > all others in {metric} at most budgets, best trees",
        "rsd_s", ("rsd_c", "spectr", "sd"), ALL,
        by=best, same="target_budget", each="target_budget", judge=most,
        evidence=lambda found: (
            f"ahead at {found.holding_place_count_text} budgets: {found.gaps_by_place_text}"
            f"{found.pick_method_text}"
        ),
    )  # fmt: skip


def token_rate_at_every_budget(ask: ClaimQuery) -> Checks:
    """“In terms of token rate, RSD-S strictly outperforms our baselines” (Section 5.2)"""
    text = "rsd_s > spectr or sd in {metric} at every budget, best trees"
    yield from _at_budgets(ask, text, "rsd_s", ("spectr", "sd"), "token_rate", 6)


def slow_chains(ask: ClaimQuery) -> Checks:
    """“SD’s token rate severely decreases for higher target computation budgets” (Section 5.2)"""
    yield from _budgets(ask).ahead(
        "{left}'s {metric} at the largest budget below that at the smallest",
        "sd", "sd", "token_rate", by=ends("target_budget"), expect=Difference.below,
        evidence=describe_gap_and_trees,
    )  # fmt: skip


def high_budgets(ask: ClaimQuery) -> Checks:
    """“In the high budget regime, on the other hand, RSD-S beats SD for both block efficiency and
    MBSU.” (Section 5.2)

    Its regimes: SD is said to do well at 6 and 10.
    """
    text = "rsd_s > sd in {metric} from budget 14 on, best trees"
    yield from _at_budgets(ask, text, "rsd_s", "sd", ("block_efficiency", "mbsu"), 14)


def beams_at_one_size(ask: ClaimQuery) -> Checks:
    """Beams before constant widths and before independent paths, trees of one size."""
    for other in ("rsd_c", "spectr"):
        text = f"{MEAN}budgets"
        yield from _budgets(ask).ahead(
            text, "rsd_s", other, "block_efficiency", same=SIZE, pooled=True
        )


def chains_at_low_budgets(ask: ClaimQuery) -> Checks:
    """“SD beats RSD-C in the relatively low budget regime, e.g., {6, 10} with Llama 2-70B and XSum,
    and {6} with Llama 2-Chat-70B and Dolly.” (Section 5.2)

    Of these alone: it is block efficiency and MBSU that the sentence speaks of, and a draft that is
    aligned well, with which SD's block efficiency is close to 3.
    """
    for place, largest in NAMED.items():
        yield from _chains(
            ask, largest, ("block_efficiency", "mbsu"),
            lambda row, place=place: (row["pair"], row["task"]) == place,
        )  # fmt: skip


def chains_at_low_budgets_elsewhere(ask: ClaimQuery) -> Checks:
    """Chains before constant widths at low budgets, where the paper names no such case."""
    yield from _chains(ask, 10, ALL, lambda row: (row["pair"], row["task"]) not in NAMED)


def similar_accuracy(ask: ClaimQuery) -> Checks:
    """“All methods including auto-regressive decoding show similar accuracy for WMT and XSum.”
    (Figure 4)
    """
    yield from check_all_exact_scores(ask.of("rsd-exp1", "rsd-exp2"))


def _correlation(claim, group, trees, left_out, records):
    """The trees are what the claim is about; the prompts they share are the sample."""
    found = compute_correlation_over_prompts(trees, "mbsu", "token_rate", records)
    if found is None:
        return
    ends = found.ends_on_value_scale and [tanh(end) for end in found.ends_on_value_scale]
    how = f"(no interval: {found.no_interval_reason})"
    if ends and not records.printed:
        how = f"{format_ends(*ends, '.3f')}, interval over prompts"
    rest = f"; {left_out} disturbed or stalled left out" if left_out else ""
    evidence = f"r = {found.value:.3f} {how}, over {len(trees)} trees{rest}"
    bound = atanh(0.7)
    yield Check(
        claim,
        group.title,
        evidence,
        p_values=found.below(bound),
        pair=str(trees[0]["pair"]),
        of_prompts=lambda n: found.rescale_to_prompts(n).below(bound),
    )


def _lengths(ask):
    return ask.of("rsd-exp1", axis="draft_length")


def _budgets(ask, **more):
    return ask.of("rsd-exp2", axis="target_budget", **more)


def _chains(ask, largest, metrics, given):
    low = {"target_budget": lambda budget: budget <= largest}
    return _budgets(ask, given=given).ahead(
        f"sd > rsd_c in {{metric}} at budgets up to {largest}, best trees",
        cells("sd", **low), cells("rsd_c", **low), metrics,
        by=best, same="target_budget", each="target_budget", judge=every(),
        evidence=lambda found: (
            f"sd against rsd_c at budget {found.gaps_by_place_text}{found.pick_method_text}"
        ),
    )  # fmt: skip


def _at_each_length(ask, left, right, metrics):
    return _lengths(ask).ahead(
        "{left} > {right} in {metric} at draft length {place}, best trees",
        left, right, metrics,
        by=best, same="draft_length", each="draft_length", pooled=True,
    )  # fmt: skip


def _of_one_size(ask, left, right, metrics):
    text = f"{MEAN}draft lengths"
    return _lengths(ask).ahead(text, left, right, metrics, same=SIZE, pooled=True)


def _at_budgets(ask, text, left, right, metrics, least):
    return _budgets(ask).ahead(
        text, left, right, metrics,
        by=best, same="target_budget", each="target_budget", judge=every(least),
        evidence=lambda found: (
            f"ahead at {found.holding_place_count_text} budgets: {found.gaps_by_place_text}"
            f"{found.pick_method_text}"
        ),
    )  # fmt: skip
