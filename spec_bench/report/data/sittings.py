"""A column that marks rows of a later sitting, and the meanings of marks."""

from __future__ import annotations

import pandas as pd

from spec_bench.records.sittings import MEANING, of_other_sitting
from spec_bench.vocabulary.columns import apart_in
from spec_bench.vocabulary.names import MEANINGS

OTHER_SITTING = "other_sitting"


def with_sittings(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with that column, a bool.

    Args:
        rows: a results file's, of one seed each: a row of pooled seeds has no single rate.
    """
    marked = pd.Series(False, rows.index)
    if not {"token_rate", "speedup"} <= {*rows.columns}:
        return rows.assign(**{OTHER_SITTING: marked})
    keys = [*(each.name for each in apart_in(rows)), *(["seed"] if "seed" in rows else [])]
    needed = rows[["decoder", "token_rate", "speedup"]]
    for _, part in needed.groupby([rows[key] for key in keys], sort=False, dropna=False):
        marked.loc[part.index] = of_other_sitting(part.to_dict("records"))
    return rows.assign(**{OTHER_SITTING: marked})


def meanings_of(rows: pd.DataFrame) -> list[str]:
    """The footnotes of a table: the meanings of its rows' marks."""
    marks = {*map(str, rows.lossless)}
    other = OTHER_SITTING in rows and bool(rows[OTHER_SITTING].any())
    return [*(text for mark, text in MEANINGS.items() if mark in marks), *([MEANING] * other)]
