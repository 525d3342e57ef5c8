"""Latencies that a server's user sees, and calls counted from what a server delivers.

Only answers that came over a connection have latencies. Percentiles are over all requests, repeats
included. A chunk is one call; gaps are between chunks, and seconds per token leave out a request's
first chunk.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from spec_bench.metrics.metric import CellRecords, metric, ratio_of_sums
from spec_bench.records.types import Generation, ServerChunks

_AT_ONCE_S = 1e-4
_SEEN: Mapping[str, Callable[[Generation, ServerChunks], list[float]]] = {
    "ttft_s": lambda _, delivery: [delivery.seconds[0]],
    "inter_token_s": lambda answer, delivery: (
        [(delivery.seconds[-1] - delivery.seconds[0]) / answer.tokens_in_decode_s]
        if answer.tokens_in_decode_s
        else []
    ),
    "chunk_gap_s": lambda _, delivery: [end - start for start, end in pairwise(delivery.seconds)],
    "latency_s": lambda _, delivery: [delivery.seconds[-1]],
}


def _list_delivery_latencies(latency: str, generations: Sequence[Generation]) -> list[float]:
    """Lists one kind of latency, in seconds, over all answers that came over a connection."""
    return [
        s
        for generation in generations
        if generation.delivery
        for s in _SEEN[latency](generation, generation.delivery)
    ]


def are_most_chunks_simultaneous(generations: Sequence[Generation]) -> bool:
    """Whether most chunks arrived less than ``_AT_ONCE_S`` after the previous chunk, sooner than a
    forward pass can take.
    """
    gaps = _list_delivery_latencies("chunk_gap_s", generations)
    return sum(gap < _AT_ONCE_S for gap in gaps) > len(gaps) / 2


def _latency_percentile(latency: str, percent: int, cell: CellRecords) -> float | None:
    """Computes a percentile of a latency in seconds, linear between neighbours; None without
    values.
    """
    values = _list_delivery_latencies(latency, cell.windows)
    return float(np.percentile(values, percent)) if values else None


for _name in _SEEN:
    for _percent in (50, 90, 99):
        metric(f"{_name}_p{_percent}", of_cell=True)(partial(_latency_percentile, _name, _percent))


@metric("block_efficiency_stream")
def delivered_per_call(generations: Sequence[Generation]) -> float | None:
    """Delivered tokens per target call; a server's after its first chunk, per later chunk."""

    def calls(generation: Generation) -> int:
        return len(generation.delivery.tokens) - 1 if generation.delivery else len(generation.steps)

    sums = ratio_of_sums(generations, lambda g: g.tokens_in_decode_s, calls)
    return sums.value if sums else None


@metric("block_efficiency_source")
def name_call_count_sources(generations: Sequence[Generation]) -> str | None:
    """Names the source of the count of target calls; if there are several, each with its number of
    prompts. None if no answer came over a connection.
    """
    counts = Counter(
        generation.delivery.counted for generation in generations if generation.delivery
    )
    if len(counts) < 2:
        return next(iter(counts), None)
    return ", ".join(f"{name}: {counts[name]}" for name in sorted(counts))
