"""A job's output on the terminal: progress, then answers and a table."""

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

from spec_bench.records.sessions import OTHER_SESSION_NOTE, make_session_note_per_row
from spec_bench.records.types import CellResult, Generation
from spec_bench.sinks.rows import result_to_row
from spec_bench.system.groups import group_by_key, make_in_groups
from spec_bench.system.printable import redact_escape_and_cut
from spec_bench.vocabulary import columns
from spec_bench.vocabulary.names import format_decoder_and_tree, summarise_doubts
from spec_bench.vocabulary.numbers import format_interval

_SWEPT_COLUMNS = ("pair", "task", "temperature", "seed")  # columns where jobs of a sweep differ
_LOSSLESS_SUFFIXES = {"approximate": " (approximate)", "simulated": " (simulated)"}
_MAX_ROWS = 60  # rows in the table; the experiment's file has all of them
_SHOWN_COLUMNS = {
    "block_efficiency": "tokens/call",
    "token_rate": "tokens/s",
    "speedup": "speed-up",
    "energy_j_per_token": "J/token",
}


_LOG_LINE_OPTIONS: dict[str, Any] = {  # a line a minute
    "bar_format": "{n} of {total} prompts, some {remaining} left{postfix}\n",
    "mininterval": 60,
    "delay": 60,
}


class _LogLineProgress(tqdm):
    """Progress bar that prints log lines, without the blanks and carriage returns that redraw a
    bar.
    """

    @staticmethod
    def status_printer(file: Any) -> Any:
        def print_line(text: str) -> None:
            file.write(text)
            file.flush()

        return print_line


class _RunningSums(NamedTuple):
    """Running sums of a cell's generations."""

    calls: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def with_generations(self, generations: Iterable[Generation]) -> _RunningSums:
        """Returns the sums with more generations added."""
        calls, tokens, seconds = self
        for generation in generations:
            calls += len(generation.steps)
            tokens += sum(step.accepted + 1 for step in generation.steps)
            seconds += generation.decode_s
        return _RunningSums(calls, tokens, seconds)


class ProgressBar:
    """Progress bar over prompts x cells, with the current cell's running numbers."""

    def __init__(self, total: int, enabled: bool) -> None:
        options = {
            "total": total,
            "disable": not enabled,
            "file": sys.stderr,
            "unit": "prompt",
        }
        self._bar = (
            tqdm(**options)
            if sys.stderr.isatty()
            else _LogLineProgress(**options, **_LOG_LINE_OPTIONS)
        )
        self._label = ""
        self._cell = object()
        self._sums: dict[object, _RunningSums] = {}
        self._sums_before_batch = self._sums_now = _RunningSums()
        self._batch_start_s = 0.0

    def start_batch(
        self, label: str, cell: object, earlier_generations: Iterable[Generation]
    ) -> None:
        """Starts a cell's batch; sums the cell's earlier generations on its first batch only."""
        if cell not in self._sums:
            self._sums[cell] = _RunningSums().with_generations(earlier_generations)
        self._label = label
        self._cell = cell
        self._sums_before_batch = self._sums_now = self._sums[cell]
        self._batch_start_s = time.perf_counter()

    def add_counts(self, call_count: int, token_count: int) -> None:
        """Adds target calls and the tokens that they emitted."""
        seconds = self._sums_before_batch.seconds + time.perf_counter() - self._batch_start_s
        self._sums_now = _RunningSums(
            self._sums_now.calls + call_count, self._sums_now.tokens + token_count, seconds
        )
        tau = self._sums_now.tokens / max(1, self._sums_now.calls)
        rate = self._sums_now.tokens / max(1e-9, seconds)
        self._bar.set_postfix_str(f"{self._label} tau={tau:.2f} {rate:.0f} tok/s", refresh=False)
        self._bar.update(0)

    def finish_batch(self, prompt_count: int, generations: Iterable[Generation] = ()) -> None:
        """Ends the batch; adds its number of prompts and its generations to the sums."""
        self._sums[self._cell] = self._sums_before_batch.with_generations(generations)
        self._bar.update(prompt_count)

    def close(self) -> None:
        """Closes the bar."""
        self._bar.close()


@contextmanager
def show_spinner(message: str, is_shown: bool) -> Iterator[None]:
    """Shows a spinner with a message while the block runs (terminals only); logs go above it."""
    console = Console(stderr=True)
    if not (is_shown and console.is_terminal and sys.stdout.isatty()):
        yield
        return
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler)]
    with console.status(message), ExitStack() as stack:
        for handler in handlers:
            stack.callback(handler.setStream, handler.stream)
            handler.setStream(sys.stdout)  # the spinner's console prints it above its line
        yield


def print_results(
    results: Sequence[CellResult],
    answers: Iterable[str],
    hint: str = "",
    console: Console | None = None,
) -> None:
    """Prints the answers, a table with a line per cell, notes, and a hint at the end."""
    console = console or Console(highlight=False)
    wraps_softly = not console.is_terminal  # a file's lines are not wrapped
    rows = [
        {
            n: redact_escape_and_cut(v) if isinstance(v, str) else v
            for n, v in result_to_row(result).items()
        }
        for result in results
    ]
    for answer in answers:
        console.print(Text(answer, style="bold"), soft_wrap=wraps_softly)
    if rows:
        print(file=console.file)
    session_notes = [*filter(None, dict.fromkeys(_get_session_note_of_each_row(rows)))]
    if any(row["status"] != "failed" for row in rows):
        console.print(_build_results_table(rows, console.width), soft_wrap=True)
    for note in session_notes:
        console.print(Text(f"{'* ' * (note == OTHER_SESSION_NOTE)}{note}"))
    for row in rows:
        if row["status"] == "failed":
            message = Text(f"failed: {format_decoder_and_tree(row)}: {row['reason']}", style="red")
            console.print(message, soft_wrap=wraps_softly)
    for doubt in summarise_doubts(rows):
        console.print(Text(doubt), soft_wrap=wraps_softly)
    if hint:
        console.print(Text(f"\n{hint}"), soft_wrap=True)


def _build_results_table(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """Builds the table: decoder, tree, main numbers, and as many scores as fit."""
    table_columns = columns.get_columns(name for row in rows for name in row)
    heads = {c.name: c.short or c.name for c in table_columns} | _SHOWN_COLUMNS
    scores = [*(c.name for c in table_columns if c.kind == "score"), "perplexity"]
    filled_names = {name for row in rows for name, value in row.items() if value not in (None, "")}
    names = [name for name in _SHOWN_COLUMNS if name in filled_names]
    scores = [name for name in scores if name in filled_names]
    own_scores = [name for name in scores if name not in columns.define_all_column_names()]
    # the first score of each module
    first_of_modules = {name.partition("_")[0]: name for name in reversed(own_scores)}.values()
    own_scores.sort(key=lambda name: name not in first_of_modules)
    names += [*own_scores, *(name for name in scores[:1] if name not in own_scores)]
    swept = [name for name in _SWEPT_COLUMNS if len({row[name] for row in rows}) > 1]
    marks = dict(
        zip((row["run_id"] for row in rows), _get_session_note_of_each_row(rows), strict=True)
    )
    row_count = len(rows)
    rows = _group_and_limit_rows(rows)
    cell_names = [
        f"{format_decoder_and_tree(row)}{_LOSSLESS_SUFFIXES.get(row['lossless'], '')}"
        for row in rows
    ]
    titles = [
        (
            *(str(row[n]) for n in swept),
            f"{name}{'*' * (marks[row['run_id']] == OTHER_SESSION_NOTE)}",
        )
        for row, name in zip(rows, cell_names, strict=True)
    ]
    texts_by_name = {
        name: [_format_cell(row, name, has_interval=name == "speedup") for row in rows]
        for name in names
    }
    widths = [max(map(len, (heads[name], *cells))) + 2 for name, cells in texts_by_name.items()]
    ends = accumulate(widths, initial=max(len("  ".join(title)) for title in titles))
    fit_count = sum(end <= width for end in ends) - 1
    fit_count = max(fit_count, sum(name in _SHOWN_COLUMNS for name in names))
    # one score per prefix, such as one ROUGE
    score_by_prefix = {name[:4]: name for name in reversed(scores) if name != "perplexity"}
    hidden_scores = [name for name in reversed(score_by_prefix.values()) if name not in names]
    left_out = ", ".join(heads[name] for name in [*names[fit_count:], *hidden_scores])
    names = names[:fit_count]
    table = Table(box=None, header_style="bold", pad_edge=False)
    notes = [f"in the file, too: {left_out}"] if left_out else []
    if row_count > len(rows):
        notes.append(
            f"{len(rows)} of {row_count} rows: the fastest of each task and setting, by speed-up"
        )
    table.caption = "\n".join(notes) or None
    for name in (*swept, "decoder"):
        table.add_column(heads[name], overflow="fold")
    for name in names:
        table.add_column(heads[name], justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        style = "red" if row["status"] == "failed" else ""
        table.add_row(*titles[place], *(texts_by_name[name][place] for name in names), style=style)
    return table


def _group_and_limit_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Groups rows by pair, task and setting; if there are too many, keeps the fastest of each
    group.
    """
    groups = group_by_key((tuple(row[name] for name in _SWEPT_COLUMNS), row) for row in rows)
    if len(rows) > _MAX_ROWS:
        max_rows = max(1, _MAX_ROWS // len(groups))
        for name, group in groups.items():
            # By speed-up: rates of different sessions are not comparable.
            fastest_first = sorted(
                group, key=lambda r: -(r.get("speedup") or r.get("token_rate") or 0)
            )
            groups[name] = fastest_first[:max_rows]
    return [row for group in groups.values() for row in group]


def _get_session_note_of_each_row(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the note about each row's session, see ``make_session_note_per_row``."""
    return make_in_groups(
        make_session_note_per_row, rows, lambda row: tuple(row[name] for name in _SWEPT_COLUMNS)
    )


def _format_cell(row: Mapping[str, Any], name: str, has_interval: bool) -> str:
    value, low, high = (row.get(f"{name}{end}") for end in ("", *columns.ENDS))
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if not has_interval or (low and high and high - low < 1e-9):  # plain decoding's own speed-up
        low = high = None
    return format_interval(value, low, high, f".{0 if abs(value) >= 100 else 2}f")
