"""From a mapping, as YAML has it, to a frozen dataclass, every value checked by its annotation.

A block of settings is a dataclass; its fields are its keys, the annotations say what is allowed:

    @dataclass(frozen=True)
    class StochasticBeam:
        width: Count
        depth: Count

Whatever is wrong ends in a ``ValueError`` of one line that names the key, the value and what is
allowed. Plain Python: the machine runs where there is no settings library.
"""

import math
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spec_bench.system.errors import UsageError
from spec_bench.system.printable import to_printable

Block = TypeVar("Block")


@dataclass(frozen=True)
class Range:
    """The bounds of a number, both of them allowed values unless it must lie ``above`` the least;
    ``zero`` is allowed beside them.
    """

    least: float
    most: float = math.inf
    above: bool = False
    zero: bool = False

    def __contains__(self, value: float) -> bool:
        if self.zero and value == 0:
            return True
        return self.least <= value <= self.most and not (self.above and value == self.least)

    def __str__(self) -> str:
        if self.zero:
            return f">= {self.least:g}, or 0"
        if self.above:
            return f"> {self.least:g} and <= {self.most:g}"
        if self.most == math.inf:
            return f">= {self.least:g}"
        return f"from {self.least:g} to {self.most:g}"


MOST_NODES = 4096
"""Nodes that a draft tree may have: its mask has that many squared entries a row."""

Count = Annotated[int, Range(1, MOST_NODES)]
Share = Annotated[float, Range(0, 1)]


class InvalidValueError(Exception):
    """A value that its annotation does not allow; ``read`` says which."""


def read(kind: type[Block], given: Mapping[str, Any], where: str, owner: str) -> Block:
    """Makes a dataclass of a mapping; its fields with ``metadata={"setting": False}`` are no keys.
    Raises ValueError: an unknown or a missing key, or a value that is not allowed; it names
    ``where`` the key stands, such as ``decoder 'sd': tree``, and its ``owner``, such as ``tree
    policy 'chain'``. What the dataclass itself refuses is passed on with ``where`` before it.
    """
    settings_class: Any = kind
    hints = _hints(settings_class)
    keys = _keys(settings_class)
    for key in given:
        if key not in keys:
            raise UsageError(
                f"{where}.{format_value(key, quoted=False)} does not belong to {owner}, which has "
                f"{', '.join(keys) or 'no settings'}"
            )
    values = {}
    for key, is_required in keys.items():
        if key in given:
            try:
                values[key] = _convert(hints[key], given[key])
            except InvalidValueError:
                description = describe_hint(hints[key])
                raise UsageError(
                    f"{where}.{key} must be {description}, got {format_value(given[key])}"
                ) from None
        elif is_required:
            raise UsageError(f"{where}.{key} is missing: {owner} needs {describe_hint(hints[key])}")
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"{where}.{error}") from None


def check_fields(block: Any) -> None:
    """Checks every field of a dataclass by its annotation. Raises UsageError: a value is not
    allowed; it names the field.
    """
    kind: Any = type(block)
    for name, hint in _hints(kind).items():
        try:
            _convert(hint, getattr(block, name))
        except InvalidValueError:
            raise UsageError(
                f"{name} must be {describe_hint(hint)}, got {format_value(getattr(block, name))}"
            ) from None


def format_value(value: Any, *, quoted: bool = True, longest: int = 60) -> str:
    """Returns a value for a message: one line, not longer than is useful."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # Python prints no whole number of more than 4300 digits
        text = "a number of thousands of digits"
    text = one_line(text)
    return text if len(text) <= longest else f"{text[:longest]}..."


def one_line(message: object, longest: int | None = None) -> str:
    """A text in one line, cut where it is longer; an error that says nothing by its type."""
    text = to_printable(" ".join(str(message).split()))[:longest]
    return text or type(message).__name__ * isinstance(message, BaseException)


def print_error(line: str) -> None:
    """Prints what is wrong to standard error; on a terminal no word is broken."""
    line = to_printable(line)
    wide = get_terminal_size().columns if sys.stderr.isatty() else 0
    print(fill(line, wide, break_on_hyphens=False) if wide else line, file=sys.stderr)


def describe_error(error: Exception) -> str:
    """Returns an error in one line, with its type unless it is a ValueError."""
    kind = "" if isinstance(error, ValueError) or not str(error) else f"{type(error).__name__}: "
    return f"{kind}{one_line(error)}"


@cache
def warn(line: str) -> None:
    """Prints a warning to standard error, once."""
    print_error(f"warning: {line}")


def first_line(message: object) -> str:
    """Returns the first line of an error's message or of a text; "" where there is none."""
    return to_printable(next(iter(str(message).strip().splitlines()), ""))


_OTHER_NAMES = {"tau": "block_efficiency"}  # what papers call ours


def suggest(word: str, choices: Sequence[str], prefix: str = "") -> str:
    """``; did you mean PREFIXknown?`` where known words begin so or one is near, else nothing."""
    completions = [
        choice for choice in choices if word and choice.startswith(_OTHER_NAMES.get(word, word))
    ][:3]
    suggestions = [
        f"{prefix}{choice}" for choice in completions or get_close_matches(word, choices, n=1)
    ]
    return f"; did you mean {' or '.join(suggestions)}?" if suggestions else ""


def unknown_setting(key: str, word: str, choices: Sequence[str]) -> str:
    """Returns the message of a key whose last word is none of those known there."""
    prefix = key.removesuffix(word)
    suggestion = suggest(word, choices, prefix) or ";"
    owner = prefix.rstrip(".") or "a config"
    return f"unknown setting {key}{suggestion} {owner} has {', '.join(choices)}"


def describe_hint(hint: Any, marks: Sequence[Any] = ()) -> str:
    """Returns what an annotation allows, in words; ``marks`` stand around it: a ``Range``, bounds
    of pydantic's, or words of its own.
    """
    if get_origin(hint) is Annotated:
        return describe_hint(hint.__origin__, [*hint.__metadata__, *marks])
    choices = get_args(hint)
    bounds = _bounds(marks)
    if descriptions := [mark.allowed for mark in marks if hasattr(mark, "allowed")]:
        return f"{descriptions[-1]} {bounds}".strip()
    if is_union(hint):
        return " or ".join(dict.fromkeys(describe_hint(choice, marks) for choice in choices))
    if get_origin(hint) is Literal:
        words = (str(e).lower() if isinstance(e, bool) else str(e) for e in choices)
        return f"one of {', '.join(words)}"  # as YAML writes them
    if get_origin(hint) is tuple:
        return f"a list, each {describe_hint(choices[0])}"
    if hint is str:
        needs_text = any(getattr(mark, "min_length", None) for mark in marks)
        return "a text that is not empty" if needs_text else "a text"
    if hint in _WORDS:
        return f"{_WORDS[hint]} {bounds}".strip()
    keys = [field.name for field in list_setting_fields(hint)] if is_dataclass(hint) else []
    return f"a mapping of {', '.join(keys)}" if keys else "a mapping"


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


def _bounds(marks: Sequence[Any]) -> str:
    """Bounds in words: ``from 0 to 1``, ``>= 1``, ``> 0 and <= 1``."""
    for mark in marks:
        if isinstance(mark, Range):
            return str(mark)
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = {s: getattr(m, name) for name, s in signs.items() for m in marks if hasattr(m, name)}
    if set(bounds) == {">=", "<="}:
        return f"from {bounds['>=']} to {bounds['<=']}"
    return " and ".join(f"{sign} {bound}" for sign, bound in bounds.items())


def _convert(hint: Any, value: Any) -> Any:
    """Returns the value as its annotation has it: lists become tuples, whole numbers floats."""
    bounds = None
    if get_origin(hint) is Annotated:
        bounds = next((mark for mark in hint.__metadata__ if isinstance(mark, Range)), None)
        hint = hint.__origin__
    if is_union(hint):
        for choice in get_args(hint):
            try:
                return _convert(choice, value)
            except InvalidValueError:
                continue
        raise InvalidValueError
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple) or not value:
            raise InvalidValueError
        return tuple(_convert(get_args(hint)[0], entry) for entry in value)
    if get_origin(hint) is Literal:
        _require((type(value), value) in [(type(choice), choice) for choice in get_args(hint)])
    elif hint is float or hint is int:
        number_types = (int, float) if hint is float else (int,)
        _require(isinstance(value, number_types) and not isinstance(value, bool))
        # An inequality with nan is false; infinity, and a whole number beyond it, is no setting.
        largest = sys.float_info.max if hint is float else math.inf
        _require(-largest <= value <= largest and (bounds is None or value in bounds))
        return float(value) if hint is float else value
    else:
        _require(isinstance(value, Mapping if get_origin(hint) is Mapping else hint))
    return value


def _require(right: bool) -> None:
    if not right:
        raise InvalidValueError


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _keys(kind: Any) -> dict[str, bool]:
    """Returns the dataclass's keys, and whether each has to be given."""
    return {
        field.name: field.default is MISSING and field.default_factory is MISSING
        for field in list_setting_fields(kind)
    }


def list_setting_fields(kind: Any) -> list[Field[Any]]:
    """Returns the dataclass's fields that are keys of its block."""
    return [field for field in fields(kind) if field.metadata.get("setting", True)]


def is_union(hint: Any) -> bool:
    """Returns whether an annotation offers several types."""
    return get_origin(hint) in (Union, types.UnionType)
