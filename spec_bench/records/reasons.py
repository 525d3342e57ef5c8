"""Why a column is empty or a cell failed: typed, and as the one text that a row has of them all.

Knows nothing about columns or cells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_REASON = re.compile(r"([a-z]\w*): (.*)", re.DOTALL)
_TRACE = " (trace: "


@dataclass(frozen=True)
class Reason:
    """Why a column of a cell is empty, what to mind about it, or why the cell has no numbers.

    Attributes:
        column: which; "" where the cell failed.
        text: for people.
        trace: the file with a failure's traceback; "" where there is none.
    """

    column: str
    text: str
    trace: str = ""

    def __str__(self) -> str:
        """One reason as a row has it; ``parse_reasons`` reads it."""
        if not self.column:
            return f"{self.text}{_TRACE}{self.trace})" if self.trace else self.text
        return f"{self.column}: {self.text.replace('; ', ', ')}"


def written_reasons(reasons: Iterable[Reason]) -> str:
    """All reasons of a row in one text: ``column: why; column: why``, or a failure's message."""
    return "; ".join(map(str, reasons))


def parse_reasons(text: str) -> tuple[Reason, ...]:
    """Inverts ``written_reasons``; what names no column is a failure's message."""
    if not text:
        return ()
    parts = [_REASON.fullmatch(part) for part in text.split("; ")]
    named = [Reason(part[1], part[2]) for part in parts if part]
    if len(named) == len(parts):
        return tuple(named)
    message, _, trace = text.partition(_TRACE)
    return (Reason("", message, trace.removesuffix(")")),)
