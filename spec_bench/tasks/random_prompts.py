"""Prompts of random token ids, for models without a tokenizer, or for speed at a given length.

There is nothing to score and no stop text, so every answer has its full length.
"""

import random
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from spec_bench.records.ends import StopCriteria
from spec_bench.settings.validation import Ge, NonEmptyStr, StrictInt, settings
from spec_bench.system.errors import UsageError
from spec_bench.tasks.example import Example
from spec_bench.tasks.task import TaskGeneration


@settings
class RandomPromptSource:
    """The ``source`` of random prompts."""

    kind: Literal["random"]


@settings
class RandomPromptTask:
    """The task of ``conf/task/random.yaml``, with the interface of ``Task``."""

    name: NonEmptyStr  # the task's name
    source: RandomPromptSource
    prompt_tokens: Annotated[StrictInt, Ge(1)] = 512  # length of every prompt
    prompts: Annotated[StrictInt, Ge(1)] = 100  # number of prompts
    seed: Annotated[StrictInt, Ge(0)] = 0  # of the token ids
    # this task's defaults for settings that the run leaves open
    generation: TaskGeneration = field(default_factory=dict)
    scores: tuple[()] = ()
    tokenize: ClassVar[None] = None
    later_turns: ClassVar[Literal["none"]] = "none"
    overlong: ClassVar[Literal["fail"]] = "fail"

    def read_examples(self, limit: int | None = None, offset: int = 0) -> list[Example]:
        """Makes prompts ``offset`` to ``offset + limit``. Raises UsageError if there are none."""
        end = self.prompts if limit is None else min(self.prompts, offset + limit)
        if offset >= end:
            raise UsageError(f"task {self.name}: {self.prompts} prompts, none from {offset} on")
        text = f"{self.prompt_tokens} token ids"
        return [Example(str(index), (text,), ((),)) for index in range(offset, end)]

    def encode(
        self,
        example: Example,
        tokenizer: Any,
        turn: int = 0,
        history: Sequence[str] | None = None,
    ) -> tuple[int, ...]:
        """Draws ``prompt_tokens`` ids below ``len(tokenizer)``, seeded by ``seed`` and the
        example's id.
        """
        draw = random.Random(f"{self.seed} {example.id}")
        return tuple(draw.randrange(len(tokenizer)) for _ in range(self.prompt_tokens))

    def make_stop_criteria(self, tokenizer: Any) -> StopCriteria:
        """Returns empty stop criteria: every answer ends at the limit of tokens."""
        return StopCriteria()

    @property
    def data_label(self) -> str:
        """Length and seed of the prompts."""
        return f"{self.prompt_tokens} token ids, seed {self.seed}"

    @property
    def data_revision(self) -> str:
        """Always "": there is no dataset."""
        return ""

    def extract_scored_text(self, answer: str) -> str:
        """Returns the answer unchanged."""
        return answer
