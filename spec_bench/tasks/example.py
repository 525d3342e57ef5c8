"""An example of a task: its turns, references and fixed answers. Fits an example to a context.

A row's turns are plain texts or chat messages with roles. A list of messages is a recorded
conversation: the user's messages are the turns, the assistant's answers between them are the fixed
answers that later turns continue, an answer to the last turn is a reference, and a system message
may come first. Knows nothing about templates or models.
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
"""Replaces text that was cut out."""
TREE_LEVELS = 64
"""Positions reserved for draft trees with all decoders, so that all get the same prompts."""


@dataclass(frozen=True)
class Example:
    """The turns of a prompt with their reference answers."""

    id: str  # unique within the task and the same for every limit and offset
    # the user's texts, one per turn; most tasks have one turn. For tasks that are not chats
    # this is the whole prompt.
    turns: tuple[str, ...]
    # reference answers, a tuple per turn; empty if the turn has no reference or its question no
    # answer
    references: tuple[tuple[str, ...], ...]
    # the columns of the row
    row: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # fixed answers that later turns continue instead of the references; empty if none were given
    answers: tuple[str, ...] = ()
    system: str = ""  # system message before the conversation, if any
    category: str = ""  # kind of prompt, if the row names one
    shots: tuple[tuple[str, str], ...] = ()  # worked examples before the prompt: (question, answer)

    @property
    def prompt_ids(self) -> tuple[str, ...]:
        """One id per turn: the example's id, followed by ``/TURN`` if there are several turns."""
        if len(self.turns) == 1:
            return (self.id,)
        return tuple(f"{self.id}/{turn}" for turn in range(len(self.turns)))


@dataclass(frozen=True)
class ConversationTurns:
    """The texts of a row's conversation."""

    questions: tuple[str, ...]  # the user's texts, one per turn, none of them blank
    # the assistant's answers, at most one per turn; empty for plain texts
    answers: tuple[str, ...] = ()
    system: str = ""  # the system message, if any


def read_turns(raw_turns: Any, field_name: str) -> ConversationTurns:
    """Reads the turns in a row's field: one text, a list of texts, or a list of ``{"role": ...,
    "content": ...}``. Raises UsageError, with the place and the value, for an empty field, a turn
    that is neither text nor message, a blank turn, or messages that do not alternate.
    """
    entries = [raw_turns] if isinstance(raw_turns, str) else raw_turns
    if not isinstance(entries, Sequence) or not entries:
        raise UsageError(f"no turns in field {field_name!r}, got {raw_turns!r}")
    if any(isinstance(entry, Mapping) for entry in entries):
        turns = _read_conversation(entries, field_name)
    else:
        for place, entry in enumerate(entries):
            if not isinstance(entry, str):
                raise UsageError(
                    f"{field_name}[{place}] must be a text or a message with role and content, got "
                    f"{entry!r}"
                )
        turns = ConversationTurns(tuple(entries))
    for turn, text in enumerate(turns.questions):
        if not text.strip():
            raise UsageError(f"turn {turn} in field {field_name!r} is blank, got {text!r}")
    return turns


def _read_conversation(entries: Sequence[Any], field_name: str) -> ConversationTurns:
    """Reads alternating messages of user and assistant, after at most one system message. Raises
    UsageError for messages in another order.
    """
    spoken: dict[str, list[str]] = {role: [] for role in ROLES}
    for place, entry in enumerate(entries):
        role, content = parse_message(entry)
        if role is None or not isinstance(content, str):
            raise UsageError(
                f"{field_name}[{place}] must be a message with a role ({', '.join(ROLES)}) and a "
                f"text as content, got {entry!r}"
            )
        turn = len(spoken["user"]) - len(spoken["assistant"])
        is_expected = {
            "system": place == 0,
            "user": turn == 0,
            "assistant": turn == 1,
        }
        if not is_expected[role]:
            raise UsageError(
                f"{field_name}[{place}]: messages must go system (at most once, first), user, "
                f"assistant, user, ..., got {role!r} here"
            )
        spoken[role].append(content)
    if not spoken["user"]:
        raise UsageError(f"no user's message in field {field_name!r}")
    return ConversationTurns(
        tuple(spoken["user"]), tuple(spoken["assistant"]), "".join(spoken["system"])
    )


def read_references(raw_references: Any, field_name: str) -> list[tuple[str, ...]]:
    """Reads the reference answers in a row's field: for each entry a tuple of equally good answers,
    empty for null. The field is a text, a number, null, or a list of these or of lists of them.
    Raises UsageError for a reference that is neither text nor number.
    """
    references = []
    for place, entry in enumerate(_wrap_scalar_in_list(raw_references)):
        answers = _wrap_scalar_in_list(entry)
        for answer in answers:
            if isinstance(answer, bool) or not isinstance(answer, str | int | float | None):
                raise UsageError(
                    f"{field_name}[{place}] must be a text, a number, null or a list, got {entry!r}"
                )
        references.append(tuple(str(answer) for answer in answers if answer is not None))
    return references


def _wrap_scalar_in_list(value: Any) -> Sequence[Any]:
    """Wraps a text, a number or None in a list; returns a list unchanged."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def get_answers_or_references(example: Example) -> tuple[str, ...]:
    """Returns an example's fixed answers; without any, the first reference of each turn, up to the
    first turn that has none.
    """
    return example.answers or tuple(golds[0] for golds in takewhile(bool, example.references))


def get_earlier_answers(
    task: str,
    example: Example,
    turn: int,
    answers: Sequence[str] | None,
) -> tuple[str, ...]:
    """Returns the answers to the turns before ``turn``: those in ``answers``, or the fixed ones if
    it is None. Raises UsageError if there is no such turn, or if an earlier turn has no answer.
    """
    if not 0 <= turn < len(example.turns):
        raise UsageError(
            f"task {task}: example {example.id} has turns 0..{len(example.turns) - 1}, not {turn}"
        )
    history = get_answers_or_references(example) if answers is None else answers
    if len(history) < turn:
        raise UsageError(
            f"task {task}: turn {turn} of example {example.id} needs the answers to the"
            f" {turn} turns before it, got {len(history)}"
        )
    return tuple(history[:turn])


def read_fastchat_answers(path: Path, examples: Sequence[Example]) -> dict[str, tuple[str, ...]]:
    """Reads the answers to ``examples``, by id, from a file in FastChat's format
    (``reference_answer/gpt-4.jsonl``). Raises UsageError if the file is missing, if a line is no
    answer, or if an example lacks an answer to a turn before its last.
    """
    answers_by_id: dict[str, tuple[str, ...]] = {}
    for line in iter_json_lines(path, "task.answers"):
        label = f"task.answers: {path.name}, {line.place}"
        try:
            key = line["question_id"]
            turns = line["choices"][0]["turns"]
        except (TypeError, LookupError):
            raise UsageError(
                f"{label}: no answer; needs question_id and choices: [{{turns: [...]}}]"
            ) from None
        if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
            raise UsageError(f"{label}: turns must be a list of texts")
        answers_by_id[str(key)] = tuple(turns)
    for example in examples:
        needed_count = len(example.turns) - 1
        answer_count = len(answers_by_id.get(example.id, ()))
        if answer_count < needed_count:
            raise UsageError(
                f"task.answers: {path.name} has answers to {answer_count} turns of question "
                f"{example.id}, needed: {needed_count}"
            )
    return {example.id: answers_by_id.get(example.id, ()) for example in examples}


def cut_middle_of_text(text: Any, max_letters: int | None) -> Any:
    """Cuts the middle out of a text longer than ``max_letters``; returns other values unchanged."""
    if max_letters is None or not isinstance(text, str) or len(text) <= max_letters:
        return text
    kept_at_start = (max_letters + 1) // 2
    return text[:kept_at_start] + CUT + text[len(text) - (max_letters - kept_at_start) :]


def fit_to_context(
    example: Example,
    max_tokens: int,
    shorten: Callable[[Example, int], Example],
    count_tokens: Callable[[Example], int],
) -> Example:
    """Shortens an example so that its longest prompt has at most ``max_tokens`` tokens. Only the
    row's texts are cut, in their middle, and as little as possible; the template stays whole.
    Raises UsageError if the template alone is too long.
    """
    if count_tokens(example) <= max_tokens:
        return example
    fitting_letters = -1
    too_many_letters = max(len(text) for text in example.turns)
    while too_many_letters - fitting_letters > 1:
        middle = (fitting_letters + too_many_letters) // 2
        if count_tokens(shorten(example, middle)) <= max_tokens:
            fitting_letters = middle
        else:
            too_many_letters = middle
    if fitting_letters < 0:
        raise UsageError(
            f"prompt {example.id!r}: {count_tokens(shorten(example, 0))} tokens without any of its "
            f"row's texts, there is room for {max_tokens}; use task.overlong=skip"
        )
    return shorten(example, fitting_letters)
