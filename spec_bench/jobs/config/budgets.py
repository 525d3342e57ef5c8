"""``budget=14`` and ``length=3``: lists of trees by their number of nodes or by their depth.

Each number has a file, such as ``conf/budget/14.yaml``. Hydra reads a bare number as an int, which
names no config, so numbers are quoted on the way in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from spec_bench.settings.configs import conf_dirs

LISTS = ("budget", "length")  # config groups that allow several choices at once
_ASKED = re.compile(rf"([+]{{0,2}})({'|'.join(LISTS)})=(.*)", re.S)
_WORD = re.compile(r"[^\[\],'\"\s]+")


def with_quoted_numbers(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra understands it; every budget and length in it has a config.

    Args:
        arguments: such as ``budget=6``, ``budget=6,14`` or ``budget=[6,14]``, or null; others
            stay as they are.

    Raises:
        ValueError: a number that no file holds.
    """
    return [_quoted(argument) for argument in arguments]


def _quoted(argument: str) -> str:
    match = _ASKED.fullmatch(argument)
    if match is None:
        return argument
    group = match[2]

    def quoted(word: re.Match[str]) -> str:
        if word[0] == "null" and "[" not in match[3]:
            return "[]"  # the default; Hydra takes no null
        if word[0].isidentifier() and word[0] != "null":
            return word[0]  # a config of the user's own
        return f"'{_number(group, word[0])}'"

    return f"{match[1]}{group}=" + _WORD.sub(quoted, match[3].replace("'", "").replace('"', ""))


def _number(group: str, word: str) -> int:
    if not word.isdecimal():
        raise ValueError(f"{group} must be a whole number or a list such as [6,14], got {word!r}")
    stems = {path.stem for folder in conf_dirs() for path in folder.glob(f"{group}/*")}
    known = sorted(int(stem) for stem in stems if stem.isdecimal())
    if int(word) not in known:
        choices = ", ".join(map(str, known))
        own = "; other trees are named by cells=[sd:7,rsd_c:2-2-1]" if group == "budget" else ""
        raise ValueError(f"{group} must be one of {choices}{own}, got {word}")
    return int(word)
