"""The progress bar while a job runs and the table at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from tqdm import tqdm

from spec_bench.records.sittings import MEANING, of_other_sitting
from spec_bench.records.types import CellResult, Generation
from spec_bench.sinks.rows import row_of
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.numbers import with_ends

_LEAST_WIDTH, _MOST_WIDTH = 150, 10_000


class _Sums(NamedTuple):
    """What a cell has done so far; kept, since to sum it up again costs ever more."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def plus(self, done: Iterable[Generation]) -> _Sums:
        """Adds more generations."""
        calls, tokens, seconds = self
        for each in done:
            calls += len(each.steps)
            tokens += sum(step.accepted + 1 for step in each.steps)
            seconds += each.decode_s
        return _Sums(calls, tokens, seconds)


class Progress:
    """A bar over prompts x cells with the running numbers of the cell that decodes now."""

    def __init__(self, total: int, enabled: bool) -> None:
        self._bar = tqdm(total=total, disable=not enabled, file=sys.stderr, unit="prompt")
        self._label, self._cell = "", object()
        self._sums: dict[object, _Sums] = {}
        self._before = self._now = _Sums()
        self._since = 0.0

    def start(self, label: str, cell: object, done: Iterable[Generation]) -> None:
        """The next batch belongs to a cell; what it had done before is looked at when it comes for
        the first time only.
        """
        if cell not in self._sums:
            self._sums[cell] = _Sums().plus(done)
        self._label, self._cell = label, cell
        self._before = self._now = self._sums[cell]
        self._since = time.perf_counter()

    def step(self, calls: int, tokens: int) -> None:
        """So many more target calls emitted so many more tokens."""
        seconds = self._before.seconds + time.perf_counter() - self._since
        self._now = _Sums(self._now.calls + calls, self._now.tokens + tokens, seconds)
        tau = self._now.tokens / max(1, self._now.calls)
        rate = self._now.tokens / max(1e-9, seconds)
        self._bar.set_postfix_str(f"{self._label} tau={tau:.2f} {rate:.0f} tok/s", refresh=False)
        self._bar.update(0)

    def finish(self, prompts: int, done: Iterable[Generation] = ()) -> None:
        """So many prompts of the batch were decoded, or given up."""
        self._sums[self._cell] = self._before.plus(done)
        self._bar.update(prompts)

    def close(self) -> None:
        """Leaves the terminal tidy."""
        self._bar.close()


def print_table(results: Iterable[CellResult], console: Console | None = None) -> None:
    """Prints one line a cell with the columns that have a value anywhere."""
    rows = [row_of(result) for result in results]
    there = columns.columns_in(name for row in rows for name in row)
    asked = [c for c in there if c.short or c.kind == "score"]
    shown = [c for c in asked if any(row.get(c.name) not in (None, "") for row in rows)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for each in shown:
        side: Literal["left", "right"] = "left" if each.holds == "text" else "right"
        table.add_column(each.short or each.name, justify=side, no_wrap=True)
    others = of_other_sitting(rows)
    for row, other in zip(rows, others, strict=True):
        marked = {**row, "decoder": f"{row['decoder']}{'*' if other else ''}"}
        style = "red" if row["status"] == "failed" else ""
        table.add_row(*(_cell(marked, each.name) for each in shown), style=style)
    console = console or Console()
    # A cut number is worse than a wrapped line.
    wide = console.options.update(width=_MOST_WIDTH)
    needed = Measurement.get(console, wide, table).maximum
    console.width = max(console.width, _LEAST_WIDTH, needed)
    console.print(table)
    if any(others):
        console.print(f"* {MEANING}", markup=False)
    for row in rows:
        if row["status"] == "failed":
            console.print(f"failed: {row['decoder']} {row['spec']}: {row['reason']}", markup=False)


def _cell(row: Mapping[str, Any], name: str) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", *columns.ENDS))
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return with_ends(value, low, high, f".{0 if abs(value) >= 100 else 2}f")
