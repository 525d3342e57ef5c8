"""Weights & Biases: one run a cell, grouped by experiment. Off unless the config asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spec_bench.records import CellResult


def log_cells(
    results: Iterable[tuple[CellResult, Mapping[str, Any]]],
    project: str,
    group: str,
    mode: str,
    folder: Path,
) -> None:
    """Logs each cell's summary metrics and resolved settings.

    Args:
        results: pairs of a result and the cell's resolved settings.
        project: the project's name.
        group: the experiment's name.
        mode: ``online``, ``offline`` or ``disabled``.
        folder: where offline runs are written.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    for result, settings in results:
        run = wandb.init(
            project=project,
            group=group,
            name=f"{result.labels.get('decoder')} {result.labels.get('spec')}",
            id=result.run_id,
            resume="allow" if mode == "online" else None,
            job_type=str(result.labels.get("task")),
            config={**settings, "run_id": result.run_id, "labels": result.labels},
            mode=mode,  # type: ignore[arg-type]
            dir=str(folder),
            settings=wandb.Settings(silent=True),
        )
        numbers = {name: value for name, value in result.metrics.items() if value is not None}
        run.summary.update({**numbers, "status": result.status, "lossless": result.lossless})
        run.finish(exit_code=int(result.status == "failed"))
