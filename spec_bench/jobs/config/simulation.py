"""Simulated acceptance (``simulate=...``) in place of the models': given as a number, or derived
from the block efficiencies that papers print or a results file has.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from spec_bench.engine.architectures import PREFIX as RANDOM
from spec_bench.jobs.config.cells import BASELINE, Cell
from spec_bench.jobs.config.config import PRINTED_SOURCE, RunSettings
from spec_bench.jobs.config.pair import PairSettings
from spec_bench.records.sampling import SamplingSettings
from spec_bench.system.errors import UsageError
from spec_bench.system.files import read_csv
from spec_bench.vocabulary.published import (
    find_pair_spellings,
    iter_published_numbers,
    list_pair_spellings,
    read_all_published_numbers,
)

_SIMULATED_RULE = "simulated"  # of the verifier with a stated acceptance
_EFFICIENCY = "block_efficiency"
_NEEDED_COLUMNS = ("decoder", "spec", "task", "temperature", _EFFICIENCY)


def simulate_cells(
    cells: Sequence[Cell], request: RunSettings, sampling: SamplingSettings
) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Replaces the cells' rules by the stated acceptance, except the baseline's; returns the cells,
    and the reason for each omitted cell. Raises UsageError if a cell keeps several beams or states
    its own acceptance, or if the source has no block efficiency of any cell.
    """
    source = request.simulate
    if source is None:
        return tuple(cells), ()
    if not isinstance(source, Path):
        acceptance = [*source] if isinstance(source, tuple) else source  # as YAML has it
        return tuple(
            simulate_verifier(cell, acceptance, sampling) if cell.config.drafts else cell
            for cell in cells
        ), ()
    task = str(request.task["name"])
    efficiencies = read_block_efficiencies(source, request.pair, task, sampling.temperature)
    simulated_cells = list[Cell]()
    missing_reasons = list[str]()
    for cell in cells:
        if cell.config.library or cell.name == BASELINE:
            simulated_cells.append(cell)
        elif tau := efficiencies.get((cell.name, cell.config.spec)):
            simulated_cells.append(simulate_verifier(cell, None, sampling, tau))
        else:
            missing_reasons.append(f"{cell.title}: simulate={source} has no block efficiency of it")
    if missing_reasons and len(missing_reasons) == sum(cell.config.spec != "-" for cell in cells):
        setting = f"task {task} and temperature {sampling.temperature:g}"
        raise UsageError(f"{missing_reasons[0]}, nor of any other cell at {setting}")
    return tuple(simulated_cells), tuple(missing_reasons)


def simulate_verifier(
    cell: Cell, acceptance: Any, sampling: SamplingSettings, block_efficiency: float = 0
) -> Cell:
    """Returns a cell with a rule that accepts with the probability ``acceptance`` (or one per
    depth; None: so that ``block_efficiency`` results). The cell's own rule is still computed for
    its time, unless it judges several nodes at once, as block verification does.
    """
    from spec_bench.tree.base import GrownTree  # these need torch
    from spec_bench.verify.base import NodeVerifier
    from spec_bench.verify.simulated import solve_uniform_acceptance

    tree = cell.config.tree
    if not isinstance(tree, GrownTree):
        raise UsageError(f"{cell.title} keeps several beams; simulate must be null")
    if cell.config.verifier.name == _SIMULATED_RULE:
        raise UsageError(f"{cell.title} states its own acceptance; simulate must be null")
    if acceptance is None:
        acceptance = solve_uniform_acceptance(block_efficiency, tree.shape.depth)
    rule = {"rule": _SIMULATED_RULE, "acceptance": acceptance}
    if isinstance(cell.config.verifier, NodeVerifier):
        rule["computed"] = cell.settings["verifier"]
    return Cell.from_mapping({**cell.settings, "verifier": rule}, sampling).with_name(cell.name)


def read_block_efficiencies(
    source: Path, pair: PairSettings, task: str, temperature: float
) -> dict[tuple[str, str], float]:
    """Reads block efficiencies at a task and temperature, by decoder and tree: from the rows of a
    results file, or from papers' numbers for a pair (or for the published sizes that ``random:``
    names). Raises UsageError if there is no such file or pair.
    """
    rows: Iterable[dict[str, str]]
    if source == PRINTED_SOURCE:
        pairs = list_pair_spellings(asdict(pair)["paper"])
        pairs = pairs or find_pair_spellings(pair.target.removeprefix(RANDOM))
        if not pairs:
            raise UsageError(
                f"simulate={source}: no paper prints numbers of {pair.target!r}: a pair of "
                "spec-bench ls pairs, its sizes such as --target random:llama2_7b, or pair.paper"
            )
        numbers = chain.from_iterable(read_all_published_numbers().values())
        printed = iter_published_numbers(numbers, pairs, task, temperature, _EFFICIENCY)
        rows = ({**row, _EFFICIENCY: row["value"]} for row in printed)
    elif not source.is_file():
        raise UsageError(f"simulate={source}: there is no such file")
    else:
        rows = (
            row
            for row in read_csv(source, _NEEDED_COLUMNS)
            if (row["task"], float(row["temperature"])) == (task, temperature)
        )
    return {
        (row["decoder"], row["spec"]): float(row[_EFFICIENCY]) for row in rows if row[_EFFICIENCY]
    }
