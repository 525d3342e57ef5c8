"""MCSD's claims (arXiv:2401.06706), in the words of ``report.claims``."""

from spec_bench.report.claims.ask import Ask, Checks, best, cells, ends, rising, steps, trees
from spec_bench.report.claims.contrast import Contrast, Difference
from spec_bench.vocabulary.spec import parse

SEARCHES = ("mcsd-search", "mcsd-search-monotone")
BOTH = ("block_efficiency", "token_rate")
TUNED = {
    "vicuna_13b_ft68m": "vicuna_13b_68m",
    "vicuna_13b_ft160m": "vicuna_13b_160m",
    "llama_13b_ft68m": "llama_13b_68m",
    "llama_13b_ft160m": "llama_13b_160m",
    "llama2_13b_ft68m": "llama2_13b_68m",
    "llama2_13b_ft160m": "llama2_13b_160m",
    "llama2_chat_13b_ft68m": "llama2_chat_13b_68m",
    "llama2_chat_13b_ft160m": "llama2_chat_13b_160m",
    "embedded": "embedded_plain",
}


def best_trees_before_chains(ask: Ask) -> Checks:
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
        evidence=lambda found: f"{found.gap}, mean of {found.n} depths{found.picked}",
    )  # fmt: skip


def many_paths_are_slow(ask: Ask) -> Checks:
    """“despite a higher block efficiency, the 32-budget group demonstrates a lower speedup than the
    16-budget group.” (Section 4.4)
    """
    many, fewer = (cells("mcsd_wor", form="levels", paths=paths) for paths in (32, 16))
    yield from ask.of(*SEARCHES, only=True).ahead(
        "trees of 32 paths slower than those of 16 and as deep",
        many, fewer, "token_rate", same="depth", expect=Difference.below,
        evidence=lambda found: f"{found.gap}, mean of {found.n} pairs of trees",
    )  # fmt: skip


def falling_widths(ask: Ask) -> Checks:
    """“the monotonically decreasing configuration always outperforms the monotonically increasing
    configuration for the same budget (monotonic rule), e.g., 4x2 outperforms 2x4.” (Section 4.4)
    """
    yield from ask.of(*SEARCHES).ahead(
        "falling k-configurations ahead of rising ones of the same factors in {metric}",
        "mcsd_wor", "mcsd_wor", BOTH, by=_mirrored,
        evidence=lambda found: (
            f"{found.gap}, mean of {found.n} sets of factors{found.one_by_one('ahead', 'behind')}"
        ),
    )  # fmt: skip


def without_replacement(ask: Ask) -> Checks:
    """“we also introduce a more efficient version that avoids collisions by sampling candidates
    without replacement” (Section 1)
    """
    text = "drawing without replacement ahead of with in {metric}"
    yield from _rules(ask, text, "mcsd_wor", "mcsd")


def naive_sampling(ask: Ask) -> Checks:
    """“MCSS offers the most significant improvement when compared to MCNS.” (Section 4.5)"""
    for left, how in (("mcsd_wor", "without"), ("mcsd", "with")):
        text = f"naive sampling behind recursive rejection {how} replacement in {{metric}}"
        yield from _rules(ask, text, left, "mcns")


def tree_attention(ask: Ask) -> Checks:
    """“Tree Attention also contributes a crucial role, not altering the expected block efficiency
    but substantially reducing the communication overhead.” (Section 4.5)

    The candidates and their verdicts have one law.
    """
    sides = [
        cells(decoder=lambda name: name != "ar", tree_attention=merged) for merged in (True, False)
    ]
    same = {"same": ("decoder", "spec"), "evidence": trees}
    both = ask.of("mcsd-ablation", paths_as_rows=True)
    text = "tree attention leaves {metric} as it is, within 5%"
    yield from both.ahead(
        text, *sides, "block_efficiency", expect=lambda gap: gap.within_share(0.05), **same
    )
    yield from both.ahead("tree attention raises the {metric}", *sides, "token_rate", **same)


def more_candidates(ask: Ask) -> Checks:
    """“As k increases, we observe a consistent improvement in acceptance rates across the different
    models and datasets.” (Section 4.2)
    """
    several = cells("mcsd_wor", form="number")
    yield from ask.of("mcsd-acceptance").ahead(
        "the {metric} rises with the number of candidates k and falls at no step",
        several, several, "acceptance_rate", by=steps("width"), judge=rising,
        evidence=_step_by_step,
    )  # fmt: skip


def many_candidates(ask: Ask) -> Checks:
    """“The α curves tend to converge when k exceeds 32” (Section 4.2)"""
    several = cells("mcsd_wor", form="number", width=lambda k: k >= 32)
    yield from ask.of("mcsd-acceptance").ahead(
        "the {metric} grows by less than 0.05 from k = 32 to the largest k",
        several, several, "acceptance_rate", by=ends("width"),
        expect=lambda gap: gap.below(0.05), evidence=trees,
    )  # fmt: skip


def tuned_drafts(ask: Ask) -> Checks:
    """“Fine-tuned draft models, Vicuna-68/160M, exhibit better alignment with both the Vicuna model
    and the LLaMA2-chat model” (Section 4.6)
    """
    for tuned, plain in TUNED.items():
        sides = [cells("mcsd_wor", form="number", pair=pair) for pair in (tuned, plain)]
        yield from ask.of("mcsd-acceptance", across="pair").ahead(
            f"the draft of {tuned} ahead of that of {plain} in {{metric}}",
            *sides, "acceptance_rate", same="spec", evidence=trees,
        )  # fmt: skip


def _rules(ask, text, left, right):
    return ask.of("mcsd-ablation").ahead(text, left, right, BOTH, same="spec", evidence=trees)


def _mirrored(asked, left, right):
    """Trees whose widths fall, against those of the same widths in rising order."""
    rising = {parse(row["spec"]).widths: row for row in right}
    for row in left:
        widths = parse(row["spec"]).widths or ()
        mirror = widths[::-1]
        if widths == tuple(sorted(widths, reverse=True)) != mirror and mirror in rising:
            yield Contrast((row,), (rising[mirror],))


def _step_by_step(found):
    each = [(step.right[0]["spec"], step.left[0]["spec"], step) for step in found.contrasts]
    said = [f"{low} to {high} {gap}" for low, high, step in each if (gap := found.of(step))]
    whole = f"{each[0][0]} to {each[-1][1]}: {found.gap}"
    return f"{whole}; step by step {', '.join(said)}"
