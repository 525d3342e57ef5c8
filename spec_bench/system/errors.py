"""Errors: requests that cannot be met, and faults of this program."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UsageError(ValueError):
    """A request, or a file that it names, is wrong.

    The message is one line that names the value and the choices. A command prints only that line
    and ends with status 2; any other error is a fault of this program and keeps its traceback.
    """


# Parts of CUDA's messages after which every call fails: no later cell of the process can decode.
_DEVICE_LOST = (
    "device-side assert",
    "hardware exception",
    "illegal instruction",
    "illegal memory access",
    "misaligned address",
    "uncorrectable ECC",
    "unspecified launch failure",
)


class DeviceLostError(UsageError):
    """A GPU failed so that this process can no longer use it."""


def raise_if_device_lost(error: Exception) -> None:
    """Raises DeviceLostError if an error means that this process can no longer use the GPU."""
    text = str(error)
    if isinstance(error, DeviceLostError):
        raise error
    if "CUDA" in text and any(sign in text for sign in _DEVICE_LOST):
        line_text = next(line for line in text.splitlines() if any(e in line for e in _DEVICE_LOST))
        raise DeviceLostError(
            f"{line_text.strip()}: this process cannot use the GPU any more; what was decoded "
            "is kept, and the same command goes on"
        ) from error


@contextmanager
def note_records_in_errors(results: Path, resume_hint: str) -> Iterator[None]:
    """Adds a note to errors in the block: where records are kept, and the ``resume_hint``."""
    try:
        yield
    except Exception as error:
        error.add_note(f"what was decoded is kept below {results}; {resume_hint}")
        raise


def print_fault(error: Exception, program: str, hint: str) -> int:
    """Prints the traceback of a fault of this program, then a line with the error's note, or else
    the ``hint``; returns the exit status, 1.
    """
    notes = error.__dict__.pop("__notes__", [hint])
    traceback.print_exception(error)
    kind = type(error).__name__
    line = f"{program}: this {kind} is a fault of spec_bench, not of the request; {notes[-1]}"
    print(line, file=sys.stderr)
    return 1
