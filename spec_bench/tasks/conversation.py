"""Conversations of several turns: what a later turn continues.

Knows the three ways there are and FastChat's format of answers (``fastchat/llm_judge``,
arXiv:2306.05685): JSON lines with ``question_id`` and ``choices: [{"turns": [...]}]``. Nothing
about who answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from spec_bench.tasks.example import Example

# fixed: the same given answers whoever decodes. own: the decoder's answers. none: not asked.
LATER_TURNS = ("fixed", "own", "none")


def fixed_answers(example: Example) -> tuple[str, ...]:
    """The answers that are the same for every decoder, up to the first turn that has none."""
    if example.answers:
        return example.answers
    answers: list[str] = []
    for golds in example.references:
        if not golds:
            break
        answers.append(golds[0])
    return tuple(answers)


def history_before(
    task: str, example: Example, turn: int, given: Sequence[str] | None
) -> tuple[str, ...]:
    """The answers that a turn continues, one per earlier turn.

    Raises:
        ValueError: no such turn, or an earlier turn without an answer.
    """
    if not 0 <= turn < len(example.turns):
        raise ValueError(
            f"task {task}: example {example.id} has turns 0..{len(example.turns) - 1}, not {turn}"
        )
    history = fixed_answers(example) if given is None else given
    if len(history) < turn:
        raise ValueError(
            f"task {task}: turn {turn} of example {example.id} needs the answers to the"
            f" {turn} turns before it, got {len(history)}"
        )
    return tuple(history[:turn])


def turns_asked(example: Example, later_turns: str) -> int:
    """How many turns can be asked; with ``fixed`` a turn is asked where all turns before it have a
    fixed answer.
    """
    if later_turns == "none":
        return 1
    if later_turns == "own":
        return len(example.turns)
    return min(len(fixed_answers(example)) + 1, len(example.turns))


def read_answers(path: Path, examples: Sequence[Example]) -> dict[str, tuple[str, ...]]:
    """The answers that a file in FastChat's format (``reference_answer/gpt-4.jsonl``) gives to
    these examples, by id; each needs one to every turn but its last.

    Raises:
        ValueError: no such file, a line that is no answer, or an example without one.
    """
    if not path.is_file():
        raise ValueError(f"task.answers: there is no file {str(path)!r}")
    given: dict[str, tuple[str, ...]] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                key, turns = _answer(line, f"task.answers: {path.name}, line {number}")
                given[key] = turns
    for example in examples:
        needed, there = len(example.turns) - 1, len(given.get(example.id, ()))
        if there < needed:
            raise ValueError(
                f"task.answers: {path.name} has answers to {there} turns of question {example.id},"
                f" needed: {needed}"
            )
    return {example.id: given.get(example.id, ()) for example in examples}


def _answer(line: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Question and answers of one line."""
    try:
        values = json.loads(line)
        key, turns = values["question_id"], values["choices"][0]["turns"]
    except (ValueError, TypeError, LookupError):
        raise ValueError(
            f"{where}: no answer; needs question_id and choices: [{{turns: [...]}}]"
        ) from None
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{where}: turns must be a list of texts")
    return str(key), tuple(turns)
