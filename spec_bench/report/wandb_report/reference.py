"""A paper's printed numbers of one pair, as runs beside measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from spec_bench.report.papers.paper import load_paper
from spec_bench.sinks.curves import curves
from spec_bench.sinks.wandb import Wandb, log_curves
from spec_bench.vocabulary.published import side_by_side

GROUP = "paper"
_EXPERIMENT_AXIS = {"draft_length": "draft_length", "target_budget": "budget"}  # the CSV's names
Row = dict[str, str]


@dataclass(frozen=True)
class Reference:
    """A paper's printed numbers of one pair.

    Attributes:
        title: of the paper.
        name: of its folder.
        pair: as the paper prints it.
        rows: a cell each, of one or several tasks.
    """

    title: str
    name: str
    pair: str
    rows: tuple[Row, ...]


def reference(paper: str, target: str, draft: str | None, task: str) -> Reference | None:
    """The printed cells of a paper's pair, by default its first that has the task; of all tasks,
    where none is named.

    Raises:
        ValueError: there is no such paper, or it prints nothing of that pair and task.
    """
    if not paper:
        return None
    known = load_paper(paper)
    rows = side_by_side(known.numbers)
    pairs = dict.fromkeys(_pair(row) for row in rows)
    if not pairs:
        raise ValueError(f"{paper} prints no numbers of decoders")
    matching = [r for r in rows if target in ("", r["target"]) and draft in (None, r["draft"])]
    if not matching:
        asked = f"{target or 'any target'} with {draft or 'any draft'}"
        raise ValueError(f"{paper} prints nothing of {asked}; choose from {', '.join(pairs)}")
    chosen = [row for row in matching if task in ("", row["task"])]
    if not chosen:
        tasks = ", ".join(sorted({row["task"] for row in matching if row["task"]}))
        raise ValueError(f"{paper} prints nothing of task {task}; {_pair(matching[0])} has {tasks}")
    pair = _pair(chosen[0])
    title = f"{known.title}, arXiv {known.arxiv}"
    return Reference(title, paper, pair, tuple(r for r in chosen if _pair(r) == pair))


def _pair(row: Row) -> str:
    return " with ".join(filter(None, [row["target"], row["draft"]]))


def reference_lines(rows: Sequence[Row]) -> list[dict[str, float]]:
    """The best spec of each decoder over draft length and budget.

    A table that is divided by one of both has its lines over that one alone.
    """
    lines = curves([row for row in rows if row["axis"] not in _EXPERIMENT_AXIS])
    for name, axis in _EXPERIMENT_AXIS.items():
        lines += curves([row for row in rows if row["axis"] == name], [axis])  # AR's among them
    return lines


def log_reference(sink: Wandb, printed: Reference) -> None:
    """A run a task with the paper's curves under the names that measured curves have."""
    for task, rows in groupby(sorted(printed.rows, key=_task), key=_task):
        cells = list(rows)
        words = [GROUP, printed.name, *printed.pair.replace("/", " ").split(), task]
        labels = {"pair": printed.pair, "task": task, "paper": printed.title}
        log_curves(
            sink,
            "-".join(filter(None, words)).lower(),
            f"{printed.name} paper: {printed.pair} {task}".strip(),
            "reference",
            [each for each in (task, GROUP, printed.name) if each],
            {"labels": labels},
            reference_lines(cells),
            cells,
        )


def _task(row: Row) -> str:
    return row["task"]
