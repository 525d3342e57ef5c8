"""The papers' numbers as a figure needs them: which trees an experiment has, what was printed."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pandas as pd

from spec_bench.published import side_by_side
from spec_bench.report.papers.index import Item, load_paper
from spec_bench.report.papers.pairs import pair_configs, pair_of

AXES = {"draft_length": "draft length L", "target_budget": "budget B (tree nodes)"}


@functools.cache
def reference(paper: str) -> pd.DataFrame:
    """A paper's printed numbers, one row per cell; the shared frame is not to be written to."""
    rows = pd.DataFrame(side_by_side(load_paper(paper).numbers))
    keys = ("target", "draft", "task", "method", "decoder", "spec", "axis", "tree_attention")
    for name in rows.columns.difference(keys):
        rows[name] = pd.to_numeric(rows[name])
    scores = rows[[name for name in ("rouge2", "bleu") if name in rows]]
    return rows.assign(accuracy=scores.bfill(axis=1).iloc[:, 0]) if not scores.empty else rows


def axis_of(item: Item) -> str:
    """What an RSD figure has on its horizontal axis: a key of ``AXES``."""
    rows = reference(item.paper)
    return str(rows[rows.table.isin(item.settings["tables"])].axis.iloc[0])


@functools.cache
def axis_values(axis: str) -> dict[tuple[str, str], int]:
    """(decoder, spec) -> draft length or budget, for each tree of an RSD experiment.

    Budgets are nominal, so they come from the paper's tables and not from counting nodes.
    """
    rows = reference("rsd")
    rows = rows[(rows.axis == axis) & (rows.decoder != "ar")]
    return {(row.decoder, row.spec): int(row.axis_value) for row in rows.itertuples()}


def measures(rows: pd.DataFrame, axis: str) -> bool:
    """Whether rows come from an RSD experiment: some tree is in its list and not in the other's.

    The two share some trees (2-2, 3x2, ...), which alone are no run of either.
    """
    other = next(name for name in AXES if name != axis)
    own = axis_values(axis).keys() - axis_values(other).keys()
    return any((d, str(spec)) in own for d, spec in zip(rows.decoder, rows.spec, strict=True))


def pairs_of(item: Item) -> list[str]:
    """Names of the pair configs that a figure shows in the paper."""
    if "tables" in item.settings:
        rows = reference(item.paper)
        rows = rows[rows.table.isin(item.settings["tables"])]
        printed: Sequence[Sequence[str]] = rows[["target", "draft"]].drop_duplicates().to_numpy()
    else:
        printed = item.settings["pairs"]
    found = (pair_of(str(target), str(draft)) for target, draft in printed)
    return list(dict.fromkeys(name for name in found if name))


def printed_rsd(pair: str, task: str, axis: str) -> pd.DataFrame:
    """The rows that RSD prints for a pair and task; none for a pair that is not the paper's."""
    config = pair_configs().get(pair)
    names = config.printed if config else frozenset()
    rows = reference("rsd")
    own = [(target, draft) in names for target, draft in zip(rows.target, rows.draft, strict=True)]
    return rows[(rows.task == task) & (rows.axis == axis) & pd.Series(own, rows.index)]


def printed_mcsd(pair: str, task: str, temperature: float, metric: str) -> float | None:
    """One number that MCSD prints for a pair, Table 1 before Table 7; None where it has none."""
    config = pair_configs().get(pair)
    names = config.printed if config else frozenset()
    rows = reference("mcsd")
    name, _, candidates = metric.rpartition("_k")
    rows = rows[(rows.task == task) & (rows.spec == candidates) & rows[name].notna()]
    for row in rows[rows.temperature == temperature].sort_values("table").to_dict("records"):
        if (row["target"], row["draft"]) in names:
            return float(row[name])
    return None


def paper_sampling(paper: str, task: str, row: pd.Series) -> bool:
    """Whether a row was sampled as the paper samples this task."""
    wanted = {"top_p": 1.0, "top_k": 0} | load_paper(paper).settings["sampling"].get(task, {})
    return all(row[name] == value for name, value in wanted.items())
