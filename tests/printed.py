"""What README, the manual and the papers' READMEs print as commands, block by block."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "experiments").rglob("README.md")),
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPT = "spec-bench"
PROGRAMS = "make|spec-bench|python3?|torchrun|accelerate|wandb|pip|cmake"
COMMAND = re.compile(rf"(?:\w+=\S+ )?({PROGRAMS}) ")


@dataclass(frozen=True)
class Printed:
    """A printed command."""

    place: str  # the page
    words: tuple[str, ...]  # as a shell reads them, without what is said behind ``#``

    @property
    def text(self):
        return shlex.join(self.words)

    @property
    def module(self):
        """The module of ours that it runs; empty if none."""
        if self.words[0] == SCRIPT:
            return "spec_bench"
        return self.words[2] if self.words[:2] == ("python", "-m") else ""

    @property
    def arguments(self):
        """What follows the module."""
        return self.words[1:] if self.words[0] == SCRIPT else self.words[3:]


@cache
def printed_blocks(pages=PAGES):
    """The commands of each block without a language."""
    blocks = []
    for page in pages:
        place = str(page.relative_to(ROOT))
        for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            lines = text.replace("\\\n", " ").splitlines() if not kind else []
            found = [shlex.split(line, comments=True) for line in lines if COMMAND.match(line)]
            blocks.append([Printed(place, tuple(words)) for words in found])
    return [block for block in blocks if block]


def printed():
    """All of them."""
    for block in printed_blocks():
        yield from block


def made(command):
    """What ``make TARGET`` runs last, which is not run; any other command as it is."""
    if command.words[0] != "make":
        return command
    told = ["make", "--no-print-directory", "--dry-run", *command.words[1:]]
    lines = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    words = shlex.split(lines.strip().splitlines()[-1])
    return Printed(command.place, ("python", *words[1:]))
