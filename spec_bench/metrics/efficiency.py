"""What a decoder's seconds and joules bought: pure functions of generations.

Knows the records only; nothing about quality or how a table is laid out. What target calls bought
is in ``calls``, which also says how numbers are aggregated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp
from statistics import median

import numpy as np

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import median_interval, rate_ratio_interval
from spec_bench.metrics.metric import CellRecords, Sums, metric, pooled
from spec_bench.records.types import Delivery, Generation


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


# Numbers that one stalled window does not decide, and the stalls themselves.
#
# A window is one decoding of one prompt. A machine that stalls for a moment (another process, a
# paused virtual machine, a throttled clock) leaves a window many times as long as the others, and
# it enters a ratio of sums at full length, but not a median.


STALL = 5.0
"""A window is stalled when its seconds per target call exceed so many times the cell's median."""

Repeats = Sequence[Sequence[Generation]]


@metric("speedup_median", of_cell=True)
def speedup_median(cell: CellRecords) -> Interval | None:
    """Median over prompts of the baseline's seconds per token over the cell's.

    With repeats each prompt counts with the median of its repeats, so that neither a stalled window
    nor a slow repeat decides. The interval is over prompts.

    Raises:
        ValueError: the two do not hold the same prompts.
    """
    ratios = [
        [_ratio(ours, theirs) for ours, theirs in zip(mine, other, strict=True)]
        for mine, other in paired_repeats(cell)
    ]
    of_prompts = [
        median(known)
        for values in zip(*ratios, strict=True)
        if (known := [value for value in values if value is not None])
    ]
    return median_interval(of_prompts) if of_prompts else None


@metric("stalls", of_cell=True)
def stalls(cell: CellRecords) -> int:
    """Windows whose seconds per target call exceed ``STALL`` times the cell's median."""
    return sum(map(sum, stalled(cell.repeats)))


@metric("load_average", of_cell=True)
def load_average(cell: CellRecords) -> float | None:
    """Mean of the 1-minute load at the windows' ends; None if the system does not tell."""
    return _mean([window.load_average for window in cell.windows])


@metric("clock_mhz", of_cell=True)
def clock_mhz(cell: CellRecords) -> float | None:
    """Mean of the device's clock at the windows' ends; None if nothing tells it."""
    return _mean([window.clock_mhz for window in cell.windows])


def stalled(repeats: Repeats) -> list[list[bool]]:
    """Which windows stalled, by repeat and prompt."""
    limit = STALL * _usual_s(repeats)
    return [[bool(g.steps) and g.decode_s > limit * len(g.steps) for g in each] for each in repeats]


def stall_note(cell: CellRecords) -> str | None:
    """What to mind about a speed-up that stalled windows decide; None if they do not.

    They do if the ratio of sums moves by more than its interval's half width once every stalled
    window, the cell's or the baseline's, is given the usual seconds for its target calls. The half
    width is that of the usual seconds: a stall widens its own interval, and would excuse itself.
    """
    pairs = list(paired_repeats(cell))
    mine, other = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
    counts = [sum(map(sum, stalled(each))) for each in (mine, other)]
    if not any(counts):
        return None
    measured, usual, middle = speedup(cell), _without_stalls(mine, other), speedup_median(cell)
    if measured is None or usual is None or middle is None:
        return None
    half = 0.0 if usual.low is None or usual.high is None else (usual.high - usual.low) / 2
    if abs(measured.value - usual.value) <= half:
        return None
    windows = sum(map(len, mine))
    stalls = [f"{counts[0]} of {windows} windows"] if counts[0] else []
    baselines = [f"{counts[1]} of {windows} of the baseline's"] if counts[1] else []
    return f"stalled: {', '.join([*stalls, *baselines])}; median says {middle.value:.2f}"


def _without_stalls(mine: Repeats, other: Repeats) -> Interval | None:
    """The speed-up with the usual seconds in place of every stalled window's."""
    columns = []
    for repeats in (mine, other):
        usual = _usual_s(repeats)
        columns.append([[float(g.decoded) for g in each] for each in repeats])
        columns.append(
            [
                [
                    usual * len(g.steps) if out else g.decode_s
                    for g, out in zip(each, flags, strict=True)
                ]
                for each, flags in zip(repeats, stalled(repeats), strict=True)
            ]
        )
    return rate_ratio_interval(*columns)


def _usual_s(repeats: Repeats) -> float:
    """Median seconds per target call over all windows."""
    each = [g.decode_s / len(g.steps) for repeat in repeats for g in repeat if g.steps]
    return median(each) if each else 0.0


def _ratio(ours: Generation, theirs: Generation) -> float | None:
    """The baseline's seconds per token over ours; None if one has no tokens or no seconds."""
    if not (ours.decoded and theirs.decoded and ours.decode_s > 0 and theirs.decode_s > 0):
        return None
    return (theirs.decode_s / theirs.decoded) / (ours.decode_s / ours.decoded)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# What a server's user sees: waiting, gaps, whole answers; what the stream says of its calls.
#
# Only for answers that came over a connection; other cells have none of these numbers but one, the
# delivered tokens of a call. Percentiles are over all requests, repeats included. Gaps are between
# chunks, which are calls; seconds per token are a request's own, first chunk excluded.


_PERCENTS = (50, 90, 99)
_AT_ONCE_S = 1e-4


def first_s(each: Generation, came: Delivery) -> list[float]:
    """From the request to its first chunk: waiting and the prompt's pass."""
    return [came.seconds[0]]


def per_token_s(each: Generation, came: Delivery) -> list[float]:
    """Seconds per token after the first chunk; none for an answer of one chunk."""
    return [(came.seconds[-1] - came.seconds[0]) / each.decoded] if each.decoded else []


def gaps_s(each: Generation, came: Delivery) -> list[float]:
    """Between chunks that follow each other."""
    return [after - before for before, after in pairwise(came.seconds)]


def in_bursts(windows: Sequence[Generation]) -> bool:
    """Whether most chunks came at once with the one before, sooner than any pass can take."""
    gaps = [gap for each in windows if each.delivery for gap in gaps_s(each, each.delivery)]
    return sum(gap < _AT_ONCE_S for gap in gaps) > len(gaps) / 2


def whole_s(each: Generation, came: Delivery) -> list[float]:
    """From the request to its last chunk."""
    return [came.seconds[-1]]


_SEEN: dict[str, Callable[[Generation, Delivery], list[float]]] = {
    "ttft_s": first_s,
    "inter_token_s": per_token_s,
    "chunk_gap_s": gaps_s,
    "latency_s": whole_s,
}


def percentile(
    windows: Sequence[Generation],
    seen: Callable[[Generation, Delivery], list[float]],
    percent: float,
) -> float | None:
    """A percentile over all requests, linear between neighbours; None without values."""
    values = [value for each in windows if each.delivery for value in seen(each, each.delivery)]
    return float(np.percentile(values, percent)) if values else None


def _declare(name: str, percent: int) -> None:
    seen = _SEEN[name]

    @metric(f"{name}_p{percent}", of_cell=True)
    def _(cell: CellRecords) -> float | None:
        return percentile(cell.windows, seen, percent)


for _name in _SEEN:
    for _percent in _PERCENTS:
        _declare(_name, _percent)


@metric("block_efficiency_stream")
def delivered_per_call(generations: Sequence[Generation]) -> float | None:
    """Delivered tokens over target calls; a server's after the first chunk, over its chunks."""
    calls = [len(each.delivery.tokens) - 1 if each.delivery else len(each.steps)
             for each in generations]  # fmt: skip
    return Sums(tuple(float(each.decoded) for each in generations), tuple(map(float, calls))).value


@metric("block_efficiency_source")
def source(generations: Sequence[Generation]) -> str | None:
    """Where the target calls are known from; if that differs, with the number of prompts."""
    counts = Counter(each.delivery.counted for each in generations if each.delivery)
    if len(counts) < 2:
        return next(iter(counts), None)
    return ", ".join(f"{name}: {counts[name]}" for name in sorted(counts))
