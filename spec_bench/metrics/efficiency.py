"""Speed, energy and perplexity: metrics of generations in seconds, joules and nats.

Imports only records; quality and the layout of tables are elsewhere. What target calls yield is in
``calls``, which also describes how numbers are aggregated; ``columns.csv`` defines each number.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from math import exp
from statistics import median

import numpy as np

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import median_interval, rate_ratio_interval
from spec_bench.metrics.metric import (
    CellRecords,
    PromptSums,
    Summand,
    mean_of_known,
    metric,
    pool_repeats,
    ratio_of_sums,
)
from spec_bench.records.types import BUSY, Generation, ServerChunks
from spec_bench.system.errors import UsageError

Repeats = Sequence[Sequence[Generation]]

_RATE: tuple[Summand, Summand] = (lambda g: g.decoded, lambda g: g.decode_s)
_SURPRISE: tuple[Summand, Summand] = (
    lambda g: None if g.log_likelihood is None else -g.log_likelihood,
    lambda g: g.delivered,
)
_RATIOS: Mapping[str, tuple[Summand, Summand]] = {
    "token_rate": _RATE,
    "token_rate_end_to_end": (lambda g: g.delivered, lambda g: g.prefill_s + g.decode_s),
    "host_overhead": (lambda g: g.decode_s - g.draft_s - g.target_s, lambda g: g.decode_s),
    "energy_j_per_token": (lambda g: g.energy_j, lambda g: g.decoded),
    "latency_s": (lambda g: g.latency_s, lambda g: 1),
    "token_rate_per_request": (lambda g: g.delivered, lambda g: g.latency_s),
}


def _sum_attribute(attribute: str, generations: Sequence[Generation]) -> float:
    return sum(getattr(generation, attribute) for generation in generations)


for _name, (_numerator, _denominator) in _RATIOS.items():
    metric(_name, sums=(_numerator, _denominator))(
        partial(ratio_of_sums, numerator=_numerator, denominator=_denominator)
    )
metric("prompts")(len)
metric("prompt_length")(
    lambda generations: mean_of_known(answer.prompt_tokens for answer in generations)
)
metric("delivered_tokens")(lambda generations: sum(answer.delivered for answer in generations))
metric("prefill_s")(partial(_sum_attribute, "prefill_s"))
metric("decode_s")(partial(_sum_attribute, "decode_s"))
metric("draft_s")(partial(_sum_attribute, "draft_s"))
metric("target_s")(partial(_sum_attribute, "target_s"))


@metric("repeats", of_cell=True)
def count_repeats(cell: CellRecords) -> int:
    """Returns how often each prompt was decoded."""
    return len(cell.repeats)


def iter_repeats_with_baseline(
    cell: CellRecords,
) -> Iterator[tuple[Sequence[Generation], Sequence[Generation]]]:
    """Yields, for each repeat of both, the cell's generations and the baseline's in the same order
    of prompts. Raises UsageError if the two have different prompts.
    """
    if cell.baseline is not None:
        for mine, baseline in zip(
            cell.repeats,
            (cell.baseline, *cell.later_baseline_repeats),
            strict=False,
        ):
            yield mine, match_baseline(mine, baseline)


def match_baseline(
    generations: Sequence[Generation], baseline: Sequence[Generation]
) -> tuple[Generation, ...]:
    """Returns the baseline's generations in the order of ``generations``, matched by prompt id.
    Raises UsageError if a prompt id occurs twice, or only on one side.
    """
    ours, theirs = (
        [generation.prompt_id for generation in side] for side in (generations, baseline)
    )
    for owner, ids, other_ids in (("cell", ours, theirs), ("baseline", theirs, ours)):
        if repeated_ids := sorted(name for name, count in Counter(ids).items() if count > 1):
            raise UsageError(f"prompts twice in the {owner}: {', '.join(repeated_ids)}")
        if missing_ids := sorted({*other_ids} - {*ids}):
            raise UsageError(f"prompts missing from the {owner}: {', '.join(missing_ids)}")
    by_prompt = dict(zip(theirs, baseline, strict=True))
    return tuple(by_prompt[name] for name in ours)


def divide_rate_by_baseline(rate_name: str, cell: CellRecords) -> Interval | None:
    """Divides a rate of ``_RATIOS`` by the baseline's, paired by prompt id; None without a
    baseline. Raises UsageError if the two have different prompts.
    """
    if cell.baseline is None:
        return None
    pairs = list(iter_repeats_with_baseline(cell))
    terms = _RATIOS[rate_name]
    ours = pool_repeats([ratio_of_sums(mine, *terms) for mine, _ in pairs], cell.clocks)
    theirs = pool_repeats(
        [ratio_of_sums(theirs_repeat, *terms) for _, theirs_repeat in pairs], cell.clocks
    )
    assert isinstance(ours, PromptSums) and isinstance(theirs, PromptSums)
    return rate_ratio_interval(*ours.to_arrays(), *theirs.to_arrays())


speedup = partial(divide_rate_by_baseline, "token_rate")
metric("speedup", of_cell=True, sums=())(speedup)
metric("speedup_end_to_end", of_cell=True, sums=())(
    partial(divide_rate_by_baseline, "token_rate_end_to_end")
)


@metric("perplexity", sums=_SURPRISE)
def perplexity(generations: Sequence[Generation]) -> PromptSums | None:
    """Exponential of the nats of surprise per delivered token; None if a record lacks them."""
    sums = ratio_of_sums(generations, *_SURPRISE)
    return sums and replace(sums, mapped=exp)


@metric("perplexity_by_prompt")
def perplexity_of_prompt_means(generations: Sequence[Generation]) -> PromptSums | None:
    """Exponential of the mean over prompts of each prompt's nats per token (DSBD)."""
    nats, tokens = _SURPRISE
    answered = [generation for generation in generations if generation.delivered]
    sums = ratio_of_sums(answered, lambda g: nats(g) and nats(g) / tokens(g), lambda g: 1)
    return sums and replace(sums, mapped=exp)


# A window is one decoding of one prompt. A machine that stalls for a moment (another process, a
# paused virtual machine, a throttled clock) makes a window many times as long as the others. Such
# a window dominates a ratio of sums, but hardly moves a median.


STALL = 5.0
"""A window is stalled if its seconds per target call exceed the cell's median by this factor."""


@metric("speedup_median", of_cell=True, sums=())
def speedup_median(cell: CellRecords) -> Interval | None:
    """Median over prompts of the baseline's seconds per token over the cell's; None if no prompt
    has both.

    With repeats each prompt counts with the median of its repeats, so that neither a stalled window
    nor a slow repeat decides. The interval is over prompts. Raises UsageError if the two have
    different prompts.
    """
    ratios = [
        [_compute_speed_ratio(ours, theirs) for ours, theirs in zip(mine, baseline, strict=True)]
        for mine, baseline in iter_repeats_with_baseline(cell)
    ]
    of_prompts = [
        median(known_values)
        for values in zip(*ratios, strict=True)
        if (known_values := [value for value in values if value is not None])
    ]
    if cell.batched and of_prompts:  # prompts of one batch are not independent
        return Interval(median(of_prompts))
    return median_interval(of_prompts) if of_prompts else None


def _compute_speed_ratio(generation: Generation, baseline: Generation) -> float | None:
    """Divides the baseline's seconds per token by ours; None if a side has no tokens or seconds."""
    if not (
        generation.decoded
        and baseline.decoded
        and generation.decode_s > 0
        and baseline.decode_s > 0
    ):
        return None
    return (baseline.decode_s / baseline.decoded) / (generation.decode_s / generation.decoded)


@metric("stalls", of_cell=True)
def count_stalls(cell: CellRecords) -> int:
    """Counts the windows whose seconds per target call exceed ``STALL`` times the cell's median."""
    return sum(map(sum, flag_windows_over_cell_median(cell.repeats)))


metric("load_average", of_cell=True)(
    lambda cell: mean_of_known(answer.load_average for answer in cell.windows)
)
metric("clock_mhz", of_cell=True)(
    lambda cell: mean_of_known(answer.clock_mhz for answer in cell.windows)
)


def flag_windows_over_cell_median(repeats: Repeats) -> list[list[bool]]:
    """Flags windows, by repeat and prompt, that took over ``STALL`` times the median per call."""
    limit = STALL * _median_call_s(repeats)
    return [
        [bool(g.steps) and g.decode_s > limit * len(g.steps) for g in repeat] for repeat in repeats
    ]


def describe_deciding_stalls(cell: CellRecords) -> str | None:
    """Describes the stalled windows if they decide the speed-up; None if they do not.

    They decide it if the ratio of sums moves by more than half the width of its interval once every
    stalled window, the cell's or the baseline's, is given the median seconds for its target calls.
    The interval is that of the corrected ratio: a stall widens its own interval, and would excuse
    itself.
    """
    pairs = list(iter_repeats_with_baseline(cell))
    sides = [[ours for ours, _ in pairs], [theirs for _, theirs in pairs]]
    counts = [sum(map(sum, flag_windows_over_cell_median(side))) for side in sides]
    if not any(counts):
        return None
    columns = [column for side in sides for column in _compute_tokens_and_unstalled_s(side)]
    measured_speedup = speedup(cell)
    usual = rate_ratio_interval(*columns)
    middle = speedup_median(cell)
    if measured_speedup is None or usual is None or middle is None:
        return None
    low, high = usual.ends or (0.0, 0.0)
    half = (high - low) / 2
    if abs(measured_speedup.value - usual.value) <= half:
        return None
    windows = sum(map(len, sides[0]))
    stalls = [f"{counts[0]} of {windows} windows"] if counts[0] else []
    baselines = [f"{counts[1]} of {windows} of the baseline's"] if counts[1] else []
    return f"stalled: {', '.join([*stalls, *baselines])}; median says {middle.value:.2f}"


def describe_disturbance(cell: CellRecords, slowdown: float) -> str:
    """Describes why other work on the machine made the cell's rates useless; "" if it did not.

    ``slowdown`` is the seconds of a pass after decoding over those when the number of threads was
    chosen, with the same number of threads. Other work also shows in the share of the windows'
    time, the baseline's included, for which a runnable thread waited for a core.
    """
    if not 0.5 < slowdown < 2:
        return f"disturbed: a pass took {slowdown:.2g} times as long as when threads were chosen"
    windows = [*cell.windows, *chain(cell.baseline or (), *cell.later_baseline_repeats)]
    seconds = sum(window.decode_s for window in windows)
    waited_s = sum((window.core_wait or 0.0) * window.decode_s for window in windows)
    if waited_s <= BUSY * seconds:
        return ""
    return f"disturbed: threads waited for a core {waited_s / seconds:.1%} of the time"


def _compute_tokens_and_unstalled_s(
    repeats: Repeats,
) -> tuple[list[list[float]], list[list[float]]]:
    """Returns tokens and seconds, each by repeat and prompt; a stalled window has the seconds of as
    many median calls.
    """
    usual = _median_call_s(repeats)
    tokens = [[float(generation.decoded) for generation in repeat] for repeat in repeats]
    seconds = [
        [
            usual * len(g.steps) if is_stalled else g.decode_s
            for g, is_stalled in zip(repeat, flags, strict=True)
        ]
        for repeat, flags in zip(repeats, flag_windows_over_cell_median(repeats), strict=True)
    ]
    return tokens, seconds


def _median_call_s(repeats: Repeats) -> float:
    step_seconds = [g.decode_s / len(g.steps) for repeat in repeats for g in repeat if g.steps]
    return median(step_seconds) if step_seconds else 0.0


# Latencies that a server's user sees, of answers that came over a connection; other cells have only
# the delivered tokens per call. Percentiles are over all requests, repeats included. A chunk is one
# call; gaps are between chunks, and seconds per token leave out a request's first chunk.


_AT_ONCE_S = 1e-4


_SEEN: Mapping[str, Callable[[Generation, ServerChunks], list[float]]] = {
    "ttft_s": lambda _, delivery: [delivery.seconds[0]],
    "inter_token_s": lambda answer, delivery: (
        [(delivery.seconds[-1] - delivery.seconds[0]) / answer.decoded] if answer.decoded else []
    ),
    "chunk_gap_s": lambda _, delivery: [end - start for start, end in pairwise(delivery.seconds)],
    "latency_s": lambda _, delivery: [delivery.seconds[-1]],
}


def _list_delivery_latencies(latency: str, windows: Sequence[Generation]) -> list[float]:
    """Lists one kind of latency, in seconds, over all answers that came over a connection."""
    return [
        s for window in windows if window.delivery for s in _SEEN[latency](window, window.delivery)
    ]


def has_mostly_simultaneous_chunks(windows: Sequence[Generation]) -> bool:
    """Whether most chunks arrived less than ``_AT_ONCE_S`` after the previous chunk, sooner than a
    forward pass can take.
    """
    gaps = _list_delivery_latencies("chunk_gap_s", windows)
    return sum(gap < _AT_ONCE_S for gap in gaps) > len(gaps) / 2


def _latency_percentile(latency: str, percent: int, cell: CellRecords) -> float | None:
    """Computes a percentile of a latency in seconds, linear between neighbours; None without
    values.
    """
    values = _list_delivery_latencies(latency, cell.windows)
    return float(np.percentile(values, percent)) if values else None


for _name in _SEEN:
    for _percent in (50, 90, 99):
        metric(f"{_name}_p{_percent}", of_cell=True)(partial(_latency_percentile, _name, _percent))


@metric("block_efficiency_stream")
def delivered_per_call(generations: Sequence[Generation]) -> float | None:
    """Delivered tokens per target call; a server's after its first chunk, per later chunk."""

    def calls(generation: Generation) -> int:
        return len(generation.delivery.tokens) - 1 if generation.delivery else len(generation.steps)

    sums = ratio_of_sums(generations, lambda g: g.decoded, calls)
    return sums.value if sums else None


@metric("block_efficiency_source")
def describe_call_count_sources(generations: Sequence[Generation]) -> str | None:
    """Names the source of the count of target calls; if there are several, each with its number of
    prompts. None if no answer came over a connection.
    """
    counts = Counter(
        generation.delivery.counted for generation in generations if generation.delivery
    )
    if len(counts) < 2:
        return next(iter(counts), None)
    return ", ".join(f"{name}: {counts[name]}" for name in sorted(counts))
