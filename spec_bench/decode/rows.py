"""Rows being decoded: their committed tokens, answers and records."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from spec_bench.records.types import Finish, Generation, PromptError, Request, StepRecord


def require_distributions(
    prompt_id: str, target_is_valid: float | bool, draft_is_valid: float | bool = True
) -> None:
    """Raises PromptError, with the prompt and the model, if the flag of the target or the draft
    says that its logits are no distribution.
    """
    for role, is_valid in (("target", target_is_valid), ("draft", draft_is_valid)):
        if not is_valid:
            raise PromptError(
                prompt_id,
                f": the {role}'s logits hold NaN, +inf or nothing but -inf, so they make no "
                "distribution",
            )


class AnswerRow(ABC):
    """Base class of rows: request, steps and answer, of one sequence or of several beams."""

    request: Request
    steps: list[StepRecord]  # one record per target call
    finish: Finish | None  # why it ended, None while it runs
    # of the answer under the target at temperature 1, natural log; None if unknown
    log_likelihood: float | None

    @property
    @abstractmethod
    def answer(self) -> tuple[int, ...]:
        """The delivered tokens."""

    def make_generation(
        self,
        prefill_s: float,
        decode_s: float,
        draft_s: float,
        target_s: float,
    ) -> Generation:
        """Makes the finished record from this row's share of the batch's seconds."""
        assert self.finish is not None
        return Generation(
            self.request.prompt_id,
            self.answer,
            self.finish,
            tuple(self.steps),
            prefill_s,
            decode_s,
            draft_s,
            target_s,
            log_likelihood=self.log_likelihood,
        )


@dataclass
class Row(AnswerRow):
    """One sequence being decoded."""

    request: Request
    generator: torch.Generator  # the only source of this row's randomness
    tokens: list[int]  # the prompt and everything committed; the last token is the next tree's root
    delivered: list[int] = field(default_factory=list)  # tokens of the answer
    steps: list[StepRecord] = field(default_factory=list)  # one record per target call
    finish: Finish | None = None  # why it ended, None while it runs
    # of the delivered tokens under the target at temperature 1, natural log
    log_likelihood: float = 0.0

    def commit(
        self,
        new_tokens: Sequence[int],
        log_probs: Sequence[float],
        nodes: int,
        depth: int,
    ) -> None:
        """Appends the tokens of one target call, the accepted ones and the residual or bonus token,
        and records the call with its tree's nodes below the root and levels.

        Delivery stops at the first stop token or text and at the length limit; later tokens of the
        call count for block efficiency and are dropped.
        """
        old_count = len(self.delivered)
        end = self.request.count_tokens_to_end([*self.delivered, *new_tokens], old_count)
        for token, log_prob in zip(new_tokens, log_probs, strict=True):
            self.delivered.append(token)
            self.log_likelihood += log_prob
            if len(self.delivered) == end:
                self.finish = "stop"
            elif len(self.delivered) == self.request.max_new_tokens:
                self.finish = "length"
            if self.finish:
                break
        self.tokens.extend(new_tokens)
        delivered_count = len(self.delivered) - old_count
        self.steps.append(StepRecord(nodes, depth, len(new_tokens) - 1, delivered_count))

    @property
    def answer(self) -> tuple[int, ...]:
        return tuple(self.delivered)


@dataclass
class _RowTimes:
    """One row's seconds."""

    began_s: float  # clock reading before the row's prefill
    prefill_s: float  # its share of the prefill
    decode_s: float = 0.0  # its share of the iterations, before scaling to the synchronised total
    ended_s: float = 0.0  # clock reading after its last token


class BatchClock:
    """Divides a batch's wall time among its rows and measures each row's latency.

    The shares of all rows add up to the time that really passed. An iteration's seconds belong to
    the rows that took part in it, in equal parts; a prefill's to the rows prefilled. The clock
    synchronises, with ``now_s``, only where nothing is decoded. ``take_forward_s`` returns (draft,
    target) seconds in forward passes since it was last called.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        take_forward_s: Callable[[], tuple[float, float]],
    ) -> None:
        self._now_s = now_s
        self._take_forward_s = take_forward_s
        self._rows: dict[int, _RowTimes] = {}
        self._last_reading_s = now_s()
        self._decode_s = self._draft_s = self._target_s = 0.0
        self._decode_start_s = self._last_reading_s

    def share_prefill_wall_time(self, rows: Sequence[AnswerRow]) -> None:
        """Divides the time since the last reading among newly prefilled rows."""
        now_s = self._now_s()
        share_s = (now_s - self._last_reading_s) / len(rows)
        for row in rows:
            self._rows[id(row)] = _RowTimes(self._last_reading_s, share_s)
        self._take_forward_s()  # of the prefill: not part of decoding
        self._last_reading_s = self._decode_start_s = now_s

    def start_decoding(self) -> None:
        """Starts timing decoding, once a meter runs."""
        self._last_reading_s = self._decode_start_s = self._now_s()

    def share_step_wall_time(self, active: Sequence[AnswerRow]) -> None:
        """Divides an iteration's time among its rows, once their verdicts are on the host."""
        now_s = time.perf_counter()
        share_s = (now_s - self._last_reading_s) / len(active)
        for row in active:
            times = self._rows[id(row)]
            times.decode_s += share_s
            if row.finish is not None:
                times.ended_s = now_s
        self._last_reading_s = now_s

    def pause_decoding(self) -> None:
        """Stops timing decoding, for a prefill or at the end."""
        self._last_reading_s = self._now_s()
        self._decode_s += self._last_reading_s - self._decode_start_s
        draft_s, target_s = self._take_forward_s()
        self._draft_s += draft_s
        self._target_s += target_s

    def get_row_seconds(self, row: AnswerRow) -> tuple[float, float, float, float]:
        """Returns a row's (prefill, decode, draft, target) seconds, after ``pause_decoding``."""
        shared_s = sum(times.decode_s for times in self._rows.values())
        times = self._rows[id(row)]
        share = times.decode_s / shared_s if shared_s else 1 / len(self._rows)
        totals = (self._decode_s, self._draft_s, self._target_s)
        return (times.prefill_s, *(share * total for total in totals))  # type: ignore[return-value]

    def latency_s(self, row: AnswerRow) -> float:
        """Computes the seconds from the start of a row's prefill to its last token."""
        times = self._rows[id(row)]
        return times.ended_s - times.began_s
