"""What is judged: questions and answers as a cell's folder holds them, in FastChat's format.

``mt_bench_questions.jsonl`` has ``question_id, category, turns, reference``;
``mt_bench_answers.jsonl`` has ``question_id, answer_id, model_id, choices, tstamp`` (FastChat,
``fastchat/llm_judge``). A choice's ``continued``, which FastChat does not read, holds the answers
that later turns were asked to continue, where they are not the decoder's own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUESTIONS, ANSWERS = "mt_bench_questions.jsonl", "mt_bench_answers.jsonl"


@dataclass(frozen=True)
class Conversation:
    """One question with its answers.

    Attributes:
        question_id: the question's.
        category: the question's, "" where it has none.
        questions: the turns that were asked.
        answers: one a turn.
        continued: what the turns after the first were asked to continue, in place of ``answers``;
            empty: those.
        references: good answers, one a turn, or empty.
    """

    question_id: str
    category: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    continued: tuple[str, ...] = ()
    references: tuple[str, ...] = ()

    def before(self, turn: int) -> tuple[str, ...]:
        """The assistant's answers before a turn, as the decoder saw them."""
        return (self.continued or self.answers)[:turn]


def read_conversations(folder: Path) -> list[Conversation] | None:
    """A cell's conversations; None where it has none on disk.

    Raises:
        ValueError: a question without an answer.
    """
    if not (folder / QUESTIONS).is_file() or not (folder / ANSWERS).is_file():
        return None
    choices = {line["question_id"]: line["choices"][0] for line in _lines(folder / ANSWERS)}
    conversations = []
    for question in _lines(folder / QUESTIONS):
        choice = choices.get(question["question_id"], {"turns": []})
        turns = tuple(question["turns"])
        if len(choice["turns"]) < len(turns):
            raise ValueError(
                f"question {question['question_id']}: {len(turns)} turns asked,"
                f" {len(choice['turns'])} answered"
            )
        conversations.append(
            Conversation(
                str(question["question_id"]),
                str(question.get("category") or ""),
                turns,
                tuple(choice["turns"]),
                tuple(choice.get("continued", ())),
                tuple(question.get("reference") or ()),
            )
        )
    return conversations


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]
