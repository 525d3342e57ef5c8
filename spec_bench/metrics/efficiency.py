"""What a decoder's seconds and joules bought: pure functions of generations.

Knows the records only; nothing about quality or how a table is laid out. What target calls bought
is in ``calls``, which also says how numbers are aggregated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import rate_ratio_interval
from spec_bench.metrics.metric import CellRecords, Sums, metric, pooled
from spec_bench.records.types import Generation


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


@metric("token_rate")
def tokens_per_decode_s(generations: Sequence[Generation]) -> Sums:
    """Delivered tokens over seconds of decoding."""
    return Sums(_decoded(generations), tuple(g.decode_s for g in generations))


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
    """Joules over delivered tokens; None if any generation was not metered."""
    energy_j = tuple(g.energy_j for g in generations if g.energy_j is not None)
    if len(energy_j) < len(generations):
        return None
    return Sums(energy_j, _decoded(generations))


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
    by_prompt = {generation.prompt_id: generation for generation in generations}
    if len(by_prompt) < len(generations):
        ids = [generation.prompt_id for generation in generations]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        raise ValueError(f"prompts twice in {whose}: {', '.join(twice)}")
    return by_prompt


def _delivered(generations: Sequence[Generation]) -> tuple[float, ...]:
    return tuple(float(len(generation.tokens)) for generation in generations)


def _decoded(generations: Sequence[Generation]) -> tuple[float, ...]:
    """Tokens delivered within the seconds of decoding, by generation."""
    return tuple(float(generation.decoded) for generation in generations)


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

    None if a record lacks it.
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
