"""What one cell leaves on disk, and how a rerun finds it again and makes it good.

``runs/<run_id>/`` holds ``generations.jsonl`` (one line per prompt and repeat, on disk before the
next prompt starts), ``models.json`` (digests of its models' files and of the token ids asked),
``cell.json`` (settings, the provenance of each start, and at the end scores and result) and, after
a failure, ``trace.txt``; the baseline's also ``retimed-<session>.jsonl``,
where later sessions timed it again.

A folder is checked whenever a job opens it: anything may have written to it last. What a full disk,
a power cut, an editor or a copy from another folder leaves is named in one line, set aside beside
its place (``NAME.bad-1``), and made again. What is good stays. Knows nothing about what numbers
mean.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from spec_bench.records import cell_folder
from spec_bench.records.cell_folder import GenerationLines
from spec_bench.records.parquet import Scores
from spec_bench.records.types import CellResult, Generation
from spec_bench.settings.fields import to_one_line
from spec_bench.sinks.rows import (
    build_past_models_id,
    result_from_json,
    result_to_json,
)
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key

log = logging.getLogger(__name__)
FAULTS = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, OverflowError)
Models = Mapping[str, Mapping[str, str]]
"""What tells a cell's models from all others, see ``Pair.read_model_digests``."""
Repeats = defaultdict[int, dict[str, Generation]]
"""Generations by repeat, from 0, and prompt id."""


class CellStore:
    """One cell's folder, ``<results>/runs/<run_id>``."""

    def __init__(self, results: Path, run_id: str, own_code: str | None = None) -> None:
        self.folder = files.get_run_folder(results, run_id)
        self._own_code = (
            own_code  # behind its numbers now, see ``metrics.digest_user_code``; None: any
        )
        self._lock: TextIO | None = None

    def lock(self, wait: bool = True) -> bool:
        """Locks the cell, or waits for it; returns whether it is free. A kill frees it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = files.open_regular_file(self.folder / ".lock")
        free = files.lock_file(self._lock, may_wait=False)
        if wait and not free:
            log.info("waiting for another job to finish %s", self.folder)
            free = files.lock_file(self._lock, may_wait=True)
        return free

    def unlock(self) -> None:
        """Lets other processes work on this cell."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_settings(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Writes the resolved settings and the provenance; each start of the cell adds one."""
        cell = self._load_cell_json_or_empty()
        starts = [*cell.get("starts", ()), provenance]
        cell_folder.write_cell_json(self.folder, {**cell, "settings": settings, "starts": starts})

    def claim_for_models(self, models: Models) -> Models:
        """Makes the cell these models', where this process holds the lock, and returns the digests
        that its row has: none where it was begun before there were any.

        What other models left in its folder is archived: it becomes a cell of its own, which
        ``build_past_models_id`` names. What these models had left there before comes back.
        """
        old_models = self._load_or_set_aside_models_json().get("models")
        if old_models is None and _has_answers(self.folder):
            return {}
        if old_models == models:
            return models
        if old_models is not None:
            place = {"run_id": self.folder.name}
            past, ours = (
                self.folder.with_name(
                    build_past_models_id(
                        {**place, **cell_folder.compute_digest_columns(cell_models)}
                    )
                )
                for cell_models in (old_models, models)
            )
            _move_cell(self.folder, past)
            then = "decoded again"
            if _has_answers(ours):
                _move_cell(ours, self.folder)
                then = "again what these models left here before"
            log.warning(
                "%s is another model's: %s; the old one is now %s, and the cell is %s",
                self.folder,
                _describe_first_model_difference(old_models, models),
                past.name,
                then,
            )
        cell_folder.write_models_json(self.folder, {"models": models})
        return models

    def has_no_other_models(self, models: Models) -> bool:
        """Returns whether no other models have answered here, as far as is known."""
        with suppress(ValueError):
            return bool(cell_folder.read_models_json(self.folder).get("models", models) == models)
        return True

    def record_or_refuse_token_ids(self, token_ids: str) -> None:
        """Keeps the digest of what the cell is asked. Raises ValueError: it has answers to other
        token ids.
        """
        content = self._load_or_set_aside_models_json()
        stored_ids = content.get("token_ids", token_ids)
        if stored_ids != token_ids and _has_answers(self.folder):
            raise UsageError(
                f"{str(self.folder)!r} holds answers to other token ids ({stored_ids}, now "
                f"{token_ids}) of the same texts: the tokenizer or its library reads them "
                "otherwise; remove that folder to decode them again"
            )
        if content:
            cell_folder.write_models_json(self.folder, {**content, "token_ids": token_ids})

    def has_answers_of(self, models: Models, token_ids: str) -> bool:
        """Returns whether these models have answered here what such token ids ask."""
        with suppress(UsageError):
            content = cell_folder.read_models_json(self.folder)
            is_same = content.get("models") == models and content.get("token_ids") == token_ids
            return is_same and _has_answers(self.folder)
        return False

    def copy_answers(self, source: "CellStore") -> None:
        """Takes over what another cell measured and where, as if this one had been interrupted."""
        for repeat in source.load_repeats().values():
            self.append_generations(repeat.values())
        for session, generations in group_by_key(
            (generation.session, generation) for generation in source.load_retimed()
        ).items():
            self.append_generations(generations, session)
        cell_folder.write_cell_json(
            self.folder, {"starts": source._load_cell_json_or_empty().get("starts", [])}
        )

    def _load_or_set_aside_models_json(self) -> dict[str, Any]:
        """Returns what the cell keeps of its models; a damaged file is set aside."""
        try:
            return cell_folder.read_models_json(self.folder)
        except UsageError as error:
            self._set_aside(files.MODELS, to_one_line(error.__cause__ or error, 200))
            return {}

    def _load_cell_json_or_empty(self) -> dict[str, Any]:
        """Reads what ``write_settings`` and ``write_result`` wrote; {} where it cannot be used."""
        try:
            return cell_folder.read_cell_json(self.folder)
        except UsageError as error:
            log.warning("%s", error)
            return {}

    def append_generations(self, generations: Iterable[Generation], session: str = "") -> None:
        """Adds generations, or those that ``session`` timed again; they survive a kill."""
        path = self.folder / (files.RETIMED.replace("*", session) if session else files.GENERATIONS)
        with files.write_errors_naming(path), files.open_regular_file(path) as stream:
            files.lock_file(stream, may_wait=True)  # another job may look for a torn line
            for generation in generations:
                stream.write(cell_folder.format_generation_line(generation, self.folder.name))
            stream.flush()
            os.fsync(stream.fileno())

    def load_retimed(self) -> list[Generation]:
        """Returns what later sessions timed again; unusable lines are left out."""
        return cell_folder.read_retimed_generations(self.folder)

    def load_first_repeat(self) -> dict[str, Generation]:
        """Returns the generations on disk by prompt id, of the first repeat."""
        return self.load_repeats()[0]

    def load_repeats(self) -> Repeats:
        """Returns the generations on disk, whole lines of them."""
        return _group_by_repeat(cell_folder.read_generation_lines(self.folder / files.GENERATIONS))

    def repair_and_load(self) -> Repeats:
        """Sets aside what cannot be used, where this process holds the lock; the generations."""
        lines = self._repair_generation_files(None)
        try:
            cell_folder.require_result_fits_generations(
                self.folder, cell_folder.read_cell_json(self.folder)
            )
        except UsageError as error:
            self._set_aside(files.CELL, to_one_line(error.__cause__ or error, 200))
        return _group_by_repeat(lines)

    def drop_unknown_tokens_and_load(self, vocabulary: int) -> Repeats:
        """Returns the generations whose token ids the target knows, once their number is known."""
        return _group_by_repeat(self._repair_generation_files(vocabulary))

    def _repair_generation_files(self, vocabulary: int | None) -> GenerationLines:
        """Keeps files of generations to their whole lines; a last one torn by a kill is cut off."""
        for path in (*files.find_retimed_paths(self.folder), self.folder / files.GENERATIONS):
            lines = cell_folder.read_generation_lines(path, vocabulary)
            if lines.faults:
                further_lines = (
                    f" and {len(lines.faults) - 1} more lines" if len(lines.faults) > 1 else ""
                )
                self._set_aside(path.name, f"{lines.faults[0]}{further_lines}", copy=True)
                cell_folder.rewrite_generations(path, lines.generations)
            elif lines.torn_byte_count:
                with files.open_regular_file(path, "rb+") as stream:
                    files.lock_file(stream.fileno(), may_wait=True)
                    torn = cell_folder.read_generation_lines(
                        path, vocabulary
                    ).torn_byte_count  # none if it was being written
                    stream.truncate(path.stat().st_size - torn)
        return lines

    def _set_aside(self, name: str, reason: str, copy: bool = False) -> None:
        path = self.folder / name
        log.warning("%s: %s; it is now %s", path, reason, files.move_aside(path, copy).name)

    def write_result(
        self,
        result: CellResult,
        job: str,
        scores: Scores | None = None,
        compared: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the cell's result, the last thing a cell writes, with the job that finished it,
        what each answer scored and, in ``compared``, the baseline's run id and the sessions whose
        timings of it the speed-up is against.
        """
        made_of = cell_folder.compute_size_and_digest(self.folder / files.GENERATIONS)
        outcome = {
            "result": result_to_json(result),
            "job": job,
            "generations": made_of,
        }
        extras = {
            "scores": scores or {},
            "compared": compared,
            "own_code": self._own_code or "",
        }
        cell_folder.write_cell_json(
            self.folder, {**self._load_cell_json_or_empty(), **outcome, **extras}
        )

    def load_settings(self) -> Mapping[str, Any]:
        """Returns the cell's resolved settings; nothing where its file cannot be used."""
        settings: Mapping[str, Any] = self._load_cell_json_or_empty().get("settings", {})
        return settings

    def load_result(self) -> CellResult | None:
        """The cell's result, complete or failed; None if it was not finished or is damaged."""
        content = self._load_cell_json_or_empty().get("result")
        try:
            return content and result_from_json(content)
        except FAULTS as error:
            log.warning("%s: %s", self.folder / files.CELL, to_one_line(error, 200))
            return None

    def rename_row(self, decoder: str) -> None:
        """Gives a finished cell's row the name that its decoder has now, if it is another one."""
        result = self.load_result()
        if result is not None and result.facts.decoder != decoder:
            new_result = replace(result, facts=replace(result.facts, decoder=decoder))
            cell_folder.write_cell_json(
                self.folder,
                {**self._load_cell_json_or_empty(), "result": result_to_json(new_result)},
            )

    def is_complete(self, repeats: int = 1) -> bool:
        """Returns whether the cell needs no more work; a failed cell is tried again, and one whose
        user's metrics have changed is scored again. ``repeats``, how often every prompt is decoded,
        are no part of its settings: more of them extend it.
        """
        result = self.load_result()
        if result is None or result.status != "complete":
            return False
        if self._own_code not in (None, self._load_cell_json_or_empty().get("own_code", "")):
            return False
        return int(result.metrics.get("repeats") or 1) >= repeats


class ReadOnlyCellStore(CellStore):
    """The same cell seen by a process that must not write, as one of a split model."""

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """Process 0 writes, and holds the lock."""

    def lock(self, wait: bool = True) -> bool:
        """Process 0 holds it for all."""
        return True

    unlock = write_settings = append_generations = write_result = record_or_refuse_token_ids = (
        _do_nothing
    )


def _has_answers(folder: Path) -> bool:
    """Returns whether a cell has answers."""
    path = folder / files.GENERATIONS
    return path.is_file() and path.stat().st_size > 0


def _describe_first_model_difference(old_models: Models, new_models: Models) -> str:
    """Names the first file of a cell's models that is not as it was."""
    for part in (*old_models, *new_models):
        old = old_models.get(part, {})
        new = new_models.get(part, {})
        for name in (*old, *new):
            if old.get(name) != new.get(name):
                was = old.get(name, "missing")
                return f"{name} of its {part} was {was[:12]} and is {new.get(name, 'missing')[:12]}"
    return "another order"


def _move_cell(source: Path, target: Path) -> None:
    """Gives what is in a cell's folder to a cell of another id. After a kill in between both are
    there, and doing it again ends it.
    """
    answers_path = source / files.GENERATIONS
    if _has_answers(source):
        cell_folder.write_models_json(target, cell_folder.read_models_json(source))
        for path in (*files.find_retimed_paths(source), answers_path):
            cell_folder.rewrite_generations(
                target / path.name, cell_folder.read_generation_lines(path).generations
            )
        with suppress(ValueError):  # without the cell's file it is a cell that was begun
            cell = cell_folder.read_cell_json(source)
            if result := cell.get("result"):
                cell["result"] = {**result, "run_id": target.name}
                cell["generations"] = cell_folder.compute_size_and_digest(
                    target / files.GENERATIONS
                )
            cell_folder.write_cell_json(target, cell)
    # Last what says whose the others are.
    names = (files.TRACE, files.CELL, files.MODELS)
    for path in (
        *files.find_retimed_paths(source),
        answers_path,
        *(source / name for name in names),
    ):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # a cell's lock stays
        source.rmdir()


def _group_by_repeat(lines: GenerationLines) -> Repeats:
    repeats: Repeats = defaultdict(dict)
    for generation in lines.generations:
        repeats[generation.repeat][generation.prompt_id] = generation
    return repeats
