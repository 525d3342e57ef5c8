"""The parts of the audit and their lines: each part has a name and fails alone.

A fault in one part, such as one of a plugged drafter, is that part's failure; the others go on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import filter as fitting
from typing import NamedTuple

from tqdm import tqdm


@dataclass(frozen=True)
class Line:
    """What was checked and how it ended: a line of the audit's table."""

    subject: str  # rule, decoder or server
    check: str  # how, and over how much
    result: str  # in words
    passed: bool | None  # None where nothing is claimed, only measured


class Part(NamedTuple):
    """What is audited together."""

    name: str  # rule or decoder, as it stands in the table
    lines: Callable[[], Iterable[Line]]


def chosen(parts: Sequence[Part], pattern: str | None) -> list[Part]:
    """The parts whose names, or what follows ``rule:`` in them, fit a pattern with wildcards as
    file names have them; None: all.

    Raises:
        ValueError: none fits, naming those that are near.
    """
    if pattern is None:
        return list(parts)
    names = [(part.name, part.name.rpartition(": ")[2]) for part in parts]
    matching = [part for part, own in zip(parts, names, strict=True) if fitting(own, pattern)]
    if not matching:
        known = dict.fromkeys(name for own in names for name in own)
        near = get_close_matches(pattern.strip("*"), known, n=5, cutoff=0.4) or list(known)[:5]
        raise ValueError(f"--only {pattern!r} fits no part; near: {', '.join(near)}")
    return matching


def audited(parts: Sequence[Part]) -> Iterator[Line]:
    """The lines of all parts; a bar on stderr names the one that is at work."""
    with tqdm(parts, file=sys.stderr, unit="part") as bar:
        for part in bar:
            bar.set_description(part.name)
            try:
                yield from part.lines()
            except Exception as error:  # a plugged part may fail in any way
                result = " ".join((f"{type(error).__name__}:", *str(error).split()))
                yield Line(part.name, "failed", result, False)
            if not sys.stderr.isatty():
                bar.write(f"audited {part.name}", file=sys.stderr)
