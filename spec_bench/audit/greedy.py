"""Greedy equality: at temperature 0 every exact decoder emits the autoregressive tokens.

Floating point makes one honest exception possible. A tree pass multiplies matrices of another
shape than a single token's, so two logits that are equal to the last bits can change places. Such
a near-tie is not skipped: the gap between the two tokens' logits at the first difference is
measured with a plain forward pass, reported, and only accepted if it is below a stated bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spec_bench.engine.agreement import NEAR_TIE_GAP, near_tie_gap
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import prefill, run_pending
from spec_bench.records.types import Request


@dataclass(frozen=True)
class Difference:
    """The first token at which two greedy outputs part.

    Attributes:
        prompt_id: of the request.
        position: index within the answer.
        expected: the reference's token.
        got: the decoder's token.
        gap: |difference| of the two tokens' logits in a plain forward pass.
        bound: the largest gap that is a near-tie, by the dtype of the logits.
    """

    prompt_id: str
    position: int
    expected: int
    got: int
    gap: float
    bound: float = NEAR_TIE_GAP

    @property
    def near_tie(self) -> bool:
        """Whether rounding alone explains the difference."""
        return self.gap <= self.bound


@torch.inference_mode()
def next_logits(model: LanguageModel, tokens: Sequence[int]) -> torch.Tensor:
    """[V] logits after ``tokens``, without a tree."""
    cache = model.allocate(1, len(tokens))
    prefill(model, cache, 0, tokens[:-1])
    last = torch.tensor([tokens[-1:]], device=model.device)
    return run_pending(model, cache, [len(tokens) - 1], last).logits[0, -1]


def first_difference(
    model: LanguageModel, request: Request, expected: Sequence[int], got: Sequence[int]
) -> Difference | None:
    """Compares two answers to one request; None if they are equal. The gap is the target's.

    Raises:
        ValueError: if one is a proper prefix of the other: no rounding explains that.
    """
    if list(expected) == list(got):
        return None
    for position, (want, have) in enumerate(zip(expected, got, strict=False)):
        if want != have:
            logits = next_logits(model, [*request.prompt_ids, *expected[:position]])
            gap = (logits[want] - logits[have]).abs().item()
            bound = near_tie_gap(logits.dtype, float(logits[want]))
            return Difference(request.prompt_id, position, want, have, gap, bound)
    raise ValueError(
        f"prompt {request.prompt_id!r}: answers of {len(expected)} and {len(got)} tokens agree as "
        "far as the shorter one goes"
    )
