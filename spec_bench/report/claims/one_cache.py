"""DSBD that keeps the keys and values of one sequence (arXiv:2409.16560, 4.3 and Table 1)."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from spec_bench.report.claims.cells import cells
from spec_bench.report.claims.check import DOES_NOT_HOLD, HOLDS, WITHIN_NOISE, Check, verdict_of
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.claims.records import Records
from spec_bench.report.claims.scores import scores_of
from spec_bench.report.load import Group, Row

# Table 1 has DSBD 2%, 7%, 5% and 7% behind SD and calls that close.
_CLOSE = 0.1
_SAME_CACHE = 0.05


def one_cache_claims(group: Group, records: Records) -> Iterator[Check]:
    """Quality above SD's and above AR's, speed close to SD's, no more memory than SD's."""
    chains = cells(group, "sd")
    for row in cells(group, "dsbd_one_cache"):
        own = f"dsbd with one cache ({row['spec']})"
        for other in (*chains, *cells(group, "ar")):
            name = f"{other['decoder']} {other['spec']}".removesuffix(" -")
            contrasts = [Contrast((row,), (other,))]
            for score in scores_of(group):
                found = difference([contrasts], score.name, records)
                if found is not None:
                    claim = f"{own} {score.ahead} {name} in {score.title}"
                    yield Check(claim, group.title, str(found), score.verdict(found))
        for chain in chains:
            yield from _speed(own, row, chain, group.title, records)
            yield from _cache(own, row, chain, group.title)


def _speed(own: str, row: Row, chain: Row, where: str, records: Records) -> Iterator[Check]:
    """At most a tenth slower."""
    found = difference([[Contrast((row,), (chain,))]], "token_rate", records)
    if found is None:
        return
    verdict = WITHIN_NOISE
    if found.low is not None and found.high is not None:
        verdict = verdict_of(found.low + _CLOSE, found.high + _CLOSE)
    claim = f"{own} at most {_CLOSE:.0%} slower than sd {chain['spec']}"
    yield Check(claim, where, str(found), verdict)


def _cache(own: str, row: Row, chain: Row, where: str) -> Iterator[Check]:
    """Bytes that the caches took, which are counted and have no interval."""
    sizes = [each.get("cache_bytes") for each in (row, chain)]
    if any(size is None or pd.isna(size) for size in sizes):
        return
    ours, theirs = (float(size) for size in sizes if size is not None)
    share = ours / theirs - 1
    claim = f"{own} takes the cache of sd {chain['spec']}, within {_SAME_CACHE:.0%}"
    evidence = f"{ours / 2**20:.2f} MiB against {theirs / 2**20:.2f} MiB, {share:+.1%}"
    same = abs(ours - theirs) <= _SAME_CACHE * theirs
    yield Check(claim, where, evidence, HOLDS if same else DOES_NOT_HOLD)
