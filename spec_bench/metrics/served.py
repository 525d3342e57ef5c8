"""What a server's user sees: waiting, gaps, whole answers; what the stream says of its calls.

Only for answers that came over a connection; other cells have none of these numbers but one, the
delivered tokens of a call. Percentiles
are over all requests, repeats included. Gaps are between chunks, which are calls; seconds per token
are a request's own, first chunk excluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from spec_bench.metrics.metric import CellRecords, Sums, metric
from spec_bench.records.types import Delivery, Generation

_PERCENTS = (50, 90, 99)
_AT_ONCE_S = 1e-4


def first_s(each: Generation, came: Delivery) -> list[float]:
    """From the request to its first chunk: waiting and the prompt's pass."""
    return [came.seconds[0]]


def per_token_s(each: Generation, came: Delivery) -> list[float]:
    """Seconds per token after the first chunk; none for an answer of one chunk."""
    return [(came.seconds[-1] - came.seconds[0]) / each.decoded] if each.decoded else []


def gaps_s(each: Generation, came: Delivery) -> list[float]:
    """Between chunks that follow each other."""
    return [after - before for before, after in pairwise(came.seconds)]


def in_bursts(windows: Sequence[Generation]) -> bool:
    """Whether most chunks came at once with the one before, sooner than any pass can take."""
    gaps = [gap for each in windows if each.delivery for gap in gaps_s(each, each.delivery)]
    return sum(gap < _AT_ONCE_S for gap in gaps) > len(gaps) / 2


def whole_s(each: Generation, came: Delivery) -> list[float]:
    """From the request to its last chunk."""
    return [came.seconds[-1]]


_SEEN: dict[str, Callable[[Generation, Delivery], list[float]]] = {
    "ttft_s": first_s,
    "inter_token_s": per_token_s,
    "chunk_gap_s": gaps_s,
    "latency_s": whole_s,
}


def percentile(
    windows: Sequence[Generation],
    seen: Callable[[Generation, Delivery], list[float]],
    percent: float,
) -> float | None:
    """A percentile over all requests, linear between neighbours; None without values."""
    values = [value for each in windows if each.delivery for value in seen(each, each.delivery)]
    return float(np.percentile(values, percent)) if values else None


def _declare(name: str, percent: int) -> None:
    seen = _SEEN[name]

    @metric(f"{name}_p{percent}", of_cell=True)
    def _(cell: CellRecords) -> float | None:
        return percentile(cell.windows, seen, percent)


for _name in _SEEN:
    for _percent in _PERCENTS:
        _declare(_name, _percent)


@metric("block_efficiency_stream")
def delivered_per_call(generations: Sequence[Generation]) -> float | None:
    """Delivered tokens over target calls; a server's after the first chunk, over its chunks."""
    calls = [len(each.delivery.tokens) - 1 if each.delivery else len(each.steps)
             for each in generations]  # fmt: skip
    return Sums(tuple(float(each.decoded) for each in generations), tuple(map(float, calls))).value


@metric("block_efficiency_source")
def source(generations: Sequence[Generation]) -> str | None:
    """Where the target calls are known from; if that differs, with the number of prompts."""
    counts = Counter(each.delivery.counted for each in generations if each.delivery)
    if len(counts) < 2:
        return next(iter(counts), None)
    return ", ".join(f"{name}: {counts[name]}" for name in sorted(counts))
