"""The engines that can be started: how each is called, as ``conf/server`` has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import yaml

from spec_bench.settings.configs import conf_dirs
from spec_bench.settings.fields import did_you_mean
from spec_bench.settings.validation import check, settings

FOLDER = "server"
PLAIN = "plain"


@settings
class ServingEngine:
    """One file of ``conf/server``."""

    title: str  # of its rows
    kind: Literal["openai", "llama_cpp"]
    program: str  # its command, or a path
    # Of all its servers; {model}, {port}, {requests}, {slots} and {name} are filled in; the last is
    # the model's name there, else it is its path.
    arguments: tuple[str, ...]
    speculation: dict[str, tuple[str, ...]]  # more arguments by method; {draft} is filled in
    speculating: tuple[str, ...] = ()  # more of those that speculate, whatever the method
    tokens: Literal["ids", "text"] = "ids"  # what it streams

    def command(self, method: str, places: Mapping[str, str], program: str | None) -> list[str]:
        """What starts one server, perhaps another program than its own.

        Raises:
            ValueError: a method that it does not have, or one that needs what is not given.
        """
        if method != PLAIN and method not in self.speculation:
            raise ValueError(
                f"--with takes {', '.join(self.speculation)} for {self.title}, got {method!r}"
            )
        given = self.arguments
        if method != PLAIN:
            given = (*given, *self.speculating, *self.speculation[method])
        filled = [program or self.program]
        for each in given:
            for name, value in places.items():
                each = each.replace(f"{{{name}}}", value)
            if "{draft}" in each:
                raise ValueError(f"{self.title} with {method} needs a draft: --draft PATH")
            filled.append(each)
        return filled


def read_engine(name: str) -> ServingEngine:
    """An engine by its file's name.

    Raises:
        ValueError: there is none, or its file is wrong.
    """
    files: dict[str, Path] = {}
    for folder in conf_dirs():
        files |= {path.stem: path for path in sorted((folder / FOLDER).glob("*.yaml"))}
    if name not in files:
        near = did_you_mean(name, list(files))
        raise ValueError(f"an engine is one of {', '.join(files)}, got {name!r}{near}")
    given = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    return check(ServingEngine, given, str(files[name]))
