"""Prompts that a chat model writes itself: what it takes a user to say.

What follows the template's opening of a user's turn is sampled at temperature 1 until that turn
ends (Magpie, arXiv 2406.08464, section 2). Nobody's data, and as many as are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.tasks.template import chat_text
from spec_bench.train.answer_settings import AnswerSettings
from spec_bench.train.answers import answer_prompts
from spec_bench.train.chats import chat_prompts

_LONGEST = 64  # tokens; a turn that has not ended by then is dropped
_MARK = "\N{SYMBOL FOR UNIT SEPARATOR}"


def user_opening(tokenizer: Any) -> tuple[int, ...]:
    """The ids that a chat template writes before a user's first words.

    Raises:
        ValueError: the tokenizer has no chat template, or one that drops what the user says.
    """
    text = chat_text(tokenizer, [{"role": "user", "content": _MARK}], asks=False)
    return tuple(tokenizer(text.partition(_MARK)[0], add_special_tokens=False)["input_ids"])


def sampled_prompts(
    model: HuggingFaceModel,
    tokenizer: Any,
    count: int,
    stop_ids: Sequence[int],
    answers: AnswerSettings,
    file: Path,
    progress: bool = False,
) -> list[tuple[int, ...]]:
    """Distinct prompts, up to the assistant's turn.

    Args:
        model: the target.
        tokenizer: with a chat template.
        count: turns that are sampled; those that do not end, or repeat another one, are dropped.
        stop_ids: tokens that end a turn.
        answers: batch size and seed.
        file: what is sampled so far; a run that was killed goes on from it.
        progress: whether a bar is shown.
    """
    opening = user_opening(tokenizer)
    settings = AnswerSettings((1.0,), _LONGEST, answers.batch_size, answers.seed)
    turns = answer_prompts(model, [opening] * count, stop_ids, settings, file, progress)
    ended = (turn[:-1] for turn in turns if turn[-1] in set(stop_ids))
    texts = (tokenizer.decode(turn, skip_special_tokens=True).strip() for turn in ended)
    chats = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": ""}]
        for text in dict.fromkeys(texts)
        if text
    ]
    return [chat_prompts(chat, tokenizer)[0] for chat in chats]
