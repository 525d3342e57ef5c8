"""One prompt being decoded: its steps as they come, then the answer.

The loop of ``decode.loop`` for a single row, which a stop string ends and a caller may interrupt:
time that passes between two steps is nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from spec_bench.api.answers import Decoded, Step, Writing
from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.stopwatch import synchronise
from spec_bench.records.types import Generation, Request


class Stream(Iterator[Step]):
    """Iterates over the steps of an answer; ``answer`` decodes what is left and gives all of it.

    Args:
        decoder: of one row, its caches serve no other as long as this lasts.
        request: what is asked.
        seed: with the request's id it determines the answer.
        writing: makes texts of tokens.
    """

    def __init__(self, decoder: AnyDecoder, request: Request, seed: int, writing: Writing) -> None:
        self._decoder, self._request, self._seed = decoder, request, seed
        self._writing = writing
        self._generation: Generation | None = None
        self._given: list[Step] = []
        self._steps = self._decode()

    def __next__(self) -> Step:
        step = next(self._steps)
        self._given.append(step)
        return step

    @property
    def answer(self) -> Decoded:
        """The whole answer."""
        for _ in self:
            pass
        generation = self._generation
        assert generation is not None
        text = self._writing.text(generation.tokens)
        return Decoded(
            text, generation.tokens, tuple(self._given), self._decoder.lossless, generation
        )

    def _decode(self) -> Iterator[Step]:
        decoder, writing = self._decoder, self._writing
        with torch.inference_mode():
            began_s = self._now_s()
            (row,) = decoder.begin([self._request], self._seed)
            prefill_s = self._now_s() - began_s
        decoder.take_forward_s()  # of the prefill
        spent, waiting_s, given = [0.0, 0.0, 0.0], 0.0, 0
        while row.finish is None:
            with torch.inference_mode():
                began_s = self._now_s()
                decoder.step([row])  # type: ignore[list-item]
                taken_s = self._now_s() - began_s
            spent = [
                a + b for a, b in zip(spent, (taken_s, *decoder.take_forward_s()), strict=True)
            ]
            waiting_s += taken_s
            if writing.ended(row.answer):
                row.finish = "stop"
            if row.finish is None and len(row.answer) < sum(each.delivered for each in row.steps):
                continue  # beams: which of them is the answer is known at the end
            fresh, start = row.steps[given:], sum(each.delivered for each in row.steps[:given])
            for place, record in enumerate(fresh, start=given + 1):
                tokens = row.answer[start : start + record.delivered]
                start += record.delivered
                last = row.finish is not None and place == len(row.steps)
                text = writing.add(tokens, last)
                if last:
                    seconds = prefill_s, *spent
                    generation = row.generation(*seconds)
                    latency_s = generation.prefill_s + generation.decode_s
                    self._generation = replace(generation, latency_s=latency_s)
                yield Step(record, tokens, text, waiting_s / len(fresh))
            waiting_s, given = 0.0, len(row.steps)

    def _now_s(self) -> float:
        synchronise(self._decoder.target.device)
        return time.perf_counter()
