"""Answers: their steps while they are decoded, and the whole answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spec_bench.records.ends import StopCriteria, cut_at_stop, decode_without_end_token
from spec_bench.records.types import Generation, Request, StepRecord
from spec_bench.settings.override_values import describe_type_and_value
from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    from spec_bench.decode.config import AnyDecoder

_PARTIAL_LETTER = "\ufffd"  # a tokenizer's text for the first bytes of a letter
_MAX_SHOWN = 60


@dataclass(frozen=True)
class Step:
    """One target call."""

    record: StepRecord  # nodes and levels of its tree, tokens accepted, delivered, widths of beams
    tokens: tuple[int, ...]  # delivered: the accepted tokens, then the residual or bonus token
    # Text added to the answer. Half a letter or the beginning of a stop string waits for a later
    # step; the answer's text is the concatenation of all steps' texts.
    text: str
    seconds: float  # wall seconds of the step with drafting, the device synchronised

    @property
    def nodes(self) -> int:
        """Proposed tokens: nodes of the tree without the root."""
        return self.record.nodes

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        return self.record.depth

    @property
    def accepted(self) -> int:
        """Proposed tokens that were accepted."""
        return self.record.accepted


@dataclass(frozen=True)
class AnswerTimes:
    """Wall seconds of an answer, the device synchronised."""

    prefill: float  # of the prompt, target and draft together
    decode: float  # from the end of the prefill to the last token
    draft: float  # of ``decode``, inside draft forward passes
    target: float  # of ``decode``, inside target forward passes

    @property
    def total(self) -> float:
        """Prefill and decode."""
        return self.prefill + self.decode


@dataclass(frozen=True)
class Answer:
    """An answer with its steps and measurements."""

    text: str  # the answer, up to the first stop string
    # all delivered ids, with the end-of-sequence token and those of a stop string
    tokens: tuple[int, ...]
    steps: tuple[Step, ...]  # one per target call, in order
    lossless: str  # relation to the target's distribution: ``exact``, ``approximate``, ...
    generation: Generation = field(repr=False)  # the record as a job writes it

    @property
    def block_efficiency(self) -> float:
        """Tokens per target call, including the last call's undelivered tokens."""
        return sum(step.accepted + 1 for step in self.steps) / len(self.steps)

    @property
    def seconds(self) -> AnswerTimes:
        """Wall seconds of prefill and decoding."""
        generation = self.generation
        return AnswerTimes(
            generation.prefill_s,
            generation.decode_s,
            generation.draft_s,
            generation.target_s,
        )

    @property
    def token_rate(self) -> float:
        """Delivered tokens per second of decoding, as in a job's table."""
        return len(self.tokens) / self.generation.decode_s

    @property
    def finish(self) -> str:
        """``stop`` at a stop string or the end of the sequence, ``length`` at the limit."""
        return self.generation.finish

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _MAX_SHOWN else f"{self.text[:_MAX_SHOWN]}…"
        counts = f"{len(self.tokens)} tokens in {len(self.steps)} steps"
        return f"Answer({text!r}, {counts}, {self.token_rate:.3g} tokens/s, {self.lossless})"


class StreamedText:
    """Text of a growing answer, cut at the first stop string."""

    def __init__(self, tokenizer: Any, ends: StopCriteria) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._tokens: list[int] = []
        self._returned_text = ""

    def decode_until_stop_text(self, tokens: Sequence[int]) -> str:
        """Decodes tokens into text up to the first stop string."""
        return cut_at_stop(decode_without_end_token(self._tokenizer, tokens), self._ends.stop_texts)

    def add_tokens(self, tokens: Sequence[int], is_last: bool) -> str:
        """Adds a step's tokens and returns the new text. Except in the last step, half a letter or
        the beginning of a stop string is held back.
        """
        self._tokens += tokens
        text = self.decode_until_stop_text(self._tokens)
        if not is_last:
            text = text.rstrip(_PARTIAL_LETTER)
            stop_starts = [stop[:n] for stop in self._ends.stop_texts for n in range(len(stop))]
            lengths = [len(start) for start in stop_starts if text.endswith(start)]
            text = text[: len(text) - max(lengths, default=0)]
        added_text = text[len(self._returned_text) :]
        self._returned_text += added_text
        return added_text


class Stream(Iterator[Step]):
    """Iterator over the steps of an answer; ``answer`` decodes the rest and returns the whole
    answer.

    Runs the loop of ``decode.loop`` for a single row. The caller may pause between two steps; the
    pause is not timed. Until the answer ends, no other row can use the decoder's caches.
    """

    def __init__(
        self,
        decoder: AnyDecoder,
        request: Request,
        seed: int,
        answer_text: StreamedText,
    ) -> None:
        if not isinstance(seed, int):
            raise UsageError(f"seed must be a whole number, got {describe_type_and_value(seed)}")
        self._decoder = decoder
        self._request = request
        self._seed = seed
        self._answer_text = answer_text
        self._generation: Generation | None = None
        self._yielded_steps: list[Step] = []
        self._steps = self._iter_steps()

    def __next__(self) -> Step:
        step = next(self._steps)
        self._yielded_steps.append(step)
        return step

    @property
    def has_ended(self) -> bool:
        """Whether the whole answer is decoded."""
        return self._generation is not None

    @property
    def answer(self) -> Answer:
        """The whole answer; decodes the remaining steps first."""
        for _ in self:
            pass
        generation = self._generation
        assert generation is not None
        text = self._answer_text.decode_until_stop_text(generation.tokens)
        steps = tuple(self._yielded_steps)
        return Answer(text, generation.tokens, steps, self._decoder.lossless, generation)

    def _iter_steps(self) -> Iterator[Step]:
        import torch

        from spec_bench.decode.rows import BatchClock

        decoder = self._decoder
        with torch.inference_mode():
            clock = BatchClock(decoder.read_synchronised_clock_s, decoder.take_forward_s)
            rows: list[Any] = decoder.prefill_requests([self._request], self._seed)
            clock.share_prefill_wall_time(rows)
        (row,) = rows
        yielded_count = 0
        delivered_count = 0
        yielded_s = 0.0
        while row.finish is None:
            with torch.inference_mode():
                clock.start_decoding()
                decoder.step(rows)
                clock.share_step_wall_time(rows)
                clock.pause_decoding()
            row_tokens = sum(step.delivered for step in row.steps)
            if row.finish is None and len(row.answer) < row_tokens:
                continue  # beams: the answer is chosen at the end
            prefill_s, decode_s, draft_s, target_s = clock.get_row_seconds(row)
            new_steps = row.steps[yielded_count:]
            for number, record in enumerate(new_steps, start=yielded_count + 1):
                tokens = row.answer[delivered_count : delivered_count + record.delivered]
                delivered_count += record.delivered
                is_last = row.finish is not None and number == len(row.steps)
                text = self._answer_text.add_tokens(tokens, is_last)
                if is_last:
                    generation = row.make_generation(prefill_s, decode_s, draft_s, target_s)
                    self._generation = replace(generation, latency_s=prefill_s + decode_s)
                yield Step(record, tokens, text, (decode_s - yielded_s) / len(new_steps))
            yielded_s = decode_s
            yielded_count = len(row.steps)
