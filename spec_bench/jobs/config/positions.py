"""Positions and cache slots that prompts, trees and answers take; no weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spec_bench.engine.model_spec import ModelSpec
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.records.types import Request
from spec_bench.tasks import Task
from spec_bench.tasks.example import TREE_LEVELS

if TYPE_CHECKING:
    from spec_bench.decode.config import DecoderConfig


def levels_of(config: DecoderConfig) -> int:
    """Positions that a draft tree takes behind the text, the built decoder's ``depth``."""
    from spec_bench.tree.base import GrownTree  # imports torch

    tree: Any = config.tree
    return int(tree.shape.depth if isinstance(tree, GrownTree) else getattr(tree, "depth", 0))


def slots_of(config: DecoderConfig, prompt: int, new_tokens: int) -> int:
    """What the built decoder's ``slots_needed`` says; ``prompt`` is the tokens of the longest
    prompt.
    """
    from spec_bench.tree.base import GrownTree

    tree: Any = config.tree
    if isinstance(tree, GrownTree):
        return prompt + new_tokens + tree.slots
    branches = 1 if getattr(config.verifier, "one_cache", False) else tree.width
    return prompt + branches * (new_tokens + 2) + getattr(tree, "depth", 0) * tree.width


def context_of(settings: JobSettings) -> int | None:
    """Tokens of a prompt and its answer that all models have room for; None if none says.

    It follows from the pair alone: a cell has the same prompts in every job.
    """
    known = [length for spec in settings.pair.specs if (length := _length(spec)) is not None]
    return min(known) - TREE_LEVELS if known else None


def refuse_overlong(settings: JobSettings, requests: Sequence[Request]) -> None:
    """Refuses prompts that some cell's models have no room for."""
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
    return (
        "task.overlong=skip leaves such prompts out, task.overlong=truncate cuts the middle out of "
        "their texts, a smaller generation.max_new_tokens leaves more room"
    )


def _length(spec: ModelSpec) -> int | None:
    """A model's longest sequence; None if it has no limit or its config cannot be read."""
    from spec_bench.engine.loading import read_context_length

    try:
        return read_context_length(spec.path, spec.revision)
    except Exception:  # whatever it is, loading the model hits it again and says so
        return None
