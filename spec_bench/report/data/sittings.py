"""What sets measured rows apart: a column for those of a later sitting, and what marks mean."""

from __future__ import annotations

import pandas as pd

from spec_bench.records.sittings import MEANING, of_other_sitting
from spec_bench.vocabulary.columns import apart_in
from spec_bench.vocabulary.names import MEANINGS

OTHER_SITTING = "other_sitting"


def with_sittings(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with that column, a bool.

    Args:
        rows: a results file's, of one seed each: what seeds are pooled to has no rate of its own.
    """
    found = pd.Series(False, rows.index)
    if not {"token_rate", "speedup"} <= {*rows.columns}:
        return rows.assign(**{OTHER_SITTING: found})
    keys = [*(each.name for each in apart_in(rows)), *(["seed"] if "seed" in rows else [])]
    needed = rows[["decoder", "token_rate", "speedup"]]
    for _, part in needed.groupby([rows[key] for key in keys], sort=False, dropna=False):
        found.loc[part.index] = of_other_sitting(part.to_dict("records"))
    return rows.assign(**{OTHER_SITTING: found})


def meanings_of(rows: pd.DataFrame) -> list[str]:
    """The footnotes of a table: what the marks of its rows mean."""
    found = {*map(str, rows.lossless)}
    other = OTHER_SITTING in rows and bool(rows[OTHER_SITTING].any())
    return [*(text for mark, text in MEANINGS.items() if mark in found), *([MEANING] * other)]
