"""``simulate=...``: the acceptance that a run states in place of the one its models would have.

Knows what the user may write and the papers' reference tables; nothing about how a rule simulates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import Cell
from spec_bench.settings.configs import experiments_dir
from spec_bench.settings.validation import Ge, Le, MinLen, Real, Says, Text, check, settings
from spec_bench.vocabulary.published import FILE, Row, read_published

_FORMS = "a probability, a list of one per depth, {table: PAPER/NUMBER} or null"
_DIGITS = 6
SIMULATED = "simulated"  # the rule of the verifier that states its acceptance

Probability = Annotated[Real, Ge(0), Le(1)]
Acceptance = float | Sequence[float]


@settings
class FromTable:
    """Acceptances that give a paper's block efficiencies; ``otherwise`` if it prints none."""

    table: Text
    otherwise: Probability | Annotated[tuple[Probability, ...], MinLen(1)] | None = None


@settings
class Simulate:
    """The run's setting ``simulate``."""

    simulate: Annotated[
        Probability | Annotated[tuple[Probability, ...], MinLen(1)] | FromTable | None, Says(_FORMS)
    ]


def check_simulate(simulate: Any) -> Any:
    """The setting as it was written, or ``FromTable``.

    Raises:
        ValueError: it cannot be right.
    """
    if isinstance(simulate, Mapping):
        return check(FromTable, simulate, "simulate")
    check(Simulate, {"simulate": simulate})
    return simulate


def simulate_cells(
    cells: Sequence[Cell], simulate: Any, sampling: SamplingSettings
) -> tuple[Cell, ...]:
    """The cells with the stated acceptance in place of their rules; a baseline has none.

    The rule that a cell had is still computed, so that its time is in the token rate.

    Raises:
        ValueError: a setting that cannot be right, or a cell missing from its table.
    """
    if simulate is None:
        return tuple(cells)
    stated = _stated(simulate)
    return tuple(_simulated(cell, stated, sampling) if cell.drafts else cell for cell in cells)


def simulated_acceptance(cell: Cell) -> tuple[float, ...]:
    """The stated acceptance, for all depths or one each; none if the rule decides."""
    if cell.config.verifier.name != SIMULATED:
        return ()
    acceptance = cell.settings["verifier"]["acceptance"]
    return tuple(acceptance) if isinstance(acceptance, list) else (acceptance,)


def published_block_efficiency(table: str) -> dict[tuple[str, str], float]:
    """What a paper printed in a table such as ``rsd/1`` (Table 1 of
    ``experiments/rsd/reference.csv``), by decoder and spec; rows without a number are left out.

    Raises:
        ValueError: no such paper, or no such table in it.
    """
    paper, _, number = str(table).partition("/")
    root = experiments_dir()
    printed = {path.parent.name: _efficiencies(path) for path in root.glob(f"*/{FILE}")}
    known = sorted(name for name, rows in printed.items() if rows)
    if paper not in known:
        raise ValueError(
            f"simulate.table is PAPER/NUMBER with a paper of {', '.join(known) or 'none'} "
            f"(in {root.name}/), got {table!r}"
        )
    rows = [row for row in printed[paper] if row["table"] == number]
    if not rows:
        raise ValueError(f"simulate.table: {paper} has no table {number!r}")
    return {(row["decoder"], row["spec"]): float(row["value"]) for row in rows if row["value"]}


def _simulated(
    cell: Cell, stated: Callable[[Cell, int], Acceptance], sampling: SamplingSettings
) -> Cell:
    """One cell with its acceptance stated."""
    from spec_bench.tree.base import GrownTree

    tree = cell.config.tree
    if not isinstance(tree, GrownTree):
        raise ValueError(f"{cell.title} keeps several beams; simulate must be null")
    depth = tree.shape.depth
    verifier = {
        "rule": SIMULATED,
        "acceptance": stated(cell, depth),
        "computed": dict(cell.settings["verifier"]),
    }
    if cell.config.verifier.name == SIMULATED:
        raise ValueError(f"{cell.title} states its own acceptance; simulate must be null")
    return Cell.read({**cell.settings, "verifier": verifier}, sampling)


def _stated(simulate: Any) -> Callable[[Cell, int], Acceptance]:
    """The acceptance of a cell of a given depth."""
    if not isinstance(simulate, FromTable):
        return lambda cell, depth: simulate
    published = published_block_efficiency(simulate.table)

    from spec_bench.verify.simulated import constant_acceptance

    def look_up(cell: Cell, depth: int) -> Acceptance:
        tau = published.get((cell.name, cell.spec))
        if tau is not None:
            return round(constant_acceptance(tau, depth), _DIGITS)
        if simulate.otherwise is None:
            raise ValueError(
                f"simulate.table={simulate.table} has no block efficiency of {cell.title}; "
                "leave that cell out or state simulate.otherwise"
            )
        otherwise = simulate.otherwise
        return list(otherwise) if isinstance(otherwise, tuple) else otherwise

    return look_up


def _efficiencies(path: Path) -> list[Row]:
    """A paper's block efficiencies; none if its tables print several per decoder and tree."""
    rows = [row for row in read_published(path) if row["metric"] == "block_efficiency"]
    cells = {(row["table"], row["decoder"], row["spec"]) for row in rows}
    return rows if len(cells) == len(rows) else []
