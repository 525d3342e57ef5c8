"""What a job decodes and scores: the task's examples as requests, and back from ids to texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from spec_bench.records import Generation, Request
from spec_bench.run.settings import JobSettings
from spec_bench.tasks import Example, RandomPrompts, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prompts:
    """A job's requests and what good answers look like.

    Attributes:
        requests: one per turn of each example. A later turn continues the reference answers, not
            the decoder's own, so that all decoders continue the same text.
        references: by prompt id.
    """

    requests: tuple[Request, ...]
    references: dict[str, list[str]]
    task: Task | RandomPrompts
    tokenizer: Any

    @classmethod
    def build(cls, settings: JobSettings, tokenizer: Any) -> Prompts:
        """Encodes the job's examples."""
        task = settings.task
        stop_ids = task.stop_ids(tokenizer)
        requests, references = [], {}
        for example in settings.examples:
            for turn in range(_turns(example)):
                prompt_id = example.id if len(example.turns) == 1 else f"{example.id}/{turn}"
                ids = task.encode(example, tokenizer, turn)
                requests.append(Request(prompt_id, ids, settings.max_new_tokens, stop_ids))
                references[prompt_id] = task.references(example, turn)
        log.info("%s: %d prompts", task.name, len(requests))
        return cls(tuple(requests), references, task, tokenizer)

    def texts(self, generations: Iterable[Generation]) -> dict[str, str]:
        """The answers by prompt id, for scoring only; counts come from token ids."""
        return {
            generation.prompt_id: self.task.postprocess(
                self.tokenizer.decode(generation.tokens, skip_special_tokens=True)
            )
            for generation in generations
        }

    def scores(self) -> tuple[str, ...]:
        """The task's scores."""
        return self.task.scores


def _turns(example: Example) -> int:
    """How many turns can be asked: those whose earlier turns all have a reference answer."""
    answered = next(
        (turn for turn, golds in enumerate(example.references) if not golds), len(example.turns)
    )
    return min(answered + 1, len(example.turns))
