"""A cell's folder on disk: written by a job, checked and repaired by a rerun.

``runs/<run_id>/`` holds ``generations.jsonl`` (one line per prompt and repeat, on disk before the
next prompt starts), ``models.json`` (digests of its models' files and of the prompts' token ids),
``cell.json`` (settings, the provenance of each start, and at the end scores and result) and, after
a failure, ``trace.txt``; the baseline's also ``retimed-<session>.jsonl``,
where later sessions timed it again.

A folder is checked whenever a job opens it, because anything may have written to it. Damage by a
full disk, a power cut, an editor or a copy from another folder is described in one line, set aside
in the same folder (``NAME.bad-1``), and measured again. Valid parts stay. Knows nothing about what
numbers mean.
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
ModelDigests = Mapping[str, Mapping[str, str]]
"""Digests of a cell's models by part and file, see ``JobSettings.read_model_and_code_digests``."""
Repeats = defaultdict[int, dict[str, Generation]]
"""Generations by repeat, from 0, and prompt id."""


class CellStore:
    """One cell's folder, ``<results>/runs/<run_id>``. ``user_code_digest`` is the digest of the
    user's code for scores, see ``metrics.digest_user_code``; None accepts any.
    """

    def __init__(self, results: Path, run_id: str, user_code_digest: str | None = None) -> None:
        self.folder = files.get_run_folder(results, run_id)
        self._user_code_digest = user_code_digest
        self._lock: TextIO | None = None

    def lock(self, wait: bool = True) -> bool:
        """Locks the cell, and waits for it if ``wait``; returns whether it is locked. A killed
        process loses the lock.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = files.open_regular_to_write(self.folder / ".lock")
        is_locked = files.lock_file(self._lock, may_wait=False)
        if wait and not is_locked:
            log.info("waiting for another job to finish %s", self.folder)
            is_locked = files.lock_file(self._lock, may_wait=True)
        return is_locked

    def unlock(self) -> None:
        """Lets other processes work on this cell."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_settings(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
        """Writes the resolved settings and appends the provenance of this start of the cell."""
        cell = self._load_cell_json_or_empty()
        starts = [*cell.get("starts", ()), provenance]
        cell_folder.write_cell_json(self.folder, {**cell, "settings": settings, "starts": starts})

    def claim_for_models(self, models: ModelDigests) -> ModelDigests:
        """Claims the cell for these models (the lock is held) and returns the digests for its row;
        {} if the cell has answers from before digests were stored.

        Answers of other models in its folder are moved to a cell of their own, named by
        ``build_past_models_id``. Answers that these models had left there before are moved back.
        """
        old_models = self._load_or_set_aside_models_json().get("models")
        if old_models is None and _has_answers(self.folder):
            return {}
        if old_models == models:
            return models
        if old_models is not None:
            row_id = {"run_id": self.folder.name}
            past_folder, former_folder = (
                self.folder.with_name(
                    build_past_models_id(
                        {**row_id, **cell_folder.compute_digest_columns(cell_models)}
                    )
                )
                for cell_models in (old_models, models)
            )
            _move_cell(self.folder, past_folder)
            outcome = "decoded again"
            if _has_answers(former_folder):
                _move_cell(former_folder, self.folder)
                outcome = "again what these models left here before"
            log.warning(
                "%s is %s: %s; the old one is now %s, and the cell is %s",
                self.folder,
                _describe_code_or_model_change(old_models, models),
                _describe_first_model_difference(old_models, models),
                past_folder.name,
                outcome,
            )
        cell_folder.write_models_json(self.folder, {"models": models})
        return models

    def has_no_other_models(self, models: ModelDigests) -> bool:
        """Returns whether no other models are known to have answered here."""
        with suppress(ValueError):
            return bool(cell_folder.read_models_json(self.folder).get("models", models) == models)
        return True

    def record_or_refuse_token_ids(self, token_ids_digest: str) -> None:
        """Stores the digest of the prompts' token ids. Raises UsageError if the cell has answers to
        other token ids.
        """
        content = self._load_or_set_aside_models_json()
        stored_ids = content.get("token_ids", token_ids_digest)
        if stored_ids != token_ids_digest and _has_answers(self.folder):
            raise UsageError(
                f"{str(self.folder)!r} holds answers to other token ids ({stored_ids}, now "
                f"{token_ids_digest}) of the same texts: the tokenizer or its library reads them "
                "otherwise; remove that folder to decode them again"
            )
        if content:
            cell_folder.write_models_json(self.folder, {**content, "token_ids": token_ids_digest})

    def has_answers_of(self, models: ModelDigests, token_ids_digest: str) -> bool:
        """Returns whether the cell has answers of these models to these token ids."""
        with suppress(UsageError):
            content = cell_folder.read_models_json(self.folder)
            is_same = (
                content.get("models") == models and content.get("token_ids") == token_ids_digest
            )
            return is_same and _has_answers(self.folder)
        return False

    def copy_answers_and_starts(self, source: "CellStore") -> None:
        """Copies another cell's generations and starts, as if this cell had been interrupted."""
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
        """Reads ``models.json``; a damaged file is set aside, and read as {}."""
        try:
            return cell_folder.read_models_json(self.folder)
        except UsageError as error:
            self._set_aside(files.MODELS, to_one_line(error.__cause__ or error, 200))
            return {}

    def _load_cell_json_or_empty(self) -> dict[str, Any]:
        """Reads ``cell.json``; {} if it is missing or (logged) damaged."""
        try:
            return cell_folder.read_cell_json(self.folder)
        except UsageError as error:
            log.warning("%s", error)
            return {}

    def append_generations(
        self, generations: Iterable[Generation], retiming_session: str = ""
    ) -> None:
        """Appends generations to the cell's file, or to the file of ``retiming_session``, which
        timed them again; they are on disk when it returns.
        """
        path = self.folder / (
            files.RETIMED.replace("*", retiming_session) if retiming_session else files.GENERATIONS
        )
        with files.write_errors_naming(path), files.open_regular_to_write(path) as stream:
            files.lock_file(stream, may_wait=True)  # another job may look for a torn line
            for generation in generations:
                stream.write(cell_folder.format_generation_line(generation, self.folder.name))
            stream.flush()
            os.fsync(stream.fileno())

    def load_retimed(self) -> list[Generation]:
        """Loads the generations that later sessions timed again, without damaged lines."""
        return cell_folder.read_retimed_generations(self.folder)

    def load_first_repeat(self) -> dict[str, Generation]:
        """Loads the generations of the first repeat, by prompt id."""
        return self.load_repeats()[0]

    def load_repeats(self) -> Repeats:
        """Loads the valid generations, by repeat and prompt id."""
        return _group_by_repeat(cell_folder.read_generation_lines(self.folder / files.GENERATIONS))

    def repair_and_load(self) -> Repeats:
        """Sets aside damaged lines and files (the lock is held) and loads the generations."""
        lines = self._repair_generation_files(None)
        try:
            cell_folder.require_result_fits_generations(
                self.folder, cell_folder.read_cell_json(self.folder)
            )
        except UsageError as error:
            self._set_aside(files.CELL, to_one_line(error.__cause__ or error, 200))
        return _group_by_repeat(lines)

    def replace_categories_dropping_result(self, categories: Mapping[str, str]) -> bool:
        """Replaces the categories of the generations on disk, by prompt id (the lock is held);
        returns whether any has changed. If so, the cell's result is dropped and must be computed
        again.
        """
        has_changed = False
        for path in (*files.find_retimed_paths(self.folder), self.folder / files.GENERATIONS):
            generations = cell_folder.read_generations_skipping_damaged(path)
            new_generations = [
                replace(
                    generation,
                    category=categories.get(generation.prompt_id, generation.category),
                )
                for generation in generations
            ]
            if new_generations == generations:
                continue
            if cell := self._load_cell_json_or_empty():  # now an unfinished cell
                begun_cell: dict[str, Any] = {
                    key: cell[key] for key in ("settings", "starts") if key in cell
                }
                cell_folder.write_cell_json(self.folder, begun_cell)
            cell_folder.rewrite_generations(path, new_generations)
            log.info("%s: prompts have other categories now; nothing is decoded again", path)
            has_changed = True
        return has_changed

    def drop_unknown_tokens_and_load(self, vocabulary_size: int) -> Repeats:
        """Drops generations with token ids of ``vocabulary_size`` or more and loads the others."""
        return _group_by_repeat(self._repair_generation_files(vocabulary_size))

    def _repair_generation_files(self, vocabulary_size: int | None) -> GenerationLines:
        """Rewrites files of generations without their damaged lines, keeping a copy of the
        original; truncates a last line that a kill left unfinished.
        """
        for path in (*files.find_retimed_paths(self.folder), self.folder / files.GENERATIONS):
            lines = cell_folder.read_generation_lines(path, vocabulary_size)
            if lines.faults:
                further_lines = (
                    f" and {len(lines.faults) - 1} more lines" if len(lines.faults) > 1 else ""
                )
                self._set_aside(path.name, f"{lines.faults[0]}{further_lines}", copy=True)
                cell_folder.rewrite_generations(path, lines.generations)
            elif lines.torn_byte_count:
                with files.open_regular_to_write(path, "rb+") as stream:
                    files.lock_file(stream.fileno(), may_wait=True)
                    # no longer torn if another job was just writing it
                    lines = cell_folder.read_generation_lines(path, vocabulary_size)
                    stream.truncate(path.stat().st_size - lines.torn_byte_count)
        return lines

    def _set_aside(self, name: str, reason: str, copy: bool = False) -> None:
        path = self.folder / name
        log.warning("%s: %s; it is now %s", path, reason, files.move_aside(path, copy).name)

    def write_result(
        self,
        result: CellResult,
        job_id: str,
        scores: Scores | None = None,
        comparison: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the cell's result, the last write of a cell, with the id of its job, the scores of
        each answer and, in ``comparison``, the baseline's run id and the sessions of the baseline's
        timings that the speed-up is relative to.
        """
        generations_digest = cell_folder.compute_size_and_digest(self.folder / files.GENERATIONS)
        outcome = {
            "result": result_to_json(result),
            "job": job_id,
            "generations": generations_digest,
        }
        extras = {
            "scores": scores or {},
            "compared": comparison,
            "own_code": self._user_code_digest or "",
        }
        cell_folder.write_cell_json(
            self.folder, {**self._load_cell_json_or_empty(), **outcome, **extras}
        )

    def load_settings(self) -> Mapping[str, Any]:
        """Loads the cell's resolved settings; empty if its file cannot be used."""
        settings: Mapping[str, Any] = self._load_cell_json_or_empty().get("settings", {})
        return settings

    def load_result(self) -> CellResult | None:
        """Loads the result, complete or failed; None if the cell is unfinished or damaged."""
        content = self._load_cell_json_or_empty().get("result")
        try:
            return content and result_from_json(content)
        except FAULTS as error:
            log.warning("%s: %s", self.folder / files.CELL, to_one_line(error, 200))
            return None

    def rename_row(self, decoder: str) -> None:
        """Renames the decoder in a finished cell's stored result."""
        result = self.load_result()
        if result is not None and result.facts.decoder != decoder:
            new_result = replace(result, facts=replace(result.facts, decoder=decoder))
            cell_folder.write_cell_json(
                self.folder,
                {**self._load_cell_json_or_empty(), "result": result_to_json(new_result)},
            )

    def is_complete(self, repeats: int = 1) -> bool:
        """Returns whether the cell needs no more work. A failed cell is tried again; a cell is
        scored again if the user's metrics have changed. ``repeats``, the number of times that every
        prompt is decoded, is not in its settings: raising it extends the cell.
        """
        result = self.load_result()
        if result is None or result.status != "complete":
            return False
        if self._user_code_digest not in (
            None,
            self._load_cell_json_or_empty().get("own_code", ""),
        ):
            return False
        return int(result.metrics.get("repeats") or 1) >= repeats


class ReadOnlyCellStore(CellStore):
    """A cell's store in a process that must not write, such as the other processes of a split
    model.
    """

    def _do_nothing(self, *_: Any, **__: Any) -> None:
        """Does nothing: process 0 writes, and holds the lock."""

    def lock(self, wait: bool = True) -> bool:
        """Returns True: process 0 holds the lock for all processes."""
        return True

    unlock = write_settings = append_generations = write_result = record_or_refuse_token_ids = (
        _do_nothing
    )


def _has_answers(folder: Path) -> bool:
    """Returns whether a cell has answers."""
    path = folder / files.GENERATIONS
    return path.is_file() and path.stat().st_size > 0


def _describe_code_or_model_change(old_models: ModelDigests, new_models: ModelDigests) -> str:
    """Describes whose a cell's folder is: of other code, if only the code of its parts has changed,
    else another model's.
    """
    code = cell_folder.CODE_PARTS
    parts = {*old_models, *new_models}.difference(code)
    is_code = all(old_models.get(part) == new_models.get(part) for part in parts)
    return "of other code" if is_code else "another model's"


def _describe_first_model_difference(old_models: ModelDigests, new_models: ModelDigests) -> str:
    """Describes the first file that differs between a cell's old and new models."""
    for part in (*old_models, *new_models):
        old_digests = old_models.get(part, {})
        new_digests = new_models.get(part, {})
        for name in (*old_digests, *new_digests):
            if old_digests.get(name) != new_digests.get(name):
                old_digest = old_digests.get(name, "missing")
                new_digest = new_digests.get(name, "missing")
                return f"{name} of its {part} was {old_digest[:12]} and is {new_digest[:12]}"
    return "another order"


def _move_cell(source: Path, target: Path) -> None:
    """Moves the content of a cell's folder to a cell of another id. After a kill in between, both
    have it, and a repetition completes the move.
    """
    answers_path = source / files.GENERATIONS
    if _has_answers(source):
        cell_folder.write_models_json(target, cell_folder.read_models_json(source))
        for path in (*files.find_retimed_paths(source), answers_path):
            cell_folder.rewrite_generations(
                target / path.name, cell_folder.read_generation_lines(path).generations
            )
        with suppress(ValueError):  # without the cell's file it is an unfinished cell
            cell = cell_folder.read_cell_json(source)
            if result := cell.get("result"):
                cell["result"] = {**result, "run_id": target.name}
                cell["generations"] = cell_folder.compute_size_and_digest(
                    target / files.GENERATIONS
                )
            cell_folder.write_cell_json(target, cell)
    # The files that identify the others are removed last.
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
