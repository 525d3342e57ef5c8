"""EAGLE's claims and ours beside them, in the words of ``report.claims``."""

from spec_bench.report.claims.ask import Checks, ClaimQuery, best, cells, describe_gap_and_trees

BOTH = ("block_efficiency", "token_rate")


def second_before_first(ask: ClaimQuery) -> Checks:
    """“EAGLE-2 achieving speedup ratios 3.05x-4.26x, which is 20%-40% faster than EAGLE-1.”
    (arXiv 2406.16858, abstract)
    """
    yield from _published(ask, "eagle2", "eagle")


def third_before_second(ask: ClaimQuery) -> Checks:
    """“EAGLE-3 achieves a speedup ratio up to 6.5x, with about 1.4x improvement over EAGLE-2.”
    (arXiv 2503.01840, abstract)
    """
    yield from _published(ask, "eagle3", "eagle2")


def drafters_of_chains(ask: ClaimQuery) -> Checks:
    """Who drafts, at 5 nodes."""
    for other in (
        cells("eagle_sd"),
        cells("medusa", spec="chain_5"),
        cells("redrafter", spec="1x5"),
        cells("sd"),
        cells("prompt_lookup", spec="1x5"),
    ):
        yield from _drafters(ask, "chains of 5", cells("eagle3_sd"), other)


def drafters_of_trees(ask: ClaimQuery) -> Checks:
    """Who drafts, at 25 nodes on five levels."""
    for left, right in (
        ("eagle3", cells("eagle2")),
        ("eagle3", cells("medusa", spec="eagle_25")),
        ("eagle3", cells("redrafter", spec="5x5")),
        ("eagle3", cells("opt_tree")),
        ("eagle3", cells("lookup_vote", spec="5x5")),
        ("eagle3_eagle", cells("eagle")),
    ):
        yield from _drafters(ask, "trees of 25", left, right)


def rules_on_one_head(ask: ClaimQuery) -> Checks:
    """One head, rule against rule: the same trees drawn in the same way."""
    for left, right in (
        ("eagle3_block", "eagle3_sd"),
        ("eagle3_optimal", "eagle3_spectr"),
        ("eagle3_spectr_traversal", "eagle3_spectr"),
        ("eagle3_specinfer_traversal", "eagle3_specinfer"),
        ("eagle3_traversal", "eagle3_rsd_c"),
        ("eagle_traversal", "eagle3_eagle"),
        ("eagle_rsd_s_traversal", "eagle_rsd_s"),
        ("eagle3_dyspec_traversal", "eagle3_dyspec"),
        ("eagle3_rsd_c", "eagle3_specinfer"),
        ("eagle3_rsd_c", "eagle3_mcns"),
        ("eagle3_top_and_sample", "eagle3_rsd_c"),
    ):
        yield from _rules(ask, given=lambda row: row["temperature"] > 0).ahead(
            "{left} > {right} in {metric}, the same trees",
            left, right, "block_efficiency", same="spec", evidence=describe_gap_and_trees,
        )  # fmt: skip


def trees_on_one_head(ask: ClaimQuery) -> Checks:
    """Tree against tree, at 10 nodes and at 25."""
    for left, right in (
        ("eagle_rsd_s", "eagle3_rsd_c"),
        ("eagle_rsd_s", "eagle3_spectr"),
        ("eagle3", "eagle_rsd_s"),
        ("eagle3_dyspec", "eagle_rsd_s"),
        ("eagle3_dyspec", "eagle3"),
    ):
        yield from _rules(ask).ahead(
            "{left} > {right} in {metric}, equal nodes",
            left, right, BOTH, same="nodes", evidence=describe_gap_and_trees,
        )  # fmt: skip


def greedy_rules(ask: ClaimQuery) -> Checks:
    """At temperature 0 only the tree matters."""
    for left, right in (
        ("eagle3_traversal", "eagle3_rsd_c"),
        ("eagle_rsd_s_traversal", "eagle_rsd_s"),
    ):
        yield from _rules(ask, given=lambda row: row["temperature"] == 0).ahead(
            "{left} as {right} in {metric}, greedy, the same trees, within 1%",
            left, right, "block_efficiency", same="spec", evidence=describe_gap_and_trees,
            expect=lambda gap: gap.within_share_of_left(0.01),
        )  # fmt: skip


def _published(ask, left, right):
    text = "{left} > {right} in {metric}, the published trees"
    return ask.of("eagle-mt-bench", only=True).ahead(text, left, right, BOTH, by=best)


def _drafters(ask, of, left, right):
    text = f"{{left}} > {{right}} in {{metric}}, {of}"
    return ask.of("eagle-heads", only=True).ahead(text, left, right, BOTH, by=best)


def _rules(ask, given=None):
    return ask.of("eagle-rules", only=True, given=given)
