"""What a W&B report is made with, and the run whose drawings it shows; not what it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spec_bench.sinks.logged import locked, recall, remember
from spec_bench.sinks.wandb import Wandb, open_run

_MISSING = "wandb_workspaces is not installed: pip install 'spec-bench[reports]'"


def reports() -> Any:
    """The module with a report's blocks.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as module
    except ModuleNotFoundError as error:
        raise ValueError(_MISSING) from error
    return module


def log_drawings(
    sink: Wandb,
    run_id: str,
    title: str,
    job_type: str,
    tags: Sequence[str],
    config: Mapping[str, Any],
    tables: Mapping[str, tuple[Sequence[str], list[list[str]]]],
    drawings: Iterable[tuple[str, Any]],
    content: str,
) -> bool:
    """A run of interactive figures, plotly's, and of tables, columns and lines; whether anything
    was logged, which what has the same digest ``content`` is once.
    """
    import wandb

    folder = sink.folder / "wandb" / run_id
    with locked(folder):
        note = recall(folder, sink.note(run_id))
        if note.content == content:
            return False
        with open_run(sink, run_id, title, job_type, tags, config) as run:
            line: dict[str, Any] = {
                name: wandb.Table(columns=[*heads], data=rows)
                for name, (heads, rows) in tables.items()
            }
            line |= {name: wandb.Plotly(drawing) for name, drawing in drawings}
            run.log(line, step=note.steps)
        remember(folder, note.now(content, note.steps + 1))
    return True
