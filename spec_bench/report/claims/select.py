"""Selects a claim's cells: rows of its experiments, grouped, and the two sides in a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.counts import Records, Rounds
from spec_bench.report.data.recipe_rows import of_recipes, once
from spec_bench.report.data.rows import (
    Group,
    Row,
    groups_of,
    score_column,
    tree_attention,
)
from spec_bench.report.papers.claim import Claim, Range, Side
from spec_bench.report.papers.code import form_of
from spec_bench.report.papers.paper import Axes
from spec_bench.vocabulary.spec import parse

UNAUDITED = "unaudited"  # of another engine
_PARTS = ("depth", "width", "nodes", "threshold")


@dataclass(frozen=True)
class Scope:
    """The cells and records on which a paper's claims are checked.

    Attributes:
        rows: measured cells, neither failed nor simulated.
        records: source of per-prompt counts.
        axes: the axes of the paper's tables.
        folder: the paper's; None where the claims are of no paper.
    """

    rows: pd.DataFrame
    records: Records
    axes: Axes
    folder: Path | None = None

    def for_claim(self, claim: Claim) -> Scope:
        """The same; of a claim with ``rounds``, times are compared over rounds."""
        return replace(self, records=Rounds(self.records)) if claim.rounds else self

    def of(self, claim: Claim) -> pd.DataFrame:
        """The rows of a claim's experiments; a claim about trees has those with tree attention."""
        rows = self.rows
        if all(side.tree_attention for pair in claim.sides for side in pair):
            rows = with_tree_attention(rows)
        rows = of_experiment(rows, *claim.experiments, only=claim.only)
        if claim.join:
            joined: pd.DataFrame = form_of(self.folder, claim.join, "join")(rows)
            return joined
        return rows

    def groups(self, claim: Claim) -> list[Group]:
        """Comparable cells, which differ in the decoder and in ``across`` only."""
        rows = self.of(claim)
        if rows.empty:
            return []
        groups = groups_of(rows.drop(columns=[name for name in claim.across if name in rows]))
        whole = [Group(group.title, rows.loc[group.rows.index]) for group in groups]
        return [group for group in whole if self._counts(claim, group.rows)]

    def _counts(self, claim: Claim, rows: pd.DataFrame) -> bool:
        """Whether a group has the settings that a claim asks for and comes from its axis."""
        first = rows.iloc[0]
        if any(not allowed.holds(first[name]) for name, allowed in claim.given.items()):
            return False
        return not claim.axis or self._measures(rows, claim.axis)

    def _measures(self, rows: pd.DataFrame, axis: str) -> bool:
        """Whether some tree stands on this axis and on no other of the paper.

        Two axes may share trees (2-2, 3x2, ...), which alone are no run of either.
        """
        others = {key for name, places in self.axes.items() if name != axis for key in places}
        trees = self.axes[axis].keys() - others
        return any((d, str(spec)) in trees for d, spec in zip(rows.decoder, rows.spec, strict=True))

    def value(self, row: Row, key: str) -> Any:
        """A column, a part of the tree's shorthand, or a place on an axis; None where it has none.

        Args:
            row: a cell.
            key: a column, ``depth``, ``width``, ``nodes``, ``paths``, ``threshold``, an axis, or
                ``left`` for decoder and tree.
        """
        if key in self.axes:
            return self.axes[key].get((str(row["decoder"]), str(row["spec"])))
        if key == "left":
            return name_of(row)
        if key == "paths":
            return prod(parse(row["spec"]).widths or ()) or None
        if key in _PARTS:
            spec = parse(row["spec"])
            return None if spec.form == "name" else getattr(spec, key)
        return row.get(key)

    def values(self, row: Row, keys: Sequence[str]) -> tuple[Any, ...]:
        """Several of a row's values."""
        return tuple(self.value(row, key) for key in keys)

    def side(self, claim: Claim, group: Group, side: Side) -> list[Row]:
        """The cells of one side, decoder by decoder; another engine's only where it is named."""
        names = side.decoder or tuple(group.by_decoder)
        return [
            row
            for name in names
            if name not in side.without
            for row in group.by_decoder.get(name, [])
            if (side.decoder or row.get("lossless") != UNAUDITED)
            and self._is_of(row, side)
            and (not claim.axis or self.value(row, claim.axis))
        ]

    def _is_of(self, row: Row, side: Side) -> bool:
        if (
            side.tree_attention is not None
            and row.get("tree_attention", True) != side.tree_attention
        ):
            return False
        if side.form and parse(row["spec"]).form != side.form:
            return False
        return all(_allowed(self.value(row, key), want) for key, want in side.where.items())


def _allowed(value: Any, wanted: Range | tuple[Any, ...]) -> bool:
    if value is None or pd.isna(value):
        return False
    return wanted.holds(float(value)) if isinstance(wanted, Range) else value in wanted


def scores_of(group: Group, metric: str) -> list[str]:
    """A metric's columns in a group: ``score`` is the task's score, whatever it is called;
    ``scores`` that and perplexity, as far as they were measured.
    """
    if metric not in ("score", "scores"):
        return [metric]
    score = score_column(group.rows)
    known = metric == "scores" and "perplexity" in group.rows
    also = ["perplexity"] if known and group.rows.perplexity.notna().any() else []
    return [*([score] if score else []), *also]


def name_of(row: Row) -> str:
    """Decoder and tree, as they are written in results; a baseline has no tree."""
    return f"{row['decoder']} {row['spec']}".removesuffix(" -")


def of_experiment(rows: pd.DataFrame, *names: str, only: bool = False) -> pd.DataFrame:
    """The rows that a claim may take (``of_recipes``), each cell once (``once``)."""
    if only and not ("experiment" in rows and rows.experiment.isin(names).any()):
        return rows.iloc[:0]
    return once(of_recipes(rows, names))


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are evidence: neither failed nor with simulated acceptance, nor screened."""
    return evident(rows[(rows.status != "failed") & (rows.lossless != "simulated")])


def evident(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that no search only screened: many cells on few prompts, to pick some of them."""
    return rows[rows.stage != "screen"] if "stage" in rows else rows


def of_our_engine(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that no other engine decoded."""
    return rows[rows.lossless != UNAUDITED]


def with_tree_attention(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with tree attention; frames without the column have it throughout."""
    return rows[tree_attention(rows)]
