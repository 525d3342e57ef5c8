"""The rows being decoded: what each has committed, delivered and recorded."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spec_bench.records.types import Finish, Generation, Request, StepRecord


def check_lawful(prompt_id: str, target: float | bool, draft: float | bool = True) -> None:
    """Refuses an iteration whose logits were not numbers: its tokens would mean nothing.

    Raises:
        ValueError: naming the prompt and the model.
    """
    for whose, lawful in (("target", target), ("draft", draft)):
        if not lawful:
            raise ValueError(
                f"prompt {prompt_id!r}: the {whose}'s logits hold NaN, +inf or nothing but -inf, "
                "so there is no law to decode by"
            )


def check_largest(prompt_id: str, line: Sequence[float], counts: Sequence[int]) -> None:
    """``check_lawful`` for a row whose largest logits come last in what the host was sent.

    Args:
        prompt_id: of the row.
        line: ends with the largest logit of each node, of the target and then of the draft.
        counts: how many are the target's, and how many the draft's at each level.
    """
    draft = len(line) - sum(counts[1:])
    target = map(math.isfinite, line[draft - counts[0] : draft])
    check_lawful(prompt_id, all(target), all(map(math.isfinite, line[draft:])))


class Answering(ABC):
    """What a row leaves once it has finished, whether it was one sequence or several beams.

    Attributes:
        request: what was asked for.
        steps: one record per target call.
        finish: why it ended, None while it runs.
        log_likelihood: of the answer under the target at temperature 1, natural log.
    """

    request: Request
    steps: list[StepRecord]
    finish: Finish | None
    log_likelihood: float

    @property
    @abstractmethod
    def answer(self) -> tuple[int, ...]:
        """The delivered tokens."""

    def generation(
        self, prefill_s: float, decode_s: float, draft_s: float, target_s: float
    ) -> Generation:
        """The finished record, with this row's share of the batch's seconds."""
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
class Row(Answering):
    """One sequence being decoded.

    Attributes:
        request: what was asked for.
        generator: the only source of this row's randomness.
        tokens: the prompt and everything committed; the last token is the next tree's root.
        delivered: tokens of the answer.
        steps: one record per target call.
        finish: why it ended, None while it runs.
        log_likelihood: of the delivered tokens under the target at temperature 1, natural log.
    """

    request: Request
    generator: torch.Generator
    tokens: list[int]
    delivered: list[int] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    finish: Finish | None = None
    log_likelihood: float = 0.0

    @property
    def length(self) -> int:
        """Committed tokens in the target's cache: all but the root."""
        return len(self.tokens) - 1

    def commit(
        self, emitted: Sequence[int], log_p: Sequence[float], nodes: int, depth: int
    ) -> None:
        """Appends what one target call emitted and records the call.

        Delivery stops at the first stop token and at the length limit; what the call emitted past
        that counts for block efficiency and is dropped.

        Args:
            emitted: accepted tokens and the residual or bonus token.
            log_p: their log-probabilities under the target at temperature 1.
            nodes: tree nodes verified, the root not counted.
            depth: levels of the tree.
        """
        before = len(self.delivered)
        for token, log_prob in zip(emitted, log_p, strict=True):
            self.delivered.append(token)
            self.log_likelihood += log_prob
            if token in self.request.stop_ids:
                self.finish = "stop"
            elif len(self.delivered) == self.request.max_new_tokens:
                self.finish = "length"
            if self.finish:
                break
        self.tokens.extend(emitted)
        delivered = len(self.delivered) - before
        self.steps.append(StepRecord(nodes, depth, len(emitted) - 1, delivered))

    @property
    def answer(self) -> tuple[int, ...]:
        return tuple(self.delivered)
