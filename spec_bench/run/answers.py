"""A cell's answers in FastChat's format, for its tools and for ``spec_bench.judge``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from spec_bench import files
from spec_bench.judge.conversation import ANSWERS, QUESTIONS
from spec_bench.records import Generation
from spec_bench.run.prompts import Prompts, prompt_ids
from spec_bench.run.settings import JobSettings
from spec_bench.tasks import Example, Task
from spec_bench.tasks.conversation import fixed_answers


def write_answers(
    folder: Path,
    model_id: str,
    settings: JobSettings,
    prompts: Prompts,
    generations: Sequence[Generation],
) -> None:
    """Writes questions and answers of a judged task; of another task nothing.

    Args:
        folder: the cell's.
        model_id: names the cell among models.
        settings: the job's, for its examples.
        prompts: what was decoded.
        generations: the cell's, all of them.
    """
    task = settings.task
    if not isinstance(task, Task) or not task.judged:
        return
    texts, now = prompts.texts(generations), time.time()
    questions, answers = [], []
    for example in settings.examples:
        ids = prompt_ids(task, example)
        choice: dict[str, Any] = {"index": 0, "turns": [texts[each] for each in ids]}
        if len(ids) > 1 and task.later_turns == "fixed":
            choice["continued"] = list(fixed_answers(example)[: len(ids) - 1])
        questions.append(_question(example, len(ids)))
        answers.append(
            {
                "question_id": _number(example.id),
                "answer_id": files.digest([folder.name, example.id]),
                "model_id": model_id,
                "choices": [choice],
                "tstamp": now,
            }
        )
    for name, lines in ((QUESTIONS, questions), (ANSWERS, answers)):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        files.write_text(folder / name, text)


def model_name(*parts: str) -> str:
    """A cell as a model's name, fit for a file's name."""
    return "-".join(re.sub(r"[^\w.]+", "_", part).strip("_") for part in parts if part.strip("-"))


def _question(example: Example, turns: int) -> dict[str, Any]:
    """The question with the turns that were asked."""
    golds = [each[0] for each in takewhile(bool, example.references[:turns])]
    return {
        "question_id": _number(example.id),
        "category": str(example.meta.get("category") or ""),
        "turns": list(example.turns[:turns]),
        **({"reference": golds} if golds else {}),
    }


def _number(question_id: str) -> int | str:
    """Question ids are whole numbers where they can be."""
    return int(question_id) if question_id.isdecimal() else question_id
