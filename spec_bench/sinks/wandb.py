"""Weights & Biases: one run per cell and one with the results table. Off by default.

Offline runs need no account and no network: they are below ``results/<name>/wandb``, and ``wandb
sync`` uploads them. A cell that failed and was run again continues its W&B run: online under the
same id; offline in a second folder with the same id, where the steps continue those of the first
folder. ``wandb sync`` sends the folders of one id in the order of their start.

``wandb.json`` next to the records notes what was logged, so that nothing is logged twice. A note is
for one run in one project and mode: results that were logged offline are logged again online, and a
cell that two experiments of one project share is logged once, in the group of the first experiment.

Knows records and W&B; imports W&B only when it is used.
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

from spec_bench.settings.fields import to_one_line
from spec_bench.sinks.rows import flatten_facts, result_to_row
from spec_bench.sinks.sink import LoggedCell, WandbSettings, sink
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
NOTES = "wandb.json"
# job types; a cell's is its task
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
"""Numbers of a cell's history, one line per prompt, which also has the prompt's id and scores."""
_TAG_LENGTH = 64  # W&B's limit


@dataclass(frozen=True)
class WandbSink:
    """Logs cells and tables to Weights & Biases."""

    settings: WandbSettings
    folder: Path  # of W&B's own files

    def take(self, cells: Sequence[LoggedCell], rows: Sequence[Mapping[str, Any]]) -> None:
        """Logs the cells that W&B lacks, and the table if it changed.

        A failure of W&B is one warning and loses nothing: the results are on disk, and the same
        command logs the rest.
        """
        if self.settings.mode == "disabled":
            return
        with _log_wandb_errors("; the same command logs the rest"):
            for cell in cells:
                log_cell(self, cell)
            if rows:
                log_table(self, rows)


@sink("wandb")
def build_wandb_sink(config: WandbSettings, folder: Path) -> WandbSink | None:
    """Builds ``sink.wandb``; None if it is off. Raises UsageError for ``online`` without an
    account.
    """
    if not config.enabled:
        return None
    if config.mode == "online":
        log_in_to_wandb("sink.wandb.mode=online", "Offline needs no account.")
    if config.mode == "offline":
        _log_offline_hint_once(folder)
    return WandbSink(config, folder)


@cache
def _log_offline_hint_once(folder: Path) -> None:
    """Logs once where the offline runs are and how to send them."""
    runs_folder = folder.resolve() / "wandb"
    message = "W&B is offline: %s; send it with: wandb sync %s/offline-run-*"
    log.warning(message, runs_folder, shlex.quote(str(runs_folder)))


def log_in_to_wandb(setting: str, remedy: str) -> None:
    """Logs in with the user's key. Raises UsageError with the ``remedy`` if there is none."""
    import wandb

    try:
        logged_in = wandb.login()
        reason = "no API key"
    except wandb.Error as error:
        logged_in = False
        reason = str(error)
    if not logged_in:
        raise UsageError(f"{setting}: {reason} {remedy}")


@contextmanager
def _log_wandb_errors(hint: str = "") -> Iterator[None]:
    """Logs W&B's errors within the block as one line."""
    import wandb

    try:
        yield
    except (wandb.Error, OSError) as error:
        log.error("W&B: %s: %s%s", type(error).__name__, to_one_line(error), hint)


def log_cell(sink: WandbSink, cell: LoggedCell) -> None:
    """Logs a cell: a history line per prompt, and its metrics as summary. Logs a complete cell
    once.
    """
    result = cell.result
    facts = cell.result.facts
    row = result_to_row(cell.result)
    with _open_note(sink, cell.folder, result.run_id) as note:
        if note["content"] == "complete":
            return
        tags = [facts.decoder, facts.spec, facts.pair, facts.task, row["lossless"]]
        config = {
            **cell.settings,
            "run_id": result.run_id,
            "labels": flatten_facts(facts),
        }
        config |= _collect_code_versions(cell.origin)
        name = f"{facts.decoder} {facts.spec}"
        has_failed = result.status != "complete"
        lines = build_history_lines(cell)
        with open_wandb_run(sink, note, name, facts.task, tags, config, has_failed) as wandb_run:
            wandb_run.define_metric("prompt/*", summary="none")
            for step in range(note["steps"], len(lines)):
                wandb_run.log(lines[step], step=step)
            numbers = {name: value for name, value in result.metrics.items() if value is not None}
            state = {name: row[name] for name in columns.list_value_column_names("state")}
            reset = {"prompts_failed": 0} if note["steps"] else {}
            wandb_run.summary.update({**reset, **numbers, **state})
        note.update(content=result.status, steps=max(note["steps"], len(lines)))


def log_table(sink: WandbSink, rows: Sequence[Mapping[str, Any]]) -> None:
    """Logs the results table of one experiment, pair and task. Logs an unchanged table once."""
    import wandb

    pair = str(rows[0]["pair"])
    task = str(rows[0]["task"])
    experiment = sink.folder.name
    run_id = f"results-{files.hash_json([experiment, pair, task])}"
    content = files.hash_json([dict(row) for row in rows])
    names = list(dict.fromkeys(name for row in rows for name in row))
    text_names = {column.name for column in columns.get_columns(names) if column.holds != "number"}
    cells = [
        [_convert_table_value(row.get(name), name in text_names) for name in names] for row in rows
    ]
    config = {"experiment": experiment, "labels": {"pair": pair, "task": task}}
    with _open_note(sink, sink.folder / "wandb" / run_id, run_id) as note:
        if note["content"] == content:
            return
        tags = [pair, task, TABLE]
        with open_wandb_run(sink, note, f"results {pair} {task}", TABLE, tags, config) as wandb_run:
            table = wandb.Table(columns=names, data=cells, allow_mixed_types=True)
            wandb_run.log({"results": table}, step=note["steps"])
        note.update(content=content, steps=note["steps"] + 1)


def log_training(sink: WandbSink, name: str, facts: Mapping[str, Any], file: Path) -> None:
    """Logs a finished training as one run; a failure of W&B is one warning."""
    if sink.settings.mode == "disabled":
        return
    rows = files.read_csv(file)
    run_id = f"heads-{files.hash_json([facts['settings'], rows])}"
    tags = [facts["head"], facts["target"]]
    config = {**facts["settings"], **_collect_code_versions(facts.get("provenance", {}))}
    with (
        _log_wandb_errors(),
        open_wandb_run(sink, {"id": run_id}, name, TRAINING, tags, config) as wandb_run,
    ):
        for row in rows:
            numbers = {key: float(value) for key, value in row.items() if value != ""}
            wandb_run.log(numbers, step=int(row["step"]))
        for side, accuracy in facts["accuracy"].items():
            for guess_name, share in (accuracy or {}).items():
                wandb_run.summary[f"final {side} {guess_name}"] = share
        wandb_run.summary["parameters"] = facts["parameters"]


def read_logged_projects(table: Path) -> set[str]:
    """Returns the projects that an experiment's results table was logged to."""
    notes = table.parent.glob(f"wandb/*/{NOTES}")
    return {note["project"] for path in notes for note in json.loads(path.read_text("utf-8"))}


def _collect_code_versions(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Returns commit and versions of the code for a run's config."""
    git = origin.get("git") or {}
    own_versions = {"spec_bench": origin.get("spec_bench"), "python": origin.get("python")}
    return {
        "commit": git.get("revision"),
        "uncommitted_changes": git.get("dirty"),
        "versions": {**own_versions, **origin.get("versions", {})},
    }


@contextmanager
def open_wandb_run(
    sink: WandbSink,
    note: dict[str, Any],
    name: str,
    job_type: str,
    tags: Sequence[Any],
    config: Mapping[str, Any],
    has_failed: bool = False,
) -> Iterator[Any]:
    """Opens a new W&B run; a run that the process already has open stays open.

    ``note`` has the run's id and its last start; the new start is later than that, whatever the
    clock says.
    """
    import wandb

    wandb_settings = sink.settings
    sink.folder.mkdir(parents=True, exist_ok=True)
    note["began"] = max(time.time(), note.get("began", 0) + 1)  # folders are named by the second
    run_tags = [
        str(tag)[:_TAG_LENGTH] for tag in (*tags, *(wandb_settings.tags or ())) if str(tag).strip()
    ]
    settings = wandb.Settings(
        silent=True,
        console="off",
        save_code=False,
        disable_git=True,
        x_save_requirements=False,
        x_start_time=note["began"],
        x_disable_stats=not wandb_settings.system_metrics,
        x_disable_machine_info=not wandb_settings.system_metrics,
    )
    wandb_run = wandb.init(
        entity=wandb_settings.entity,
        project=wandb_settings.project,
        group=wandb_settings.group[:128],  # W&B's limit
        name=name,
        id=note["id"],
        resume="allow",
        job_type=job_type,
        tags=list(dict.fromkeys(run_tags)),
        config=dict(config),
        mode=wandb_settings.mode,
        dir=str(sink.folder),
        reinit="create_new",
        settings=settings,
    )
    try:
        yield wandb_run
    except BaseException:
        wandb_run.finish(exit_code=1)
        raise
    wandb_run.finish(exit_code=int(has_failed))


@contextmanager
def _open_note(sink: WandbSink, folder: Path, run_id: str) -> Iterator[dict[str, Any]]:
    """Yields the note of a run's logged ``content`` and ``steps``; saves its changes."""
    folder.mkdir(parents=True, exist_ok=True)
    with files.open_regular_to_write(folder / ".wandb.lock") as lock:
        files.lock_file(lock, may_wait=True)
        path = folder / NOTES
        notes = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        wandb_settings = sink.settings
        place = {
            "id": run_id,
            "entity": wandb_settings.entity or "",
            "project": wandb_settings.project,
            "mode": wandb_settings.mode,
        }
        note = next((candidate for candidate in notes if place.items() <= candidate.items()), None)
        if note is None:
            note = {**place, "content": "", "steps": 0}
            notes.append(note)
        first_note = dict(note)
        yield note
        if note != first_note:
            files.write_redacted_json(path, notes)


def build_history_lines(cell: LoggedCell) -> list[dict[str, Any]]:
    """Builds a cell's history: one line per prompt, with the end of its batch as timestamp."""
    lines = []
    total_calls = 0
    emitted_tokens = 0
    for generation in cell.generations:
        call_count = len(generation.steps)
        accepted_tokens = sum(step.accepted for step in generation.steps)
        total_calls += call_count
        emitted_tokens += accepted_tokens + call_count
        values = (
            emitted_tokens / total_calls if total_calls else None,
            accepted_tokens / call_count if call_count else None,
            generation.tokens_in_decode_s / generation.decode_s if generation.decode_s else None,
            generation.energy_j,
            len(generation.tokens),
            call_count,
            generation.prefill_s,
            generation.decode_s,
            generation.latency_s,
        )
        line: dict[str, Any] = {
            "prompt/id": generation.prompt_id,
            "_timestamp": generation.ended_at,
        }
        line |= zip(HISTORY, values, strict=True)
        line |= {
            f"prompt/{name}": score_by_prompt.get(generation.prompt_id)
            for name, score_by_prompt in cell.scores.items()
        }
        lines.append({name: value for name, value in line.items() if value is not None})
    return lines


def _convert_table_value(value: Any, is_text: bool) -> Any:
    """Converts a value for a W&B table: numbers to floats unless ``is_text``, "" to None."""
    if value in (None, ""):
        return None
    try:
        return value if is_text or not isinstance(value, str) else float(value)
    except ValueError:
        return value
