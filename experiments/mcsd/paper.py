"""MCSD's comparison of trees with their mirror images (arXiv:2401.06706), for one claim."""

from __future__ import annotations

from collections.abc import Iterator

from spec_bench.report.claims.contrast import Contrast
from spec_bench.report.claims.select import Scope
from spec_bench.report.data.rows import Row
from spec_bench.report.papers.claim import Claim
from spec_bench.vocabulary.spec import parse


def mirrored(scope: Scope, claim: Claim, left: list[Row], right: list[Row]) -> Iterator[Contrast]:
    """Trees whose widths fall, against those of the same widths in rising order."""
    rising = {parse(row["spec"]).widths: row for row in right}
    for row in left:
        widths = parse(row["spec"]).widths or ()
        mirror = widths[::-1]
        if widths == tuple(sorted(widths, reverse=True)) != mirror and mirror in rising:
            yield Contrast((row,), (rising[mirror],))
