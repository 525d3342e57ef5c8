"""An experiment's table: a cell's result as one flat row, and back; the CSV of rows; and which rows
are of a past state.

Here alone what is typed in ``records`` becomes text: names joined by commas, ``true`` or ``false``,
reasons in one line. The CSV is rewritten as a whole, so that a reader sees all of it or none.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spec_bench.records.types import CellFacts, CellResult, parse_reasons
from spec_bench.system import files
from spec_bench.system.redaction import redact
from spec_bench.vocabulary import columns

log = logging.getLogger(__name__)
Row = Mapping[str, Any]
NEEDED = ("pair", "target", "draft", "task", "decoder", "spec", "status", "run_id")
_DIGITS = 16  # of a model's digest in a row
_ROUNDED = (
    "nodes_per_call",
    "block_efficiency",
    "mbsu",
    "acceptance_rate",
    "token_rate",
    "speedup",
)
_POINTS = ("prompts", "draft_calls", "parameter_ratio", *_ROUNDED)  # of what a search screened
STATE = (
    *("target_revision", "draft_revision", "tree_revision"),
    *("data_revision", "prompts_digest", "engine"),
)
MODELS = ("target_digest", "draft_digest")
# With what follows from the state and the place, and is nothing that a user varies.
_APART = (*STATE, *MODELS, "token_ids_digest", "run_id", "machine", "attention")
_OTHER_MODELS = "-of-"  # behind a run id, before the digest of the models that are no more


def flatten_facts(facts: CellFacts) -> dict[str, str | int | float]:
    """Returns what a cell is, flat; what it does not have is ""."""
    return {name: _flatten_value(value) for name, value in vars(facts).items()}


def parse_facts(labels: Row) -> CellFacts:
    """Inverts ``flatten_facts``; labels that older records lack have their defaults."""
    known = [each for each in fields(CellFacts) if each.name in labels]
    return CellFacts(
        **{each.name: _parse_value(str(each.type), labels[each.name]) for each in known}
    )


def _flatten_value(value: Any) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, tuple):
        value = ",".join(each if isinstance(each, str) else f"{each:g}" for each in value)
    if isinstance(value, str):
        return redact(value)
    return str(value).lower() if isinstance(value, bool) else value


def _parse_value(kind: str, value: Any) -> Any:
    """Inverts ``_flatten_value``, by a field's annotation."""
    if kind.startswith("tuple"):
        parts = tuple(part for part in str(value).split(",") if part)
        return tuple(map(float, parts)) if "float" in kind else parts
    if kind == "bool":
        return str(value).lower() != "false"
    if not kind.endswith(" | None"):
        return value
    types = {"int": int, "float": float, "str": str}
    return None if value in ("", None) else types[kind.removesuffix(" | None")](value)


def to_row(result: CellResult) -> dict[str, Any]:
    """Returns a row of the table; a failed cell claims nothing, not even that it is lossless."""
    row = {
        **flatten_facts(result.facts),
        "lossless": result.lossless or "",
        "status": result.status,
        "reason": result.reason,
        "run_id": result.run_id,
        "baseline": result.baseline or "",
        **result.metrics,
    }
    return {name: row[name] for name in columns.order_names(row)}


def to_json(result: CellResult) -> dict[str, Any]:
    """Returns a result as its cell's folder keeps it, ready for JSON."""
    return {
        "run_id": result.run_id,
        "labels": {**flatten_facts(result.facts), "baseline": result.baseline or ""},
        "lossless": result.lossless,
        "status": result.status,
        "reason": result.reason,
        "metrics": result.metrics,
    }


def from_json(content: Row) -> CellResult:
    """Inverts ``stored``."""
    return CellResult(
        content["run_id"],
        parse_facts(content["labels"]),
        content["status"],
        None if content["status"] == "failed" else content["lossless"],
        parse_reasons(content["reason"]),
        dict(content["metrics"]),
        content["labels"].get("baseline") or None,
    )


def get_digest_columns(models: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Returns the columns of ``MODELS`` for what a cell keeps of its models, see
    ``Pair.read_models``; the tokenizer's are with the target's.
    """
    if not models:
        return {}
    ours = ("target", "tokenizer")
    target = [dict(models[part]) for part in ours if part in models]
    others = (dict(each) for part, each in models.items() if part not in ours)
    drafts = tuple(files.digest(each, _DIGITS) for each in others)
    return {"target_digest": files.digest(target, _DIGITS), "draft_digest": drafts}


def past_id(row: Row) -> str:
    """Returns the id of a row whose models' files have changed since; "" where it has no digest."""
    known = [_flatten_value(row.get(name)) for name in MODELS]
    return f"{row['run_id']}{_OTHER_MODELS}{files.digest(known, 8)}" if known[0] else ""


def current_id(run_id: str) -> str:
    """Returns the run id that a cell had before its models' files changed; any other as it is."""
    return run_id.partition(_OTHER_MODELS)[0]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Returns a results file's rows as text, if any. Raises ValueError: it is none."""
    return files.read_csv(path, NEEDED)


def write_csv(path: Path, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Writes rows with every column that a file may have, then others; the whole rows."""
    names = columns.order_names([*columns.header(), *(name for row in rows for name in row)])
    whole = [{name: row.get(name, "") for name in names} for row in rows]
    files.write_csv(path, whole, names)
    return whole


def merge_csv(
    path: Path,
    made: Iterable[Row],
    order: Iterable[str] = (),
    ended: Mapping[str, float] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Rewrites a results file from the union of its rows and those that were ``made``.

    A row of ``made`` replaces the row with its run id; doing it twice changes nothing. There is
    no lock: who writes at the same time as others must look again (``jobs.store.experiment``). Rows
    of a past state go to the archive beside the file, and come back with their state. What a search
    screened goes to a file of its own, which is no evidence and has no intervals.

    The file is made with its folder if it is missing. ``order`` are run ids; rows that it does not
    name keep their places before all others, as far as the file has them, and after, where they are
    new. ``ended`` tells past states from the present one: run id -> when its last job ended.
    Returns the rows as they were written, the screened ones first.
    """
    screened = files.get_screening_path(path)
    before = (*read_rows(screened), *read_rows(path))
    rows: dict[str, Row] = {row["run_id"]: row for row in before}
    named = dict.fromkeys(order)
    new = {str(row["run_id"]): row for row in made}
    for row in before:  # whose cells have other models' numbers now, or none yet
        moved = past_id(row)
        if moved in new or (moved and past_id(new.get(row["run_id"], row)) not in ("", moved)):
            rows[moved] = {**rows.pop(row["run_id"]), "run_id": moved}
    kept = [run_id for run_id in rows if run_id not in named]
    rows.update(new)
    wanted = [each for each in dict.fromkeys([*kept, *named, *rows]) if each in rows]
    past = find_superseded(list(rows.values()), ended)
    past |= {each for each in wanted if current_id(each) != each}
    present = [rows[each] for each in wanted if each not in past]
    _archive(path, [rows[each] for each in wanted if each in past], present)
    points = [row for row in present if row.get("stage") == "screen"]
    if points or screened.exists():
        _write_points(screened, points)
    whole = write_csv(path, [row for row in present if row.get("stage") != "screen"])
    return [*map(dict, points), *whole]


def _write_points(path: Path, rows: Sequence[Row]) -> None:
    """Writes what tells cells apart, and a few numbers in five digits, without intervals."""
    shown = {*columns.column_names("identity", "setting", "state", "score"), *_POINTS}
    filled = {name for row in rows for name, value in row.items() if value not in (None, "")}
    names = columns.order_names({*NEEDED, *(shown & filled)})
    points = [{name: row.get(name, "") for name in names} for row in rows]
    for point in points:
        if "reason" in point and point["status"] == "complete":
            point["reason"] = ""
        for name in _ROUNDED:
            if point.get(name) not in (None, ""):
                point[name] = f"{float(point[name]):.5g}"
    files.write_csv(path, points, names)


def _archive(path: Path, past: Sequence[Row], present: Sequence[Row]) -> None:
    """Adds rows to the archive beside a results file, each once, before they leave that file."""
    there = {name for row in present for name in (row["run_id"], past_id(row))}
    archive = files.archive_file(path)
    before: dict[str, Row] = {row["run_id"]: row for row in read_rows(archive)}
    rows = {**before, **{str(row["run_id"]): row for row in past}}
    rows = {run_id: row for run_id, row in rows.items() if run_id not in there}
    if rows.keys() == before.keys():
        return
    if new := len(rows.keys() - before.keys()):
        log.info(
            "%d rows of earlier jobs, of other weights, data or code, are now in %s", new, archive
        )
    write_csv(archive, list(rows.values()))


def find_superseded(rows: Sequence[Row], ended: Mapping[str, float]) -> set[str]:
    """Returns the run ids of an experiment's rows that a newer row takes the place of.

    A changed checkpoint, a data set that moved on or another engine makes new cells under equal
    labels; beside the old ones they would be two answers to one question. A newer row takes the
    place where all labels are equal (pair, models, task, decoder, spec, and every setting that a
    user varies on purpose, such as temperature, batch size, seed or dtype), as many prompts were
    asked, and some of ``STATE`` is another. A failed row takes no place. ``ended`` says by run id
    when the last job that has the cell ended, in seconds; a row that it does not name is older.
    """
    names = [each for each in columns.column_names("identity", "setting") if each not in _APART]

    # What rows must agree in, and then, but for one that failed, in how many prompts were asked.
    told = [
        (
            row,
            tuple(_text(row, name) for name in names),
            _text(row, "prompts"),
            tuple(_text(row, name) for name in STATE),
            ended.get(str(row["run_id"]), -1.0),
        )
        for row in rows
    ]
    latest: dict[tuple[tuple[str, ...], str], dict[tuple[str, ...], float]] = defaultdict(dict)
    for row, own, prompts, state, when in told:
        if _text(row, "status") != "failed":
            for key in ((own, f"{prompts} prompts"), (own, "")):
                latest[key][state] = max(when, latest[key].get(state, when))
    past = set()
    for row, own, prompts, state, when in told:
        states = latest.get((own, prompts and f"{prompts} prompts"), {})
        if any(then > when for other, then in states.items() if other != state):
            past.add(str(row["run_id"]))
    return past


def _text(row: Row, name: str) -> str:
    """Returns a value as a file has it."""
    value = row.get(name)
    return "" if value is None else str(value)
