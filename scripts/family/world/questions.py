"""Questions in the shape of Spec-Bench's file, on this small world: for a table by category.

Six kinds, twenty questions each, the first in MT-bench's two turns (two of its eight categories).
The models know no facts and cannot reckon: what the world does not have, the nearest text job that
they learned as a chat stands for.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from .samples import draw_sample, turns

FIRST = 81  # where the question ids of Spec-Bench's file begin
EACH = 20
MULTI_TURN = "multi-turn conversation"
_MT_BENCH = {"rewriting": "writing", "extraction": "extraction"}  # its name for ours
Sample = dict[str, Any]


def _asks(*words: str) -> Callable[[Sample], bool]:
    return lambda sample: sample["instruction"].startswith(words)


# category -> the task whose samples it takes, and which of them
_KINDS: dict[str, tuple[str, Callable[[Sample], bool]]] = {
    MULTI_TURN: ("mt_bench", lambda sample: True),
    "translation": ("wmt18_deen", lambda sample: True),
    "summarization": ("alpaca", _asks("Describe the person")),
    "qa": ("dolly", lambda sample: not sample["context"]),
    "math_reasoning": ("alpaca", _asks("Write the list", "Write the opposite")),
    "rag": ("dolly", lambda sample: bool(sample["context"])),
}


def questions(seed: int, each: int = EACH) -> Iterator[Sample]:
    """The file's lines: ``question_id``, ``category``, ``turns``, ``reference``.

    Args:
        seed: of the samples' draws.
        each: questions of a kind.
    """
    number = FIRST
    for kind, (task, wanted) in _KINDS.items():
        rng, seen = Random(f"{seed} questions {kind}"), set[str]()
        while len(seen) < each:
            sample = draw_sample(task, rng, number)
            told = turns(task, sample)
            asked = sample["turns"] if kind == MULTI_TURN else [_content(told[0][0])]
            if asked[0] in seen or not wanted(sample):
                continue
            seen.add(asked[0])
            yield {
                "question_id": number,
                "category": _MT_BENCH[sample["category"]] if kind == MULTI_TURN else kind,
                "turns": asked,
                "reference": [answer.strip() for _, answer in told],
            }
            number += 1


def _content(prompt: str) -> str:
    """What a user says in a prompt."""
    return prompt.removeprefix("<|user|>\n").removesuffix("\n<|assistant|>\n")
