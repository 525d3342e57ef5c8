"""Weights & Biases: a run a cell, a run with the results table. Off unless the config asks.

Offline runs need no account and no network: they lie below ``results/<name>/wandb`` and
``wandb sync`` uploads them. A cell that failed and was run again continues its W&B run: online
under the same id, offline in a second folder with the same id, whose steps go on where the first
folder's ended; ``wandb sync`` sends the folders of one id in the order of their start.

What W&B has been given is noted beside the records (``wandb.json``), so that nothing is logged
twice. A note belongs to one run in one project and mode: what was logged offline is logged again
when the same results are sent online, and a cell that two experiments of one project share is
logged once, in the group of the first.

Knows records and W&B; imports W&B only once it is wanted.
"""

import json
import logging
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spec_bench.settings.fields import one_line
from spec_bench.sinks.rows import flatten_facts, to_row
from spec_bench.sinks.sink import LoggedCell, WandbSettings, sink
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
NOTES = "wandb.json"
# job types of what is no cell; a cell's is its task
TABLE = "table"
TRAINING = "train"
HISTORY = {
    "prompt/block_efficiency_so_far": "Block efficiency of all prompts so far",
    "prompt/accepted_mean": "Accepted tokens per target call",
    "prompt/token_rate": "Token rate (tokens/s)",
    "prompt/energy_j": "Energy (J; where a meter was)",
    "prompt/delivered_tokens": "Delivered tokens",
    "prompt/target_calls": "Target calls",
    "prompt/prefill_s": "Prefill (s)",
    "prompt/decode_s": "Decoding (s)",
    "prompt/latency_s": "Latency (s)",
}
"""Numbers of a cell's history, a line a prompt; beside them stand the prompt's id and scores."""
_TAG_LENGTH = 64  # W&B's limit


@dataclass(frozen=True)
class Wandb:
    """Where runs go."""

    to: WandbSettings
    folder: Path  # where W&B keeps its own files

    def take(self, cells: Sequence[LoggedCell], rows: Sequence[Mapping[str, Any]]) -> None:
        """Logs the cells that W&B does not have yet, and the table if it changed.

        A failure of W&B is one warning and loses nothing: the results are on disk before, and
        the same command logs what is missing.
        """
        if self.to.mode == "disabled":
            return
        with _log_errors("; the same command logs the rest"):
            for cell in cells:
                log_cell(self, cell)
            if rows:
                log_table(self, rows)


@sink("wandb")
def build_wandb(config: WandbSettings, folder: Path) -> Wandb | None:
    """Builds ``sink.wandb``; None: off. Raises ValueError: ``online`` without an account."""
    if not config.enabled:
        return None
    if config.mode == "online":
        log_in("sink.wandb.mode=online", "Offline needs no account.")
    if config.mode == "offline":
        _say_once(folder)
    return Wandb(config, folder)


@cache
def _say_once(folder: Path) -> None:
    """Where the offline runs are, and how to send them."""
    where = folder.resolve() / "wandb"
    told = "W&B is offline: %s; send it with: wandb sync %s/offline-run-*"
    log.warning(told, where, shlex.quote(str(where)))


def log_in(asked: str, instead: str) -> None:
    """Finds the user's key. Raises ValueError: none, with what to do ``instead``."""
    import wandb

    try:
        logged_in = wandb.login()
        reason = "no API key"
    except wandb.Error as error:
        logged_in = False
        reason = str(error)
    if not logged_in:
        raise UsageError(f"{asked}: {reason} {instead}")


@contextmanager
def _log_errors(hint: str = "") -> Iterator[None]:
    """Makes one line of what W&B raises when it cannot take a run."""
    import wandb

    try:
        yield
    except (wandb.Error, OSError) as error:
        log.error("W&B: %s: %s%s", type(error).__name__, one_line(error), hint)


def log_cell(sink: Wandb, cell: LoggedCell) -> None:
    """One cell: a history line a prompt, and its metrics as the summary; a complete one once."""
    result = cell.result
    facts = cell.result.facts
    row = to_row(cell.result)
    with _open_note(sink, cell.folder, result.run_id) as note:
        if note["content"] == "complete":
            return
        tags = [facts.decoder, facts.spec, facts.pair, facts.task, row["lossless"]]
        config = {**cell.settings, "run_id": result.run_id, "labels": flatten_facts(facts)}
        config |= _code_of(cell.origin)
        name = f"{facts.decoder} {facts.spec}"
        failed = result.status != "complete"
        lines = prompt_lines(cell)
        with open_run(sink, note, name, facts.task, tags, config, failed) as run:
            run.define_metric("prompt/*", summary="none")
            for step in range(note["steps"], len(lines)):
                run.log(lines[step], step=step)
            numbers = {name: value for name, value in result.metrics.items() if value is not None}
            says = {name: row[name] for name in columns.column_names("state")}
            before = {"prompts_failed": 0} if note["steps"] else {}
            run.summary.update({**before, **numbers, **says})
        note.update(content=result.status, steps=max(note["steps"], len(lines)))


def log_table(sink: Wandb, rows: Sequence[Mapping[str, Any]]) -> None:
    """The results table of one experiment, pair and task; the same table once."""
    import wandb

    pair = str(rows[0]["pair"])
    task = str(rows[0]["task"])
    experiment = sink.folder.name
    run_id = f"results-{files.digest([experiment, pair, task])}"
    content = files.digest([dict(row) for row in rows])
    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = {each.name for each in columns.find_columns(names) if each.holds != "number"}
    data = [[_cell(row.get(name), name in texts) for name in names] for row in rows]
    config = {"experiment": experiment, "labels": {"pair": pair, "task": task}}
    with _open_note(sink, sink.folder / "wandb" / run_id, run_id) as note:
        if note["content"] == content:
            return
        tags = [pair, task, TABLE]
        with open_run(sink, note, f"results {pair} {task}", TABLE, tags, config) as run:
            table = wandb.Table(columns=names, data=data, allow_mixed_types=True)
            run.log({"results": table}, step=note["steps"])
        note.update(content=content, steps=note["steps"] + 1)


def log_training(sink: Wandb, name: str, facts: Mapping[str, Any], file: Path) -> None:
    """A finished training as one run; a failure of W&B is one warning."""
    if sink.to.mode == "disabled":
        return
    rows = files.read_csv(file)
    run_id = f"heads-{files.digest([facts['settings'], rows])}"
    tags = [facts["head"], facts["target"]]
    config = {**facts["settings"], **_code_of(facts.get("provenance", {}))}
    with _log_errors(), open_run(sink, {"id": run_id}, name, TRAINING, tags, config) as run:
        for row in rows:
            numbers = {key: float(value) for key, value in row.items() if value != ""}
            run.log(numbers, step=int(row["step"]))
        for side, accuracy in facts["accuracy"].items():
            for guess, share in (accuracy or {}).items():
                run.summary[f"final {side} {guess}"] = share
        run.summary["parameters"] = facts["parameters"]


def find_projects(table: Path) -> set[str]:
    """Returns the projects that an experiment's results table was logged to."""
    notes = table.parent.glob(f"wandb/*/{NOTES}")
    return {note["project"] for path in notes for note in json.loads(path.read_text("utf-8"))}


def _code_of(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a run's config says of the code: its commit, and versions."""
    git = origin.get("git") or {}
    own = {"spec_bench": origin.get("spec_bench"), "python": origin.get("python")}
    return {
        "commit": git.get("revision"),
        "uncommitted_changes": git.get("dirty"),
        "versions": {**own, **origin.get("versions", {})},
    }


@contextmanager
def open_run(
    sink: Wandb,
    note: dict[str, Any],
    name: str,
    job_type: str,
    tags: Sequence[Any],
    config: Mapping[str, Any],
    failed: bool = False,
) -> Iterator[Any]:
    """A W&B run of our own; one that the caller's process has open goes on beside it. The ``note``
    has its id and when it began last, where it has: now it begins behind that, whatever the clock.
    """
    import wandb

    to = sink.to
    sink.folder.mkdir(parents=True, exist_ok=True)
    note["began"] = max(time.time(), note.get("began", 0) + 1)  # folders are named by the second
    said = [str(tag)[:_TAG_LENGTH] for tag in (*tags, *(to.tags or ())) if str(tag).strip()]
    settings = wandb.Settings(
        silent=True,
        console="off",
        save_code=False,
        disable_git=True,
        x_save_requirements=False,
        x_start_time=note["began"],
        x_disable_stats=not to.system_metrics,
        x_disable_machine_info=not to.system_metrics,
    )
    run = wandb.init(
        entity=to.entity,
        project=to.project,
        group=to.group[:128],  # W&B's limit
        name=name,
        id=note["id"],
        resume="allow",
        job_type=job_type,
        tags=list(dict.fromkeys(said)),
        config=dict(config),
        mode=to.mode,
        dir=str(sink.folder),
        reinit="create_new",
        settings=settings,
    )
    try:
        yield run
    except BaseException:
        run.finish(exit_code=1)
        raise
    run.finish(exit_code=int(failed))


@contextmanager
def _open_note(sink: Wandb, folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """What W&B has of a run (``content``, ``steps``); what is changed in it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    with files.open_own(folder / ".wandb.lock") as held:
        files.lock(held, wait=True)
        path = folder / NOTES
        notes = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        to = sink.to
        place = {"id": run_id, "entity": to.entity or "", "project": to.project, "mode": to.mode}
        note = next((each for each in notes if place.items() <= each.items()), None)
        if note is None:
            note = {**place, "content": "", "steps": 0}
            notes.append(note)
        before = dict(note)
        yield note
        if note != before:
            files.write_json(path, notes)


def prompt_lines(cell: LoggedCell) -> list[dict[str, Any]]:
    """Returns the history: one line a prompt, its step the prompt's index, its time that at which
    the prompt's batch was decoded.
    """
    lines = []
    calls = 0
    emitted = 0
    for each in cell.generations:
        own = len(each.steps)
        accepted = sum(step.accepted for step in each.steps)
        calls = calls + own
        emitted = emitted + accepted + own
        values = (
            emitted / calls if calls else None,
            accepted / own if own else None,
            each.decoded / each.decode_s if each.decode_s else None,
            *(each.energy_j, len(each.tokens), own, each.prefill_s, each.decode_s),
            each.latency_s,
        )
        line: dict[str, Any] = {"prompt/id": each.prompt_id, "_timestamp": each.ended_at}
        line |= zip(HISTORY, values, strict=True)
        line |= {f"prompt/{name}": by.get(each.prompt_id) for name, by in cell.scores.items()}
        lines.append({name: value for name, value in line.items() if value is not None})
    return lines


def _cell(value: Any, text: bool) -> Any:
    """Returns a value of a W&B table: numbers as numbers, empty cells as none."""
    if value in (None, ""):
        return None
    try:
        return value if text or not isinstance(value, str) else float(value)
    except ValueError:
        return value
