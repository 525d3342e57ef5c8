"""What all tests share."""

from __future__ import annotations

import sys

from absl import logging as absl_logging

from tests import warm


def pytest_configure() -> None:
    # Hydra closes every log handler that there is, and absl's closes the stream that was standard
    # error when it was imported, unless that is the interpreter's own: pytest's would be gone.
    absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_sessionfinish() -> None:
    warm.stop()
