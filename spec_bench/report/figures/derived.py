"""Columns that figures have beside those of ``results.csv``, each from a row's columns.

Their names have a dot, which those of a results file have not: neither hides the other, and where
one were there twice drawing stops (``with_columns``).

* ``tree.*`` from its shorthand: ``form``, ``width``, ``depth``, ``nodes``, ``threshold``,
  ``paths``, ``order`` (how the widths of two levels go with depth)
* ``cell.name`` (decoder and tree), ``cell.attention`` and ``cell.ways`` (how often a tree was
  verified: with tree attention, with its paths as rows, or both), ``cell.merged`` (how many times
  fewer nodes merged beams have), ``cell.group``, ``cell.score`` with its ends, ``cell.score_name``
  and ``cell.score_title``
* ``paper.*``: ``draft_length`` or ``target_budget``, where the paper's tables are divided by one
"""

from __future__ import annotations

from math import nan, prod
from typing import Any

import pandas as pd

from spec_bench.report.data.rows import groups_of, score_column, tree_attention
from spec_bench.vocabulary.columns import ENDS, columns_in
from spec_bench.vocabulary.names import task as task_title
from spec_bench.vocabulary.spec import parse

GROUP, SCORE, SCORE_NAME = "cell.group", "cell.score", "cell.score_name"
TREE_ATTENTION, BEAMS_AS_ROWS = "tree attention", "beams as rows"


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with all columns that follow from a row alone."""
    if rows.empty:
        return rows
    trees = {spec: _of_tree(str(spec)) for spec in rows.spec.unique()}
    facts = pd.DataFrame([trees[spec] for spec in rows.spec], index=rows.index)
    facts = facts.add_prefix("tree.")
    has = tree_attention(rows)
    facts["cell.attention"] = has.map({True: TREE_ATTENTION, False: BEAMS_AS_ROWS})
    cells = facts["cell.attention"].groupby([rows.pair, rows.decoder, rows.spec])
    facts["cell.ways"] = cells.transform("nunique")
    aside = (~has).map({True: ", paths as rows", False: ""})
    facts["cell.name"] = (rows.decoder + " " + rows.spec.astype(str)).str.removesuffix(" -") + aside
    if "nodes_per_call_p50" in rows:
        times = facts["tree.nodes"] / rows.nodes_per_call_p50
        facts["cell.merged"] = times.where(times > 1)
    return scored(with_columns(rows, facts))


def with_columns(rows: pd.DataFrame, facts: pd.DataFrame) -> pd.DataFrame:
    """The rows with more columns.

    Raises:
        ValueError: they have one of that name, and one of the two would be lost.
    """
    if twice := [str(name) for name in facts if name in rows]:
        raise ValueError(f"rows to draw have a column {twice[0]!r}, which figures add themselves")
    return rows.join(facts)


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their task's first quality score, its interval, its name and title."""
    parts, titles = [], {each.name: each.title for each in columns_in(list(rows.columns))}
    for _, part in rows.groupby("task", sort=False) if "task" in rows else ():
        if (name := score_column(part)) is not None:
            ends = {f"{SCORE}{end}": part.get(f"{name}{end}", nan) for end in ("", *ENDS)}
            titled = {SCORE_NAME: name, "cell.score_title": titles[name]}
            parts.append(pd.DataFrame({**ends, **titled}, index=part.index))
    return rows if not parts else with_columns(rows, pd.concat(parts))


def grouped(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with ``cell.group``: the task, and of the other settings those that differ."""
    titles = pd.Series("", index=rows.index, dtype=object)
    for group in groups_of(rows) if "pair" in rows else ():
        task = str(group.rows.iloc[0].task)
        titles[group.rows.index] = group.title.replace(task, task_title(task), 1)
    return with_columns(rows, titles.to_frame(GROUP))


def _of_tree(spec: str) -> dict[str, Any]:
    """The columns of a shorthand; NaN for a name or for a printed line without one."""
    tree = parse(spec) if spec else None
    if tree is None or tree.form == "name":
        return {"form": "name", "width": nan, "depth": nan, "nodes": nan, "paths": nan}
    widths, order = tree.widths or (), ""
    if len(widths) == 2:
        first, second = widths
        order = "decreasing" if first > second else "increasing" if first < second else "equal"
    return {
        "form": tree.form,
        "width": tree.width,
        "depth": tree.depth,
        "nodes": tree.nodes,
        "threshold": nan if tree.threshold is None else tree.threshold,
        "paths": prod(widths),
        "order": order,
    }
