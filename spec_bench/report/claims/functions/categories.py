"""Checks by category of prompts: the fastest decoder against plain decoding."""

from __future__ import annotations

from collections.abc import Iterator

from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.functions.scores import fastest_of
from spec_bench.report.claims.select import Scope
from spec_bench.report.claims.verdict import Check
from spec_bench.report.data.categories import kinds_of
from spec_bench.report.papers.claim import Claim


@claim_function("fastest_by_category")
def fastest_by_category(claim: Claim, scope: Scope) -> Iterator[Check]:
    """The same as ``fastest``, on each category of prompts alone."""
    for group in scope.groups(claim):
        for kind in kinds_of(group, scope.records):
            where = f"{group.title}, category {kind.name}"
            yield from fastest_of(group, scope.records, where, frozenset(kind.prompts))
