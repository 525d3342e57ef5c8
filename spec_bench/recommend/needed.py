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
from typing import TYPE_CHECKING, NamedTuple

from scipy.optimize import brentq

if TYPE_CHECKING:  # torch, which refusals do not wait for
    from spec_bench.engine.model import LanguageModel
    from spec_bench.jobs.config.pair import Pair

PASSES = (1, 2, 3, 4, 6, 8, 16)
SHARES = (0.0, 0.02, 0.05, 0.1)
_CONTEXT, _ROUNDS = 64, 7


class Needed(NamedTuple):
    """One chain that a draft could draft."""

    length: int  # k, its tokens
    cost: float  # of a pass of k + 1 tokens, over a pass of one
    # By share r, the chance of acceptance above which it is faster than plain decoding; None where
    # none is enough.
    acceptance: Mapping[float, float | None]


def needed_by(pair: Pair) -> tuple[Needed, ...]:
    """Returns what the pair's target, measured here, asks of a draft."""
    from spec_bench.jobs.work.models import models_of, tokenizer_of

    return tuple(needed(pass_costs(models_of(pair, tokenizer_of(pair)[1])[0])))


def lines_of(table: tuple[Needed, ...]) -> list[str]:
    """Returns the table as text, by a draft's length and its cost; nothing where there is none."""
    if not table:
        return []
    heads = "".join(f"{f'r = {share:g}':>10}" for share in SHARES)
    lines = [
        "A draft pays if its tokens are accepted more often than this, r its seconds over the "
        "target's:",
        f"{'draft tokens':<14}{'cost of a call':>16}{heads}",
    ]
    for each in table:
        least = [each.acceptance[share] for share in SHARES]
        shown = ["never" if chance is None else f"{chance:.2f}" for chance in least]
        texts = "".join(f"{text:>10}" for text in shown)
        lines.append(f"{each.length:<14}{each.cost:>16.2f}{texts}")
    return lines


def pass_costs(target: LanguageModel) -> dict[int, float]:
    """Seconds of a pass of T tokens behind a short text over those of one; medians, in turn."""
    import torch

    from spec_bench.engine.model import synchronise

    cache = target.allocate(1, _CONTEXT + max(PASSES))
    seconds: dict[int, list[float]] = {count: [] for count in PASSES}
    with torch.inference_mode():
        for turn in range(_ROUNDS + 1):
            for count in PASSES:
                tokens = torch.arange(1, count + 1, device=target.device).unsqueeze(0)
                positions = _CONTEXT + torch.arange(count, device=target.device).unsqueeze(0)
                seen = torch.ones(1, count, _CONTEXT + count, dtype=torch.bool)
                seen = seen.to(target.device).tril(_CONTEXT)
                synchronise(target.device)
                start = time.perf_counter()
                target.forward(cache, [_CONTEXT], tokens, positions, seen)
                synchronise(target.device)
                if turn:  # the first may warm up
                    seconds[count].append(time.perf_counter() - start)
    one = statistics.median(seconds[1])
    return {count: statistics.median(measured) / one for count, measured in seconds.items()}


def needed(costs: Mapping[int, float]) -> list[Needed]:
    """What each chain asks, from the seconds of a pass of so many tokens over those of one."""
    table = []
    for length, cost in ((count - 1, cost) for count, cost in costs.items() if count > 1):
        least = {share: least_acceptance(length, cost + length * share) for share in SHARES}
        table.append(Needed(length, cost, least))
    return table


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
