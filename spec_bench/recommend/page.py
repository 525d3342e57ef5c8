"""The page of a recommendation: the answer, then forecast against measured."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_bench.report.page.templating import render
from spec_bench.system import files
from spec_bench.vocabulary import names
from spec_bench.vocabulary.numbers import ends_of

_TITLES = {"block_efficiency": "tokens per target call", "speedup": "speed-up over plain decoding"}


def write_page(kept: Path) -> Path:
    """Writes the page beside the file that ``spec-bench recommend`` left; the page."""
    recommended = json.loads(kept.read_text(encoding="utf-8"))
    page = kept.with_suffix(".html")
    files.write_text(page, build(recommended))
    return page


def build(recommended: Mapping[str, Any]) -> str:
    """The page's HTML: pair, task, answer and candidates, as the command states them."""
    pictures = [
        (f"Forecast against measured: {title}", _picture(recommended["candidates"], name, title))
        for name, title in _TITLES.items()
    ]
    return render(
        "recommended.html.j2",
        found=recommended,
        task=names.task(recommended["task"]),
        lines=[_line(each) for each in recommended["candidates"]],
        pictures=[(title, uri) for title, uri in pictures if uri],
    )


def _line(each: Mapping[str, Any]) -> dict[str, Any]:
    """One candidate's cells as text."""
    measured = each["measured"] or {}
    estimates = [each["block_efficiency"], measured.get("block_efficiency")]
    estimates += [each["speedup"], measured.get("speedup")]
    how = "forecast" if each["forecast"] else f"counted: {each['why_counted']}"
    how += "" if each["timed"] else "; not timed itself"
    return {**each, "how": how, "numbers": [_shown(numbers) for numbers in estimates]}


def _shown(numbers: Sequence[float | None] | None) -> tuple[str, str]:
    """A number and its interval."""
    if numbers is None or numbers[0] is None:
        return "–", ""
    value, low, high = numbers
    return f"{value:.2f}", ends_of(low, high, ".2f", "{} to {}")


def _picture(candidates: Sequence[Mapping[str, Any]], name: str, title: str) -> str:
    """What was measured over what was forecast, as a picture in the page; "" where nothing was."""
    # Not above: a page of a table needs no picture.
    from matplotlib.figure import Figure

    both = [(each[name], each["measured"][name], each) for each in candidates if each["measured"]]
    both = [(ours, theirs, each) for ours, theirs, each in both if theirs[0] is not None]
    if not both:
        return ""
    both.sort(key=lambda point: point[1][0])
    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    axes = figure.subplots()
    for place, (ours, theirs, each) in enumerate(both):
        colour = "C0" if each["forecast"] else "C1"
        errors = [_reach(numbers) for numbers in (ours, theirs)]
        axes.errorbar(
            ours[0], theirs[0], xerr=errors[0], yerr=errors[1], fmt="o", color=colour, capsize=2
        )
        axes.annotate(
            f"{each['decoder']} {each['spec']}",
            (ours[0], theirs[0]),
            textcoords="offset points",
            xytext=(10, 11 * (place - len(both) // 2)),  # labels of equal points stay apart
            fontsize=8,
        )
    ends = [value for ours, theirs, _ in both for value in (ours[0], theirs[0])]
    axes.axline((min(ends), min(ends)), slope=1, color="0.6", linewidth=1, linestyle="--")
    # By the points: an interval from two or three prompts may reach beyond all sense.
    room = max(0.35 * (max(ends) - min(ends)), 0.1 * max(ends))
    axes.set(xlim=(min(ends) - room, max(ends) + room), ylim=(min(ends) - room, max(ends) + room))
    axes.set_aspect("equal")
    axes.set_xlabel(f"{title}, forecast or counted beforehand")
    axes.set_ylabel(f"{title}, measured on fresh prompts")
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, metadata={"Software": None})
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _reach(numbers: Sequence[float | None]) -> list[list[float]] | None:
    """Lengths of an error bar below and above."""
    value, low, high = numbers
    if value is None or low is None or high is None:
        return None
    return [[max(0.0, value - low)], [max(0.0, high - value)]]
