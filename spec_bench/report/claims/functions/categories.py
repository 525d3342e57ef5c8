"""Which decoder is fastest on each category of prompts, and whether it beats plain decoding."""

from __future__ import annotations

from collections.abc import Iterator

from spec_bench.report.categories import by_category, kinds_of
from spec_bench.report.claim import Claim
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import UNAUDITED, Scope
from spec_bench.report.claims.verdict import NOT_DECIDED, Check, verdict_of


@claim_function("fastest_by_category")
def fastest_by_category(claim: Claim, scope: Scope) -> Iterator[Check]:
    """The same as ``fastest``, on each category of prompts alone."""
    for group in scope.groups(claim):
        kinds = kinds_of(group, scope.records)
        cells = by_category(group, kinds, scope.records) if kinds else []
        for kind in kinds:
            found = [
                (speedup, cell.row)
                for cell in cells
                if (speedup := cell.speedup.get(kind.name))
                and cell.row.get("lossless") != UNAUDITED
            ]
            if not found:
                continue
            best, row = max(found, key=lambda each: each[0].value)
            evidence, verdict = f"{row['decoder']} {row['spec']}: {best.value:.2f}", NOT_DECIDED
            if best.low is not None and best.high is not None:
                evidence += f" [{best.low:.2f}, {best.high:.2f}] times ar's token rate"
                verdict = verdict_of(best.low - 1, best.high - 1)
            evidence += f", best of {len(found)} on {len(kind.prompts)} of its prompts"
            if len(found) > 1:
                evidence += "; the interval does not know of the choice"
            where = f"{group.title}, category {kind.name}"
            yield Check("the fastest beats ar", where, evidence, verdict)
