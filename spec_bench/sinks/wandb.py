"""Weights & Biases: one run a cell, one run with the results table. Off unless the config asks.

Offline runs need no account and no network: they lie below ``results/<name>/wandb`` and
``wandb sync`` uploads them. A cell that failed and was run again continues its W&B run: online
under the same id, offline in a second folder with the same id, whose steps go on where the first
folder's ended; ``wandb sync`` sends the folders of one id in the order of their start.

Knows records and W&B; imports W&B only once it is wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spec_bench.settings.fields import one_line
from spec_bench.settings.validation import check
from spec_bench.sinks.curves import AXES, METRICS, better_of, curves
from spec_bench.sinks.logged import Note, locked, recall, remember
from spec_bench.sinks.rows import labels_of, row_of
from spec_bench.sinks.settings import WandbSettings
from spec_bench.sinks.sink import LoggedCell, sink
from spec_bench.sinks.wandb_values import prompt_lines, table_of, with_histogram
from spec_bench.system.files import digest
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
_TAG_LENGTH = 64  # W&B's limit


@dataclass(frozen=True)
class Wandb:
    """Where runs go, as ``conf/sink`` says.

    Attributes:
        project: the project.
        group: the experiment's name.
        mode: ``online``, ``offline`` or ``disabled``.
        folder: where W&B keeps its own files.
        entity: the account; None is the user's own.
        tags: tags of every run besides those of its cell.
        system_metrics: let W&B sample the machine.
    """

    project: str
    group: str
    mode: str
    folder: Path
    entity: str | None = None
    tags: tuple[str, ...] = ()
    system_metrics: bool = False

    def note(self, run_id: str) -> Note:
        """The note of a run that was not logged."""
        return Note(run_id, self.entity or "", self.project, self.mode)

    def take(self, cells: Sequence[LoggedCell], rows: Sequence[Mapping[str, Any]]) -> None:
        """Logs a job; see ``log_job``."""
        log_job(self, cells, rows)


@sink("wandb")
def build_wandb(config: WandbSettings | Mapping[str, Any], folder: Path) -> Wandb | None:
    """The sink that ``sink.wandb`` describes; None where it is off.

    Raises:
        ValueError: a setting that cannot be right, or ``online`` without an account.
    """
    if not isinstance(config, WandbSettings):
        config = check(WandbSettings, config, "sink.wandb")
    if not config.enabled:
        return None
    if config.mode == "online":
        _log_in()
    if config.mode == "offline":
        _say_once(folder)
    return Wandb(
        project=config.project,
        group=config.group,
        mode=config.mode,
        folder=folder,
        entity=config.entity,
        tags=config.tags or (),
        system_metrics=config.system_metrics,
    )


@cache
def _say_once(folder: Path) -> None:
    """Where the offline runs are, and how to send them."""
    where = folder.resolve() / "wandb"
    log.warning("W&B is offline: %s; send it with: wandb sync %s/offline-run-*", where, where)


def log_job(sink: Wandb, cells: Sequence[LoggedCell], rows: Sequence[Mapping[str, Any]]) -> None:
    """Logs the cells that W&B does not have yet, and the table if it changed.

    A failure of W&B is one warning and loses nothing: the results are on disk before, and
    the same command logs what is missing.
    """
    if sink.mode == "disabled":
        return
    try:
        for cell in cells:
            log_cell(sink, cell)
        if rows:
            log_table(sink, rows)
    except failures() as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        log.error("W&B: %s; the same command logs the rest", reason)


def log_cell(sink: Wandb, cell: LoggedCell) -> bool:
    """One cell: a history line a prompt, and its metrics as the summary.

    Returns:
        Whether anything was logged: a complete cell is logged once.
    """
    result = cell.result
    with locked(cell.folder):
        note = recall(cell.folder, sink.note(result.run_id))
        if note.content == "complete":
            return False
        facts, row = result.facts, row_of(result)
        tags = [facts.decoder, facts.spec, facts.pair, facts.task, row["lossless"]]
        labels = labels_of(result.facts)
        config = {**cell.settings, "run_id": result.run_id, "labels": labels}
        name = f"{facts.decoder} {facts.spec}"
        lines, failed = prompt_lines(cell.generations), result.status == "failed"
        with open_run(sink, result.run_id, name, facts.task, tags, config, failed) as run:
            run.define_metric("prompt/*", summary="none")
            for step in range(note.steps, len(lines)):
                run.log(with_histogram(lines[step]), step=step)
            numbers = {name: value for name, value in result.metrics.items() if value is not None}
            says = {name: row[name] for name in columns.names_of("state")}
            run.summary.update({**numbers, **says})
        remember(cell.folder, note.now(result.status, max(note.steps, len(lines))))
    return True


def log_table(sink: Wandb, rows: Sequence[Mapping[str, Any]]) -> bool:
    """The results table of one experiment, pair and task, and its curves; whether anything was
    logged, which the same table is once.
    """
    pair, task = str(rows[0]["pair"]), str(rows[0]["task"])
    config = {"experiment": sink.group, "labels": {"pair": pair, "task": task}}
    title, tags = f"results {pair} {task}", [pair, task]
    return log_curves(
        sink, table_id(sink.group, pair, task), title, "table", tags, config, curves(rows), rows
    )


def log_curves(
    sink: Wandb,
    run_id: str,
    title: str,
    job_type: str,
    tags: Sequence[str],
    config: Mapping[str, Any],
    lines: Sequence[Mapping[str, float]],
    rows: Sequence[Mapping[str, Any]],
) -> bool:
    """A run of curves over draft length and budget, and the table that they come from.

    Returns:
        Whether anything was logged: the same table is logged once.
    """
    content, folder = digest([dict(row) for row in rows]), sink.folder / "wandb" / run_id
    with locked(folder):
        note = recall(folder, sink.note(run_id))
        if note.content == content:
            return False
        with open_run(sink, run_id, title, job_type, [*tags, job_type], config) as run:
            for axis in AXES:
                run.define_metric(axis, summary="none")
                for metric in METRICS:
                    best = "max" if better_of(metric, 0.0, 1.0) else "min"
                    run.define_metric(f"{axis}/{metric}/*", step_metric=axis, summary=best)
            history: list[dict[str, Any]] = [dict(line) for line in lines]
            for offset, line in enumerate([*history, {"results": table_of(rows)}]):
                run.log(line, step=note.steps + offset)
        remember(folder, note.now(content, note.steps + len(history) + 1))
    return True


def table_id(experiment: str, pair: str, task: str) -> str:
    """The id of the run that carries the table."""
    return f"results-{digest([experiment, pair, task])}"


@contextmanager
def open_run(
    sink: Wandb,
    run_id: str,
    name: str,
    job_type: str,
    tags: Sequence[Any],
    config: Mapping[str, Any],
    failed: bool = False,
) -> Iterator[Any]:
    """A W&B run of our own; one that the caller's process has open goes on beside it."""
    import wandb

    sink.folder.mkdir(parents=True, exist_ok=True)
    run = wandb.init(
        entity=sink.entity,
        project=sink.project,
        group=sink.group,
        name=name,
        id=run_id,
        resume="allow",
        job_type=job_type,
        tags=_tags([*tags, *sink.tags]),
        config=dict(config),
        mode=sink.mode,  # type: ignore[arg-type]
        dir=str(sink.folder),
        reinit="create_new",
        settings=wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_git=True,
            x_save_requirements=False,
            x_disable_stats=not sink.system_metrics,
            x_disable_machine_info=not sink.system_metrics,
        ),
    )
    try:
        yield run
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish(exit_code=int(failed))


def _tags(values: Sequence[Any]) -> list[str]:
    """Tags without blanks and doubles, no longer than W&B takes."""
    return list(dict.fromkeys(str(value)[:_TAG_LENGTH] for value in values if str(value).strip()))


def _log_in() -> None:
    """Finds the user's key before anything is decoded.

    Raises:
        ValueError: there is none.
    """
    import wandb

    try:
        logged_in = wandb.login()
    except wandb.Error as error:
        logged_in, reason = False, str(error)
    else:
        reason = "no API key"
    if not logged_in:
        raise ValueError(f"sink.wandb.mode=online: {reason} Offline needs no account.")


def failures() -> tuple[type[Exception], ...]:
    """What W&B raises when it cannot take a run."""
    import wandb

    return (wandb.Error, OSError)
