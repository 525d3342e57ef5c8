"""One example of a task, ready to be put to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Example:
    """What is asked, and what a good answer looks like."""

    id: str  # unique within the task and the same whatever the limit and the offset
    # what the user says, one text per turn; most tasks have one turn. For tasks that are not chats
    # this is the whole prompt.
    turns: tuple[str, ...]
    # reference answers of each turn, as many tuples as turns; empty where there are none (no
    # reference, or a question without an answer).
    references: tuple[tuple[str, ...], ...]
    # the row's other columns, as they came
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # fixed answers that later turns continue in place of the references; empty where none were
    # given.
    answers: tuple[str, ...] = ()
    system: str = ""  # what stands before the conversation, "" where nothing does
    category: str = ""  # what kind of prompt it is; "" where the row does not say

    @property
    def prompt_ids(self) -> tuple[str, ...]:
        """One id per turn: the example's own, with ``/turn`` behind it where there are several."""
        if len(self.turns) == 1:
            return (self.id,)
        return tuple(f"{self.id}/{turn}" for turn in range(len(self.turns)))
