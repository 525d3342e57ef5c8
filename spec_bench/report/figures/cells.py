"""Selects the rows of a figure: measured cells of its pairs, tasks and experiments, and printed
numbers.

Figures add columns to those of ``results.csv``. The added names have a dot, which no column of a
results file has; adding a column that is there already raises UsageError
(``join_columns_or_refuse``).

* ``tree.*``, from the tree's shorthand: ``form``, ``width``, ``depth``, ``nodes``, ``threshold``,
  ``paths``, ``order`` (whether the second of two levels is narrower or wider than the first)
* ``cell.attention`` (with tree attention, or with paths as rows) and ``cell.ways`` (in how many of
  these two ways a tree was verified), ``cell.merged`` (how many times fewer nodes merged beams
  have), ``cell.group``, ``cell.score`` with its ends, ``cell.score_name``, ``cell.relative`` (the
  score divided by plain decoding's of the same run)
* ``cell.lost`` of printed cells: whether one of the cell's numbers could not be read
* ``paper.*``: ``draft_length`` or ``target_budget``, if the paper's tables are divided by it
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from math import nan, prod
from typing import Any

import pandas as pd

from spec_bench.records.types import explain_timing_doubt
from spec_bench.report.data.rows import (
    clear_times_and_energy,
    drop_duplicates_with_fewer_prompts,
    find_score_column,
    group_rows,
    mask_tree_attention,
    select_experiments_or_all,
)
from spec_bench.report.papers.pairs import find_pair_config, read_pair_configs
from spec_bench.report.papers.paper import Axes, Figure, Paper, load_paper
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.columns import COLUMNS, ENDS, select_must_match_columns
from spec_bench.vocabulary.names import get_task_title as get_task_title
from spec_bench.vocabulary.published import KEYS, pivot_numbers
from spec_bench.vocabulary.spec import parse_tree_spec

GROUP = "cell.group"
SCORE = "cell.score"
RELATIVE = "cell.relative"
SCORE_NAME = "cell.score_name"
LOST = "cell.lost"
_NOT_TRUNCATED = {"top_k": 0.0, "top_p": 1.0}
_SAMPLED = ["task", "temperature", "top_k", "top_p"]


class NothingMeasuredError(ValueError):
    """Raised if there are no measured rows that a figure shows."""


@dataclass(frozen=True)
class FigureCells:
    """The cells that a figure can draw."""

    item: Figure
    given: pd.DataFrame  # all measured rows
    alone: bool = False  # whether the paper's numbers are drawn in place of measured ones

    @property
    def paper(self) -> Paper:
        """The figure's paper."""
        return load_paper(self.item.paper)

    def rows(self, also_without_tree_attention: bool = False) -> pd.DataFrame:
        """Selects the measured cells, by default with tree attention only, and adds the columns of
        figures. With ``alone`` selects the printed cells instead.

        If some of the figure's pairs were measured, only these are shown, with the tasks that the
        figure names. Otherwise all measured pairs are shown, with all tasks that its recipe
        measured. Raises NothingMeasuredError if no cells are left.
        """
        item = self.item
        pairs = list_figure_pairs(item)
        if self.alone:
            rows = read_printed_cells(item.paper, pairs).fillna(_NOT_TRUNCATED)
            if rows.empty:
                raise make_nothing_measured_error(item)
            if item.tables:
                return rows[rows.table.isin(item.tables)]
            return rows[rows.task.isin(item.tasks)] if item.tasks else rows
        chosen = select_valid_experiment_rows(self.given, item, also_without_tree_attention)
        chosen = paper_rows if len(paper_rows := chosen[chosen.pair.isin(pairs)]) else chosen
        if item.tasks:
            any_task = ~chosen.pair.isin(pairs) & (not list_foreign_experiments(item, chosen))
            chosen = chosen[any_task | chosen.task.isin(item.tasks)]
        if chosen.empty:
            raise make_nothing_measured_error(item)
        if (is_at_paper_temperature := self.mask_paper_temperatures(chosen)).any():
            chosen = chosen[
                is_at_paper_temperature
                | ~is_at_paper_temperature.groupby(chosen.task).transform("any")
            ]
        order = partial(pd.Categorical, categories=item.tasks)  # the figure's; other tasks last
        chosen = chosen.sort_values("task", key=order, kind="stable")
        is_doubtful = chosen.reason.fillna("").map(explain_timing_doubt) != ""
        return _add_axis_columns(
            add_figure_columns(clear_times_and_energy(chosen, is_doubtful)),
            self.paper.trees_by_axis,
        )

    def mask_paper_temperatures(self, rows: pd.DataFrame) -> pd.Series:
        """Marks the rows at a temperature of the figure's tables; all rows if the figure has no
        tables.
        """
        numbers = [
            number for number in self.paper.numbers if int(number["table"]) in self.item.tables
        ]
        paper_settings = {(n["task"], float(n["temperature"])) for n in numbers if n["temperature"]}
        settings = zip(rows.task, rows.temperature, strict=True)
        return pd.Series(
            [not paper_settings or number in paper_settings for number in settings], rows.index
        )

    def read_printed_numbers(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Reads the paper's numbers for the pairs of ``rows``."""
        return read_printed_cells(self.item.paper, rows.pair)


def select_valid_experiment_rows(
    rows: pd.DataFrame, item: Figure, also_without_tree_attention: bool = False
) -> pd.DataFrame:
    """Selects the rows of the recipe's experiments that did not fail, each cell once. Raises
    NothingMeasuredError if none is left.
    """
    valid = rows if rows.empty or also_without_tree_attention else rows[mask_tree_attention(rows)]
    valid = valid if valid.empty else valid[valid.status != "failed"]
    if valid.empty:
        raise make_nothing_measured_error(item)
    return drop_duplicates_with_fewer_prompts(select_experiments_or_all(valid, item.experiments))


def list_foreign_experiments(item: Figure, rows: pd.DataFrame) -> list[str]:
    """Lists the experiments of rows that no recipe of the figure measures."""
    experiments = dict.fromkeys(rows.experiment.dropna()) if "experiment" in rows else {}
    return [name for name in experiments if name not in item.experiments]


def list_figure_pairs(item: Figure) -> list[str]:
    """Lists the pair configs that a figure shows in the paper: its ``pairs``, or those of its
    tables.
    """
    printed_pairs = item.pairs
    if item.tables:
        numbers = load_paper(item.paper).numbers
        printed_pairs = tuple(
            (n["target"], n["draft"]) for n in numbers if int(n["table"]) in item.tables
        )
    names = (find_pair_config(*pair) for pair in dict.fromkeys(printed_pairs))
    return list(dict.fromkeys(name for name in names if name))


def list_recipe_commands(item: Figure) -> list[str]:
    """Lists the commands of a figure's recipes; any one of them measures its rows."""
    return [f"spec-bench run -m {name}" for name in item.recipes]


def make_nothing_measured_error(item: Figure) -> NothingMeasuredError:
    """Makes the error for a figure without rows, with the commands that would measure them."""
    commands = " or ".join([item.command] if item.command else list_recipe_commands(item))
    return NothingMeasuredError(
        f"nothing measured for figure {item.name}; to measure it: {commands}"
    )


def shows_other_pairs(item: Figure) -> bool:
    """Returns whether a figure is drawn for pairs that it does not have in the paper.

    It is if it has ``any_pair`` or no recipe, or if it is the first figure of its recipe: the
    recipe's other figures would show the same again.
    """
    if item.any_pair or not item.recipes:
        return True
    siblings = [
        figure
        for figure in load_paper(item.paper).figures
        if figure.recipes[:1] == item.recipes[:1]
    ]
    return item.number == siblings[0].number


def _add_axis_columns(rows: pd.DataFrame, axes: Axes) -> pd.DataFrame:
    """Adds a column for each axis that divides the paper's tables into blocks.

    A tree's value is the one in the paper's tables, because budgets are nominal and cannot be
    computed from node counts. Some trees are on several axes and do not tell which experiment was
    run, so an axis's column is empty in all rows unless some tree is on this axis only.
    """
    trees = list(zip(rows.decoder, rows.spec.astype(str), strict=True))
    for axis, places in axes.items():
        other_trees = {
            tree for name, axis_trees in axes.items() if name != axis for tree in axis_trees
        }
        belongs = any(tree in places and tree not in other_trees for tree in trees)
        column = pd.Series([places.get(tree) if belongs else None for tree in trees], rows.index)
        rows = join_columns_or_refuse(rows, column.astype(float).to_frame(f"paper.{axis}"))
    return rows


def read_printed_cells(paper: str, pairs: Iterable[str]) -> pd.DataFrame:
    """Reads the paper's numbers for some pairs, a row per cell, with the columns of measured cells.

    A cell that is printed twice is taken from the first table. A speed-up that is not printed is
    computed from the printed token rates of the same table.
    """
    frames = [_read_printed_pair(paper, pair) for pair in dict.fromkeys(pairs)]
    nonempty = [frame for frame in frames if not frame.empty]
    return (
        add_figure_columns(pd.concat(nonempty, ignore_index=True)) if nonempty else pd.DataFrame()
    )


@functools.cache
def _read_printed_pair(paper: str, pair: str) -> pd.DataFrame:
    config = read_pair_configs().get(pair)
    names = config.printed_pairs if config else frozenset()
    numbers = (n for n in load_paper(paper).numbers if (n["target"], n["draft"]) in names)
    rows = pd.DataFrame(pivot_numbers(numbers))
    if rows.empty:
        return rows
    rows[LOST] = rows.drop(columns=list(KEYS)).eq("").any(axis=1)  # numbers not printed are NaN
    number = {column.name for column in COLUMNS if column.holds == "number"} | {
        "axis_value",
        "table",
    }
    for name in number.intersection(rows):
        rows[name] = pd.to_numeric(rows[name], errors="coerce")
    rows = rows.assign(pair=pair)
    for axis in load_paper(paper).trees_by_axis:
        rows[f"paper.{axis}"] = rows.axis_value.where(rows.axis == axis)
    rows = rows.sort_values("table", kind="stable").reset_index(drop=True)
    if "token_rate" in rows and "speedup" not in rows:
        base = rows.token_rate.where(rows.decoder == "ar").groupby(rows.table).transform("first")
        rows["speedup"] = rows.token_rate / base
    return rows[~rows.duplicated([*_SAMPLED, "decoder", "spec", "axis"])]


def add_figure_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds the columns about trees, tree attention and scores, which need no paper."""
    if rows.empty:
        return rows
    trees = {spec: _make_tree_columns(str(spec)) for spec in rows.spec.unique()}
    facts = pd.DataFrame([trees[spec] for spec in rows.spec], index=rows.index)
    facts = facts.add_prefix("tree.")
    has_tree_attention = mask_tree_attention(rows)
    facts["cell.attention"] = has_tree_attention.map(
        {True: "tree attention", False: "beams as rows"}
    )
    cells = facts["cell.attention"].groupby([rows.pair, rows.decoder, rows.spec])
    facts["cell.ways"] = cells.transform("nunique")
    if "nodes_per_call_p50" in rows:
        times = facts["tree.nodes"] / rows.nodes_per_call_p50
        facts["cell.merged"] = times.where(times > 1)
    rows = join_columns_or_refuse(rows, facts)
    scores = []
    for _, part in rows.groupby("task", sort=False) if "task" in rows else ():
        if (name := find_score_column(part)) is not None:
            ends = {f"{SCORE}{end}": part.get(f"{name}{end}", nan) for end in ("", *ENDS)}
            scores.append(pd.DataFrame({**ends, SCORE_NAME: name}, index=part.index))
    if not scores:
        return rows
    rows = join_columns_or_refuse(rows, pd.concat(scores))
    baseline_rows = rows[rows.decoder == "ar"]
    runs = [
        column.name
        for column in select_must_match_columns(rows)
        if baseline_rows[column.name].notna().any()
    ]
    keys = list(dict.fromkeys(["pair", "task", *runs]))
    base = (
        rows[keys]
        .merge(baseline_rows.drop_duplicates(keys), "left", keys)[SCORE]
        .set_axis(rows.index)
    )
    ends = {f"{RELATIVE}{end}": rows[f"{SCORE}{end}"] / base for end in ("", *ENDS)}
    return join_columns_or_refuse(rows, pd.DataFrame(ends))


def _make_tree_columns(spec: str) -> dict[str, Any]:
    """Makes the tree columns of a shorthand; NaN for a name, or for a printed line without a
    shorthand.
    """
    tree = parse_tree_spec(spec) if spec else None
    if tree is None or tree.form == "name":
        return {"form": "name", **dict.fromkeys(("width", "depth", "nodes", "paths"), nan)}
    facts = {name: getattr(tree, name) for name in ("form", "width", "depth", "nodes")}
    facts["threshold"] = nan if tree.threshold is None else tree.threshold
    widths = tree.widths or ()
    order = ""
    if len(widths) == 2:
        first_width, second = widths
        order = (
            "decreasing"
            if first_width > second
            else "increasing"
            if first_width < second
            else "equal"
        )
    return {**facts, "paths": prod(widths), "order": order}


def join_columns_or_refuse(rows: pd.DataFrame, facts: pd.DataFrame) -> pd.DataFrame:
    """Adds columns to the rows. Raises UsageError if the rows have a column of the same name."""
    if repeats := [str(name) for name in facts if name in rows]:
        raise UsageError(f"rows to draw have a column {repeats[0]!r}, which figures add themselves")
    return rows.join(facts)


def add_group_column(rows: pd.DataFrame, x: str = "") -> pd.DataFrame:
    """Adds ``cell.group``: the task, and the settings that differ between groups, except ``x``."""
    titles = pd.Series("", index=rows.index, dtype=object)
    settings_rows = rows.assign(**{x: ""}) if x in rows else rows
    for group in group_rows(settings_rows) if "pair" in rows else ():
        task = str(group.rows.iloc[0].task)
        titles[group.rows.index] = group.title.replace(task, get_task_title(task), 1)
    return join_columns_or_refuse(rows, titles.to_frame(GROUP))
