"""Numbers that one stalled window does not decide, and the stalls themselves.

A window is one decoding of one prompt. A machine that stalls for a moment (another process, a
paused virtual machine, a throttled clock) leaves a window many times as long as the others, and it
enters a ratio of sums at full length, but not a median.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from spec_bench.metrics.efficiency import paired_repeats, speedup
from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import median_interval, rate_ratio_interval
from spec_bench.metrics.metric import CellRecords, metric
from spec_bench.records.types import Generation

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
