"""Prompts that the target has no room for, found by files alone, before torch is imported.

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
        ValueError: naming the first such prompt, its tokens, the target, and the ways out.
    """
    positions = read_positions(model_path(pair.target))
    if positions is None or not isinstance(task, Task) or task.overlong != "fail":
        return
    room = positions - new_tokens + _JOINED
    # A token has a byte at least: what has no more bytes need not be counted.
    long = [each for each in examples if len(each.turns[0].encode()) > room]
    count = token_counter(Path(model_path(pair.tokenizer or pair.target))) if long else None
    for example in long if count else ():
        assert count is not None
        tokens = count(example.turns[0])
        if tokens > room:
            raise ValueError(
                f"task {task.name}: prompt {example.id!r} has {tokens} tokens and gets "
                f"{new_tokens} new ones, {pair.target!r} has {positions} positions; {WAYS_OUT}"
            )
