"""The figures of a sweep's page, and the reasons for those not drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spec_bench.report.data.counts import Records
from spec_bench.report.sweep import traces
from spec_bench.report.sweep.choose import Part
from spec_bench.report.sweep.roofline import no_roofline, roofline
from spec_bench.report.sweep.traces import Figure


@dataclass(frozen=True)
class Drawing:
    """One figure of a group.

    Attributes:
        title: above it.
        draw: makes it; None if unmeasured.
        missing: the reason for None, in words.
    """

    title: str
    draw: Callable[[Part, Records], Figure | None]
    missing: Callable[[Part], str]


def _reason(text: str) -> Callable[[Part], str]:
    return lambda part: text if part.detailed else f"{text}, or these were not read"


FIGURES = {
    "nodes": Drawing(
        "Speed-up against tree nodes",
        traces.speed_by_nodes,
        _reason("no cell has both a speed-up and tree nodes"),
    ),
    "acceptance": Drawing(
        "Acceptance by position",
        traces.acceptance,
        _reason("no cell has acceptance by depth"),
    ),
    "lengths": Drawing(
        "Accepted tokens per target call",
        traces.accepted_lengths,
        _reason("no cell has records of its calls here"),
    ),
    "time": Drawing(
        "Where the time of a token goes",
        traces.time_stack,
        _reason("no cell has seconds of prefill, decoding, draft and target; of a server's "
              "the last two are not seen"),
    ),
    "prompts": Drawing(
        "Prompt by prompt",
        traces.by_prompt,
        _reason("no records of a cell and of plain decoding timed in turn with it are here"),
    ),
    "roofline": Drawing(
        "Roofline: a call's time, and its bytes over the bandwidth measured here",
        roofline,
        no_roofline,
    ),
    "mbsu": Drawing(
        "Speed-up against the memory-bound speed-up (MBSU)",
        traces.against_mbsu,
        _reason("no cell has both a speed-up and MBSU"),
    ),
    "quality": Drawing(
        "Quality", traces.quality, _reason("the task scores nothing, and no perplexity is known")
    ),
}  # fmt: skip


def drawn(part: Part, records: Records) -> tuple[dict[str, Figure], dict[str, str]]:
    """A part's figures, and the reasons for those missing, both by the figure's key."""
    made = {key: each.draw(part, records) for key, each in FIGURES.items()}
    measured = {key: figure for key, figure in made.items() if figure is not None}
    return measured, {key: FIGURES[key].missing(part) for key in FIGURES if key not in measured}
