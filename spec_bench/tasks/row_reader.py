"""From a row of a dataset to an example: its turns, its references, its id and category.

Knows templates, and where a row's field or database is; nothing about tokenizers, and nothing
about which rows are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spec_bench.records.types import CodeReference, SqlReference
from spec_bench.settings.fields import shown
from spec_bench.tasks.example import Example, Turns, cut, read_references, read_turns
from spec_bench.tasks.source import Line, Row
from spec_bench.tasks.spider import database_file, schema_text
from spec_bench.tasks.template import Fields, choose, fill, look_up, placeholders

RUNS_CODE = "pass_at_1"  # the score that runs the row's tests


def runs_code(scores: Sequence[str], consent: bool) -> bool:
    """Whether answers are run as programs, which needs consent.

    Raises:
        ValueError: there is none.
    """
    if RUNS_CODE in scores and not consent:
        raise ValueError(
            f"the score {RUNS_CODE} runs what the model writes on this machine: task.run_code=true"
            " consents to that, task.metrics=[] leaves the score out"
        )
    return RUNS_CODE in scores


@dataclass(frozen=True)
class RowReader:
    """What is read of a row, and how."""

    task: str  # the task's name, for messages
    templates: tuple[str, ...]  # of one turn; the first whose fields are all filled is used
    fields: Fields  # name in a template -> column or path into columns
    turns: str | None  # the field that holds a list of turns; None: the row is one turn
    reference: str | None  # the field that holds the reference answer; None where there is none
    instruction: str  # what stands before every turn, its end included; "" where nothing does
    scored: bool  # whether answers are scored, so that a reference must be there
    runs_sql: bool  # whether references are SQL that is asked of the row's database
    runs_code: bool  # whether references are tests of the program that the row's prompt begins
    # the folder of all databases; called only where a row needs its own
    databases: Callable[[], Path]
    # what a turn begins with where its text is not there; None: all are
    placeholder: str | None = None

    def example(self, row: Row, index: int) -> Example:
        """The example that a row makes; its place in the source is its id where it has none.

        Raises:
            ValueError: a field, a reference or the database is missing or of no use; the message
                says which row.
        """
        try:
            turns = self.read_turns(row)
            references = self._references(row, turns)
            identity = look_up(row, "id", self.fields, default=None)
            category = self._category(row)
        except ValueError as error:
            where = f"line {row.number}" if isinstance(row, Line) else f"row {index}"
            raise ValueError(f"task {self.task}, {where}: {error}") from error
        name = str(index if identity is None else identity)
        return Example(
            *(name, turns.asked, references, dict(row), turns.answers, turns.system, category)
        )

    def read_turns(self, row: Row, most: int | None = None) -> Turns:
        """What the row asks, with the template filled in, each of its texts cut to so many letters.

        Raises:
            ValueError: a field is missing, or holds no turns.
        """
        values = {
            name: cut(
                self._schema(row) if name == "schema" else look_up(row, name, self.fields), most
            )
            for name in sorted(self._names - {"turn"})
        }
        if self._turns_field is None:
            return Turns((self.instruction + fill(choose(self.templates, values), values),))
        turns = read_turns(look_up(row, self._turns_field, self.fields), self._turns_field)
        missing = [each for each in turns.asked if each.startswith(self.placeholder or "\0")]
        if missing:
            raise ValueError(
                f"the text is not there, only {shown(missing[0])}: what fetches it is named in "
                f"conf/task/{self.task}.yaml"
            )
        filled = [{**values, "turn": cut(asked, most)} for asked in turns.asked]
        texts = [fill(choose(self.templates, one), one) for one in filled]
        return replace(turns, asked=tuple(self.instruction + text for text in texts))

    def is_answered(self, row: Row) -> bool:
        """Whether the row has a reference answer, where the task names its field."""
        if self.reference is None:
            return True
        return bool(look_up(row, self.reference, self.fields, default=None))

    @cached_property
    def _names(self) -> set[str]:
        """What the templates ask for."""
        return {name for template in self.templates for name in placeholders(template)}

    @property
    def _turns_field(self) -> str | None:
        """Where the turns stand; None where no template asks for one."""
        return self.turns if "turn" in self._names else None

    def _category(self, row: Row) -> str:
        """What kind of prompt the row says it is; "" where it says nothing, or no text.

        Raises:
            ValueError: ``fields`` names where it stands, and it does not stand there.
        """
        optional: dict[str, Any] = {} if "category" in self.fields else {"default": ""}
        category = look_up(row, "category", self.fields, **optional)
        return str(category) if type(category) in (str, int) else ""

    def _references(self, row: Row, turns: Turns) -> tuple[tuple[str, ...], ...]:
        """Reference answers per turn; a recorded answer to the last turn stands in for none."""
        count = len(turns.asked)
        if self.reference is None:
            return ((),) * count
        recorded = turns.answers if len(turns.answers) == count else ()
        # Where nothing is scored a dataset without references is as good.
        optional: dict[str, Any] = {} if self.scored and not recorded else {"default": recorded}
        references = read_references(
            look_up(row, self.reference, self.fields, **optional), self.reference
        )
        if self.runs_sql:
            database = self._database(row)
            references = [
                tuple(SqlReference(gold, database) for gold in golds) for golds in references
            ]
        if self.runs_code:
            given = (str(look_up(row, name, self.fields)) for name in ("prompt", "entry_point"))
            prompt, function = given
            references = [
                tuple(CodeReference(t, prompt, function) for t in golds) for golds in references
            ]
        if self._turns_field is None:
            return (tuple(gold for golds in references for gold in golds),)
        return (*references[:count], *[()] * (count - len(references)))

    def _schema(self, row: Row) -> str:
        """The schema of the row's database, unless the row brings it as a column."""
        given = look_up(row, "schema", self.fields, default=None)
        if given is not None:
            return str(given)
        return schema_text(self._database(row))

    def _database(self, row: Row) -> Path:
        """The file of the row's database.

        Raises:
            ValueError: no such file, or a row without ``db_id``.
        """
        return database_file(self.databases(), str(look_up(row, "db_id", self.fields)))
