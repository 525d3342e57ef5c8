"""An answer and the steps that it came in. Knows texts and records; nothing about models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_bench.records.types import Generation, StepRecord

_UNFINISHED = "\ufffd"  # what a tokenizer makes of the first bytes of a letter
_SHOWN = 60


@dataclass(frozen=True)
class Step:
    """One target call.

    Attributes:
        record: nodes and levels of its tree, tokens accepted and delivered, widths of beams.
        tokens: what it delivered: accepted tokens, then the residual or bonus token.
        text: what the answer's text grew by. Half a letter, or what may become a stop string, comes
            with a later step; all steps' texts make the answer's.
        seconds: wall seconds of the step, drafting included, the device synchronised.
    """

    record: StepRecord
    tokens: tuple[int, ...]
    text: str
    seconds: float

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
    """Wall seconds of an answer, the device synchronised.

    Attributes:
        prefill: of the prompt, target and draft together.
        decode: from then to the last token.
        draft: of ``decode``, inside draft forward passes.
        target: of ``decode``, inside target forward passes.
    """

    prefill: float
    decode: float
    draft: float
    target: float

    @property
    def total(self) -> float:
        """Prefill and decode."""
        return self.prefill + self.decode


@dataclass(frozen=True)
class Decoded:
    """An answer and how it came about.

    Attributes:
        text: the answer, up to the first stop string.
        tokens: ids of all that was delivered, the end-of-sequence token and those of a stop string
            included.
        steps: one per target call, in order.
        lossless: how its law relates to the target's: ``exact``, ``approximate``, ...
        generation: the record with its seconds, as a job writes it.
    """

    text: str
    tokens: tuple[int, ...]
    steps: tuple[Step, ...]
    lossless: str
    generation: Generation = field(repr=False)

    @property
    def block_efficiency(self) -> float:
        """Tokens per target call, those of the last call that were not delivered included."""
        return sum(step.accepted + 1 for step in self.steps) / len(self.steps)

    @property
    def seconds(self) -> Seconds:
        """What it took, prefill and decode apart."""
        generation = self.generation
        return Seconds(
            generation.prefill_s, generation.decode_s, generation.draft_s, generation.target_s
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
        shown = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…"
        counts = f"{len(self.tokens)} tokens in {len(self.steps)} steps"
        return f"Decoded({shown!r}, {counts}, {self.token_rate:.3g} tokens/s, {self.lossless})"


class Writing:
    """An answer's text as it grows, cut at the first stop string.

    Args:
        tokenizer: one like those of ``transformers``.
        stop: texts that end the answer; none of them is empty.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._tokens: list[int] = []
        self._written = ""

    def text(self, tokens: Sequence[int]) -> str:
        """The text of all tokens so far, up to the first stop string."""
        whole = self._whole(tokens)
        stops = [place for stop in self._stop if (place := whole.find(stop)) >= 0]
        return whole[: min(stops, default=len(whole))]

    def ended(self, tokens: Sequence[int]) -> bool:
        """Whether a stop string has come."""
        return bool(self._stop) and any(stop in self._whole(tokens) for stop in self._stop)

    def add(self, tokens: Sequence[int], last: bool) -> str:
        """What a step adds to the text.

        Args:
            tokens: of the step.
            last: whether no step follows, so that nothing is held back.
        """
        self._tokens += tokens
        text = self.text(self._tokens)
        if not last and not self.ended(self._tokens):
            text = text.rstrip(_UNFINISHED)
            text = text[: len(text) - self._begun(text)]
        new = text[len(self._written) :]
        self._written += new
        return new

    def _begun(self, text: str) -> int:
        """Letters at the end of a text that a stop string begins with."""
        return max(
            (n for stop in self._stop for n in range(len(stop)) if text.endswith(stop[:n])),
            default=0,
        )

    def _whole(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
