"""What all tests share."""

from __future__ import annotations

from tests import warm


def pytest_sessionfinish() -> None:
    warm.stop()
