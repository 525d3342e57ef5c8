"""What a job asks: a task's examples, in order, and those of a search's second stage."""

from __future__ import annotations

import logging
from dataclasses import replace

from spec_bench.jobs.config.config import RunSettings
from spec_bench.metrics.interval import FEWEST
from spec_bench.tasks import Example, RandomPrompts, Task

log = logging.getLogger(__name__)


def examples_of(task: Task | RandomPrompts, asked: RunSettings) -> tuple[Example, ...]:
    """What is asked, in order."""
    return tuple(task.examples(asked.prompts))


def shared(asked: RunSettings, task: Task | RandomPrompts) -> RunSettings:
    """The same with fewer ``prompts`` where the task would not leave a search's second stage enough
    for an interval and ``confirm.share`` is set; a log line tells how the rows are shared.

    Raises:
        ValueError: a search has no row for its second stage.
    """
    confirm, first = asked.confirm, asked.prompts
    if confirm is None or first is None:
        return asked
    count = len(task.examples(first + confirm.prompts))
    if confirm.share and count > 1 and count - first < min(confirm.prompts, FEWEST):
        first = min(first, max(1, round(count * first / (first + confirm.prompts))))
        log.warning(
            "%s has %d prompts: %d for the first look, %d fresh ones to measure on",
            *(task.name, count, first, count - first),
        )
    if count <= first:
        raise ValueError(
            f"task {task.name} has {count} prompt{'' if count == 1 else 's'}, and prompts={first} "
            "leaves none fresh for confirm; give more, or fewer prompts=NUMBER"
        )
    return replace(asked, prompts=first)


def on_hub(task: Task | RandomPrompts) -> bool:
    """Whether a task's rows are the hub's."""
    return isinstance(task, Task) and task.source.kind == "hub"


def stand_ins(count: int | None) -> tuple[Example, ...]:
    """So many examples of nothing."""
    return tuple(Example(str(index), ("",), ((),)) for index in range(count or 0))


def fresh_examples(asked: RunSettings, task: Task | RandomPrompts | None) -> tuple[Example, ...]:
    """The examples of a search's second stage: those after the first one's; stand-ins where there
    is no task.

    Raises:
        ValueError: there are none.
    """
    if asked.confirm is None:
        return ()
    if task is None:
        return stand_ins(asked.confirm.prompts)
    assert asked.prompts is not None
    return tuple(task.examples(asked.confirm.prompts, asked.prompts))
