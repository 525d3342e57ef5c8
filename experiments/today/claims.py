"""What we check of today's drafters, in the words of ``report.claims``."""

from spec_bench.report.claims.ask import Checks, ClaimQuery, best, cells

EXPERIMENTS = ("today-drafters", "today-qwen3-8b", "today-mimo-7b")


def chains(ask: ClaimQuery) -> Checks:
    """One drafter against another, at 7 nodes."""
    for left, right in (
        ("dflash", "eagle3_sd"),
        ("mtp", "eagle3_sd"),
        ("eagle3_sd", "sd"),
        ("eagle3_sd", cells("suffix_decoding", spec="1x7")),
    ):
        yield from _ahead(ask, "chains of 7", left, right)


def trees(ask: ClaimQuery) -> Checks:
    """One drafter against another, at 25 nodes."""
    for left, right in (
        ("dflash_ddtree", "eagle3"),
        ("mtp_eagle3", "eagle3"),
        ("eagle3", "opt_tree"),
        ("eagle3", "token_recycling"),
        ("eagle3", cells("suffix_decoding", spec="5x5")),
    ):
        yield from _ahead(ask, "trees of 25", left, right)


def trees_before_chains(ask: ClaimQuery) -> Checks:
    """The same laws: a tree of their likeliest nodes against their chain."""
    for left, right in (("dflash_ddtree", "dflash"), ("eagle3", "eagle3_sd")):
        yield from _ahead(ask, "25 nodes against 7", left, right)


def _ahead(ask, of, left, right):
    text = f"{{left}} > {{right}} in {{metric}}, {of}"
    metrics = ("block_efficiency", "token_rate")
    return ask.of(*EXPERIMENTS, only=True).ahead(text, left, right, metrics, by=best)
