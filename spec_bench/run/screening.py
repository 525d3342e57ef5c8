"""The first look at every candidate: forecasts from plain decoding's text, and timed iterations.

Block efficiency is forecast where it can be and counted by running the decoder elsewhere. Seconds
of an iteration are timed with decoders in turn, in rounds; what falls behind is not timed again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log
from typing import Any

import torch

from spec_bench.decode.config import AnyDecoder, DecoderConfig, read_decoder
from spec_bench.engine.pool import CachePool
from spec_bench.engine.stopwatch import synchronise
from spec_bench.forecast.decoders import Known, Text, calls_for, why_not
from spec_bench.forecast.laws import laws_of
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import ratio_interval
from spec_bench.records import Generation, Request
from spec_bench.run.cells import Cell
from spec_bench.run.models import models_of, tokenizer_of
from spec_bench.run.prompts import Prompts
from spec_bench.run.settings import JobSettings

ROUNDS, ITERATIONS = 3, 6  # iterations timed of each decoder, in turn
FEWEST = 8  # decoders that are timed in every round
DRAWS = 6  # of children, for a position's chance


@dataclass(frozen=True)
class Candidate:
    """A decoder that might be recommended.

    Attributes:
        cell: the decoder with its tree.
        block_efficiency: expected tokens per target call, or counted where ``forecast`` is false.
        forecast: whether it was forecast from plain decoding's text.
        speedup: over plain decoding, from the block efficiency and timed iterations; its interval
            holds the noise of both.
    """

    cell: Cell
    block_efficiency: Interval
    forecast: bool
    speedup: Interval


class Screening:
    """A pair on the first few prompts: texts, forecasts and times of iterations.

    Args:
        settings: the job's; its cells are the candidates, plain decoding first.
        answers: plain decoding's, by prompt.
    """

    def __init__(self, settings: JobSettings, answers: dict[str, Generation]) -> None:
        self._settings, self._answers = settings, answers
        tokenizer, tokens = tokenizer_of(settings.pair)
        self._requests = Prompts.build(settings, tokenizer).requests
        self._models = models_of(settings.pair, tokens)
        self._both = self._models[0], self._models[1]
        self._pool = CachePool()
        self._generator = torch.Generator().manual_seed(settings.seed)

    def candidates(self) -> list[Candidate]:
        """All cells, the likely fastest first."""
        cells = self._settings.cells[1:]
        efficiency, counted = self._efficiency(cells)
        times = self._timings([self._settings.cells[0], *cells], [1.0, *map(_value, efficiency)])
        found = [
            Candidate(cell, each, index not in counted, faster(each, times[0], own))
            for index, (cell, each, own) in enumerate(
                zip(cells, efficiency, times[1:], strict=True)
            )
        ]
        return sorted(found, key=lambda each: -each.speedup.value)

    def _efficiency(self, cells: Sequence[Cell]) -> tuple[list[Interval], set[int]]:
        """Tokens per target call of every cell, and which of them were counted."""
        configs = [read_decoder(cell.decoder, self._settings.sampling) for cell in cells]
        texts, found, counted = self._texts(), [], set()
        shared: list[Known] = [{} for _ in texts]
        for index, (cell, config) in enumerate(zip(cells, configs, strict=True)):
            known = self._forecast(config, texts, shared)
            if known is None:
                counted.add(index)
            found.append(known or self._counted(cell))
        return found, counted

    def _texts(self) -> list[Text]:
        """Plain decoding's answers with both models' laws at every token of them."""
        settings, found = self._settings.sampling, []
        for request in self._requests:
            said = self._answers[request.prompt_id].tokens
            laws = laws_of(*self._both, request.prompt_ids, said, settings)
            found.append(Text(torch.tensor(said), *laws))
        return found

    def _forecast(
        self, config: DecoderConfig, texts: Sequence[Text], shared: Sequence[Known]
    ) -> Interval | None:
        if why_not(config):
            return None
        own = self._settings.sampling, self._generator, DRAWS, None
        calls = [
            calls_for(config, text, *own, known) for text, known in zip(texts, shared, strict=True)
        ]
        return ratio_interval([len(text.tokens) for text in texts], calls)

    def _decoder(self, cell: Cell) -> AnyDecoder:
        target, drafts = self._models[0], self._models[1 : cell.drafts + 1]
        config = read_decoder(cell.decoder, self._settings.sampling)
        return config.build(target, drafts, self._settings.sampling, 1, self._pool)

    def _counted(self, cell: Cell) -> Interval:
        """Block efficiency by running the decoder, delivered tokens over target calls."""
        answers = self._decoder(cell).generate(self._requests, self._settings.seed)
        found = ratio_interval([len(a.tokens) for a in answers], [len(a.steps) for a in answers])
        assert found is not None
        return found

    def _timings(self, cells: Sequence[Cell], efficiency: Sequence[float]) -> list[list[float]]:
        """Seconds of iterations, decoders in turn, beside each other in every round.

        After each round the better half goes on, the first cell among them in any case.
        """
        decoders: dict[int, Any] = {index: self._decoder(cell) for index, cell in enumerate(cells)}
        times: list[list[float]] = [[] for _ in cells]
        for round_ in range(ROUNDS):
            request = self._requests[round_ % len(self._requests)]
            for index, decoder in decoders.items():
                times[index] += _timed(decoder, request, self._settings.seed)
            rate = {i: efficiency[i] / statistics.median(times[i]) for i in decoders if i}
            best = sorted(rate, key=rate.__getitem__, reverse=True)
            kept = {0, *best[: max(FEWEST, len(best) // 2)]}
            decoders = {index: decoders[index] for index in sorted(kept)}
        return times


def _value(interval: Interval) -> float:
    return interval.value


def faster(efficiency: Interval, plain: Sequence[float], own: Sequence[float]) -> Interval:
    """Speed-up over plain decoding; noise of tokens and of seconds add up as squares of logs.

    Args:
        efficiency: tokens per target call.
        plain: seconds of plain decoding's iterations.
        own: of the decoder's.
    """
    value = efficiency.value * statistics.median(plain) / statistics.median(own)
    spreads = [_error_of_median(plain), _error_of_median(own)]
    if efficiency.low is not None and efficiency.high is not None and efficiency.low > 0:
        spreads.append(log(efficiency.high / efficiency.low) / 2)
    reach = hypot(*spreads)
    return Interval(value, value * exp(-reach), value * exp(reach))


def _error_of_median(seconds: Sequence[float]) -> float:
    """Half of the 95% interval of a median's log: of normal noise 1.96 * 1.25 sd / sqrt(n)."""
    if len(seconds) < 2:
        return 0.0
    return 1.96 * 1.2533 * statistics.stdev(map(log, seconds)) / len(seconds) ** 0.5


@torch.inference_mode()
def _timed(decoder: Any, request: Request, seed: int) -> list[float]:
    """Seconds of single iterations; the first one, which may warm up, is left out."""
    long = replace(request, max_new_tokens=max(request.max_new_tokens, 64), stop_ids=())
    rows, found = decoder.begin([long], seed), []
    for _ in range(ITERATIONS):
        if rows[0].finish is not None:
            break
        synchronise(decoder.target.device)
        start = time.perf_counter()
        decoder.step(rows)
        synchronise(decoder.target.device)
        found.append(time.perf_counter() - start)
    return found[1:] or found
