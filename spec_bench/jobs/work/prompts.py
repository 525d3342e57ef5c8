"""What a job decodes and scores: the task's examples as requests, and back from ids to texts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spec_bench.jobs.config.positions import context_of, refuse_overlong
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.records.types import Generation, Request
from spec_bench.tasks import Example, RandomPrompts, Task
from spec_bench.tasks.example import fitted

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FollowUp:
    """A later turn that continues a cell's own answers, so it is asked once they are there."""

    example: Example  # what is asked
    turn: int  # which turn of it, from 1
    earlier: tuple[str, ...]  # prompt ids of the turns before it


@dataclass(frozen=True)
class Prompts:
    """A job's requests and what good answers look like."""

    # One per turn that is asked of each example. A later turn continues fixed answers, so that all
    # decoders continue the same text, or the cell's own (`follow_ups`): such a request has a prompt
    # as long as it can become here; `resolved` has the real one.
    requests: tuple[Request, ...]
    references: dict[str, list[str]]  # by prompt id
    task: Task | RandomPrompts
    tokenizer: Any
    # what continues a cell's answers, by prompt id
    follow_ups: Mapping[str, FollowUp] = field(default_factory=dict)
    left_out: int = 0  # turns that are not asked, for want of a fixed answer to continue
    examples: tuple[Example, ...] = ()  # what is asked, overlong ones cut or left out
    truncated: int = 0  # how many were cut
    skipped: int = 0  # how many were left out

    @classmethod
    def build(cls, settings: JobSettings, tokenizer: Any) -> Prompts:
        """Encodes the job's examples.

        Raises:
            ValueError: the models have no room for a prompt, those to be cut cannot be, or none is
                left.
        """
        task = settings.task
        asked, truncated = list[tuple[Example, list[Request]]](), 0
        room = _room(settings)
        for example in settings.examples:
            requests = _requests(settings, tokenizer, example)
            if room is not None and _longest(settings, requests) > room:
                assert isinstance(task, Task)
                if task.overlong == "skip":
                    continue
                cut = fitted(
                    *(example, room, task.cut_to),
                    lambda each: _longest(settings, _requests(settings, tokenizer, each)),
                )
                example, requests, truncated = (
                    cut,
                    _requests(settings, tokenizer, cut),
                    truncated + 1,
                )
            asked.append((example, requests))
        skipped = len(settings.examples) - len(asked)
        if not asked:
            raise ValueError(
                f"task {task.name}: all {skipped} prompts are longer than {room} tokens"
            )
        refuse_overlong(settings, [each for _, requests in asked for each in requests])
        if truncated or skipped:
            log.warning(
                "%s: of %d prompts longer than %d tokens are cut %d, left out %d",
                *(task.name, len(settings.examples), room, truncated, skipped),
            )
        return cls._of(settings, tokenizer, asked, truncated, skipped)

    @classmethod
    def _of(
        cls,
        settings: JobSettings,
        tokenizer: Any,
        asked: Sequence[tuple[Example, Sequence[Request]]],
        truncated: int,
        skipped: int,
    ) -> Prompts:
        """Examples and their requests as they are."""
        task = settings.task
        requests: list[Request] = []
        references, follow_ups, left_out = {}, {}, 0
        for example, of_example in asked:
            names = prompt_ids(task, example)
            for turn, prompt_id in enumerate(names):
                if turn and isinstance(task, Task) and task.later_turns == "own":
                    follow_ups[prompt_id] = FollowUp(example, turn, names[:turn])
                references[prompt_id] = task.references(example, turn)
            requests += of_example
            if isinstance(task, Task) and task.later_turns == "fixed":
                left_out += len(example.turns) - len(names)
        log.info("%s: %d prompts", task.name, len(requests))
        if (least := min(each.max_new_tokens for each in requests)) < settings.max_new_tokens:
            limits = (task.name, least, settings.max_new_tokens)
            log.warning("%s: room for %d to %d new tokens of later turns", *limits)
        if left_out:
            log.warning(
                "%s: %d later turns are not asked: no fixed answer to continue (task.answers)",
                *(task.name, left_out),
            )
        return cls(
            *(tuple(requests), references, task, tokenizer, follow_ups, left_out),
            *(tuple(example for example, _ in asked), truncated, skipped),
        )

    def waves(self) -> list[tuple[Request, ...]]:
        """The requests in groups; a group needs answers only of groups before it."""
        turns: dict[int, list[Request]] = {}
        for request in self.requests:
            follow_up = self.follow_ups.get(request.prompt_id)
            turns.setdefault(follow_up.turn if follow_up else 0, []).append(request)
        return [tuple(turns[turn]) for turn in sorted(turns)]

    def resolved(
        self, requests: Sequence[Request], done: Mapping[str, Generation]
    ) -> list[Request]:
        """The requests of one wave as one cell decodes them, after its generations so far, by
        prompt id.
        """
        return [self._resolve(request, done) for request in requests]

    def _resolve(self, request: Request, done: Mapping[str, Generation]) -> Request:
        follow_up = self.follow_ups.get(request.prompt_id)
        if follow_up is None:
            return request
        answers = self.texts(done[prompt_id] for prompt_id in follow_up.earlier)
        ids = self.task.encode(
            follow_up.example, self.tokenizer, follow_up.turn, list(answers.values())
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

    @cached_property
    def categories(self) -> dict[str, str]:
        """What kind each prompt is, by prompt id."""
        return {
            prompt_id: example.category
            for example in self.examples
            for prompt_id in prompt_ids(self.task, example)
        }

    def scores(self) -> tuple[str, ...]:
        """The task's scores."""
        return self.task.scores


def _requests(settings: JobSettings, tokenizer: Any, example: Example) -> list[Request]:
    """An example's requests, one per turn that is asked.

    If turns continue own answers, a later one's limit is what is left of the models' room after
    answers at their limits, so that 1024 tokens per turn fit into 2048.
    """
    task, limit = settings.task, settings.max_new_tokens
    stop_ids, requests, room = task.stop_ids(tokenizer), list[Request](), None
    for turn, prompt_id in enumerate(prompt_ids(task, example)):
        if turn and isinstance(task, Task) and task.later_turns == "own":
            ids = task.encode(example, tokenizer, turn, [""] * turn)
            ids += ids[-1:] * (turn * limit)
            room = context_of(settings) if room is None else room
            left = limit if room is None else min(limit, room - len(ids))
            # If not even one token is left the prompt is refused as it is.
            requests.append(Request(prompt_id, ids, left if left > 0 else limit, stop_ids))
        else:
            ids = task.encode(example, tokenizer, turn)
            requests.append(Request(prompt_id, ids, limit, stop_ids))
    return requests


def _longest(settings: JobSettings, requests: Sequence[Request]) -> int:
    """Tokens of the longest prompt, less what its limit leaves of the job's."""
    limit = settings.max_new_tokens
    return max((len(each.prompt_ids) + each.max_new_tokens - limit for each in requests), default=0)


def _room(settings: JobSettings) -> int | None:
    """Tokens that a prompt may have if longer ones are cut or left out, by the models' configs.

    It follows from the pair and the limit alone: a cell has the same prompts in every job.
    """
    if not isinstance(settings.task, Task) or settings.task.overlong == "fail":
        return None
    room = context_of(settings)
    return None if room is None else room - settings.max_new_tokens


def prompt_ids(task: Task | RandomPrompts, example: Example) -> tuple[str, ...]:
    """Ids of the turns that are asked: the example's; where it has several, with ``/TURN``."""
    if len(example.turns) == 1:
        return example.prompt_ids
    assert isinstance(task, Task), "random prompts have one turn"
    return example.prompt_ids[: task.asked(example)]
