"""Gains reported since the four papers, and ours, in the words of ``report.claims``.

What is reported is its paper's result as a summary states it, not in the paper's words.
"""

from spec_bench.report.claims.ask import Checks, ClaimQuery, best, describe_gap_and_trees
from spec_bench.report.claims.general import check_all_exact_scores

BOTH = ("block_efficiency", "token_rate")
TRAVERSAL = "traversal verification > {right} in {metric}, "


def block(ask: ClaimQuery) -> Checks:
    """reported, in a summary's words: block verification: 7 to 10% block efficiency, 5 to 8% time
    (arXiv 2403.10444)
    """
    yield from _rule(ask, "{left} > {right} in {metric}, chains of one length", "block", "sd", BOTH)


def traversal(ask: ClaimQuery) -> Checks:
    """reported, in a summary's words: traversal verification: +2.2 to 5.7% length
    (arXiv 2505.12398)
    """
    for left, right, of in (
        ("specinfer_traversal", "specinfer", "the same trees drawn with replacement"),
        ("traversal", "rsd_c", "the same trees drawn without replacement"),
        ("rsd_s_traversal", "rsd_s", "the same stochastic beams"),
    ):
        yield from _rule(ask, f"{TRAVERSAL}{of}", left, right)


def traversal_of_paths(ask: ClaimQuery) -> Checks:
    """reported, in a summary's words: traversal verification: best rule on i.i.d. paths
    (arXiv 2602.16994)
    """
    sides = ("spectr_traversal", ("spectr", "optimal"))
    yield from _rule(ask, f"{TRAVERSAL}the same K paths", *sides)


def spechub_with_replacement(ask: ClaimQuery) -> Checks:
    """reported, in a summary's words: SpecHub: +0.05 to 0.27 tokens a step over multi-round
    rejection (arXiv 2411.05289)
    """
    yield from _spechub(ask, "specinfer")


def spechub_without_replacement(ask: ClaimQuery) -> Checks:
    """reported, in a summary's words: SpecHub: +0.02 to 0.16 tokens a step over drawing without
    replacement (arXiv 2411.05289)
    """
    yield from _spechub(ask, "rsd_c")


def optimal(ask: ClaimQuery) -> Checks:
    """The optimal rule before SpecTr's."""
    text = "the optimal rule > {right} in {metric}, the same K paths"
    yield from _rule(ask, text, "optimal", "spectr")


def equal_budgets(ask: ClaimQuery) -> Checks:
    """Trees of equal budgets."""
    for left, right in (
        ("sequoia", "rsd_c"),
        ("sequoia", "rsd_s"),
        ("opt_tree", "sequoia"),
        ("dyspec", "sequoia"),
        ("rsd_s", "spectr"),
    ):
        yield from ask.of("beyond-trees", only=True).ahead(
            "{left} > {right} in {metric}, the best trees of both",
            left, right, BOTH, by=best, pooled=True,
        )  # fmt: skip


def draft_free(ask: ClaimQuery) -> Checks:
    """No draft model."""
    for left, right in (
        ("prompt_lookup", "ar"),
        ("lookup_vote", "prompt_lookup"),
        ("suffix_lookup", "ar"),
        ("suffix_lookup", "prompt_lookup"),
        ("sd", "prompt_lookup"),
    ):
        yield from _free(ask, "{left} > {right} in {metric}", left, right, BOTH)


def another_engine(ask: ClaimQuery) -> Checks:
    """Ours beside transformers' own."""
    theirs = {"ar": "hf_generate", "sd": "hf_assisted", "prompt_lookup": "hf_prompt_lookup"}
    for left, right in theirs.items():
        text = "ours {left} > transformers' {right} in {metric}"
        yield from _free(ask, text, left, right, "token_rate")


def similar_scores(ask: ClaimQuery) -> Checks:
    """Exact decoders score as plain decoding does."""
    names = ("beyond-verification", "beyond-trees", "beyond-draft-free")
    yield from check_all_exact_scores(ask.of(*names))


def _rule(ask, text, left, right, metrics="block_efficiency"):
    return ask.of("beyond-verification", only=True).ahead(
        text, left, right, metrics, same="spec", pooled=True, evidence=describe_gap_and_trees
    )


def _spechub(ask, other):
    return _rule(
        ask, "top_and_sample > {right} in {metric}, the same widths", "top_and_sample", other
    )


def _free(ask, text, left, right, metrics):
    return ask.of("beyond-draft-free", only=True).ahead(
        text, left, right, metrics, by=best, pooled=True
    )
