"""What a job asks: a task's examples, in order, and those of a search's second stage."""

from __future__ import annotations

from spec_bench.jobs.config.config import RunSettings
from spec_bench.tasks import Example, RandomPrompts, Task


def examples_of(task: Task | RandomPrompts, asked: RunSettings) -> tuple[Example, ...]:
    """What is asked, in order."""
    return tuple(task.examples(asked.prompts))


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
