"""Positions that prompts and answers may take, by the models' configs: no weights are read."""

from __future__ import annotations

from collections.abc import Sequence

from spec_bench.engine.loading import read_context_length
from spec_bench.engine.model_spec import ModelSpec
from spec_bench.jobs.config.overlong import WAYS_OUT
from spec_bench.jobs.config.room import levels_of
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.records.types import Request
from spec_bench.tasks import Task
from spec_bench.tasks.example import TREE_LEVELS


def context_of(settings: JobSettings) -> int | None:
    """Tokens of a prompt and its answer that all models have room for; None if none says.

    It follows from the pair alone: a cell has the same prompts in every job.
    """
    known = [length for spec in settings.pair.specs if (length := _length(spec)) is not None]
    return min(known) - TREE_LEVELS if known else None


def refuse_overlong(settings: JobSettings, requests: Sequence[Request]) -> None:
    """Refuses prompts that some cell's models have no room for.

    Raises:
        ValueError: naming the first such prompt, what it needs, the model, and the ways out.
    """
    if settings.served:
        return  # the server knows its limit
    lengths = [(_length(spec), spec.path) for spec in settings.pair.specs]
    known = [
        (length - levels, length, levels, path)
        for levels, drafts in {(levels_of(each.config), each.drafts) for each in settings.cells}
        for length, path in lengths[: 1 + drafts]
        if length is not None
    ]
    if not known:
        return
    room, length, levels, path = min(known)
    over = [each for each in requests if len(each.prompt_ids) + each.max_new_tokens > room]
    if over:
        first, count = over[0], f"{len(over)} of {len(requests)} prompts are too long"
        prompt, new = len(first.prompt_ids), first.max_new_tokens
        raise ValueError(
            f"task {settings.task.name}: {count}: prompt {first.prompt_id!r} needs "
            f"{prompt + new + levels} positions ({prompt} prompt + "
            f"{new} new + {levels} tree levels), {path!r} has {length}; {_ways_out(settings)}"
        )


def _ways_out(settings: JobSettings) -> str:
    if not isinstance(settings.task, Task):
        return "make task.prompt_tokens or generation.max_new_tokens smaller"
    return WAYS_OUT


def _length(spec: ModelSpec) -> int | None:
    """A model's longest sequence; None if it has no limit or its config cannot be read."""
    try:
        return read_context_length(spec.path, spec.revision)
    except Exception:  # whatever it is, loading the model hits it again and says so
        return None
