"""One answer file: questions with tokens, seconds and what every target call brought.

All descend from FastChat's: a JSON line per question with ``question_id``, ``model_id`` and
``choices``; of ``choices[0]`` each list has an entry per turn. Spec-Bench (Xia et al.,
arXiv:2401.07851) adds ``category`` and ``accept_lengths``, tokens per target call of all turns in
a row; EAGLE and Medusa have ``idxs``, the index of each turn's last target call, from 0.
``wall_time`` holds the prefill. Files that ``spec-bench answers`` wrote also say
``prefill_time`` and ``decode_time``. Knows JSON lines only; nothing about rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from spec_bench.records.line import UNKNOWN_TOKEN
from spec_bench.records.types import Generation, StepRecord

_ERROR = "ERROR"  # what these harnesses write for a turn that raised


@dataclass(frozen=True)
class Answer:
    """One question's answer, all turns."""

    question: str  # its id
    category: str  # "" where nothing says
    tokens: int  # new ones, as the harness counted them
    wall_s: float  # prefill included
    prefill_s: float  # 0 where nothing says
    decode_s: float  # ``wall_s`` where nothing tells them apart
    calls: tuple[int, ...]  # tokens of each target call; even where their number alone is known
    each_known: bool  # whether ``calls`` is what each call brought


@dataclass(frozen=True)
class AnswerFile:
    """A file's answers, in its order, of a question the last."""

    model: str  # as the file names it
    answers: tuple[Answer, ...]
    failed: tuple[str, ...]  # ids of questions with a turn that raised, left out
    split: bool  # whether prefill and decoding are kept apart

    @property
    def each_known(self) -> bool:
        """Whether the tokens of every target call are known."""
        return all(each.each_known for each in self.answers)

    def generations(self, sitting: str) -> list[Generation]:
        """The answers as records: of a question one, whatever its turns.

        The depth of a call's tree is not in the file; the most tokens that any call accepted stand
        in for it, none where each call's tokens are not known.
        """
        every = [count for each in self.answers for count in each.calls]
        depth = max(every, default=1) - 1 if self.each_known else 0
        return [_generation(each, depth, sitting) for each in self.answers]


def read_answers(path: Path, categories: Mapping[str, str] | None = None) -> AnswerFile:
    """Reads a file of JSON lines; ``categories``, by question id, are for lines that have none.

    Raises:
        ValueError: it is no such file; the message names it, the line and why.
    """
    answers, failed, models = dict[str, Answer](), dict[str, None](), dict[str, None]()
    split = True
    for number, line in _lines(path):
        try:
            question = str(line["question_id"])
            choice = line["choices"][0]
            category = str(line.get("category") or (categories or {}).get(question, ""))
            models[str(line.get("model_id", ""))] = None
            split &= "decode_time" in choice
            if _ERROR in choice["turns"]:
                failed[question] = None
                answers.pop(question, None)
                continue
            answers[question] = _answer(question, category, choice)
            failed.pop(question, None)
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            fault = f"no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{str(path)!r}, line {number}: {fault}") from error
    if not answers:
        raise ValueError(f"{str(path)!r} has no answers")
    return AnswerFile(", ".join(models), tuple(answers.values()), tuple(failed), split)


def read_categories(path: Path) -> dict[str, str]:
    """Question id -> category of a ``question.jsonl``.

    Raises:
        ValueError: it is no such file.
    """
    try:
        return {str(line["question_id"]): str(line["category"]) for _, line in _lines(path)}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r}: a line without {error}") from error


def _lines(path: Path) -> list[tuple[int, dict[str, Any]]]:
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}")
    lines = []
    try:
        text = path.read_text(encoding="utf-8")
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                lines.append((number, json.loads(line)))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is no file of JSON lines: {error}") from error
    return lines


def _answer(question: str, category: str, choice: Mapping[str, Any]) -> Answer:
    """One question's.

    Raises:
        ValueError: tokens or seconds cannot be right.
    """
    tokens = [int(each) for each in choice["new_tokens"]]
    wall = [float(each) for each in choice["wall_time"]]
    if min(tokens, default=0) < 0 or not tokens:
        raise ValueError(f"new_tokens is {tokens}")
    if not all(isfinite(each) and each > 0 for each in wall) or len(wall) != len(tokens):
        raise ValueError(f"wall_time is {wall}")
    prefill = sum(map(float, choice.get("prefill_time", ())))
    decode = sum(map(float, choice["decode_time"])) if "decode_time" in choice else sum(wall)
    calls, known = _calls(choice, sum(tokens))
    return Answer(
        *(question, category, sum(tokens), sum(wall), prefill, decode, calls, known),
    )


def _calls(choice: Mapping[str, Any], tokens: int) -> tuple[tuple[int, ...], bool]:
    """Tokens per target call, and whether they are counted call by call."""
    if "accept_lengths" in choice:
        lengths = tuple(int(each) for each in choice["accept_lengths"])
        if min(lengths, default=1) < 1:
            raise ValueError(f"accept_lengths has {min(lengths)}; a call brings a token at least")
        return lengths, True
    if "idxs" not in choice:
        raise KeyError("accept_lengths or idxs")
    count = sum(int(each) + 1 for each in choice["idxs"])
    if count < 1:
        raise ValueError(f"idxs is {choice['idxs']}")
    least, more = divmod(tokens, count)
    if least < 1:
        raise ValueError(f"{tokens} new_tokens of {count} target calls")
    return tuple(least + (call < more) for call in range(count)), False


def _generation(each: Answer, depth: int, sitting: str) -> Generation:
    left, steps = each.tokens, list[StepRecord]()
    for brought in each.calls:
        delivered = min(brought, left)
        steps.append(StepRecord(0, depth, brought - 1, delivered))
        left -= delivered
    return Generation(
        prompt_id=each.question,
        tokens=(UNKNOWN_TOKEN,) * each.tokens,
        finish="length",
        steps=tuple(steps),
        prefill_s=each.prefill_s,
        decode_s=each.decode_s,
        draft_s=0.0,
        target_s=0.0,
        latency_s=each.wall_s,
        sitting=sitting,
        category=each.category,
    )
