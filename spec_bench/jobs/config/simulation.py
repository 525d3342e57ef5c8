"""``simulate=...``: the acceptance that a run states in place of the one its models would have.

Knows what the user may write; nothing about how a rule simulates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import Cell
from spec_bench.settings.configs import conf_dirs
from spec_bench.settings.validation import Ge, Le, MinLen, Real, Says, check, settings

_FORMS = "a probability, a list of one per depth or null"
SIMULATED = "simulated"  # the rule of the verifier that states its acceptance

Probability = Annotated[Real, Ge(0), Le(1)]


@settings
class Simulate:
    """The run's setting ``simulate``."""

    simulate: Annotated[
        Probability | Annotated[tuple[Probability, ...], MinLen(1)] | None, Says(_FORMS)
    ]


def check_simulate(simulate: Any) -> Any:
    """The setting as it was written."""
    check(Simulate, {"simulate": simulate})
    return simulate


def simulate_cells(
    cells: Sequence[Cell], simulate: Any, sampling: SamplingSettings
) -> tuple[Cell, ...]:
    """The cells with the stated acceptance in place of their rules; a baseline has none.

    The rule that a cell had is still computed, so that its time is in the token rate. Raises
    ValueError: a cell that keeps several beams, or that states its own acceptance.
    """
    if simulate is None:
        return tuple(cells)
    return tuple(_simulated(cell, simulate, sampling) if cell.drafts else cell for cell in cells)


def simulated_acceptance(cell: Cell) -> tuple[float, ...]:
    """The stated acceptance, for all depths or one each; none if the rule decides."""
    if cell.config.verifier.name != SIMULATED:
        return ()
    acceptance = cell.settings["verifier"]["acceptance"]
    return tuple(acceptance) if isinstance(acceptance, list) else (acceptance,)


def _simulated(cell: Cell, simulate: Any, sampling: SamplingSettings) -> Cell:
    """One cell with its acceptance stated."""
    from spec_bench.tree.base import GrownTree

    if not isinstance(cell.config.tree, GrownTree):
        raise ValueError(f"{cell.title} keeps several beams; simulate must be null")
    verifier = {
        "rule": SIMULATED,
        "acceptance": simulate,
        "computed": dict(cell.settings["verifier"]),
    }
    if cell.config.verifier.name == SIMULATED:
        raise ValueError(f"{cell.title} states its own acceptance; simulate must be null")
    return Cell.read({**cell.settings, "verifier": verifier}, sampling)


# `budget=14` and `length=3`: lists of trees by their number of nodes or by their depth. Each number
# has a file, such as `conf/budget/14.yaml`. Hydra reads a bare number as an int, which names no
# config, so numbers are quoted on the way in.

LISTS = ("budget", "length")  # config groups that allow several choices at once
_ASKED = re.compile(rf"([+]{{0,2}})({'|'.join(LISTS)})=(.*)", re.S)
_WORD = re.compile(r"[^\[\],'\"\s]+")


def with_quoted_numbers(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra understands it: ``budget=6``, ``budget=6,14``, ``budget=[6,14]`` or
    null; other arguments stay. Raises ValueError: a number that no file holds.
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
