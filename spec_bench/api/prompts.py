"""What a user may ask: a text, a conversation, or several; and under which id each is asked.

The random draws of a prompt come from one generator, seeded by SHA-256 of the seed and the prompt's
id (``core.draws.row_seed``). In a job the id is the row's (``question_id``, with ``/TURN`` where a
row has several turns); a text without an id has one that follows from its letters, here and in the
file that ``run(texts=...)`` writes. So a text has one answer per seed and decoder, whatever it is
decoded beside.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spec_bench.system import files
from spec_bench.tasks.example import read_turns

Message = Mapping[str, str]
Prompt = str | Sequence[Message]
_KINDS = (
    "a text, a list of texts, a conversation (a list of messages with role and content) or a list "
    "of conversations"
)


def prompts_of(asked: Any, name: str = "prompt") -> tuple[list[Prompt], bool]:
    """The prompts that were asked, and whether they came as a list.

    Args:
        asked: a text, a list of messages, or a list (a column of a frame) of either.
        name: the argument's, for messages.

    Raises:
        ValueError: anything else, or messages that do not take turns.
    """
    if isinstance(asked, str):
        return [asked], False
    items = list(asked) if isinstance(asked, Iterable) and not isinstance(asked, Mapping) else None
    if items is None or isinstance(asked, bytes):
        raise ValueError(f"{name} must be {_KINDS}, got {shown(asked)}")
    if items and isinstance(items[0], Mapping):
        return [_conversation(items, name)], False
    prompts: list[Prompt] = []
    for place, item in enumerate(items):
        if isinstance(item, str):
            prompts.append(item)
        elif isinstance(item, list | tuple) and item and isinstance(item[0], Mapping):
            prompts.append(_conversation(item, f"{name}[{place}]"))
        else:
            raise ValueError(f"{name} must be {_KINDS}, got {shown(item)} in the list")
    return prompts, True


def _conversation(messages: Sequence[Any], name: str) -> Sequence[Message]:
    turns = read_turns(messages, name)
    if len(turns.answers) == len(turns.asked):
        raise ValueError(f"{name}: the last message must be the user's, for there to be an answer")
    return messages


def prompt_id(prompt: Prompt) -> str:
    """The id of a prompt that has none of its own."""
    plain = prompt if isinstance(prompt, str) else [dict(message) for message in prompt]
    return f"text-{files.digest(plain, 12)}"


def write_texts(prompts: Sequence[Prompt], results: Path) -> Path:
    """Writes prompts as the file that ``task=jsonl`` reads, under a name that follows from them.

    Args:
        prompts: in the order asked; one that stands twice is asked twice, with draws of its own.
        results: the results folder.
    """
    seen: Counter[str] = Counter()
    lines = []
    for prompt in prompts:
        prompt_key = prompt_id(prompt)
        seen[prompt_key] += 1
        name = prompt_key if seen[prompt_key] == 1 else f"{prompt_key}-{seen[prompt_key]}"
        turns = [prompt] if isinstance(prompt, str) else [dict(message) for message in prompt]
        lines.append(json.dumps({"question_id": name, "turns": turns}, ensure_ascii=False))
    path = results / files.RUNS / "texts" / f"{files.digest(lines, 12)}.jsonl"
    files.write_text(path, "\n".join(lines) + "\n")
    return path


def stops_of(stop: Any) -> tuple[str, ...]:
    """Stop strings from one or several.

    Raises:
        ValueError: something that is no text, or an empty one.
    """
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for each in stops:
        if not isinstance(each, str) or not each:
            raise ValueError(f"stop must be texts that are not empty, got {each!r}")
    return stops


def shown(value: Any) -> str:
    """A value in a message of one line: its type and how it begins."""
    text = " ".join(repr(value).split())
    return f"{type(value).__name__} {text[:60]}{'…' if len(text) > 60 else ''}"
