"""An answer and the steps that it comes in, as it is being decoded and as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from spec_bench.records.ends import StopCriteria, cut_at_stop, decode_answer
from spec_bench.records.types import Generation, Request, StepRecord
from spec_bench.settings.words import describe_value
from spec_bench.system.errors import UsageError

if TYPE_CHECKING:
    from spec_bench.decode.config import AnyDecoder

_UNFINISHED = "\ufffd"  # what a tokenizer makes of the first bytes of a letter
_SHOWN = 60


@dataclass(frozen=True)
class Step:
    """One target call."""

    record: StepRecord  # nodes and levels of its tree, tokens accepted, delivered, widths of beams
    tokens: tuple[int, ...]  # what it delivered: accepted tokens, then the residual or bonus token
    # What the answer's text grew by. Half a letter, or what may become a stop string, comes with a
    # later step; all steps' texts make the answer's.
    text: str
    seconds: float  # wall seconds of the step, drafting included, the device synchronised

    @property
    def nodes(self) -> int:
        """Tokens that were proposed: nodes of the tree, the root not counted."""
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
class Seconds:
    """Wall seconds of an answer, the device synchronised."""

    prefill: float  # of the prompt, target and draft together
    decode: float  # from then to the last token
    draft: float  # of ``decode``, inside draft forward passes
    target: float  # of ``decode``, inside target forward passes

    @property
    def total(self) -> float:
        """Prefill and decode."""
        return self.prefill + self.decode


@dataclass(frozen=True)
class Decoded:
    """An answer and how it came about."""

    text: str  # the answer, up to the first stop string
    # Ids of all that was delivered, the end-of-sequence token and those of a stop string included.
    tokens: tuple[int, ...]
    steps: tuple[Step, ...]  # one per target call, in order
    lossless: str  # how its distribution relates to the target's: ``exact``, ``approximate``, ...
    generation: Generation = field(repr=False)  # the record with its seconds, as a job writes it

    @property
    def block_efficiency(self) -> float:
        """Tokens per target call, those of the last call that were not delivered included."""
        return sum(step.accepted + 1 for step in self.steps) / len(self.steps)

    @property
    def seconds(self) -> Seconds:
        """What it took, prefill and decode apart."""
        made = self.generation
        return Seconds(made.prefill_s, made.decode_s, made.draft_s, made.target_s)

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
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…"
        counts = f"{len(self.tokens)} tokens in {len(self.steps)} steps"
        return f"Decoded({shown!r}, {counts}, {self.token_rate:.3g} tokens/s, {self.lossless})"


class AnswerText:
    """An answer's text as it grows, cut at the first stop string."""

    def __init__(self, tokenizer: Any, ends: StopCriteria) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._tokens: list[int] = []
        self._written = ""

    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of all tokens so far, up to the first stop string."""
        return cut_at_stop(decode_answer(self._tokenizer, tokens), self._ends.texts)

    def add(self, tokens: Sequence[int], last: bool) -> str:
        """What a step adds to the text; ``last``: none follows, so that nothing is held back."""
        self._tokens += tokens
        text = self.text(self._tokens)
        if not last:
            text = text.rstrip(_UNFINISHED)
            begun = [stop[:n] for stop in self._ends.texts for n in range(len(stop))]
            text = text[: len(text) - max((len(b) for b in begun if text.endswith(b)), default=0)]
        new = text[len(self._written) :]
        self._written += new
        return new


class Stream(Iterator[Step]):
    """Iterates over the steps of an answer; ``answer`` decodes what is left and gives all of it.

    The loop of ``decode.loop`` for a single row, which a stop string ends and a caller may
    interrupt: time that passes between two steps is nobody's. The decoder's caches serve no other
    row as long as this lasts.
    """

    def __init__(
        self, decoder: AnyDecoder, request: Request, seed: int, writing: AnswerText
    ) -> None:
        if not isinstance(seed, int):
            raise UsageError(f"seed must be a whole number, got {describe_value(seed)}")
        self._decoder = decoder
        self._request = request
        self._seed = seed
        self._writing = writing
        self._generation: Generation | None = None
        self._given: list[Step] = []
        self._steps = self._decode()

    def __next__(self) -> Step:
        step = next(self._steps)
        self._given.append(step)
        return step

    @property
    def ended(self) -> bool:
        """Whether all of it is decoded."""
        return self._generation is not None

    @property
    def answer(self) -> Decoded:
        """The whole answer."""
        for _ in self:
            pass
        made = self._generation
        assert made is not None
        text = self._writing.text(made.tokens)
        steps = tuple(self._given)
        return Decoded(text, made.tokens, steps, self._decoder.lossless, made)

    def _decode(self) -> Iterator[Step]:
        import torch

        from spec_bench.decode.rows import BatchClock

        decoder = self._decoder
        with torch.inference_mode():
            clock = BatchClock(decoder.now_s, decoder.take_forward_s)
            rows: list[Any] = decoder.begin([self._request], self._seed)
            clock.joined(rows)
        (row,) = rows
        given = 0
        delivered = 0
        told_s = 0.0
        while row.finish is None:
            with torch.inference_mode():
                clock.start()
                decoder.step(rows)
                clock.note_step(rows)
                clock.pause()
            if row.finish is None and len(row.answer) < sum(each.delivered for each in row.steps):
                continue  # beams: which of them is the answer is known at the end
            prefill_s, decode_s, draft_s, target_s = clock.seconds(row)
            fresh = row.steps[given:]
            for place, record in enumerate(fresh, start=given + 1):
                tokens = row.answer[delivered : delivered + record.delivered]
                delivered += record.delivered
                last = row.finish is not None and place == len(row.steps)
                text = self._writing.add(tokens, last)
                if last:
                    made = row.generation(prefill_s, decode_s, draft_s, target_s)
                    self._generation = replace(made, latency_s=prefill_s + decode_s)
                yield Step(record, tokens, text, (decode_s - told_s) / len(fresh))
            told_s = decode_s
            given = len(row.steps)
