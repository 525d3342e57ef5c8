"""MCSD's claims (arXiv:2401.06706), in the words of ``report.claims``."""

from spec_bench.report.claims.ask import (
    Checks,
    ClaimQuery,
    best,
    cells,
    describe_gap_and_trees,
    ends,
    rising,
    steps,
)
from spec_bench.report.claims.contrast import Difference, compute_difference
from spec_bench.report.claims.verdict import Check, p_value_of_all, p_value_of_most
from spec_bench.vocabulary.spec import parse_tree_spec

SEARCHES = ("mcsd-search", "mcsd-search-monotone")
BOTH = ("block_efficiency", "token_rate")
CHAT = {
    "vicuna_13b_ft68m": "vicuna_13b_68m",
    "vicuna_13b_ft160m": "vicuna_13b_160m",
    "llama2_chat_13b_ft68m": "llama2_chat_13b_68m",
    "llama2_chat_13b_ft160m": "llama2_chat_13b_160m",
    "embedded": "embedded_plain",
}
"""Pairs whose draft was tuned as the target was, and those with the draft that it was made from."""
BASE = {
    "llama_13b_ft68m": "llama_13b_68m",
    "llama_13b_ft160m": "llama_13b_160m",
    "llama2_13b_ft68m": "llama2_13b_68m",
    "llama2_13b_ft160m": "llama2_13b_160m",
}
"""The same of targets that were not tuned."""
TUNED = CHAT | BASE
_CLOSE = 0.05  # rates that differ by less are not significantly apart, a loss of less is slight


def best_trees_before_chains(ask: ClaimQuery) -> Checks:
    """“Overall, our approach consistently achieves higher speedup and block efficiency compared to
    and SD baseline” (Section 4.3)
    """
    searched, both = ask.of(*SEARCHES, only=True), ("token_rate", "block_efficiency")
    yield from searched.ahead(
        "{left} > {right} in {metric}, the best trees of both", "mcsd_wor", "sd", both, by=best
    )
    yield from searched.ahead(
        "{left} > {right} in {metric}, the best trees of each depth, mean over depths",
        "mcsd_wor", "sd", both, by=best, same="depth",
        evidence=lambda found: (
            f"{found.gap}, mean of {found.contrast_count} depths{found.pick_method_text}"
        ),
    )  # fmt: skip


def many_paths_are_slow(ask: ClaimQuery) -> Checks:
    """“despite a higher block efficiency, the 32-budget group demonstrates a lower speedup than the
    16-budget group.” (Section 4.4)
    """
    many, fewer = (cells("mcsd_wor", form="levels", paths=paths) for paths in (32, 16))
    yield from ask.of(*SEARCHES, only=True).ahead(
        "trees of 32 paths slower than those of 16 and as deep",
        many, fewer, "token_rate", same="depth", expect=Difference.below,
        evidence=lambda found: f"{found.gap}, mean of {found.contrast_count} pairs of trees",
    )  # fmt: skip


def falling_widths(ask: ClaimQuery) -> Checks:
    """“the monotonically decreasing configuration always outperforms the monotonically increasing
    configuration for the same budget (monotonic rule), e.g., 4x2 outperforms 2x4.” (Section 4.4)
    """
    yield from ask.of(*SEARCHES).ahead(
        "falling k-configurations ahead of rising ones of the same factors in {metric}",
        "mcsd_wor", "mcsd_wor", BOTH, by=_mirrored,
        evidence=lambda found: (
            f"{found.gap}, mean of {found.contrast_count} sets of factors"
            f"{found.describe_single_verdicts('ahead', 'behind')}"
        ),
    )  # fmt: skip


def without_replacement(ask: ClaimQuery) -> Checks:
    """“we also introduce a more efficient version that avoids collisions by sampling candidates
    without replacement” (Section 1)
    """
    text = "drawing without replacement ahead of with in {metric}"
    yield from _rules(ask, text, "mcsd_wor", "mcsd")


def naive_sampling(ask: ClaimQuery) -> Checks:
    """“MCSS offers the most significant improvement when compared to MCNS.” (Section 4.5)"""
    for left, how in (("mcsd_wor", "without"), ("mcsd", "with")):
        text = f"naive sampling behind recursive rejection {how} replacement in {{metric}}"
        yield from _rules(ask, text, left, "mcns")


def tree_attention(ask: ClaimQuery) -> Checks:
    """“Tree Attention also contributes a crucial role, not altering the expected block efficiency
    but substantially reducing the communication overhead.” (Section 4.5)

    The candidates and their verdicts have one law.
    """
    sides = [
        cells(decoder=lambda name: name != "ar", tree_attention=merged) for merged in (True, False)
    ]
    same = {"same": ("decoder", "spec"), "evidence": describe_gap_and_trees}
    both = ask.of("mcsd-ablation", paths_as_rows=True)
    text = "tree attention leaves {metric} as it is, within 5%"
    yield from both.ahead(
        text, *sides, "block_efficiency", expect=lambda gap: gap.within_share_of_left(0.05), **same
    )
    yield from both.ahead("tree attention raises the {metric}", *sides, "token_rate", **same)


def more_candidates(ask: ClaimQuery) -> Checks:
    """“As k increases, we observe a consistent improvement in acceptance rates across the different
    models and datasets.” (Section 4.2)
    """
    several = cells("mcsd_wor", form="number")
    yield from ask.of("mcsd-acceptance").ahead(
        "the {metric} rises with the number of candidates k and falls at no step",
        several, several, "acceptance_rate", by=steps("width"), judge=rising,
        evidence=_step_by_step,
    )  # fmt: skip


def many_candidates(ask: ClaimQuery) -> Checks:
    """“The α curves tend to converge when k exceeds 32” (Section 4.2)"""
    several = cells("mcsd_wor", form="number", width=lambda k: k >= 32)
    yield from ask.of("mcsd-acceptance").ahead(
        "the {metric} grows by less than 0.05 from k = 32 to the largest k",
        several, several, "acceptance_rate", by=ends("width"),
        expect=lambda gap: gap.below(0.05), evidence=describe_gap_and_trees,
    )  # fmt: skip


def tuned_drafts(ask: ClaimQuery) -> Checks:
    """“Fine-tuned draft models, Vicuna-68/160M, exhibit better alignment with both the Vicuna model
    and the LLaMA2-chat model” (Section 5)
    """
    yield from _tuned(ask, CHAT, "{} ahead of that of {}", Difference.better)


def tuned_drafts_of_base_targets(ask: ClaimQuery) -> Checks:
    """“with a slight loss of alignment to the LLaMA/LLaMA2 base models.” (Section 5)"""
    yield from _tuned(
        ask, BASE, f"{{}} behind that of {{}}, by less than {_CLOSE}",
        lambda gap: _all(gap.below(), gap.above(-_CLOSE)),
    )  # fmt: skip


def gains_on_top_of_tuning(ask: ClaimQuery) -> Checks:
    """“The delta value suggests that our method is fully superimposable with fine-tuning, and even
    surpasses the improvements achieved prior to fine-tuning.” (Section 5)
    """
    yield from _tuned(
        ask, TUNED, f"{{}} gains as much as that of {{}}, less {_CLOSE}, from four candidates,",
        lambda gap: gap.above(-_CLOSE / 2), by=_gains,
        evidence="half of the difference of both gains: {found}",
    )  # fmt: skip


def lower_rates(ask: ClaimQuery) -> Checks:
    """“However, fine-tuning the target model (Vicuna, a fine-tuned version of LLaMA), changing the
    dataset or the sampling method can lead to a decrease in acceptance rates.” (Section 4.2)
    """
    for new, old in (
        ("vicuna", "llama"),
        ("wmt14_ende", "alpaca"),
        ("temperature 1", "temperature 0"),
    ):
        yield from _mostly(ask, f"lower with {new} than with {old}", new, old, Difference.below)


def target_sizes(ask: ClaimQuery) -> Checks:
    """“In most cases, we did not observe a significant effect of changing the target model size on
    acceptance rates” (Section 4.2)
    """
    text = f"of a target of 33B that of one of 13B, within {_CLOSE},"
    yield from _mostly(ask, text, "33b", "13b", lambda gap: gap.within(_CLOSE))


def draft_sizes(ask: ClaimQuery) -> Checks:
    """“while increasing the size of the draft model had a limited positive effect on it.” (Section
    4.2)
    """
    text = "higher with a draft of 160M than of 68M, by less than 0.1,"
    yield from _mostly(ask, text, "160m", "68m", lambda gap: _all(gap.above(), gap.below(0.1)))


def same_budget(ask: ClaimQuery) -> Checks:
    """“configurations with the same budget have roughly the same performance if we follow the
    monotonic rule.” (Section 4.4)
    """
    level = {"form": "levels", "depth": 2}
    flat = cells("mcsd_wor", spec=lambda spec: spec.endswith("-1"), **level)
    other = cells("mcsd_wor", spec=lambda spec: _falls(spec) and not spec.endswith("-1"), **level)
    yield from ask.of(*SEARCHES).ahead(
        "falling k-configurations of {place} paths as fast as the widest of them, within 10%",
        other, flat, "token_rate", same="paths", each="paths", expect=lambda gap: gap.within(0.1),
    )  # fmt: skip


def greedy_identities(ask: ClaimQuery) -> Checks:
    """“For argmax sampling, MCSS with replacement degenerates to SD, as sampling with temp = 0
    consistently produces the top1 token. Additionally, it can be conclusively demonstrated that
    MCSS without replacement is equivalent to MCNS when using argmax sampling.” (Section 4.5)
    """
    known = ask.of("mcsd-ablation", given=lambda row: row["temperature"] == 0)
    for left, right, same in (("mcsd", "sd", "depth"), ("mcsd_wor", "mcns", "spec")):
        yield from known.ahead(
            "{left} is {right} in {metric}, greedy, within 1%", left, right, "block_efficiency",
            same=same, expect=lambda gap: gap.within_share_of_left(0.01),
        )  # fmt: skip


def _tuned(ask, pairs, text, expect, evidence=describe_gap_and_trees, **how):
    """Drafts with fine-tuning against the same without it."""
    known = ask.of("mcsd-acceptance", across="pair")
    for tuned, plain in pairs.items():
        sides = [cells("mcsd_wor", form="number", pair=pair) for pair in (tuned, plain)]
        yield from known.ahead(
            f"the draft of {text.format(tuned, plain)} in {{metric}}",
            *sides, "acceptance_rate", same="spec", expect=expect, evidence=evidence, **how,
        )  # fmt: skip


def _mostly(ask, text, new, old, expect):
    """The rate of a single candidate where one thing is new, against where it is old."""
    asked = ask.of("mcsd-acceptance")
    rows = {
        f"{row['pair']} {row['task']} temperature {row['temperature']:g} {row.get('harness')}": row
        for group in asked.groups
        for row in asked.select_side(group, cells("mcsd_wor", spec="1"))
    }
    sides = [
        ([row], [rows[place.replace(new, old)]])
        for place, row in rows.items()
        if new in place and place.replace(new, old) in rows
    ]
    gaps = [compute_difference([[each]], "acceptance_rate", ask.records) for each in sides]
    if gaps:
        p_values = [expect(gap) for gap in gaps]
        yield Check(
            f"the acceptance rate of a single candidate {text} in most cells",
            f"{len(gaps)} cells",
            ", ".join(map(str, gaps)),
            p_values=p_value_of_most(p_values) if all(p_values) else None,
            pair=sides[0][0][0]["pair"],
        )


def _all(*p_values):
    return p_value_of_all(p_values) if all(p_values) else None


def _gains(asked, left, right):
    """Tuned against plain at four candidates, and plain against tuned at one."""
    tuned, plain = ({row["spec"]: row for row in side} for side in (left, right))
    if {"1", "4"} <= tuned.keys() & plain.keys():
        yield [tuned["4"]], [plain["4"]]
        yield [plain["1"]], [tuned["1"]]


def _falls(spec):
    widths = parse_tree_spec(spec).widths or ()
    return widths == tuple(sorted(widths, reverse=True))


def _rules(ask, text, left, right):
    sampled = ask.of("mcsd-ablation", given=lambda row: row["temperature"] != 0)  # as Table 4 is
    return sampled.ahead(text, left, right, BOTH, same="spec", evidence=describe_gap_and_trees)


def _mirrored(asked, left, right):
    """Trees whose widths fall, against those of the same widths in rising order."""
    rising = {parse_tree_spec(row["spec"]).widths: row for row in right}
    for row in left:
        widths = parse_tree_spec(row["spec"]).widths or ()
        mirror = widths[::-1]
        if _falls(row["spec"]) and widths != mirror and mirror in rising:
            yield [row], [rising[mirror]]


def _step_by_step(found):
    said = [
        f"{right['spec']} to {left['spec']} {gap}"
        for left, right in found.first_cells_of_sides
        if (gap := found.compute_single_difference(([left], [right])))
    ]
    (_, first), (last, _) = found.first_cells_of_sides[0], found.first_cells_of_sides[-1]
    whole = f"{first['spec']} to {last['spec']}: {found.gap}"
    return f"{whole}; step by step {', '.join(said)}"
