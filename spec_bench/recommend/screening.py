"""The first look at every candidate: forecasts from plain decoding's text, and timed iterations.

Block efficiency is forecast where it can be. Otherwise it is counted by running the decoder, until
it can no longer come near the best: then nothing more is spent on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import torch
from tqdm import tqdm

from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.pool import CachePool
from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.work.models import heads_of, models_of, tokenizer_of
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import ratio_interval
from spec_bench.recommend.decoders import Known, Text, calls_for, why_not
from spec_bench.recommend.laws import laws_of
from spec_bench.recommend.seconds import Seconds, Size
from spec_bench.recommend.timing import (
    MOST,
    NEAR,
    Stopwatch,
    faster,
    faster_by_line,
    line_of,
    probe,
    race,
    size_of,
)
from spec_bench.records.types import Generation

DRAWS = 6  # of children, for a position's chance
SURE_FROM = 3  # prompts; an interval from fewer says too little


@dataclass(frozen=True)
class Candidate:
    """A decoder that might be recommended.

    Attributes:
        cell: the decoder with its tree.
        block_efficiency: expected tokens per target call, or counted if ``forecast`` is false.
        why_counted: why it could not be forecast from plain decoding's text; "" if it was.
        speedup: over plain decoding, from the block efficiency and seconds of iterations; its
            interval holds the noise of both.
        timed: whether these seconds are its own or follow from other decoders' sizes.
    """

    cell: Cell
    block_efficiency: Interval
    why_counted: str
    speedup: Interval
    timed: bool

    @property
    def forecast(self) -> bool:
        """Whether its block efficiency was forecast."""
        return not self.why_counted


class Screening:
    """A pair on the first few prompts: texts, forecasts and times of iterations.

    Args:
        settings: the job's; its cells are the candidates, plain decoding first.
        answers: plain decoding's, by prompt.
        bars: whether long steps show how far they are.
    """

    def __init__(
        self, settings: JobSettings, answers: dict[str, Generation], bars: bool = False
    ) -> None:
        self._settings, self._answers, self._bars = settings, answers, bars
        tokenizer, tokens = tokenizer_of(settings.pair)
        self._requests = Prompts.build(settings, tokenizer).requests
        self._models = models_of(settings.pair, tokens)
        self._pool = CachePool()
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._configs = [cell.config for cell in settings.cells]

    def candidates(self) -> list[Candidate]:
        """All cells, the likely fastest first."""
        cells, configs = self._settings.cells, self._configs
        why = {place: why_not(config) or "" for place, config in enumerate(configs) if place}
        efficiency = self._forecasts([place for place in why if not why[place]])
        decoders = {place: self._decoder(cell) for place, cell in enumerate(cells)}
        sizes = {place: size for place in why if (size := size_of(configs[place]))}
        watch = Stopwatch(self._requests, self._settings.seed)
        probe(sizes, watch, decoders)
        line, plain = line_of(sizes, watch), watch.median(0)

        def hoped(place: int, tokens: float) -> float:
            """Speed-up of that many tokens per call, before it is timed."""
            if line is None or place not in sizes:
                return inf  # unknown: it is timed
            return tokens * plain / line.of(sizes[place])

        near = NEAR if line is None else min(NEAR, 1 / line.factor)
        least = near * max(
            (hoped(p, interval.value) for p, interval in efficiency.items()), default=0.0
        )
        for place in self._watched([place for place in why if why[place]], "counting"):
            enough = least / hoped(place, 1.0)  # tokens per call
            efficiency[place] = self._counted(decoders[place], enough)
        hopes = {place: hoped(place, interval.value) for place, interval in efficiency.items()}
        likely = sorted(hopes, key=lambda place: -hopes[place])
        going = [p for p in likely if hopes[p] >= least]
        going = [p for k, p in enumerate(going) if k < MOST or hopes[p] == inf]
        race(watch, decoders, {place: efficiency[place].value for place in going})
        seconds, line = watch.seconds, line_of(sizes, watch)
        candidates = [
            Candidate(
                cells[place],
                efficiency[place],
                why[place],
                self._faster(efficiency[place], seconds, place, line, sizes.get(place)),
                place in seconds,
            )
            for place in why
        ]
        return sorted(candidates, key=lambda each: -each.speedup.value)

    def _faster(
        self,
        efficiency: Interval,
        seconds: dict[int, list[float]],
        place: int,
        line: Seconds | None,
        size: Size | None,
    ) -> Interval:
        if place in seconds:
            return faster(efficiency, seconds[0], seconds[place])
        assert line is not None and size is not None  # else it was timed
        return faster_by_line(efficiency, seconds[0], line, size)

    def _texts(self) -> list[Text]:
        """Plain decoding's answers with both models' laws at every token of them."""
        settings, texts = self._settings.sampling, []
        for request in self._requests:
            answer = self._answers[request.prompt_id].tokens
            laws = laws_of(self._models[0], self._models[1], request.prompt_ids, answer, settings)
            texts.append(Text(torch.tensor(answer), *laws))
        return texts

    def _forecasts(self, places: Sequence[int]) -> dict[int, Interval]:
        """Tokens per target call of decoders that can be forecast."""
        if not places:
            return {}
        texts, forecasts = self._texts(), {}
        shared: list[Known] = [{} for _ in texts]
        drawing = self._settings.sampling, self._generator, DRAWS, None
        for place in self._watched(places, "forecasting"):
            calls = [
                calls_for(self._configs[place], text, *drawing, known)
                for text, known in zip(texts, shared, strict=True)
            ]
            interval = ratio_interval([len(text.tokens) for text in texts], calls)
            assert interval is not None
            forecasts[place] = interval
        return forecasts

    def _decoder(self, cell: Cell) -> AnyDecoder:
        target, drafts = self._models[0], self._models[1 : cell.drafts + 1]
        heads = heads_of(self._settings.pair, cell.heads, target)
        return cell.config.build(target, drafts, self._settings.sampling, 1, self._pool, heads)

    def _watched(self, places: Sequence[int], what: str) -> Iterable[int]:
        """The places, with a bar that says which decoder is looked at."""
        bar = tqdm(places, desc=what, unit="decoder", leave=False, disable=not self._bars)
        for place in bar:
            bar.set_postfix_str(self._settings.cells[place].title)
            yield place

    @property
    def target(self) -> LanguageModel:
        """The loaded target."""
        return self._models[0]

    def _counted(self, decoder: AnyDecoder, enough: float) -> Interval:
        """Block efficiency by running the decoder, delivered tokens over target calls. Where the
        interval of the prompts so far ends below ``enough``, it cannot come near the best: the
        others are skipped.
        """
        tokens: list[int] = []
        calls: list[int] = []
        for request in self._requests:
            (answer,) = decoder.generate([request], self._settings.seed)
            tokens.append(len(answer.tokens))
            calls.append(len(answer.steps))
            ratio = ratio_interval(tokens, calls)
            if ratio and len(tokens) >= SURE_FROM and ratio.high and ratio.high < enough:
                break
        assert ratio is not None
        return ratio
