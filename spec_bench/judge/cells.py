"""One cell's folder judged, and what was judged put into its row.

``judge.json`` in the cell's folder holds the columns and, where there is no score, why. It stands
beside the cell's result, which judging never touches. What each question was rated stands there
too, and joins what else its answer scored in the cell's packed records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spec_bench.judge.cache import Judgements
from spec_bench.judge.conversation import Conversation, read_conversations
from spec_bench.judge.endpoint import endpoint_of
from spec_bench.judge.grade import Grader
from spec_bench.judge.scores import SCORE, Columns, score_columns, score_parts
from spec_bench.judge.settings import JudgeSettings
from spec_bench.records import cell_folder, parquet, seals
from spec_bench.records.line import Scores
from spec_bench.records.reasons import Reason, parse_reasons, written_reasons
from spec_bench.records.types import CellResult
from spec_bench.system import files

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judged:
    """What judging a cell came to.

    Attributes:
        columns: of its row; without a score they are empty.
        reason: why there is no score; "" where there is one.
        scores: what each question adds to a score, by the score and the question's first prompt.
    """

    columns: Columns = field(default_factory=dict)
    reason: str = ""
    scores: Scores = field(default_factory=dict)

    def apply(self, row: MutableMapping[str, Any]) -> None:
        """Puts columns and reason into a row of a results file, in place of earlier ones."""
        row.update(self.columns)
        row["reason"] = written_reasons(self._reasons(parse_reasons(str(row["reason"]))))

    def joined(self, result: CellResult) -> CellResult:
        """A cell's result with columns and reason."""
        metrics = {**result.metrics, **self.columns}
        return replace(result, metrics=metrics, reasons=self._reasons(result.reasons))

    def _reasons(self, before: Iterable[Reason]) -> tuple[Reason, ...]:
        """A row's reasons with this one in the place of an earlier judgement's."""
        kept = tuple(each for each in before if each.column != SCORE)
        return (*kept, Reason(SCORE, self.reason)) if self.reason else kept


def read_judged(folder: Path) -> Judged | None:
    """What a cell's folder says; None where it was never judged.

    Raises:
        ValueError: the file cannot be used; or another error of reading.
    """
    path = folder / files.JUDGED
    return Judged(**seals.opened(path)) if os.path.lexists(path) else None


def judge_folders(folders: list[Path], settings: JudgeSettings, cache: Path) -> list[Judged]:
    """Judges the answers of cells' folders, ``<results>/runs/<run_id>``; one result each. Without
    an endpoint all are empty and say so.
    """
    try:
        endpoint = endpoint_of(settings)
    except ValueError as error:
        log.warning("not judged: %s", error)
        return [_write(folder, _without(str(error), settings)) for folder in folders]
    try:
        grader = Grader(endpoint, Judgements(cache))
        return [_write(folder, _judge(folder, grader, settings)) for folder in folders]
    finally:
        endpoint.close()


def _judge(folder: Path, grader: Grader, settings: JudgeSettings) -> Judged:
    conversations = read_conversations(folder)
    if conversations is None:
        return _without("no answers on disk (task.judged was false)", settings)
    before = grader.endpoint.requests
    grades = grader.grade(conversations)
    failed = [grade for each in grades for grade in each if grade.rating is None]
    total = sum(map(len, grades))
    log.info(
        "%s: %d judgements, %d failed, %d requests",
        *(folder.name, total, len(failed), grader.endpoint.requests - before),
    )
    columns = score_columns(grades, str(settings.model))
    if grader.lost or len(failed) == total:
        # A mean over what came before the endpoint was lost would look like a score.
        why = f"{len(failed)} of {total} judgements failed, {grader.lost or failed[0].problem}"
        kept = {k: None if k.startswith(SCORE) else value for k, value in columns.items()}
        return Judged(kept, why)
    by_prompt = dict(zip(_first_prompts(folder, conversations), grades, strict=True))
    return Judged(columns, scores=score_parts(by_prompt))


def _first_prompts(folder: Path, conversations: Sequence[Conversation]) -> list[str]:
    """The id of each question's first prompt among the cell's records."""
    asked = {each.prompt_id for each in cell_folder.read_lines(folder / files.GENERATIONS)}
    several = (f"{each.question_id}/0" for each in conversations)
    return [
        first if first in asked else each.question_id
        for first, each in zip(several, conversations, strict=True)
    ]


def _without(why: str, settings: JudgeSettings) -> Judged:
    """No judgement at all."""
    columns = dict.fromkeys(score_columns([], str(settings.model)))
    return Judged(columns, why)


def _write(folder: Path, judged: Judged) -> Judged:
    """Writes what was judged; an earlier judgement's scores go.

    Raises:
        ValueError: the cell's other scores were altered.
    """
    scores = cell_folder.own_scores(folder)
    files.write_json(folder / files.JUDGED, seals.sealed(asdict(judged)))
    if (packed := cell_folder.pack_run(folder, scores)) is not None:
        parquet.write(folder / files.RECORDS, packed)
    return judged
