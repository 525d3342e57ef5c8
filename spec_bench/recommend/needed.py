"""What a draft would have to cost and accept, from measured passes of the target alone.

A chain of k draft tokens pays where its tokens per call exceed what a call costs: a pass of k + 1
tokens over a pass of one, and k draft calls of a share r of one each. With every draft token
accepted with chance a independently, a call delivers (1 - a^(k+1)) / (1 - a) tokens (Leviathan et
al. 2023, equation 1).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from scipy.optimize import brentq

from spec_bench.engine.model import LanguageModel
from spec_bench.engine.stopwatch import synchronise

PASSES = (1, 2, 3, 4, 6, 8, 16)
SHARES = (0.0, 0.02, 0.05, 0.1)
_CONTEXT, _ROUNDS = 64, 7


@dataclass(frozen=True)
class Needed:
    """One chain that a draft could draft.

    Attributes:
        length: k, its tokens.
        cost: of a pass of k + 1 tokens, over a pass of one.
        acceptance: by share r, the chance of acceptance above which it is faster than plain
            decoding; None where none is enough.
    """

    length: int
    cost: float
    acceptance: Mapping[float, float | None]


@torch.inference_mode()
def pass_costs(target: LanguageModel) -> dict[int, float]:
    """Seconds of a pass of T tokens behind a short text over those of one; medians, in turn."""
    cache = target.allocate(1, _CONTEXT + max(PASSES))
    seconds: dict[int, list[float]] = {count: [] for count in PASSES}
    for turn in range(_ROUNDS + 1):
        for count in PASSES:
            tokens = torch.arange(1, count + 1, device=target.device).unsqueeze(0)
            positions = _CONTEXT + torch.arange(count, device=target.device).unsqueeze(0)
            seen = torch.ones(1, count, _CONTEXT + count, dtype=torch.bool, device=target.device)
            synchronise(target.device)
            start = time.perf_counter()
            target.forward(cache, slice(0, 1), [_CONTEXT], tokens, positions, seen.tril(_CONTEXT))
            synchronise(target.device)
            if turn:  # the first may warm up
                seconds[count].append(time.perf_counter() - start)
    one = statistics.median(seconds[1])
    return {count: statistics.median(measured) / one for count, measured in seconds.items()}


def needed(costs: Mapping[int, float]) -> list[Needed]:
    """What each chain asks of a draft, from the seconds of a pass of so many tokens over those of
    one token.
    """
    return [
        Needed(
            count - 1,
            cost,
            {share: least_acceptance(count - 1, cost + (count - 1) * share) for share in SHARES},
        )
        for count, cost in costs.items()
        if count > 1
    ]


def least_acceptance(length: int, cost: float) -> float | None:
    """The chance of acceptance at which a call of so many draft tokens, drafting included, delivers
    as many tokens as it costs plain calls.
    """
    if cost >= length + 1:
        return None
    if cost <= 1:
        return 0.0
    return float(brentq(lambda a: delivered(length, a) - cost, 0.0, 1.0))


def delivered(length: int, acceptance: float) -> float:
    """Expected tokens of a call: 1 + a + ... + a^k."""
    return float(sum(acceptance**level for level in range(length + 1)))
