"""What a job shows while it runs, and the answer and table at its end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from spec_bench.records.sittings import MEANING, mark_other_sessions
from spec_bench.records.types import CellResult, Generation
from spec_bench.sinks.rows import to_row
from spec_bench.system.groups import group_by_key, make_together
from spec_bench.system.printable import to_printable
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.names import cell_name, summarise_doubts
from spec_bench.vocabulary.numbers import format_interval

_SWEPT = ("pair", "task", "temperature", "seed")  # columns where jobs of a sweep differ
_UNLIKE = {"approximate": " (approximate)", "simulated": " (simulated)"}
_MOST = 60  # rows that are shown: more of them are to be read in the experiment's table
_SHOWN = {
    "block_efficiency": "tokens/call",
    "token_rate": "tokens/s",
    "speedup": "speed-up",
    "energy_j_per_token": "J/token",
}


_IN_A_LOG: dict[str, Any] = {  # where progress is a line a minute
    "bar_format": "{n} of {total} prompts, some {remaining} left{postfix}\n",
    "mininterval": 60,
    "delay": 60,
}


class _LogLines(tqdm):
    """Progress as lines of a log, without the blanks and returns that wipe a bar."""

    @staticmethod
    def status_printer(file: Any) -> Any:
        def print_line(text: str) -> None:
            file.write(text)
            file.flush()

        return print_line


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


class ProgressBar:
    """A bar over prompts x cells with the running numbers of the cell that decodes now."""

    def __init__(self, total: int, enabled: bool) -> None:
        shown = {"total": total, "disable": not enabled, "file": sys.stderr, "unit": "prompt"}
        self._bar = tqdm(**shown) if sys.stderr.isatty() else _LogLines(**shown, **_IN_A_LOG)
        self._label, self._cell = "", object()
        self._sums: dict[object, _Sums] = {}
        self._before = self._now = _Sums()
        self._since = 0.0

    def start(self, label: str, cell: object, done: Iterable[Generation]) -> None:
        """The next batch is of a cell; what it had done is summed the first time only."""
        if cell not in self._sums:
            self._sums[cell] = _Sums().plus(done)
        self._label = label
        self._cell = cell
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


@contextmanager
def show_spinner(on: str, shown: bool) -> Iterator[None]:
    """Turns a wheel beside a few words while the block runs, on a terminal; lines go above it."""
    console = Console(stderr=True)
    if not (shown and console.is_terminal and sys.stdout.isatty()):
        yield
        return
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler)]
    with console.status(on), ExitStack() as held:
        for handler in handlers:
            held.callback(handler.setStream, handler.stream)
            handler.setStream(sys.stdout)  # the wheel's, which knows where the line is
        yield


def print_results(
    results: Sequence[CellResult],
    answers: Iterable[str],
    last: str = "",
    console: Console | None = None,
) -> None:
    """Prints what to use, a line a cell, then where more is; to 80 columns or more."""
    console = console or Console(highlight=False)
    whole = not console.is_terminal  # a file's reader wraps its lines
    rows = [
        {n: to_printable(v) if isinstance(v, str) else v for n, v in to_row(result).items()}
        for result in results
    ]
    for answer in answers:
        console.print(Text(answer, style="bold"), soft_wrap=whole)
    if rows:
        print(file=console.file)
    others = [*filter(None, dict.fromkeys(_session_marks(rows)))]
    if any(row["status"] != "failed" for row in rows):
        console.print(_table(rows, console.width), soft_wrap=True)
    for meaning in others:
        console.print(Text(f"{'* ' * (meaning == MEANING)}{meaning}"))
    for row in rows:
        if row["status"] == "failed":
            told = Text(f"failed: {cell_name(row)}: {row['reason']}", style="red")
            console.print(told, soft_wrap=whole)
    for doubt in summarise_doubts(rows):
        console.print(Text(doubt), soft_wrap=whole)
    if last:
        console.print(Text(f"\n{last}"), soft_wrap=True)


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """Decoder, tree, what decides, the first score and as many own scores as fit."""
    there = columns.find_columns(name for row in rows for name in row)
    heads = {c.name: c.short or c.name for c in there} | _SHOWN
    scores = [*(c.name for c in there if c.kind == "score"), "perplexity"]
    told = {name for row in rows for name, value in row.items() if value not in (None, "")}
    found = [name for name in _SHOWN if name in told]
    scores = [name for name in scores if name in told]
    own = [name for name in scores if name not in columns.header()]
    first = {name.partition("_")[0]: name for name in reversed(own)}.values()  # of each module
    own.sort(key=lambda name: name not in first)
    found += [*own, *(name for name in scores[:1] if name not in own)]
    swept = [name for name in _SWEPT if len({row[name] for row in rows}) > 1]
    marks = dict(zip((row["run_id"] for row in rows), _session_marks(rows), strict=True))
    every = len(rows)
    rows = _choose_rows(rows)
    named = [f"{cell_name(row)}{_UNLIKE.get(row['lossless'], '')}" for row in rows]
    titles = [
        (*(str(row[n]) for n in swept), f"{name}{'*' * (marks[row['run_id']] == MEANING)}")
        for row, name in zip(rows, named, strict=True)
    ]
    shown = {name: [_cell(row, name, ends=name == "speedup") for row in rows] for name in found}
    wide = [max(map(len, (heads[name], *cells))) + 2 for name, cells in shown.items()]
    ends = accumulate(wide, initial=max(len("  ".join(each)) for each in titles))
    fit = sum(end <= width for end in ends) - 1
    fit = max(fit, sum(name in _SHOWN for name in found))
    more = {name[:4]: name for name in reversed(scores) if name != "perplexity"}  # one ROUGE
    others = [name for name in reversed(more.values()) if name not in found]
    left_out = ", ".join(heads[name] for name in [*found[fit:], *others])
    found = found[:fit]
    table = Table(box=None, header_style="bold", pad_edge=False)
    notes = [f"in the file, too: {left_out}"] if left_out else []
    if every > len(rows):
        notes.append(
            f"{len(rows)} of {every} rows: the fastest of each task and setting, by speed-up"
        )
    table.caption = "\n".join(notes) or None
    for name in (*swept, "decoder"):
        table.add_column(heads[name], overflow="fold")
    for name in found:
        table.add_column(heads[name], justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        style = "red" if row["status"] == "failed" else ""
        table.add_row(*titles[place], *(shown[name][place] for name in found), style=style)
    return table


def _choose_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the rows of a task and setting together; of more than fit, the fastest of each."""
    groups = group_by_key((tuple(row[name] for name in _SWEPT), row) for row in rows)
    if len(rows) > _MOST:
        most = max(1, _MOST // len(groups))
        for name, group in groups.items():
            # By speed-up, which is of one sitting as no rate is.
            ranked = sorted(group, key=lambda r: -(r.get("speedup") or r.get("token_rate") or 0))
            groups[name] = ranked[:most]
    return [row for group in groups.values() for row in group]


def _session_marks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns of each row what to say of its session; see ``mark_other_sessions``."""
    return make_together(mark_other_sessions, rows, lambda row: tuple(row[name] for name in _SWEPT))


def _cell(row: Mapping[str, Any], name: str, ends: bool) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", *columns.ENDS))
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if not ends or (low and high and high - low < 1e-9):  # plain decoding is 1 times itself
        low = high = None
    return format_interval(value, low, high, f".{0 if abs(value) >= 100 else 2}f")
