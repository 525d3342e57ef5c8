"""Columns that figures have beside those of ``results.csv``, each from a row's own.

From a tree's shorthand: ``form``, ``width``, ``depth``, ``nodes``, ``threshold``, ``paths``,
``order`` (how the widths of two levels go with depth). From the reference: ``draft_length`` or
``target_budget``, where the paper's tables are divided by one. From the cell: ``attention`` and
``ways`` (how often a tree was verified: with tree attention, with its paths as rows, or both),
``merged`` (how many times fewer nodes merged beams have), ``cell`` (decoder and tree),
``group``, ``score``.
"""

from __future__ import annotations

from math import nan, prod
from typing import Any

import pandas as pd

from spec_bench.columns import ENDS
from spec_bench.names import task as task_title
from spec_bench.report.rows import groups_of, score_column, tree_attention
from spec_bench.spec import parse

TREE_ATTENTION, BEAMS_AS_ROWS = "tree attention", "beams as rows"


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with all columns that a row tells by itself."""
    if rows.empty:
        return rows
    trees = {spec: _of_tree(str(spec)) for spec in rows.spec.unique()}
    facts = pd.DataFrame([trees[spec] for spec in rows.spec], index=rows.index)
    has = tree_attention(rows)
    facts["attention"] = has.map({True: TREE_ATTENTION, False: BEAMS_AS_ROWS})
    facts["ways"] = facts.attention.groupby([rows.pair, rows.decoder, rows.spec]).transform(
        "nunique"
    )
    aside = (~has).map({True: ", paths as rows", False: ""})
    facts["cell"] = (rows.decoder + " " + rows.spec.astype(str)).str.removesuffix(" -") + aside
    if "nodes_per_call_p50" in rows:
        times = facts.nodes / rows.nodes_per_call_p50
        facts["merged"] = times.where(times > 1)
    return scored(rows.join(facts[[name for name in facts if name not in rows]]))


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with ``score``, the first quality score of their task, and ``score_name``."""
    parts = []
    for _, part in rows.groupby("task", sort=False) if "task" in rows else ():
        if (name := score_column(part)) is not None:
            ends = {f"score{end}": part.get(f"{name}{end}", nan) for end in ("", *ENDS)}
            parts.append(part.assign(**ends, score_name=name))
    return rows if not parts else rows.join(pd.concat(parts)[list(_SCORE)])


_SCORE = ("score", *(f"score{end}" for end in ENDS), "score_name")


def grouped(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with ``group``: the task, and of the other settings those that differ."""
    titles = pd.Series("", index=rows.index, dtype=object)
    for group in groups_of(rows) if "pair" in rows else ():
        task = str(group.rows.iloc[0].task)
        titles[group.rows.index] = group.title.replace(task, task_title(task), 1)
    return rows.assign(group=titles)


def _of_tree(spec: str) -> dict[str, Any]:
    """What a shorthand tells; a name tells nothing, nor does a printed line without one."""
    tree = parse(spec) if spec else None
    if tree is None or tree.form == "name":
        return {"form": "name", "width": nan, "depth": nan, "nodes": nan, "paths": nan}
    widths = tree.widths or ()
    return {
        "form": tree.form,
        "width": tree.width,
        "depth": tree.depth,
        "nodes": tree.nodes,
        "threshold": nan if tree.threshold is None else tree.threshold,
        "paths": prod(widths),
        "order": _order(widths),
    }


def _order(widths: tuple[int, ...]) -> str:
    """How the widths of two levels go with depth."""
    if len(widths) != 2:
        return ""
    first, second = widths
    return "decreasing" if first > second else "increasing" if first < second else "equal"
