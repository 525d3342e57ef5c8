"""Command lines that answer a wrong request with one line; knows no command."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from spec_bench.settings.fields import warn
from spec_bench.system.errors import UsageError
from spec_bench.system.files import check_writable

RENAMED = {"--output": "--out"}
"""Options of earlier versions, and their names now."""


class Parser(argparse.ArgumentParser):
    """Without the usage, which argparse prints over several lines before what is wrong."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Takes options by their earlier names too, with a warning."""
        given = list(sys.argv[1:] if args is None else args)
        for number, (name, is_, value) in enumerate(each.partition("=") for each in given):
            if name in RENAMED:
                warn(f"{name} is {RENAMED[name]} now")
                given[number] = f"{RENAMED[name]}{is_}{value}"
        return super().parse_known_args(given, namespace)

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        self.exit(2, f"{self.prog}: {message}; --help tells more\n")


def whole_numbers(name: str, text: str) -> list[int]:
    """Returns the numbers in ``14,30`` or ``[14,30]``. Raises ValueError, naming what is not."""
    parts = text.strip("[]").split(",")
    if not all(each.strip().isdecimal() and int(each) for each in parts):
        raise UsageError(f"{name} must be whole numbers >= 1 such as 14,30, got {text!r}")
    return list(map(int, parts))


def output_folder(text: str) -> Path:
    """Returns a folder to write files into, as an option's ``type``, looked at before any work."""
    try:
        check_writable(Path(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def output_file(text: str) -> Path:
    """Returns the same of a file."""
    if os.path.exists(text) and not os.path.isfile(text):
        kind = "a folder" if os.path.isdir(text) else "a device or a pipe"
        raise argparse.ArgumentTypeError(f"must be a file, {text!r} is {kind}")
    output_folder(os.path.dirname(text) if os.path.lexists(text) else text)
    return Path(text)
