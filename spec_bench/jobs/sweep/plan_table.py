"""A sweep's plan as it is printed: one line per cell, then what all of them take together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spec_bench.jobs.sweep.plan import Memory, PlannedCell

_COLUMNS = ("pair", "task", "decoder", "spec", "seed")
_LABELS = (*_COLUMNS, "swept", "state")
_TITLES = (*_LABELS, "left", "tok/s", "rate", "device h", "memory GiB", "GPUs", "fits")
_WIDTH = 170
_GIB = 2**30
_UNKNOWN = "unknown"


def print_plan(cells: Sequence[PlannedCell], console: Console | None = None) -> None:
    """Prints a line per cell, then the totals; a cell that two jobs share is counted once."""
    console = console or Console()
    console.width = max(console.width, _WIDTH)
    once = _once(cells)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in _TITLES:
        table.add_column(title, justify="left" if title in _LABELS else "right", no_wrap=True)
    for cell in once:
        table.add_row(*map(escape, _row(cell)), style="red" if cell.memory.fits is False else "")
    console.print(table)
    for line in totals(once):
        console.print(line, markup=False, highlight=False)


def _once(cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Each cell once, with the words that its jobs share and that not all cells have."""
    everywhere = set.intersection(*(set(cell.words) for cell in cells))
    once: dict[str, PlannedCell] = {}
    for cell in cells:
        known = once.get(cell.run_id, cell).words
        words = tuple(w for w in known if w in cell.words and w not in everywhere)
        once[cell.run_id] = replace(cell, words=words)
    return list(once.values())


def totals(cells: Sequence[PlannedCell]) -> list[str]:
    """The plan's sums, each cell counted once."""
    states = Counter(cell.state for cell in cells)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    lines = [f"{len(cells)} cells: {counted}", f"device hours: {_all_hours(cells)}"]
    if unread := list(dict.fromkeys(c.facts.task for c in cells if c.state == "unknown")):
        lines.append(
            f"unknown, as the data of {', '.join(unread)} cannot be read here: which cells are "
            "complete; every prompt counts as one turn, caches as long as the models' context"
        )
    for pair, memory in {cell.facts.pair: cell.memory for cell in cells}.items():
        if memory.fits is False:
            lines.append(f"does not fit: {pair}: {_needs(memory)}")
    return lines


def _all_hours(cells: Sequence[PlannedCell]) -> str:
    """What all cells take, as far as rates are known; a cell with nothing left takes nothing."""
    known = [cell.device_hours for cell in cells if cell.device_hours is not None]
    unknown = len(cells) - len(known)
    if not unknown:
        return f"at most {_hours(sum(known))}"
    if not any(known):
        return f"unknown, no rate is known of the {unknown} cells that are left"
    return f"at most {_hours(sum(known))} and those of {unknown} cells of unknown rate"


def _needs(memory: Memory) -> str:
    """What a pair needs and what it gets."""
    assert memory.capacity_bytes is not None
    return (
        f"{_memory(memory)} GiB on {memory.gpus} GPUs of together "
        f"{memory.capacity_bytes / _GIB:.0f} GiB; pair.target_device_map=auto spreads the target"
    )


def _row(cell: PlannedCell) -> list[str]:
    fits = {True: "yes", False: "NO", None: _UNKNOWN if cell.memory.gpus != 0 else "-"}
    return [
        *(str(getattr(cell.facts, name)) for name in _COLUMNS),
        " ".join(word for word in cell.words if word.partition("=")[0] not in _COLUMNS),
        cell.state,
        f"{cell.left} of {cell.prompts}",
        _UNKNOWN if cell.rate is None else f"{cell.rate.tokens_per_s:.1f}",
        "" if cell.rate is None else cell.rate.source,
        _UNKNOWN if cell.device_hours is None else _hours(cell.device_hours),
        _memory(cell.memory),
        _UNKNOWN if cell.memory.gpus is None else str(cell.memory.gpus or "-"),
        fits[cell.memory.fits],
    ]


def _hours(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 0.005 or hours == 0 else "<0.01"


def _memory(memory: Memory) -> str:
    """Weights and, where their shape is known, caches."""
    if memory.weights_bytes is None:
        return _UNKNOWN
    caches = "caches" if memory.cache_bytes is None else _gib(memory.cache_bytes)
    return f"{_gib(memory.weights_bytes)} + {caches}"


def _gib(count: int) -> str:
    gib = count / _GIB
    return f"{gib:.1f}" if gib >= 1 else f"{gib:.3f}"
