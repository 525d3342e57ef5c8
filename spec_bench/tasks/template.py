"""Filling a prompt template from a row of a dataset.

A template is text with ``{name}`` in it. A name is looked up in the task's ``fields``, which map it
to a column, to a path into nested columns (``translation.de``) or to several of them of which the
first that exists is taken; a name without an entry is itself a path. Values go in verbatim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

Fields = Mapping[str, str | Sequence[str]]

_MISSING = object()


def placeholders(template: str) -> list[str]:
    """The names in a template, in order.

    Raises:
        ValueError: the template's braces do not match.
    """
    try:
        return [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"template {template!r}: {error}") from None


def named(key: str, template: str) -> list[str]:
    """The names in a template of the settings.

    Args:
        key: the template's, for messages.
        template: its text.

    Raises:
        ValueError: its braces do not match, or one of them names nothing.
    """
    try:
        names = placeholders(template)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if "" in names:
        raise ValueError(f"{key} must name a field in its braces, got {template!r}")
    return names


def fill(template: str, values: Mapping[str, Any]) -> str:
    """The template with each ``{name}`` replaced, None by nothing; braces in values stay."""
    parts = []
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            parts.append("" if values[name] is None else str(values[name]))
    return "".join(parts)


def choose(templates: Sequence[str], values: Mapping[str, Any]) -> str:
    """The first template whose names all have a value that is not blank, else the last one."""
    for template in templates:
        if all(str(values[name] or "").strip() for name in placeholders(template)):
            return template
    return templates[-1]


def look_up(row: Mapping[str, Any], name: str, fields: Fields, default: Any = _MISSING) -> Any:
    """The value that a name stands for in a row.

    Args:
        row: one row of a dataset.
        name: a name in a template.
        fields: name -> path, or several paths of which the first that exists is taken.
        default: what a missing field yields; without it a missing field is an error.

    Raises:
        ValueError: no such field; the message lists those that the row has.
    """
    paths = fields.get(name, name)
    paths = [paths] if isinstance(paths, str) else list(paths)
    for path in paths:
        value = _follow(row, path.split("."))
        if value is not _MISSING:
            return value
    if default is not _MISSING:
        return default
    raise ValueError(f"no field {' or '.join(map(repr, paths))}; the row has {', '.join(row)}")


def _follow(row: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(row, Mapping) or key not in row:
            return _MISSING
        row = row[key]
    return row
