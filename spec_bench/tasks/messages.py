"""Turns of a row: plain texts, or chat messages with roles.

A list of messages is a recorded conversation: what the user says are the turns, what the assistant
answered between them are the fixed answers that later turns continue, an answer to the last turn is
a reference, and a system message at the start stands before everything. Knows the shape of
messages; nothing about templates or models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Turns:
    """What a row asks."""

    asked: tuple[str, ...]  # what the user says, one text per turn, none of them blank
    # what the assistant answered, at most one per turn; empty for plain texts
    answers: tuple[str, ...] = ()
    system: str = ""  # the system message, "" where there is none


def read_turns(value: Any, where: str) -> Turns:
    """The turns in a row's field.

    Args:
        value: one text, a list of texts, or a list of ``{"role": ..., "content": ...}``.
        where: the field's name, for messages.

    Raises:
        ValueError: nothing there, a turn that is neither text nor message, a blank turn, or
            messages that do not take turns; names the place and the value.
    """
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not items:
        raise ValueError(f"no turns in field {where!r}, got {value!r}")
    if any(isinstance(item, Mapping) for item in items):
        return _conversation(items, where)
    for place, item in enumerate(items):
        if not isinstance(item, str):
            raise ValueError(
                f"{where}[{place}] must be a text or a message with role and content, got {item!r}"
            )
    return Turns(_not_blank(items, where))


def _conversation(items: Sequence[Any], where: str) -> Turns:
    """User and assistant in turn, after at most one system message."""
    spoken: dict[str, list[str]] = {role: [] for role in ROLES}
    for place, item in enumerate(items):
        role, content = _message(item, f"{where}[{place}]")
        turn = len(spoken["user"]) - len(spoken["assistant"])
        fits = {"system": place == 0, "user": turn == 0, "assistant": turn == 1}
        if not fits[role]:
            raise ValueError(
                f"{where}[{place}]: messages must go system (at most once, first), user, "
                f"assistant, user, ..., got {role!r} here"
            )
        spoken[role].append(content)
    if not spoken["user"]:
        raise ValueError(f"no user's message in field {where!r}")
    asked = _not_blank(spoken["user"], where)
    return Turns(asked, tuple(spoken["assistant"]), "".join(spoken["system"]))


def _message(item: Any, where: str) -> tuple[str, str]:
    """Role and text of a message."""
    role = item.get("role") if isinstance(item, Mapping) else None
    content = item.get("content") if isinstance(item, Mapping) else None
    if role not in ROLES or not isinstance(content, str):
        raise ValueError(
            f"{where} must be a message with a role ({', '.join(ROLES)}) and a text as content, "
            f"got {item!r}"
        )
    return str(role), content


def _not_blank(texts: Sequence[str], where: str) -> tuple[str, ...]:
    for turn, text in enumerate(texts):
        if not text.strip():
            raise ValueError(f"turn {turn} in field {where!r} is blank, got {text!r}")
    return tuple(texts)


def read_references(value: Any, where: str) -> list[tuple[str, ...]]:
    """The reference answers in a row's field, each place with the answers that are as good.

    Args:
        value: a text, a number, null, or a list of them, in which a place may itself be a list.
        where: the field's name, for messages.

    Returns:
        A tuple for each place, empty where it is null.

    Raises:
        ValueError: a reference that is neither text nor number, naming it.
    """
    return [_answers(item, f"{where}[{place}]") for place, item in enumerate(_listed(value))]


def _answers(item: Any, where: str) -> tuple[str, ...]:
    answers = []
    for answer in _listed(item):
        if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
            raise ValueError(f"{where} must be a text, a number, null or a list, got {item!r}")
        if answer is not None:
            answers.append(str(answer))
    return tuple(answers)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
