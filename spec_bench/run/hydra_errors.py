"""What Hydra and OmegaConf say, in one line of our words."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from traceback import walk_tb

from hydra.errors import OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from spec_bench.validation import did_you_mean

_NO_CHOICE = re.compile(
    r"Could not find '([^']+)/([^'/]*)'\s+Available options in '.*?':(.*)", re.S
)
_NO_GROUP = re.compile(r"Could not override '(.*?)'\.\s+No match in the defaults list")
_NOISE = re.compile(r"Config search path:.*|\bfull_key: \S*|\bobject_type=\S+|See https\S+", re.S)


def one_line(error: BaseException) -> str:
    """An error's message in one line that names the key, the value and what there is to choose.

    Args:
        error: Hydra's, OmegaConf's, or one of ours, whose message is one line already.
    """
    text = str(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: a setting is KEY=VALUE, its value as YAML has it"
    if found := _NO_CHOICE.search(text):
        group, choice, known = found[1], found[2], found[3].split("Config search path")[0].split()
        near = did_you_mean(choice, known, f"{group}=")
        return f"{group} must be one of {', '.join(known)}, got {choice!r}{near}"
    if found := _NO_GROUP.match(text):
        return f"there is no config group {found[1]!r} to choose from; --help lists those there are"
    for cause in _causes(error):
        if isinstance(cause, OmegaConfBaseException) and cause.full_key:
            return _of_key(cause)
    return _plain(text)


def comes_from_hydra(error: BaseException) -> bool:
    """Whether an error arose in Hydra or OmegaConf, so that no config can be made."""
    last = deque(walk_tb(error.__traceback__), maxlen=1)
    module = last[0][0].f_globals.get("__name__", "") if last else ""
    return module.partition(".")[0] in {"hydra", "omegaconf", "antlr4"}


def _of_key(error: OmegaConfBaseException) -> str:
    """OmegaConf's errors know where they happened."""
    key, word = str(error.full_key), str(error.key)
    if "not in struct" not in str(error):
        return f"{key}: {_plain(str(error))}"
    parent = error.parent_node
    known = sorted(str(each) for each in parent) if isinstance(parent, Mapping) else []
    known = [each for each in known if each != "hydra"]
    prefix = key.removesuffix(word)
    near = did_you_mean(word, known, prefix) or ";"
    return f"unknown setting {key}{near} {prefix.rstrip('.') or 'a config'} has {', '.join(known)}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _plain(text: str) -> str:
    """A message without the lines that help nobody."""
    return " ".join(_NOISE.sub(" ", text).split())
