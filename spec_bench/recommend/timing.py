"""Seconds of iterations, decoders in turn; those that cannot win are not timed.

A few decoders of different sizes are timed first; what the others should take follows
(``seconds``). Only those that come near the best forecast speed-up go on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import exp, hypot, log
from typing import Any

import torch

from spec_bench.decode.config import DecoderConfig
from spec_bench.engine.stopwatch import synchronise
from spec_bench.metrics.interval import Interval
from spec_bench.recommend.seconds import Seconds, Size, fitted, probes
from spec_bench.records.types import Request
from spec_bench.tree.base import GrownTree

ROUNDS, ITERATIONS = 3, 5  # iterations timed of each decoder, in turn; the first is left out
FEW = 4  # iterations for the line
FEWEST, MOST = 5, 12  # decoders that are timed in every round, and in the first
NEAR = 0.85  # of the best forecast speed-up: decoders this near are timed


class Stopwatch:
    """Decoders that are timed side by side."""

    def __init__(self, requests: Sequence[Request], seed: int) -> None:
        self._requests, self._seed = requests, seed
        self._rounds = 0
        self.seconds: dict[int, list[float]] = {}

    def round(self, decoders: Iterable[tuple[int, Any]], count: int = ITERATIONS) -> None:
        """Some iterations of each; their seconds are kept by the decoders' places."""
        request = self._requests[self._rounds % len(self._requests)]
        self._rounds += 1
        for place, decoder in decoders:
            self.seconds.setdefault(place, []).extend(_timed(decoder, request, self._seed, count))

    def median(self, place: int) -> float:
        """Seconds of an iteration of the decoder at that place."""
        return statistics.median(self.seconds[place])


def size_of(config: DecoderConfig) -> Size | None:
    """What an iteration's seconds depend on; None if no draft model drafts, or
    trees vary.
    """
    if config.drafter.kind != "language_model" or config.drafts != 1:
        return None
    tree = config.tree
    if not isinstance(tree, GrownTree) or tree.varies:
        return None
    return Size(tree.shape.depth, tree.node_count)


def probe(sizes: dict[int, Size], watch: Stopwatch, decoders: dict[int, Any]) -> None:
    """Times plain decoding, at place 0, and decoders of enough sizes for a line through them."""
    places = list(sizes)
    chosen = [places[each] for each in probes([sizes[place] for place in places])]
    watch.round(((place, decoders[place]) for place in (0, *chosen)), FEW)


def line_of(sizes: dict[int, Size], watch: Stopwatch) -> Seconds | None:
    """What iterations should take, by those that were timed; None if none was."""
    known = [place for place in sizes if place in watch.seconds]
    if not known:
        return None
    return fitted([sizes[each] for each in known], [watch.median(each) for each in known])


def race(watch: Stopwatch, decoders: dict[int, Any], efficiency: dict[int, float]) -> None:
    """Times decoders in rounds; the better half and plain decoding, at place 0, go on."""
    left = list(efficiency)
    for _ in range(ROUNDS):
        watch.round((place, decoders[place]) for place in (0, *left))
        left.sort(key=lambda place: -efficiency[place] / watch.median(place))
        left = left[: max(FEWEST, len(left) // 2)]


def faster(efficiency: Interval, plain: Sequence[float], drafting: Sequence[float]) -> Interval:
    """Speed-up over plain decoding; noise of tokens and of seconds add up as squares of logs.

    Args:
        efficiency: tokens per target call.
        plain: seconds of plain decoding's iterations.
        drafting: of the decoder's.
    """
    spread = hypot(_error_of_median(plain), _error_of_median(drafting))
    return _around(efficiency, statistics.median(plain) / statistics.median(drafting), spread)


def faster_by_line(
    efficiency: Interval, plain: Sequence[float], line: Seconds, size: Size
) -> Interval:
    """``faster`` for a decoder that was not timed itself."""
    spread = hypot(_error_of_median(plain), log(line.factor))
    return _around(efficiency, statistics.median(plain) / line.of(size), spread)


def _around(efficiency: Interval, ratio: float, spread: float) -> Interval:
    """Tokens per call times a ratio of seconds whose log is known within ``spread``."""
    value, spreads = efficiency.value * ratio, [spread]
    if efficiency.low is not None and efficiency.high is not None and efficiency.low > 0:
        spreads.append(log(efficiency.high / efficiency.low) / 2)
    reach = hypot(*spreads)
    return Interval(value, value * exp(-reach), value * exp(reach))


def _error_of_median(seconds: Sequence[float]) -> float:
    """Half of the 95% interval of a median's log: for normal noise 1.96 * 1.25 sd / sqrt(n)."""
    if len(seconds) < 2:
        return 0.0
    return 1.96 * 1.2533 * statistics.stdev(map(log, seconds)) / len(seconds) ** 0.5


@torch.inference_mode()
def _timed(decoder: Any, request: Request, seed: int, count: int) -> list[float]:
    """Seconds of single iterations; the first one, which may warm up, is left out."""
    long = replace(request, max_new_tokens=max(request.max_new_tokens, 64), stop_ids=())
    rows, seconds = decoder.begin([long], seed), []
    for _ in range(count):
        if rows[0].finish is not None:
            break
        synchronise(decoder.target.device)
        start, before = time.perf_counter(), len(rows[0].steps)
        decoder.step(rows)
        synchronise(decoder.target.device)
        # A library's decoder makes all of its target calls in one step.
        seconds.append((time.perf_counter() - start) / max(1, len(rows[0].steps) - before))
    return seconds[1:] or seconds
