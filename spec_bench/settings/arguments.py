"""Command lines that answer a wrong request with one line; knows no command."""

import argparse
import os
from pathlib import Path
from typing import NoReturn

from spec_bench.system.files import check_writable


class Parser(argparse.ArgumentParser):
    """Without the usage, which argparse prints over several lines before what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        self.exit(2, f"{self.prog}: {message}; --help tells more\n")


def whole_numbers(name: str, text: str) -> list[int]:
    """Returns the numbers in ``14,30`` or ``[14,30]``. Raises ValueError, naming what is not."""
    parts = text.strip("[]").split(",")
    if not all(each.strip().isdecimal() and int(each) for each in parts):
        raise ValueError(f"{name} must be whole numbers >= 1 such as 14,30, got {text!r}")
    return list(map(int, parts))


def output_folder(text: str) -> Path:
    """Returns a folder to write files into, as an option's ``type``, looked at before any work."""
    try:
        check_writable(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def output_file(text: str) -> Path:
    """Returns the same of a file."""
    if os.path.exists(text) and not os.path.isfile(text):
        kind = "a folder" if os.path.isdir(text) else "a device or a pipe"
        raise argparse.ArgumentTypeError(f"must be a file, {text!r} is {kind}")
    output_folder(os.path.dirname(text) if os.path.lexists(text) else text)
    return Path(text)
