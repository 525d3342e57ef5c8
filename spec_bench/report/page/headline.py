"""The recommended decoder on each pair and task, with its interval.

Of decoders that tie with the fastest, and are close to it, it is the simplest, the one with the
fewest nodes to verify. Autoregressive decoding competes: where no speculative decoder's
interval lies above its speed, the answer is to use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from spec_bench.metrics.interval import FEWEST, TOO_FEW
from spec_bench.metrics.many import at_once
from spec_bench.report.data.rows import Group, cell_keys, number_in, numbers_in, prompts_of
from spec_bench.report.data.seeds import SEEDS
from spec_bench.report.page.tree_title import tree_titles
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import column
from spec_bench.vocabulary.numbers import ends_of

_BY = ("speedup", "token_rate", "block_efficiency")
CLOSE = 0.05  # a tie that is slower than the best by a larger share is not named
_SIZE = ("nodes_per_call", "draft_calls")
_MAXIMUM = "the interval covers whichever of them is the best (Bonferroni)"


@dataclass(frozen=True)
class Headline:
    """The recommended decoder of a group: the fastest, or the simplest of those that tie with it.

    Attributes:
        pair: the group's.
        task: the group's, for people.
        decoder: name and tree, for people.
        code: the decoder's name in the results.
        value: the number with its unit.
        interval: its 95% interval; "" where it has none.
        sure: how it stands to the runners-up.
        basis: of how many cells it is the best, and on how many prompts.
        timed: whether the number is one of speed; else it counts tokens per target call.
        tied: number of speculative cells that tie with the fastest, itself among them; of all.
    """

    pair: str
    task: str
    decoder: str
    code: str
    value: str
    interval: str
    sure: str
    basis: str
    timed: bool
    tied: tuple[int, int] = (1, 1)

    @property
    def speed(self) -> str:
        """The number with its interval."""
        return f"{self.value} [{self.interval}]" if self.interval else self.value

    @property
    def why(self) -> str:
        """The reason for the answer."""
        return f"{self.sure}; {self.basis}"

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        if self.code == "ar":
            return f"{self.task}: {self.sure[0].lower()}{self.sure[1:]}; {self.basis}."
        return f"{self.task}: use {self.decoder}, {self.speed}: {self.why}."


def headline(group: Group) -> Headline | None:
    """The best of the exact speculative decoders and AR; None where nothing has a number.

    A search's screening has none: it picks whom to confirm, and the best of it is partly luck.
    """
    if "stage" in group.rows and (group.rows.stage == "screen").all():
        return None
    rows = group.rows.assign(spec=tree_titles(group.rows))
    rows = rows[(rows.decoder != "ar") & (rows.status != "failed")]
    exact = rows[rows.lossless == "exact"]
    rows = exact if not exact.empty else rows
    by = next((name for name in _BY if name in rows and rows[name].notna().any()), None)
    if by is None:
        return None
    rows = _of_one_meter(rows[rows[by].notna()])
    best = rows.loc[rows[by].idxmax()]
    law = str(best.lossless) if _known(best.lossless) else "lossless or not is not stated"
    mark = "" if not exact.empty else f" ({names.MARKS.get(law, law)})"
    near, tied = _near(rows, best, by), 1
    if slower := _not_faster(group, best, by, len(rows)):
        decoder, code, value, interval, sure = "AR", "ar", "1.00×", "", slower
    else:
        simplest, tied = _simplest(near, by, len(rows)), len(near)
        decoder, code = _name(simplest), str(simplest.decoder)
        value, interval = _value(simplest, by, len(rows))
        faster = "faster than AR, " if by == "speedup" else ""
        sure = f"{faster}{_sure(rows, best, near, by)}"
    return Headline(
        pair=str(best.pair),
        task=title_of(group),
        decoder=decoder,
        code=code,
        value=value,
        interval=interval,
        sure=sure + mark,
        basis=_basis(rows, by),
        timed=by != "block_efficiency",
        tied=(tied, len(rows)),
    )


def _of_one_meter(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without those that differ from an earlier one in the energy's meter alone."""
    if "energy_method" not in rows:
        return rows
    meter = rows.energy_method.fillna("")
    first = meter.groupby([rows[key] for key in cell_keys(rows)], dropna=False).transform("first")
    return rows[meter == first]


def _not_faster(group: Group, best: pd.Series, by: str, of: int) -> str:
    """The advice to use AR, with the share of its speed that the best other one reaches.

    "" where that one is faster by its interval, or where no speed can be compared.
    """
    fastest = f"the fastest speculative decoder, {_name(best)}, reaches"
    if by == "speedup":
        ends = _ends(best, by, of)
        if ends and ends[0] > 1:
            return ""
        slower = ends and ends[1] < 1
        interval = ends_of(*ends, ".2f") if ends else f"({_no_interval(best)})"
        shown = "" if slower else "none is shown to be faster; "
        return f"Use AR: {shown}{fastest} {best[by]:.2f} {interval} of its speed"
    baseline = group.row("ar")
    rate = None if baseline is None else baseline.get(by)
    if by != "token_rate" or not _known(rate) or not rate or best[by] > rate:
        return ""
    return (
        f"Use AR: {fastest} {best[by] / rate:.2f} of its speed (no interval: not measured side by "
        "side)"
    )


def _no_interval(row: pd.Series) -> str:
    """The words for a missing interval, with the reason if prompts are too few."""
    prompts = number_in(row, "prompts")
    return "no interval" if prompts is None or prompts >= FEWEST else f"no interval: {TOO_FEW}"


def _ends(best: pd.Series, by: str, of: int) -> tuple[float, float] | None:
    """The interval of the best of so many; None where there is none."""
    value, low, high = numbers_in(best, by)
    prompts = number_in(best, "prompts")
    if value is None or low is None or high is None or prompts is None:
        return None
    return at_once((value, low, high), prompts, of)


def _value(best: pd.Series, by: str, of: int) -> tuple[str, str]:
    """The number with its unit, and its interval."""
    digits = 1 if by == "token_rate" else 2
    units = {"speedup": "×", "token_rate": " tokens/s"}
    unit = units.get(by) or f" {column(by).title}"
    ends = _ends(best, by, of)
    interval = ends_of(*ends, f".{digits}f", "{} to {}") if ends else ""
    return f"{best[by]:.{digits}f}{unit}", interval


def _basis(rows: pd.DataFrame, by: str) -> str:
    """The choice behind the answer: cells, prompts, and the correction of the interval."""
    several, prompts = len(rows) > 1, prompts_of(rows)
    confirmed = "stage" in rows and bool((rows.stage == "confirm").all())
    kind = "confirmed" if confirmed else "speculative"
    cells = f"best of {len(rows)} {kind} cells" if several else f"the only {kind} cell"
    intervals = several and f"{by}_low" in rows and rows[f"{by}_low"].notna().any()
    pooled = rows[SEEDS].dropna().str.count(",").max() if SEEDS in rows else 0
    seeds = f" and {pooled + 1:.0f} seeds" if pooled else ""
    parts = [cells, f"{prompts}{seeds} each" if prompts else "", _MAXIMUM if intervals else ""]
    return "; ".join(filter(None, [", ".join(filter(None, parts[:2])), parts[2]]))


def title_of(group: Group) -> str:
    """The group's title for people, without its pair, which stands beside it."""
    first = group.rows.iloc[0]
    title = group.title.replace(f", pair {first.pair}", "")
    return title.replace(str(first.task), names.task(str(first.task)))


def _sure(rows: pd.DataFrame, best: pd.Series, near: pd.DataFrame, by: str) -> str:
    """The text on other cells that the interval does not exclude."""
    if f"{by}_low" not in rows or pd.isna(best[f"{by}_low"]):
        return "without an interval" if by != "block_efficiency" else "no speed was measured"
    if len(rows) == 1:
        return "the only one measured here" if best.lossless != "exact" else "the only exact one"
    if len(near) == 1:
        return f"ahead of all {len(rows) - 1} others"
    simplest, tied = (
        _simplest(near, by, len(rows)),
        f"{len(near)} of {len(rows)} are not told apart",
    )
    if simplest.name == best.name:
        return f"{tied}; no simpler one is within {CLOSE:.0%} of it"
    fastest = f"{_name(best)}, {best[by]:.2f}"
    return f"{tied}; {_name(simplest)} is the simplest within {CLOSE:.0%} of the best ({fastest})"


def _near(rows: pd.DataFrame, best: pd.Series, by: str) -> pd.DataFrame:
    """The best row and those that its interval does not exclude."""
    is_best = rows.index == best.name
    if f"{by}_low" not in rows or pd.isna(best[f"{by}_low"]):
        return rows[is_best]
    return rows[is_best | (rows[f"{by}_high"] >= best[f"{by}_low"])]


def _simplest(near: pd.DataFrame, by: str, of: int) -> pd.Series:
    """The row with the fewest nodes to verify, then drafted in the fewest calls, then the first.

    Of those close to the best, and of speed-ups of those that are surely above 1.
    """
    near = near[near[by] >= (1 - CLOSE) * near[by].max()]
    if by == "speedup":
        sure = [(_ends(row, by, of) or (0.0,))[0] > 1 for _, row in near.iterrows()]
        near = near[sure] if any(sure) else near
    if any(name not in near or near[name].isna().any() for name in _SIZE):
        return near.loc[near[by].idxmax()]
    return near.loc[near[list(_SIZE)].round().sort_values(list(_SIZE), kind="stable").index[0]]


def _name(row: pd.Series) -> str:
    title = names.decoder(str(row.decoder)).title
    return title if row.spec == "-" else f"{title} {row.spec}"


def _known(value: object) -> bool:
    return value is not None and not pd.isna(value)
