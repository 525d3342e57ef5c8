"""One line of the audit's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """What was checked and how it ended.

    Attributes:
        subject: rule, decoder or server.
        check: how, and over how much.
        result: in words.
        passed: None where nothing is claimed, only measured.
    """

    subject: str
    check: str
    result: str
    passed: bool | None
