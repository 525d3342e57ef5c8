"""One example of a task, ready to be put to a model: its turns, what they continue, its room.

A row's turns are plain texts or chat messages with roles. A list of messages is a recorded
conversation: what the user says are the turns, what the assistant answered between them are the
fixed answers that later turns continue, an answer to the last turn is a reference, and a system
message at the start stands before everything. Knows nothing about templates, models, or who
answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from spec_bench.system.errors import UsageError
from spec_bench.tasks.prompt_files import iter_json_lines, parse_message

ROLES = ("system", "user", "assistant")
CUT = " ... "
"""Stands where letters were cut out."""
TREE_LEVELS = 64
"""Positions left for draft trees, the same for all decoders, so that all have the same prompts."""


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
    shots: tuple[tuple[str, str], ...] = ()  # worked examples before it: what is asked, the answer

    @property
    def prompt_ids(self) -> tuple[str, ...]:
        """One id per turn: the example's own, with ``/turn`` behind it where there are several."""
        if len(self.turns) == 1:
            return (self.id,)
        return tuple(f"{self.id}/{turn}" for turn in range(len(self.turns)))


@dataclass(frozen=True)
class ConversationTurns:
    """What a row asks."""

    asked: tuple[str, ...]  # what the user says, one text per turn, none of them blank
    # what the assistant answered, at most one per turn; empty for plain texts
    answers: tuple[str, ...] = ()
    system: str = ""  # the system message, "" where there is none


def read_turns(value: Any, where: str) -> ConversationTurns:
    """The turns in a row's field of that name: one text, a list of texts, or a list of ``{"role":
    ..., "content": ...}``. Raises ValueError: nothing there, a turn that is neither text nor
    message, a blank turn, or messages that do not take turns; names the place and the value.
    """
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not items:
        raise UsageError(f"no turns in field {where!r}, got {value!r}")
    if any(isinstance(item, Mapping) for item in items):
        turns = _conversation(items, where)
    else:
        for place, item in enumerate(items):
            if not isinstance(item, str):
                raise UsageError(
                    f"{where}[{place}] must be a text or a message with role and content, got "
                    f"{item!r}"
                )
        turns = ConversationTurns(tuple(items))
    for turn, text in enumerate(turns.asked):
        if not text.strip():
            raise UsageError(f"turn {turn} in field {where!r} is blank, got {text!r}")
    return turns


def _conversation(items: Sequence[Any], where: str) -> ConversationTurns:
    """User and assistant in turn, after at most one system message."""
    spoken: dict[str, list[str]] = {role: [] for role in ROLES}
    for place, item in enumerate(items):
        role, content = parse_message(item)
        if role is None or not isinstance(content, str):
            raise UsageError(
                f"{where}[{place}] must be a message with a role ({', '.join(ROLES)}) and a text "
                f"as content, got {item!r}"
            )
        turn = len(spoken["user"]) - len(spoken["assistant"])
        fits = {"system": place == 0, "user": turn == 0, "assistant": turn == 1}
        if not fits[role]:
            raise UsageError(
                f"{where}[{place}]: messages must go system (at most once, first), user, "
                f"assistant, user, ..., got {role!r} here"
            )
        spoken[role].append(content)
    if not spoken["user"]:
        raise UsageError(f"no user's message in field {where!r}")
    return ConversationTurns(
        tuple(spoken["user"]), tuple(spoken["assistant"]), "".join(spoken["system"])
    )


def read_references(value: Any, where: str) -> list[tuple[str, ...]]:
    """The reference answers in a row's field of that name, a tuple of those that are as good for
    each place, empty where it is null: a text, a number, null, or a list of them, in which a place
    may itself be a list. Raises ValueError: a reference that is neither text nor number, naming it.
    """
    references = []
    for place, item in enumerate(_wrap_in_list(value)):
        answers = _wrap_in_list(item)
        for each in answers:
            if isinstance(each, bool) or not isinstance(each, str | int | float | None):
                raise UsageError(
                    f"{where}[{place}] must be a text, a number, null or a list, got {item!r}"
                )
        references.append(tuple(str(each) for each in answers if each is not None))
    return references


def _wrap_in_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def get_fixed_answers(example: Example) -> tuple[str, ...]:
    """The answers that are the same for every decoder, up to the first turn that has none."""
    return example.answers or tuple(golds[0] for golds in takewhile(bool, example.references))


def get_history(
    task: str, example: Example, turn: int, given: Sequence[str] | None
) -> tuple[str, ...]:
    """The answers that a turn continues, one per earlier turn. Raises ValueError: no such turn, or
    an earlier turn without an answer.
    """
    if not 0 <= turn < len(example.turns):
        raise UsageError(
            f"task {task}: example {example.id} has turns 0..{len(example.turns) - 1}, not {turn}"
        )
    history = get_fixed_answers(example) if given is None else given
    if len(history) < turn:
        raise UsageError(
            f"task {task}: turn {turn} of example {example.id} needs the answers to the"
            f" {turn} turns before it, got {len(history)}"
        )
    return tuple(history[:turn])


def read_answers(path: Path, examples: Sequence[Example]) -> dict[str, tuple[str, ...]]:
    """The answers that a file in FastChat's format (``reference_answer/gpt-4.jsonl``) gives to
    these examples, by id; each needs one to every turn but its last. Raises ValueError: no such
    file, a line that is no answer, or an example without one.
    """
    given: dict[str, tuple[str, ...]] = {}
    for line in iter_json_lines(path, "task.answers"):
        where = f"task.answers: {path.name}, {line.place}"
        try:
            key = line["question_id"]
            turns = line["choices"][0]["turns"]
        except (TypeError, LookupError):
            raise UsageError(
                f"{where}: no answer; needs question_id and choices: [{{turns: [...]}}]"
            ) from None
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise UsageError(f"{where}: turns must be a list of texts")
        given[str(key)] = tuple(turns)
    for example in examples:
        needed = len(example.turns) - 1
        there = len(given.get(example.id, ()))
        if there < needed:
            raise UsageError(
                f"task.answers: {path.name} has answers to {there} turns of question {example.id},"
                f" needed: {needed}"
            )
    return {example.id: given.get(example.id, ()) for example in examples}


def truncate_text(value: Any, most: int | None) -> Any:
    """A text with its middle cut out where it is longer than so many letters; else the value."""
    if most is None or not isinstance(value, str) or len(value) <= most:
        return value
    head = (most + 1) // 2
    return value[:head] + CUT + value[len(value) - (most - head) :]


def fit_to_context(
    example: Example,
    room: int,
    shortened: Callable[[Example, int], Example],
    tokens: Callable[[Example], int],
) -> Example:
    """The example, or with its texts cut to the most letters that leave its longest prompt ``room``
    tokens. The template stays whole: only what a row fills in is cut, out of its middle. Raises
    ValueError: what is not the row's own is too long already.
    """
    if tokens(example) <= room:
        return example
    fits = -1
    over = max(len(text) for text in example.turns)
    while over - fits > 1:
        middle = (fits + over) // 2
        if tokens(shortened(example, middle)) <= room:
            fits = middle
        else:
            over = middle
    if fits < 0:
        raise UsageError(
            f"prompt {example.id!r}: {tokens(shortened(example, 0))} tokens without any of its "
            f"row's texts, there is room for {room}; use task.overlong=skip"
        )
    return shortened(example, fits)
