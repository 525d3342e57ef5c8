"""What a job decodes and scores: the task's examples as requests, and back from ids to texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_bench.records import Generation, Request
from spec_bench.run.settings import JobSettings
from spec_bench.tasks import Example, RandomPrompts, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FollowUp:
    """A later turn that continues a cell's own answers, so it is asked once they are there.

    Attributes:
        example: what is asked.
        turn: which turn of it, from 1.
        earlier: prompt ids of the turns before it.
    """

    example: Example
    turn: int
    earlier: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """A job's requests and what good answers look like.

    Attributes:
        requests: one per turn that is asked of each example. A later turn continues fixed answers,
            so that all decoders continue the same text, or the cell's own (``follow_ups``): such a
            request stands here with a prompt as long as it can become, ``resolved`` has the real
            one.
        references: by prompt id.
        follow_ups: what continues a cell's own answers, by prompt id.
        left_out: turns that are not asked, for want of a fixed answer to continue.
    """

    requests: tuple[Request, ...]
    references: dict[str, list[str]]
    task: Task | RandomPrompts
    tokenizer: Any
    follow_ups: Mapping[str, FollowUp] = field(default_factory=dict)
    left_out: int = 0

    @classmethod
    def build(cls, settings: JobSettings, tokenizer: Any) -> Prompts:
        """Encodes the job's examples."""
        task, limit = settings.task, settings.max_new_tokens
        stop_ids = task.stop_ids(tokenizer)
        requests, references, follow_ups, left_out = [], {}, {}, 0
        for example in settings.examples:
            names = prompt_ids(task, example)
            for turn, prompt_id in enumerate(names):
                if turn and isinstance(task, Task) and task.later_turns == "own":
                    follow_ups[prompt_id] = FollowUp(example, turn, names[:turn])
                    ids = task.encode(example, tokenizer, turn, [""] * turn)
                    ids += ids[-1:] * (turn * limit)
                else:
                    ids = task.encode(example, tokenizer, turn)
                requests.append(Request(prompt_id, ids, limit, stop_ids))
                references[prompt_id] = task.references(example, turn)
            if isinstance(task, Task) and task.later_turns == "fixed":
                left_out += len(example.turns) - len(names)
        log.info("%s: %d prompts", task.name, len(requests))
        if left_out:
            log.warning(
                "%s: %d later turns are not asked: no fixed answer to continue (task.answers)",
                *(task.name, left_out),
            )
        return cls(tuple(requests), references, task, tokenizer, follow_ups, left_out)

    def waves(self) -> list[tuple[Request, ...]]:
        """The requests in groups; those of a group need answers of groups before it at most."""
        turns: dict[int, list[Request]] = {}
        for request in self.requests:
            follow_up = self.follow_ups.get(request.prompt_id)
            turns.setdefault(follow_up.turn if follow_up else 0, []).append(request)
        return [tuple(turns[turn]) for turn in sorted(turns)]

    def resolved(
        self, requests: Sequence[Request], done: Mapping[str, Generation]
    ) -> list[Request]:
        """The requests as one cell decodes them.

        Args:
            requests: of one wave.
            done: the cell's generations so far, by prompt id.
        """
        return [self._resolve(request, done) for request in requests]

    def _resolve(self, request: Request, done: Mapping[str, Generation]) -> Request:
        follow_up = self.follow_ups.get(request.prompt_id)
        if follow_up is None:
            return request
        own = self.texts(done[prompt_id] for prompt_id in follow_up.earlier)
        ids = self.task.encode(
            follow_up.example, self.tokenizer, follow_up.turn, list(own.values())
        )
        return Request(request.prompt_id, ids, request.max_new_tokens, request.stop_ids)

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


def prompt_ids(task: Task | RandomPrompts, example: Example) -> tuple[str, ...]:
    """Ids of the turns that are asked: the example's own; where it has several, with ``/TURN``."""
    if len(example.turns) == 1:
        return example.prompt_ids
    assert isinstance(task, Task), "random prompts have one turn"
    return example.prompt_ids[: task.asked(example)]
