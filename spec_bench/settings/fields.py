"""Describes in words what a field of settings accepts, and formats one-line error messages.

A block of settings is a dataclass: its fields are the keys, their annotations state what is
allowed:

    @dataclass(frozen=True)
    class StochasticBeam:
        width: Count
        depth: Count

``validation.read_settings`` reads a block from a mapping. Does not import pydantic, which is slow.
"""

import sys
import types
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Interval

from spec_bench.system.printable import redact_escape_and_cut


@dataclass(frozen=True)
class Requirement:
    """Annotation with a field's accepted values in words, if its type alone is not clear."""

    allowed: str  # follows "must be"


MOST_NODES = 4096
"""Maximum number of nodes of a draft tree; a row's mask has the square of it as entries."""

Count = Annotated[int, Interval(ge=1, le=MOST_NODES)]
Share = Annotated[float, Interval(ge=0, le=1)]


def format_value(value: Any, *, quoted: bool = True, longest: int = 60) -> str:
    """Formats a value for a message: in one line, cut after ``longest`` characters."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # Python does not print integers of more than 4300 digits
        text = "a number of thousands of digits"
    text = to_one_line(text)
    return text if len(text) <= longest else f"{text[:longest]}..."


def to_one_line(message: object, longest: int | None = None) -> str:
    """Formats a text in one line, cut after ``longest`` characters. An error without a message
    gives the name of its type.
    """
    text = redact_escape_and_cut(" ".join(str(message).split()))[:longest]
    return text or type(message).__name__ * isinstance(message, BaseException)


def print_wrapped_error(line: str) -> None:
    """Prints an error message to standard error, wrapped between words on a terminal."""
    line = redact_escape_and_cut(line)
    terminal_width = get_terminal_size().columns if sys.stderr.isatty() else 0
    print(
        fill(line, terminal_width, break_on_hyphens=False) if terminal_width else line,
        file=sys.stderr,
    )


def describe_error(error: Exception) -> str:
    """Describes an error in one line, with its type unless it is a ValueError."""
    kind = "" if isinstance(error, ValueError) or not str(error) else f"{type(error).__name__}: "
    return f"{kind}{to_one_line(error)}"


@cache
def warn_once(line: str) -> None:
    """Prints a warning to standard error, once."""
    print_wrapped_error(f"warning: {line}")


def get_first_line(message: object) -> str:
    """Returns the first line of an error's message or of a text; "" if there is none."""
    return redact_escape_and_cut(next(iter(str(message).strip().splitlines()), ""))


_OTHER_NAMES = {"tau": "block_efficiency"}  # papers' name -> our name


def format_suggestion(word: str, choices: Sequence[str], prefix: str = "") -> str:
    """Formats ``; did you mean PREFIXchoice?`` with up to three choices that begin with ``word``,
    or else the most similar choice; "" if there is none.
    """
    completions = [
        choice for choice in choices if word and choice.startswith(_OTHER_NAMES.get(word, word))
    ][:3]
    suggestions = [
        f"{prefix}{choice}" for choice in completions or get_close_matches(word, choices, n=1)
    ]
    return f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""


def describe_unknown_setting(key: str, word: str, choices: Sequence[str], owner: str = "") -> str:
    """Describes an unknown setting: the last ``word`` of ``key`` is not in ``choices``, the
    settings of ``owner`` (by default the key before the word).
    """
    prefix = key.removesuffix(word)
    suggestion = format_suggestion(word, choices, prefix) or ";"
    owner = owner or prefix.rstrip(".") or "a config"
    return f"unknown setting {key}{suggestion} {owner} has {', '.join(choices) or 'no settings'}"


def describe_annotation(hint: Any, metadata: Sequence[Any] = ()) -> str:
    """Describes in words what an annotation allows; ``metadata`` comes from the annotations around
    it: bounds, or a ``Requirement``.
    """
    if get_origin(hint) is Annotated:
        return describe_annotation(hint.__origin__, [*hint.__metadata__, *metadata])
    choices = get_args(hint)
    bounds = _describe_bounds(metadata)
    if descriptions := [mark.allowed for mark in metadata if hasattr(mark, "allowed")]:
        return f"{descriptions[-1]} {bounds}".strip()
    if is_union(hint):
        descriptions = [describe_annotation(choice, metadata) for choice in choices]
        return " or ".join(dict.fromkeys(descriptions))
    if get_origin(hint) is Literal:
        words = (str(e).lower() if isinstance(e, bool) else str(e) for e in choices)
        return f"one of {', '.join(words)}"  # as YAML writes them
    if get_origin(hint) is tuple:
        return f"a list, each {describe_annotation(choices[0])}"
    if hint is str:
        needs_text = any(getattr(mark, "min_length", None) for mark in metadata)
        return "a text that is not empty" if needs_text else "a text"
    if hint in _WORDS_BY_TYPE:
        return f"{_WORDS_BY_TYPE[hint]} {bounds}".strip()
    keys = [field.name for field in list_setting_fields(hint)] if is_dataclass(hint) else []
    return f"a mapping of {', '.join(keys)}" if keys else "a mapping"


_WORDS_BY_TYPE = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


def _describe_bounds(metadata: Sequence[Any]) -> str:
    """Describes bounds in words: ``from 0 to 1``, ``>= 1``, ``> 0 and <= 1``."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = {
        sign: bound
        for name, sign in signs.items()
        for mark in metadata
        if (bound := getattr(mark, name, None)) is not None
    }
    if set(bounds) == {">=", "<="}:
        return f"from {bounds['>=']} to {bounds['<=']}"
    return " and ".join(f"{sign} {bound}" for sign, bound in bounds.items())


def list_setting_fields(kind: Any) -> list[Field[Any]]:
    """Lists the fields of a dataclass that are keys of its block."""
    return [field for field in fields(kind) if field.metadata.get("setting", True)]


def is_union(hint: Any) -> bool:
    """Returns whether an annotation offers several types."""
    return get_origin(hint) in (Union, types.UnionType)
