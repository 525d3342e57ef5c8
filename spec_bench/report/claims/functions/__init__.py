"""Claims checked by a function, which a paper names by ``function:``.

A function takes the claim and the scope and yields checks. Each file of this package registers
some; other packages register theirs under the entry points ``spec_bench.claims``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spec_bench.report.claims.select import Scope
from spec_bench.report.claims.verdict import Check
from spec_bench.report.papers.claim import Claim
from spec_bench.settings.registry import Registry

Function = Callable[[Claim, Scope], Iterator[Check]]

claim_function: Registry[Function] = Registry(
    "claim function", "spec_bench.claims", within="spec_bench.report.claims.functions"
)
