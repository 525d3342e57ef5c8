"""What a decoder's target calls and seconds bought: pure functions of generations.

Knows the records only; nothing about intervals, quality or how a table is laid out.

Every aggregate is a ratio of sums over the whole cell, never a mean of per-prompt means. The
per-prompt numerators and denominators (``Sums``) are the common ground of the point values here
and of their intervals (``metric``). A ratio whose denominator is zero has no value (None).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp

import numpy as np

from spec_bench.metrics.intervals import Interval, rate_ratio_interval
from spec_bench.metrics.metric import CellRecords, Sums, metric, pooled
from spec_bench.records import Generation


@metric("prompts")
def prompts(generations: Sequence[Generation]) -> int:
    """Prompts decoded."""
    return len(generations)


@metric("repeats", of_cell=True)
def repeats(cell: CellRecords) -> int:
    """How often every prompt was decoded."""
    return len(cell.repeats)


@metric("delivered_tokens")
def delivered_tokens(generations: Sequence[Generation]) -> int:
    """Tokens handed to the user, counted from token ids."""
    return sum(len(generation.tokens) for generation in generations)


@metric("target_calls")
def target_calls(generations: Sequence[Generation]) -> int:
    """Forward passes of the target that verified a tree; the prefill is not one."""
    return sum(len(generation.steps) for generation in generations)


@metric("block_efficiency")
def emitted_per_call(generations: Sequence[Generation]) -> Sums:
    """Emitted tokens (accepted + 1) over target calls: tau (arXiv:2402.14160, C.2).

    Autoregressive decoding has exactly 1. Tokens after an end-of-sequence token or past the length
    limit inside the last block count here although they are not delivered.
    """
    emitted = tuple(float(sum(s.accepted + 1 for s in g.steps)) for g in generations)
    return Sums(emitted, tuple(float(len(g.steps)) for g in generations))


@metric("mbsu", of_cell=True)
def mbsu_of(cell: CellRecords) -> Sums | None:
    """Emitted tokens over target calls, and what makes it the memory-bound speed-up."""
    calls, ratio = cell.draft_calls, cell.parameter_ratio
    if calls is None or ratio is None:
        return None
    factor = mbsu(1.0, calls, ratio)
    return replace(emitted_per_call(cell.generations), mapped=lambda tau: tau * factor)


def mbsu(block_efficiency: float, draft_calls: int, parameter_ratio: float) -> float:
    """Memory-bound speed-up, tau / (L r + 1) (RSD, arXiv:2402.14160, Appendix C.2).

    The paper's sentence has r upside down; with r = draft / target its own tables come out.

    Args:
        block_efficiency: tau, emitted tokens per target call.
        draft_calls: L, sequential draft calls per iteration (the tree's depth).
        parameter_ratio: r, parameters of the draft over parameters of the target.
    """
    return block_efficiency / (draft_calls * parameter_ratio + 1.0)


def accepted_at_depth(generations: Sequence[Generation], depth: int) -> Sums:
    """Walks that left depth - 1 by an accepted child, over walks that reached depth - 1.

    Args:
        generations: of one cell.
        depth: 1 for the root's children, 2 for theirs, ... Target calls whose tree is shallower
            than this do not count.
    """
    reached = [
        [s for s in g.steps if s.depth >= depth and s.accepted >= depth - 1] for g in generations
    ]
    accepted = tuple(float(sum(s.accepted >= depth for s in steps)) for steps in reached)
    return Sums(accepted, tuple(float(len(steps)) for steps in reached))


@metric("acceptance_rate")
def acceptance(generations: Sequence[Generation]) -> Sums:
    """The counts of ``accepted_at_depth`` pooled over all depths."""
    accepted = tuple(float(sum(s.accepted for s in g.steps)) for g in generations)
    # A walk that accepts a of L levels reached depths 0..a, and could have left each but depth L.
    reached = tuple(float(sum(min(s.accepted + 1, s.depth) for s in g.steps)) for g in generations)
    return Sums(accepted, reached)


@metric("acceptance_rate_by_depth")
def acceptance_rates_text(generations: Sequence[Generation]) -> str:
    """alpha_1 .. alpha_L as a JSON list."""
    return json.dumps(acceptance_rate_by_depth(generations))


def acceptance_rate_by_depth(generations: Sequence[Generation]) -> tuple[float | None, ...]:
    """alpha_1 .. alpha_L; None at a depth that no walk came close to."""
    deepest = max((step.depth for g in generations for step in g.steps), default=0)
    return tuple(accepted_at_depth(generations, d).value for d in range(1, deepest + 1))


@metric("token_rate")
def tokens_per_decode_s(generations: Sequence[Generation]) -> Sums:
    """Delivered tokens over seconds of decoding."""
    return Sums(_delivered(generations), tuple(g.decode_s for g in generations))


@metric("token_rate_end_to_end")
def tokens_per_total_s(generations: Sequence[Generation]) -> Sums:
    """Delivered tokens over seconds of prefill and decoding."""
    return Sums(_delivered(generations), tuple(g.prefill_s + g.decode_s for g in generations))


@metric("host_overhead")
def host_seconds(generations: Sequence[Generation]) -> Sums:
    """Seconds of decoding outside model forward passes, over seconds of decoding."""
    outside = tuple(g.decode_s - g.draft_s - g.target_s for g in generations)
    return Sums(outside, tuple(g.decode_s for g in generations))


@metric("energy_j_per_token")
def energy_per_token(generations: Sequence[Generation]) -> Sums | None:
    """Joules over delivered tokens; None where any generation was not metered."""
    energy_j = tuple(g.energy_j for g in generations if g.energy_j is not None)
    if len(energy_j) < len(generations):
        return None
    return Sums(energy_j, _delivered(generations))


@metric("energy_check_j_per_token")
def energy_check_j_per_token(generations: Sequence[Generation]) -> float | None:
    """Joules per delivered token by the meter's second way; None where any window lacks it."""
    check_j = tuple(g.energy_check_j for g in generations if g.energy_check_j is not None)
    if len(check_j) < len(generations):
        return None
    return Sums(check_j, _delivered(generations)).value


@metric("nodes_per_call_p01")
def nodes_first_percentile(generations: Sequence[Generation]) -> float | None:
    """1st percentile of the tree nodes of a call."""
    return nodes_percentile(generations, 1)


@metric("nodes_per_call_p50")
def nodes_median(generations: Sequence[Generation]) -> float | None:
    """Median of the tree nodes of a call."""
    return nodes_percentile(generations, 50)


@metric("nodes_per_call_p99")
def nodes_last_percentile(generations: Sequence[Generation]) -> float | None:
    """99th percentile of the tree nodes of a call."""
    return nodes_percentile(generations, 99)


def nodes_percentile(generations: Sequence[Generation], percent: float) -> float | None:
    """Tree nodes of a target call, the root not counted: a percentile over all calls."""
    nodes = [step.nodes for generation in generations for step in generation.steps]
    return float(np.percentile(nodes, percent)) if nodes else None


@metric("nodes_per_call")
def nodes_per_call(generations: Sequence[Generation]) -> float | None:
    """Tree nodes verified per target call, the root not counted."""
    nodes = tuple(float(sum(s.nodes for s in g.steps)) for g in generations)
    return Sums(nodes, tuple(float(len(g.steps)) for g in generations)).value


def paired_repeats(
    cell: CellRecords,
) -> Iterator[tuple[Sequence[Generation], Sequence[Generation]]]:
    """The cell's generations and the baseline's, matched by prompt, of each repeat of both.

    Raises:
        ValueError: the two do not hold the same prompts.
    """
    if cell.baseline is not None:
        for mine, other in zip(cell.repeats, (cell.baseline, *cell.baseline_again), strict=False):
            yield mine, matched(mine, other)


def matched(
    generations: Sequence[Generation], baseline: Sequence[Generation]
) -> tuple[Generation, ...]:
    """The baseline's generations in the order of ``generations``, matched by prompt id.

    Raises:
        ValueError: a prompt id occurs twice, or is on one side only.
    """
    ours, theirs = _by_prompt(generations, "the cell"), _by_prompt(baseline, "the baseline")
    for name, missing in (("baseline", ours.keys() - theirs), ("cell", theirs.keys() - ours)):
        if missing:
            raise ValueError(f"prompts missing from the {name}: {', '.join(sorted(missing))}")
    return tuple(theirs[generation.prompt_id] for generation in generations)


def _by_prompt(generations: Sequence[Generation], whose: str) -> dict[str, Generation]:
    found = {generation.prompt_id: generation for generation in generations}
    if len(found) < len(generations):
        ids = [generation.prompt_id for generation in generations]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise ValueError(f"prompts twice in {whose}: {', '.join(twice)}")
    return found


def _delivered(generations: Sequence[Generation]) -> tuple[float, ...]:
    return tuple(float(len(generation.tokens)) for generation in generations)


@metric("draft_calls", of_cell=True)
def draft_calls(cell: CellRecords) -> int | None:
    """L: sequential draft calls per iteration."""
    return cell.draft_calls


@metric("parameter_ratio", of_cell=True)
def parameter_ratio(cell: CellRecords) -> float | None:
    """r: parameters of the draft / parameters of the target."""
    return cell.parameter_ratio


@metric("prefill_s")
def prefill_s(generations: Sequence[Generation]) -> float:
    """Seconds of prefill, all prompts."""
    return sum(generation.prefill_s for generation in generations)


@metric("decode_s")
def decode_s(generations: Sequence[Generation]) -> float:
    """Seconds of decoding, all prompts."""
    return sum(generation.decode_s for generation in generations)


@metric("draft_s")
def draft_s(generations: Sequence[Generation]) -> float:
    """Seconds inside draft forward passes, all prompts."""
    return sum(generation.draft_s for generation in generations)


@metric("target_s")
def target_s(generations: Sequence[Generation]) -> float:
    """Seconds inside target forward passes while decoding, all prompts."""
    return sum(generation.target_s for generation in generations)


@metric("speedup", of_cell=True)
def speedup(cell: CellRecords) -> Interval | None:
    """Token rate over the baseline's on the same prompts, paired by prompt id.

    Raises:
        ValueError: the two do not hold the same prompts.
    """
    if cell.baseline is None:
        return None
    both = list(paired_repeats(cell))
    ours = pooled([tokens_per_decode_s(mine) for mine, _ in both])
    theirs = pooled([tokens_per_decode_s(other) for _, other in both])
    assert isinstance(ours, Sums) and isinstance(theirs, Sums)
    return rate_ratio_interval(*ours.blocks(), *theirs.blocks())


@metric("perplexity")
def perplexity(generations: Sequence[Generation]) -> Sums | None:
    """Surprise per token, and its exponential."""
    surprise = surprise_per_token(generations)
    return None if surprise is None else replace(surprise, mapped=exp)


def surprise_per_token(generations: Sequence[Generation]) -> Sums | None:
    """- log-likelihood of the delivered tokens over their number, in nats.

    None where a record does not have it.
    """
    known = [-g.log_likelihood for g in generations if g.log_likelihood is not None]
    if len(known) < len(generations):
        return None
    return Sums(tuple(known), tuple(float(len(g.tokens)) for g in generations))


@metric("latency_s")
def latency_per_request(generations: Sequence[Generation]) -> Sums | None:
    """Seconds from the start of a request's prefill to its last token, over requests."""
    known = [g.latency_s for g in generations if g.latency_s is not None]
    if len(known) < len(generations):
        return None
    return Sums(tuple(known), tuple(1.0 for _ in known))


@metric("token_rate_per_request")
def tokens_per_latency_s(generations: Sequence[Generation]) -> Sums | None:
    """Delivered tokens over the seconds that their requests took: the speed that one user sees."""
    latency = latency_per_request(generations)
    if latency is None:
        return None
    return Sums(tuple(float(len(g.tokens)) for g in generations), latency.numerators)


@metric("beam_width")
def beams_per_layer(generations: Sequence[Generation]) -> Sums | None:
    """Beams of all layers over layers; None where single sequences were decoded."""
    widths = [[width for step in g.steps for width in step.widths] for g in generations]
    if not any(widths):
        return None
    return Sums(tuple(float(sum(w)) for w in widths), tuple(float(len(w)) for w in widths))
