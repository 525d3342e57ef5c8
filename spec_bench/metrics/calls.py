"""What each call of the target model yields: metrics of generations in tokens, nodes and levels.

Imports only records; seconds, intervals, quality and the layout of tables are elsewhere.

Every aggregate is a ratio of sums over the whole cell, never a mean of per-prompt means. Both the
values here and their intervals (``metric``) are computed from per-prompt numerators and
denominators (``PromptSums``). A ratio whose denominator is zero has no value (None).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import ratio_interval
from spec_bench.metrics.metric import (
    CellRecords,
    PromptSums,
    Summand,
    mean_of_known,
    metric,
    ratio_of_sums,
)
from spec_bench.records.types import Generation

_EMITTED: tuple[Summand, Summand] = (lambda g: g.accepted + g.calls, lambda g: g.calls)
_ACCEPTED: tuple[Summand, Summand] = (lambda g: g.accepted, lambda g: g.walked)
_BEAMS: tuple[Summand, Summand] = (lambda g: g.beams, lambda g: g.layers)


def block_efficiency(
    generations: Sequence[Generation], depth_for_limits: int | None = None
) -> PromptSums:
    """Emitted tokens (accepted + 1) over target calls: tau (arXiv:2402.14160, C.2).

    Autoregressive decoding has exactly 1. Tokens after an end-of-sequence token or past the length
    limit inside the last block count here although they are not delivered. A prompt's tau is at
    most 1 plus the largest depth of a tree: ``depth_for_limits``, or that of a recorded tree if it
    is larger.
    """
    sums = ratio_of_sums(generations, *_EMITTED)
    assert sums is not None
    steps = [step for generation in generations for step in generation.steps]
    largest_depth = max(
        (max(step.depth, step.accepted, depth_for_limits or 0) for step in steps),
        default=depth_for_limits,
    )
    return replace(sums, limits=None if largest_depth is None else (1.0, 1.0 + largest_depth))


@metric("block_efficiency", of_cell=True, sums=_EMITTED)
def block_efficiency_sums(cell: CellRecords) -> PromptSums:
    """``block_efficiency`` of a cell's generations."""
    return block_efficiency(cell.generations, cell.depth)


def mbsu(block_efficiency: float, draft_calls: float, parameter_ratio: float) -> float:
    """Memory-bound speed-up, tau / (L r + 1) (RSD, arXiv:2402.14160, Appendix C.2).

    tau is emitted tokens per target call, L sequential draft calls per iteration (the tree's depth,
    or its mean), r the draft's parameters over the target's. The paper's text inverts r; its tables
    agree with the definition here.
    """
    return block_efficiency / (draft_calls * parameter_ratio + 1.0)


def conditional_acceptance_by_depth(generations: Sequence[Generation]) -> tuple[float | None, ...]:
    """Acceptance rates alpha_1 .. alpha_L by depth; the root's children are at depth 1.

    alpha_d is the share of walks that accepted a token at depth d, among those that reached depth d
    - 1 in a tree at least d deep; None if there are no such walks.
    """
    steps = [step for generation in generations for step in generation.steps]
    return tuple(
        mean_of_known(
            s.accepted >= depth for s in steps if s.depth >= depth and s.accepted >= depth - 1
        )
        for depth in range(1, max((step.depth for step in steps), default=0) + 1)
    )


def levels_per_call(generations: Sequence[Generation]) -> float | None:
    """Mean number of tree levels per target call; equals L if every tree has full depth."""
    return mean_of_known(step.depth for generation in generations for step in generation.steps)


@metric("mbsu", of_cell=True, sums=_EMITTED)
def mbsu_sums(cell: CellRecords) -> PromptSums | None:
    """Sums of block efficiency, mapped to the memory-bound speed-up; None if the number of draft
    calls or the parameter ratio is not known.
    """
    count = cell.draft_calls
    parameters = cell.parameter_ratio
    if count is None or parameters is None:
        return None
    factor = mbsu(1.0, count, parameters)
    return replace(block_efficiency_sums(cell), mapped=lambda tau: tau * factor)


@metric("acceptance_rate", sums=_ACCEPTED)
def acceptance_rate_by_tried_levels(generations: Sequence[Generation]) -> PromptSums | None:
    """Accepted tokens over the tree levels at which a walk tried to accept one, all depths
    together.
    """
    sums = ratio_of_sums(generations, *_ACCEPTED)
    return sums and replace(sums, limits=(0.0, 1.0))


@metric("nodes_per_call")
def nodes_per_call(generations: Sequence[Generation]) -> float | None:
    """Mean number of tree nodes verified per target call, without the root."""
    return mean_of_known(step.nodes for generation in generations for step in generation.steps)


def _nodes_percentile(percent: int, generations: Sequence[Generation]) -> float | None:
    nodes = [step.nodes for generation in generations for step in generation.steps]
    return float(np.percentile(nodes, percent)) if nodes else None


@metric("beam_width", sums=_BEAMS)
def beams_per_layer(generations: Sequence[Generation]) -> PromptSums | None:
    """Mean number of beams per layer; None if single sequences were decoded."""
    return (
        ratio_of_sums(generations, *_BEAMS)
        if any(generation.layers for generation in generations)
        else None
    )


metric("target_calls")(lambda generations: sum(answer.calls for answer in generations))
metric("acceptance_rate_by_depth")(
    lambda generations: json.dumps(conditional_acceptance_by_depth(generations))
)
metric("draft_calls", of_cell=True)(lambda cell: cell.draft_calls)
metric("parameter_ratio", of_cell=True)(lambda cell: cell.parameter_ratio)
for _percent in (1, 50, 99):
    metric(f"nodes_per_call_p{_percent:02d}")(partial(_nodes_percentile, _percent))


@dataclass(frozen=True)
class ContextLengthRange:
    """Target calls with ``first`` to ``2 * first - 1`` tokens before them, prompt and answer."""

    first: int  # a power of two, or 0 for the first position
    call_count: int  # target calls at these lengths
    prompt_count: int  # prompts that have such calls
    delivered_per_call: Interval | None  # tokens over these calls; 95% over prompts

    @property
    def last(self) -> int:
        """The largest number of tokens in the range."""
        return max(2 * self.first - 1, 0)


def compute_tokens_per_call_by_context_length(
    generations: Iterable[Generation],
) -> list[ContextLengthRange]:
    """Computes delivered tokens per call for each context length range that has calls, ascending.

    Long and short contexts are different texts, so the drafter is not the only cause of a
    difference.

    Generations without the number of their prompt's tokens are left out.
    """
    sums_by_first: dict[int, dict[str, list[int]]] = defaultdict(
        lambda: defaultdict(lambda: [0, 0])
    )
    for generation in generations:
        if generation.prompt_tokens is None:
            continue
        context_length = generation.prompt_tokens
        for step in generation.steps:
            sums = sums_by_first[1 << (context_length.bit_length() - 1) if context_length else 0][
                generation.prompt_id
            ]
            sums[0] += step.delivered
            sums[1] += 1
            context_length += step.delivered
    ranges = []
    for start in sorted(sums_by_first):
        token_counts, calls = zip(*sums_by_first[start].values(), strict=True)
        interval = ratio_interval(token_counts, calls)
        ranges.append(ContextLengthRange(start, sum(calls), len(calls), interval))
    return ranges
