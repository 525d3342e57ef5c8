"""Chooses a decoder by its speed-up over plain decoding, or tells what to measure next.

Every printed answer, of a table, a page, a category or a search, comes from ``choose_decoder``.
"""

from collections.abc import Sequence
from math import ceil, log
from typing import NamedTuple

from spec_bench.metrics.interval import FEWEST, Interval
from spec_bench.metrics.p_values import bonferroni_ends
from spec_bench.vocabulary.numbers import format_ends

CLOSE = 0.05  # speeds that differ by at most this share count as equal
_MAX_PROMPTS = 10_000  # largest number of prompts that is suggested


class DecoderSpeed(NamedTuple):
    """A decoder's measured speed-up."""

    title: str
    speedup: Interval  # over plain decoding
    prompts: float
    doubt: str = ""  # why the measurement cannot decide anything, or ""


class DecoderChoice(NamedTuple):
    """Indices of the decoders that are surely faster; without any, an answer with its reason."""

    faster_places: tuple[int, ...] = ()
    answer: str = ""
    why: str = ""


def choose_decoder(speeds: Sequence[DecoderSpeed], unit: str = "prompts") -> DecoderChoice:
    """Chooses the decoders that are surely faster than plain decoding.

    The fastest of several is partly luck, so a decoder is faster only by an interval that holds for
    all at once (Bonferroni). That none is faster needs each decoder's own 95% interval at or below
    1.

    ``unit`` is the plural noun for what to measure more of, such as prompts.
    """
    if not speeds:
        return DecoderChoice((), "AR", "nothing else has a speed")
    own_ends, joint_ends = (
        [
            None
            if doubt
            else bonferroni_ends((s.value, s.low or 0.0, s.high or 0.0), n, comparisons)
            for _, s, n, doubt in speeds
        ]
        for comparisons in (1, len(speeds))
    )
    if faster := tuple(n for n, ends in enumerate(joint_ends) if ends and ends[0] > 1):
        return DecoderChoice(faster)
    undecided = [n for n, ends in enumerate(own_ends) if ends is None or ends[1] > 1]
    ties = {
        n for n, ends in enumerate(joint_ends) if ends and max(1 / ends[0], ends[1]) <= 1 + CLOSE
    }
    candidates = {*undecided} - ties or undecided or range(len(own_ends))
    best = max(candidates, key=lambda n: (not speeds[n][3], speeds[n][1].value))
    title, speed, prompts, doubt = speeds[best]
    ends = (joint_ends if undecided else own_ends)[best]
    speed_text = f"{speed.value:.2f}×{format_ends(*ends, '.2f', ' [{} to {}]') if ends else ''}"
    if not undecided:
        return DecoderChoice(
            (), "AR", f"the fastest other one, {title}, reaches {speed_text} of its speed"
        )
    if best in ties:
        return DecoderChoice(
            (), "a tie", f"{title} is as fast as AR within {CLOSE:.0%}, {speed_text}"
        )
    other_text = f", {len(candidates) - 1} other{'s' * (len(candidates) > 2)}" * (
        len(candidates) > 1
    )
    title = title.removesuffix(f", {doubt.partition(':')[0]}")
    open_ones = f"between {title}{other_text} and AR"
    advice = f"more {'seeds' if speed.between_seeds_share > 0.5 else unit} may decide"
    if ends and speed.between_seeds_share <= 0.5:
        advice = (
            f"about {_estimate_prompts_to_decide(speed.value, ends, prompts)} {unit} may decide"
        )
    if doubt:
        # with the same --out the finished cells would only be read
        rerun_advice = "run it again with another --out"
        advice = f"; {advice}" * (prompts < FEWEST)
        return DecoderChoice(
            (), "cannot decide yet", f"{open_ones}: {doubt}; {rerun_advice}{advice}"
        )
    looks_text = f"{title} looks {'faster' if speed.value > 1 else 'slower'}, {speed_text}"
    return DecoderChoice((), "cannot decide yet", f"{open_ones}; {looks_text}; {advice}")


def _estimate_prompts_to_decide(value: float, ends: tuple[float, float], prompts: float) -> int:
    """Estimates how many prompts would decide, rounded up to tens.

    Twice as many as are needed for an interval around this value that excludes 1 or lies within
    ``CLOSE`` of it, since the next estimate may be nearer to 1. The interval's width, in
    logarithms, falls with the square root of the number of prompts.
    """
    reach = log(value / ends[0]) if value > 1 else log(ends[1] / value)
    prompts_needed = 2 * prompts * (reach / max(abs(log(value)), log(1 + CLOSE))) ** 2
    return min(_MAX_PROMPTS, 10 * ceil(max(prompts_needed, prompts + 1) / 10))
