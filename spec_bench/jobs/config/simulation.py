"""``simulate=...``: the acceptance that a run states in place of the one its models would have.

Knows what the user may write; nothing about how a rule simulates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import Cell
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
    """The setting as it was written.

    Raises:
        ValueError: it cannot be right.
    """
    check(Simulate, {"simulate": simulate})
    return simulate


def simulate_cells(
    cells: Sequence[Cell], simulate: Any, sampling: SamplingSettings
) -> tuple[Cell, ...]:
    """The cells with the stated acceptance in place of their rules; a baseline has none.

    The rule that a cell had is still computed, so that its time is in the token rate.

    Raises:
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
