"""What ReDrafter says of batches and of tree attention in them (arXiv:2403.09919, Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from spec_bench.report.beams import REDRAFTER
from spec_bench.report.claims.cells import with_tree_attention
from spec_bench.report.claims.check import (
    DOES_NOT_HOLD,
    HOLDS,
    Check,
    verdict_of,
    verdict_of_equality,
)
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.claims.records import Records
from spec_bench.report.load import Row, rows_of


def batch_claims(rows: pd.DataFrame, records: Records) -> Iterator[Check]:
    """Throughput against the batch size, then beams merged against beams as rows.

    Args:
        rows: cells of one experiment, with and without tree attention.
        records: where per-prompt counts come from.
    """
    for (pair, task), own in rows.groupby(["pair", "task"], sort=False) if len(rows) else ():
        where = f"{task}, pair {pair}"
        merged, unmerged = with_tree_attention(own), with_tree_attention(own, wanted=False)
        for (decoder, spec), part in merged.groupby(["decoder", "spec"], sort=False):
            yield from _grows(
                f"{decoder} {spec}".removesuffix(" -"), _by_size(part), where, records
            )
        for spec, part in unmerged[unmerged.decoder == REDRAFTER].groupby("spec", sort=False):
            same = merged[(merged.decoder == REDRAFTER) & (merged.spec == spec)]
            yield from _merged(str(spec), _by_size(same), _by_size(part), where, records)


def _by_size(rows: pd.DataFrame) -> dict[int, Row]:
    return {int(row["batch_size"]): row for row in rows_of(rows.sort_values("batch_size"))}


def _grows(name: str, sizes: Mapping[int, Row], where: str, records: Records) -> Iterator[Check]:
    """The largest batch against the smallest: of all requests more, of one request less."""
    if len(sizes) < 2:
        return
    small, large = min(sizes), max(sizes)
    found = difference([[Contrast((sizes[large],), (sizes[small],))]], "token_rate", records)
    if found is not None:
        rates = ", ".join(f"{size}: {row['token_rate']:.0f}" for size, row in sizes.items())
        claim = f"{name}: throughput grows with the batch"
        evidence = f"batch {large} against {small} {found}; tokens/s at {rates}; a job each"
        yield Check(claim, where, evidence, verdict_of(found.low, found.high))
    metric = "token_rate_per_request"
    if any(pd.isna(row.get(metric)) for row in sizes.values()):
        return
    found = difference([[Contrast((sizes[small],), (sizes[large],))]], metric, records)
    if found is not None:
        claim = f"{name}: a request is slower in a batch"
        evidence = f"batch {small} against {large} {found}; a job each"
        yield Check(claim, where, evidence, verdict_of(found.low, found.high))


def _merged(
    spec: str, merged: Mapping[int, Row], unmerged: Mapping[int, Row], where: str, records: Records
) -> Iterator[Check]:
    """The same tokens from fewer nodes, at a higher throughput."""
    common = [size for size in merged if size in unmerged]
    if not common:
        return
    contrasts = [Contrast((merged[size],), (unmerged[size],)) for size in common]
    found = difference([contrasts], "block_efficiency", records)
    if found is not None:
        claim = f"merging changes no block efficiency, greedy, beams {spec}"
        evidence = f"{found}, mean of {len(common)} batch sizes"
        yield Check(claim, where, evidence, verdict_of_equality(found.low, found.high))
    nodes = [float(side[common[0]]["nodes_per_call"]) for side in (merged, unmerged)]
    evidence = f"{nodes[0]:.1f} against {nodes[1]:.1f} a call, {1 - nodes[0] / nodes[1]:.0%} fewer"
    verdict = HOLDS if nodes[0] < nodes[1] else DOES_NOT_HOLD
    yield Check(f"merging saves nodes, beams {spec}", where, f"{evidence}; a count", verdict)
    speed = difference([contrasts], "token_rate", records)
    if speed is not None:
        single = [difference([[each]], "token_rate", records) for each in contrasts]
        said = ", ".join(f"{size}: {each}" for size, each in zip(common, single, strict=True))
        claim = f"tree attention raises throughput, beams {spec}"
        evidence = f"{speed}, mean of batch sizes; {said}"
        yield Check(claim, where, evidence, verdict_of(speed.low, speed.high))
