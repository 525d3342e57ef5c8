"""Prompts that are token ids drawn at random: for models that have no tokenizer.

Knows numbers of tokens only; there is nothing to score and no text to end an answer at, so every
answer has its full length. Asked of a real model it measures speed at a prompt length one chooses.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_bench.tasks.example import Example


@dataclass(frozen=True)
class RandomPrompts:
    """What ``conf/task/random.yaml`` describes; a task like any other to the runner.

    Attributes:
        name: the task's name.
        prompt_tokens: length of every prompt.
        prompts: how many there are.
        seed: of the token ids.
        generation: this task's defaults for what the run leaves open.
        scores: none.
    """

    name: str
    prompt_tokens: int
    prompts: int
    seed: int
    generation: Mapping[str, Any] = field(default_factory=dict)
    scores: tuple[str, ...] = ()

    def examples(self, limit: int | None = None, offset: int = 0) -> list[Example]:
        """Prompts ``offset`` to ``offset + limit``.

        Raises:
            ValueError: none in that range.
        """
        end = self.prompts if limit is None else min(self.prompts, offset + limit)
        if offset >= end:
            raise ValueError(f"task {self.name}: {self.prompts} prompts, none from {offset} on")
        text = f"{self.prompt_tokens} token ids"
        return [Example(str(index), (text,), ((),)) for index in range(offset, end)]

    def encode(
        self,
        example: Example,
        tokenizer: Any,
        turn: int = 0,
        history: Sequence[str] | None = None,
    ) -> tuple[int, ...]:
        """``prompt_tokens`` ids below ``len(tokenizer)``; seed and example determine them."""
        draw = random.Random(f"{self.seed} {example.id}")
        return tuple(draw.randrange(len(tokenizer)) for _ in range(self.prompt_tokens))

    def stop_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """None: an answer ends at the limit."""
        return ()

    def references(self, example: Example, turn: int = 0) -> list[str]:
        """None."""
        return []

    def postprocess(self, answer: str) -> str:
        """The answer as it is."""
        return answer


def build_random_prompts(config: Mapping[str, Any]) -> RandomPrompts:
    """From the mapping of a YAML file whose ``source.kind`` is ``random``.

    Raises:
        ValueError: unknown or missing keys, or numbers out of range.
    """
    source = dict(config["source"])
    if unknown := sorted(set(source) - {"kind"}):
        raise ValueError(f"task {config.get('name')}: source: unknown {', '.join(unknown)}")
    values = {key: value for key, value in config.items() if key != "source"}
    least = {"prompt_tokens": 1, "prompts": 1, "seed": 0}
    known = ("name", *least, "generation")
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"task: unknown {', '.join(unknown)}; choose from {', '.join(known)}")
    for key, bound in least.items():
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < bound:
            raise ValueError(f"task.{key} must be a whole number >= {bound}, got {value!r}")
    return RandomPrompts(**{**values, "generation": dict(values.get("generation") or {})})
