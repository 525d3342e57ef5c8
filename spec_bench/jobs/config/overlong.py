"""Prompts that the target has no room for, recognised by files alone, before torch is imported.

Only what is certain: a chat template may join a few tokens at a text's ends, and draft trees take
positions too. ``positions`` looks at the whole, once the models' settings are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spec_bench.engine.token_counts import token_counter
from spec_bench.jobs.config.early import read_positions
from spec_bench.jobs.config.model_files import model_path
from spec_bench.jobs.config.pair import PairSettings
from spec_bench.tasks import Example, RandomPrompts, Task

WAYS_OUT = (
    "task.overlong=skip leaves such prompts out, task.overlong=truncate cuts the middle out of "
    "their texts, a smaller generation.max_new_tokens leaves more room"
)
_JOINED = 8  # tokens that a template may save at a text's ends


def refuse_surely_overlong(
    pair: PairSettings, task: Task | RandomPrompts, examples: Sequence[Example], new_tokens: int
) -> None:
    """Refuses prompts whose first turn alone is longer than the target's room.

    Raises:
        ValueError: with their number, the first one's tokens, the target, and the ways out.
    """
    positions = read_positions(model_path(pair.target))
    if positions is None or not isinstance(task, Task) or task.overlong != "fail":
        return
    room = positions - new_tokens + _JOINED
    # A token has a byte at least: what has no more bytes need not be counted.
    long = [each for each in examples if len(each.turns[0].encode()) > room]
    count = token_counter(Path(model_path(pair.tokenizer or pair.target))) if long else None
    if count is None:
        return
    counted = [(count(example.turns[0]), example.id) for example in long]
    over = [each for each in counted if each[0] > room]
    if over:
        tokens, name = over[0]
        raise ValueError(
            f"task {task.name}: {len(over)} of {len(examples)} prompts are too long: {name!r} has "
            f"{tokens} tokens and gets {new_tokens} new ones, {pair.target!r} has {positions} "
            f"positions; {WAYS_OUT}"
        )
