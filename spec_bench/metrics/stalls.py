"""Windows that other work on the machine slowed down, and a speed-up that they hardly change.

A window is one decoding of one prompt. A machine that stalls for a moment (another process, a
paused virtual machine, a throttled clock) makes a window many times as long as the others. Such a
window dominates a ratio of sums, but hardly moves a median.
"""

from itertools import chain
from statistics import median

from spec_bench.metrics.efficiency import Repeats, iter_repeats_with_baseline, speedup
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import median_interval, rate_ratio_interval
from spec_bench.metrics.metric import CellRecords, mean_of_known, metric
from spec_bench.records.types import BUSY, Generation

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
    prompt_ratios = [
        median(known_values)
        for values in zip(*ratios, strict=True)
        if (known_values := [value for value in values if value is not None])
    ]
    if cell.batched and prompt_ratios:  # prompts of one batch are not independent
        return Interval(median(prompt_ratios))
    return median_interval(prompt_ratios) if prompt_ratios else None


def _compute_speed_ratio(generation: Generation, baseline: Generation) -> float | None:
    """Divides the baseline's seconds per token by ours; None if a side has no tokens or seconds."""
    if not (
        generation.tokens_in_decode_s
        and baseline.tokens_in_decode_s
        and generation.decode_s > 0
        and baseline.decode_s > 0
    ):
        return None
    return (baseline.decode_s / baseline.tokens_in_decode_s) / (
        generation.decode_s / generation.tokens_in_decode_s
    )


@metric("stalls", of_cell=True)
def count_own_stalls(cell: CellRecords) -> int:
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
    unstalled_speedup = rate_ratio_interval(*columns)
    median_ratio = speedup_median(cell)
    if measured_speedup is None or unstalled_speedup is None or median_ratio is None:
        return None
    low, high = unstalled_speedup.ends or (0.0, 0.0)
    half_width = (high - low) / 2
    if abs(measured_speedup.value - unstalled_speedup.value) <= half_width:
        return None
    windows = sum(map(len, sides[0]))
    stalls = [f"{counts[0]} of {windows} windows"] if counts[0] else []
    baselines = [f"{counts[1]} of {windows} of the baseline's"] if counts[1] else []
    return f"stalled: {', '.join([*stalls, *baselines])}; median says {median_ratio.value:.2f}"


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
    median_call_s = _median_call_s(repeats)
    tokens = [[float(generation.tokens_in_decode_s) for generation in repeat] for repeat in repeats]
    seconds = [
        [
            median_call_s * len(g.steps) if is_stalled else g.decode_s
            for g, is_stalled in zip(repeat, flags, strict=True)
        ]
        for repeat, flags in zip(repeats, flag_windows_over_cell_median(repeats), strict=True)
    ]
    return tokens, seconds


def _median_call_s(repeats: Repeats) -> float:
    step_seconds = [g.decode_s / len(g.steps) for repeat in repeats for g in repeat if g.steps]
    return median(step_seconds) if step_seconds else 0.0
