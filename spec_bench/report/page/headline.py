"""The answer first: which decoder is fastest on each pair and task, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from spec_bench import names
from spec_bench.columns import column
from spec_bench.report.rows import Group

_BY = ("speedup", "token_rate", "block_efficiency")


@dataclass(frozen=True)
class Headline:
    """The fastest decoder of a group.

    Attributes:
        pair: the group's.
        task: the group's, for people.
        decoder: name and tree, for people.
        code: the decoder's name in the results.
        value: the number with its unit.
        interval: its 95% interval; "" where it has none.
        sure: how it stands to the runners-up.
    """

    pair: str
    task: str
    decoder: str
    code: str
    value: str
    interval: str
    sure: str


def headline(group: Group) -> Headline | None:
    """The best exact speculative decoder by speedup; None where nothing has a number."""
    rows = group.rows[(group.rows.decoder != "ar") & (group.rows.status != "failed")]
    exact = rows[rows.lossless == "exact"]
    rows = exact if not exact.empty else rows
    by = next((name for name in _BY if name in rows and rows[name].notna().any()), None)
    if by is None:
        return None
    best = rows.loc[rows[by].idxmax()]
    low, high = best.get(f"{by}_low"), best.get(f"{by}_high")
    known = low is not None and not pd.isna(low)
    unit = "×" if by == "speedup" else ""
    digits = 1 if by == "token_rate" else 2
    return Headline(
        pair=str(best.pair),
        task=title_of(group),
        decoder=_name(best),
        code=str(best.decoder),
        value=f"{best[by]:.{digits}f}{unit}" + ("" if by == "speedup" else f" {column(by).title}"),
        interval=f"{low:.{digits}f} to {high:.{digits}f}" if known else "",
        sure=_sure(rows, best, by)
        + ("" if not exact.empty else f" ({names.MARKS.get(str(best.lossless), best.lossless)})"),
    )


def title_of(group: Group) -> str:
    """The group's title for people, without its pair, which stands beside it."""
    first = group.rows.iloc[0]
    title = group.title.replace(f", pair {first.pair}", "")
    return title.replace(str(first.task), names.task(str(first.task)))


def _sure(rows: pd.DataFrame, best: pd.Series, by: str) -> str:
    """Which others the interval does not exclude."""
    if f"{by}_low" not in rows or pd.isna(best[f"{by}_low"]):
        return "without an interval"
    others = rows.drop(index=best.name)
    if others.empty:
        return "the only one measured here" if best.lossless != "exact" else "the only exact one"
    near = others[others[f"{by}_high"] >= best[f"{by}_low"]].sort_values(by, ascending=False)
    if near.empty:
        return f"ahead of all {len(others)} others"
    names = [_name(row) for _, row in near.head(2).iterrows()]
    more = f" and {len(near) - 2} more" if len(near) > 2 else ""
    return f"not told apart from {', '.join(names)}{more}"


def _name(row: pd.Series) -> str:
    return f"{names.decoder(str(row.decoder)).title} {row.spec}"
