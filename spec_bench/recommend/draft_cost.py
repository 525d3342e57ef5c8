"""The cost and acceptance that a draft would need, from measured passes of the target alone.

A chain of k draft tokens pays if a call delivers more tokens than it costs passes over one token:
its cost is the relative cost of a pass over k + 1 tokens, plus k draft calls of relative cost r. If
each draft token is accepted independently with probability a, a call delivers
(1 - a^(k+1)) / (1 - a) tokens (Leviathan et al. 2023, equation 1).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from scipy.optimize import brentq

if TYPE_CHECKING:  # imports torch, which takes seconds
    from spec_bench.engine.model import LanguageModel
    from spec_bench.jobs.config.pair import Pair


PASS_TOKENS = (1, 2, 3, 4, 6, 8, 16)
DRAFT_COST_SHARES = (0.0, 0.02, 0.05, 0.1)
_CONTEXT = 64
_TIMED_ROUNDS = 7


class ChainBreakEven(NamedTuple):
    """Break-even acceptances of a chain of draft tokens."""

    draft_tokens: int  # k
    pass_cost: float  # cost of a pass over k + 1 tokens, relative to a pass over one
    # by r, the acceptance above which the chain is faster than plain decoding; None if no
    # acceptance is enough
    acceptance_by_draft_share: Mapping[float, float | None]


def measure_break_evens(pair: Pair) -> tuple[ChainBreakEven, ...]:
    """Measures the costs of the target's passes; computes the break-even acceptances of drafts."""
    from spec_bench.jobs.work.models import load_models, load_pair_tokenizer

    return tuple(
        compute_break_evens(measure_pass_costs(load_models(pair, load_pair_tokenizer(pair)[1])[0]))
    )


def format_break_even_lines(chains: tuple[ChainBreakEven, ...]) -> list[str]:
    """Formats a table of break-even acceptances, a line per chain; empty without chains."""
    if not chains:
        return []
    heads = "".join(f"{f'r = {share:g}':>10}" for share in DRAFT_COST_SHARES)
    lines = [
        "A draft pays if its tokens are accepted more often than this, r its seconds over the "
        "target's:",
        f"{'draft tokens':<14}{'cost of a call':>16}{heads}",
    ]
    for chain in chains:
        break_evens = [chain.acceptance_by_draft_share[share] for share in DRAFT_COST_SHARES]
        texts = ["never" if chance is None else f"{chance:.2f}" for chance in break_evens]
        columns = "".join(f"{text:>10}" for text in texts)
        lines.append(f"{chain.draft_tokens:<14}{chain.pass_cost:>16.2f}{columns}")
    return lines


def measure_pass_costs(target: LanguageModel) -> dict[int, float]:
    """Times passes over T tokens after a short context, in turn. Returns the median times by T,
    relative to a pass over one token.
    """
    import torch

    from spec_bench.engine.model import wait_for_device

    cache = target.allocate(1, _CONTEXT + max(PASS_TOKENS))
    seconds: dict[int, list[float]] = {count: [] for count in PASS_TOKENS}
    with torch.inference_mode():
        for turn in range(_TIMED_ROUNDS + 1):
            for count in PASS_TOKENS:
                tokens = torch.arange(1, count + 1, device=target.device).unsqueeze(0)
                positions = _CONTEXT + torch.arange(count, device=target.device).unsqueeze(0)
                mask = torch.ones(1, count, _CONTEXT + count, dtype=torch.bool)
                mask = mask.to(target.device).tril(_CONTEXT)
                wait_for_device(target.device)
                start = time.perf_counter()
                target.forward(cache, [_CONTEXT], tokens, positions, mask)
                wait_for_device(target.device)
                if turn:  # the first turn warms up
                    seconds[count].append(time.perf_counter() - start)
    single_token_s = statistics.median(seconds[1])
    return {
        count: statistics.median(samples) / single_token_s for count, samples in seconds.items()
    }


def compute_break_evens(cost_by_pass_tokens: Mapping[int, float]) -> list[ChainBreakEven]:
    """Computes each chain's break-even acceptances from the relative costs of passes."""
    table = []
    for count, cost in cost_by_pass_tokens.items():
        length = count - 1
        if not length:
            continue
        break_evens = {
            share: find_break_even_acceptance(length, cost + length * share)
            for share in DRAFT_COST_SHARES
        }
        table.append(ChainBreakEven(length, cost, break_evens))
    return table


def find_break_even_acceptance(draft_tokens: int, cost_in_plain_calls: float) -> float | None:
    """Finds the acceptance at which a call delivers as many tokens as it costs plain calls,
    drafting included; None if no acceptance is enough.
    """
    if cost_in_plain_calls >= draft_tokens + 1:
        return None
    if cost_in_plain_calls <= 1:
        return 0.0
    return float(
        brentq(
            lambda a: compute_expected_tokens_per_call(draft_tokens, a) - cost_in_plain_calls, 0, 1
        )
    )


def compute_expected_tokens_per_call(draft_tokens: int, acceptance: float) -> float:
    """Returns the expected tokens of a call: 1 + a + ... + a^k."""
    return float(sum(acceptance**level for level in range(draft_tokens + 1)))
