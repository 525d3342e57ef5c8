"""Checks that a task's examples have the references that a score needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spec_bench.system.errors import UsageError
from spec_bench.tasks.example import Example
from spec_bench.tasks.prompt_files import LocatedRow
from spec_bench.tasks.template import look_up_field

if TYPE_CHECKING:
    from spec_bench.tasks.task import Task


def describe_turns_without_reference(
    task: Task,
    score: str,
    examples: Sequence[Example],
    may_be_empty: bool,
) -> str:
    """Describes the turns that a score leaves out because they have no reference; "" if there are
    none. With ``may_be_empty`` a row needs the field, but it may be empty. Raises UsageError if no
    turn has a reference, or, with ``may_be_empty``, if a row lacks the field.
    """
    field = task.reference or "FIELD"
    count = 0
    bare = []
    for example in examples:
        has_field = look_up_field(example.row, field, task.fields, default=example) is not example
        asked_count = task.count_asked_turns(example)
        count += asked_count
        bare_turns = (t for t in range(asked_count) if not example.references[t])
        bare += [(example, t, has_field) for t in bare_turns if not (may_be_empty and has_field)]
    if not bare:
        return ""
    example, turn, has_field = bare[0]
    row = example.row
    turns = 1 if task.later_turns == "none" else len(example.turns)
    place = row.place if isinstance(row, LocatedRow) else ""
    place += f", turn {turn + 1}" * (turns > 1) + f" (and {len(bare) - 1} more)" * (len(bare) > 1)
    if len(bare) < count and not may_be_empty:
        summary = f"{count - len(bare)} of {count} answers are scored"
        return f"{score}: {summary}; {place} has no reference"
    remedies = [
        f"give {f'a list of {turns}' if turns > 1 else 'one'} in {field!r}",
        "" if has_field else f"task.reference=FIELD (the row has {', '.join(row)})",
        "task.later_turns=none asks first turns alone" if turn else "",
        "task.metrics=[] leaves the score out",
        "a function compute(predictions) needs none" if score.endswith(".py") else "",
    ]
    advice = ", or ".join(filter(None, remedies))
    raise UsageError(f"{task.data_label}, {place} has no reference for {score}: {advice}")
