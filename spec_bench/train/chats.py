"""Chats in ShareGPT's format: a list of {"conversations": [{"from": "human", "value": ...}, ...]}.

A JSON file holds the list, a JSONL file one chat a line; {"messages": [{"role": ..., "content":
...}]} is read as well. Knows text and a tokenizer's chat template, nothing about models.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spec_bench.tasks.template import chat_text
from spec_bench.train.dialogues import Dialogue

log = logging.getLogger(__name__)

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
}
EXPECTED = '{"conversations": [{"from": "human" or "gpt", "value": "..."}, ...]}'
Messages = list[dict[str, str]]


def read_chats(file: Path) -> list[Messages]:
    """All chats of a JSON or JSONL file that a chat template can render, as messages {"role",
    "content"}.

    As FastChat does, answers before the first question are dropped. Chats in which the speakers do
    not take turns, or that no assistant answers, are left out; the log says how many.

    Raises:
        ValueError: no such file, no JSON, a record that is no chat, or no chat left over; one line
            that names the file, the record or line, and what is expected.
    """
    if not file.is_file():
        raise ValueError(
            f"data.path: no file {str(file)!r}; a JSON or JSONL file of chats is needed"
        )
    chats, left_out = [], 0
    for place, record in _records(file):
        messages = _messages(record, f"{file.name}, {place}")
        if (chat := _in_turns(messages)) is None:
            left_out += 1
        else:
            chats.append(chat)
    if not chats:
        raise ValueError(
            f"{file.name}: none of its {left_out} records is a chat of alternating turns with an "
            f"answer; expected {EXPECTED}"
        )
    if left_out:
        log.info("%s: %d of %d chats left out", file.name, left_out, left_out + len(chats))
    return chats


def encode_chat(messages: Messages, tokenizer: Any) -> Dialogue:
    """A chat as the tokenizer's template writes it; learned is what the assistant says.

    The end that the template gives an answer is learned with it.

    Raises:
        ValueError: no chat template, a slow tokenizer, or a template that rewrites earlier turns.
    """
    text, spans = _rendered(messages, tokenizer)
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError("chats need a fast tokenizer: only those know a token's place in the text")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learned = tuple(
        any(start <= at < end for start, end in spans) for at, _ in encoded["offset_mapping"]
    )
    return Dialogue(tuple(encoded["input_ids"]), learned)


def chat_prompts(messages: Messages, tokenizer: Any) -> list[tuple[int, ...]]:
    """The token ids before each of the assistant's turns, for the target to answer itself."""
    prompts = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            text = chat_text(tokenizer, messages[:index])
            prompts.append(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
    return prompts


def _rendered(messages: Messages, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The whole text, and where in it the assistant speaks."""
    text, spans = "", []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = chat_text(tokenizer, messages[:index])
        after = chat_text(tokenizer, messages[: index + 1], False)
        if not (before.startswith(text) and after.startswith(before)):
            raise ValueError(
                "the chat template writes earlier turns differently once later ones follow; "
                "set pair.chat_template to one that does not"
            )
        spans.append((len(before), len(after)))
        text = after
    return text, spans


def _records(file: Path) -> Iterator[tuple[str, Any]]:
    """(line or record, value) of a file."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield f"line {number}", _parsed(line, f"{file.name}, line {number}")
        return
    records = _parsed(text, file.name)
    if not isinstance(records, list):
        raise ValueError(f"{file.name}: holds {_kind(records)}; expected a list of {EXPECTED}")
    for number, record in enumerate(records, start=1):
        yield f"record {number}", record


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: no JSON ({error}); expected {EXPECTED}") from None


def _messages(record: Any, where: str) -> Messages:
    """A record's turns.

    Raises:
        ValueError: it is no chat; the message names what is wrong with it.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{where}: {_kind(record)}; expected {EXPECTED}")
    key, who, what = (
        ("messages", "role", "content")
        if "conversations" not in record and "messages" in record
        else ("conversations", "from", "value")
    )
    turns = record.get(key)
    if not isinstance(turns, list):
        has = "no 'conversations'" if key not in record else f"{key!r} is {_kind(turns)}"
        raise ValueError(f"{where}: {has}; expected {EXPECTED}")
    messages = []
    for number, turn in enumerate(turns, start=1):
        at = f"{where}, turn {number}"
        if not isinstance(turn, dict) or not isinstance(turn.get(what), str):
            raise ValueError(f"{at}: no text under {what!r}; expected {EXPECTED}")
        if turn.get(who) not in ROLES:
            raise ValueError(
                f"{at}: {who!r} is {turn.get(who)!r}; expected one of {', '.join(ROLES)}"
            )
        messages.append({"role": ROLES[turn[who]], "content": turn[what]})
    return messages


def _in_turns(messages: Messages) -> Messages | None:
    """The chat from its first question to its last answer; None where turns do not alternate."""
    system = messages[:1] if messages and messages[0]["role"] == "system" else []
    rest = messages[len(system) :]
    while rest and rest[0]["role"] == "assistant":
        rest = rest[1:]
    if len(rest) % 2:
        rest = rest[:-1]
    expected = ["user", "assistant"] * (len(rest) // 2)
    if not rest or [message["role"] for message in rest] != expected:
        return None
    return system + rest


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", type(None): "null"}
    return names.get(type(value), f"a {type(value).__name__}")
