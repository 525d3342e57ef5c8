"""Command lines that answer a wrong request with one line; knows no command."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Without the usage, which argparse prints over several lines before what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Ends with status 2."""
        self.exit(2, f"{self.prog.removeprefix('python -m ')}: {message}; --help tells more\n")
