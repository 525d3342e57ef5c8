"""Prompts that are token ids drawn at random: for models that have no tokenizer.

Knows numbers of tokens only; there is nothing to score and no text to end an answer at, so every
answer has its full length. Asked of a real model it measures speed at a prompt length one chooses.
"""

import random
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from spec_bench.records.ends import StopCriteria
from spec_bench.settings.validation import Ge, NonEmptyStr, StrictInt, settings
from spec_bench.system.errors import UsageError
from spec_bench.tasks.example import Example
from spec_bench.tasks.generation import GenerationSettings


@settings
class RandomPromptSource:
    """In place of a source of rows."""

    kind: Literal["random"]


@settings
class RandomPrompts:
    """What ``conf/task/random.yaml`` describes; a task like any other to the runner."""

    name: NonEmptyStr  # the task's name
    source: RandomPromptSource  # that the prompts are random
    prompt_tokens: Annotated[StrictInt, Ge(1)]  # length of every prompt
    prompts: Annotated[StrictInt, Ge(1)]  # how many there are
    seed: Annotated[StrictInt, Ge(0)]  # of the token ids
    # this task's defaults for what the run leaves open
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    scores: tuple[()] = ()  # none
    tokenize: ClassVar[None] = None
    later_turns: ClassVar[Literal["none"]] = "none"
    overlong: ClassVar[Literal["fail"]] = "fail"

    def examples(self, limit: int | None = None, offset: int = 0) -> list[Example]:
        """Prompts ``offset`` to ``offset + limit``. Raises ValueError: none in that range."""
        end = self.prompts if limit is None else min(self.prompts, offset + limit)
        if offset >= end:
            raise UsageError(f"task {self.name}: {self.prompts} prompts, none from {offset} on")
        text = f"{self.prompt_tokens} token ids"
        return [Example(str(index), (text,), ((),)) for index in range(offset, end)]

    def encode(
        self, example: Example, tokenizer: Any, turn: int = 0, history: Sequence[str] | None = None
    ) -> tuple[int, ...]:
        """``prompt_tokens`` ids below ``len(tokenizer)``; seed and example determine them."""
        draw = random.Random(f"{self.seed} {example.id}")
        return tuple(draw.randrange(len(tokenizer)) for _ in range(self.prompt_tokens))

    def ends(self, tokenizer: Any) -> StopCriteria:
        """Nothing: an answer ends at the limit."""
        return StopCriteria()

    @property
    def data_file(self) -> str:
        """What the prompts are."""
        return f"{self.prompt_tokens} token ids, seed {self.seed}"

    @property
    def data_revision(self) -> str:
        """None."""
        return ""

    def postprocess(self, answer: str) -> str:
        """Returns the answer as it is."""
        return answer
