"""Selects the rows that claims may look at."""

from __future__ import annotations

import pandas as pd

from spec_bench.report.data.recipe_rows import of_recipes, once
from spec_bench.report.data.rows import Group, Row, score_column, tree_attention

UNAUDITED = "unaudited"  # of another engine


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
