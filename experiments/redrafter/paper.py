"""What ReDrafter says of trained heads (arXiv:2403.09919, Section 3.1), for its claims and figures.

``heads.csv`` lies beside the measured rows, a row a head, as training collects it; nothing here
knows how heads are trained. Shares are of positions where the best guess is right; ``t+1`` is the
first token after the one already known. Two heads are right and wrong on the same dialogues, and
the file has their sums only, so that a difference of two of them has no interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from spec_bench.metrics.bootstrap import studentised_interval
from spec_bench.metrics.interval import FEWEST
from spec_bench.metrics.many import p_above, p_below
from spec_bench.report.claims.difference import fisher
from spec_bench.report.claims.functions import claim_function
from spec_bench.report.claims.select import Scope
from spec_bench.report.claims.verdict import DOES_NOT_HOLD, HOLDS, NOT_DECIDED, Check, Odds
from spec_bench.report.data.statistics import correlation, half_width
from spec_bench.report.figures.choose import cells
from spec_bench.report.figures.drawing import Drawing
from spec_bench.report.papers.claim import Claim
from spec_bench.report.papers.pairs import written
from spec_bench.report.papers.paper import Figure
from spec_bench.vocabulary.numbers import ends_of

FILE = "heads.csv"
GUESSES = ("t+1", "t+2", "t+3", "t+4", "t+5")
ACCURACY = "validation t+5"
NO_RNN = "redrafter_no_rnn"
KINDS = ("medusa", "redrafter", NO_RNN)
BLOCKS = (2, 4)
"""Residual blocks of the two ReDrafters that Figure 3 shows."""
_MEDUSA, _REDRAFTER, _ = KINDS
_SAME = ("blocks", "learning_rate", "steps")
_SIDES = {"train": "training", "validation": "validation"}


def heads_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The heads of the results folders that these rows come from; empty where there are none.

    Args:
        rows: measured cells with a column ``file``, or the heads themselves.
    """
    if ACCURACY in rows:
        return rows
    for file in dict.fromkeys(rows.file) if "file" in rows else ():
        folder = Path(file).parent
        for path in (folder / FILE, *sorted(folder.parent.glob(f"*/{FILE}"))):
            if path.is_file():
                return pd.read_csv(path)
    return pd.DataFrame()


def best_heads(heads: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """Of each kind the head with the highest mean accuracy in validation, in order of ``KINDS``."""
    found: dict[str, Mapping[str, Any]] = {}
    for kind in KINDS if not heads.empty else ():
        own = heads[heads["head"] == kind]
        if not own.empty:
            means = own[[f"validation {guess}" for guess in GUESSES]].mean(axis=1)
            found[kind] = own.loc[means.idxmax()].to_dict()
    return found


def shown_heads(heads: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """The heads of Figure 3: the best of each kind, of ReDrafter's the best of either size.

    Returns:
        Heads by kind, a ReDrafter of two blocks by ``redrafter_2`` and one of four by
        ``redrafter_4``; by ``redrafter`` where there is neither.
    """
    found: dict[str, Any] = {}
    for kind, best in best_heads(heads).items():
        own = heads[heads["head"] == kind]
        sizes = {f"{kind}_{each}": own[own["blocks"] == each] for each in BLOCKS}
        several = {name: best_heads(part)[kind] for name, part in sizes.items() if len(part)}
        found |= several if several and kind == KINDS[1] else {kind: best}
    return found


def grid_of(heads: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The measured cells with what is known of their heads, joined by the head's folder.

    Args:
        heads: all heads.
        rows: measured cells of ReDrafter; ``draft`` is the folder that its pair names.

    Raises:
        ValueError: both have a column of one name, of which one would be lost.
    """
    if heads.empty or "draft" not in rows:
        return pd.DataFrame()
    names = heads[heads["head"].isin((KINDS[1], NO_RNN))].drop_duplicates("folder")
    known = names.assign(draft=names.folder.str.rstrip("/")).drop(columns="seconds")
    own = rows[rows.decoder == KINDS[1]]
    own = own.assign(draft=own.draft.astype(str).str.rstrip("/"))
    if twice := [name for name in known if name in own and name != "draft"]:
        raise ValueError(f"cells and {FILE} both have a column {twice[0]!r}")
    return own.merge(known, on="draft", how="inner")


def with_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Measured cells with what is known of the heads that drafted them."""
    return grid_of(heads_of(rows), rows)


def cells_of_heads(item: Figure, drawing: Drawing, rows: pd.DataFrame) -> pd.DataFrame:
    """Measured cells with what is known of the head that drafted."""
    return grid_of(heads_of(rows), cells(item, drawing, rows))


def best_of_heads(item: Figure, drawing: Drawing, rows: pd.DataFrame) -> pd.DataFrame:
    """How often the best head of each kind and size is right: a row per head, side and guess.

    Bars are those of validation, as if each held-out dialogue were one draw: training's positions
    were learned.
    """
    found = []
    for kind, head in shown_heads(heads_of(rows)).items():
        for side, title in _SIDES.items():
            draws: Any = head.get("validation dialogues") if side == "validation" else None
            for guess in GUESSES:
                share = head[f"{side} {guess}"]
                known = draws is not None and not pd.isna(draws)
                half = half_width(share, float(draws)) if known else float("nan")
                found.append(
                    {
                        **{"head": kind, "side": title, "guess": guess, "blocks": head["blocks"]},
                        "size": written(int(head["parameters"])),
                        "accuracy": share,
                        **{"accuracy_low": share - half, "accuracy_high": share + half},
                    }
                )
    return pd.DataFrame(found)


@claim_function("heads_accuracy")
def accuracy(claim: Claim, scope: Scope) -> Iterator[Check]:
    """ReDrafter ahead of Medusa at t+2 and later, with fewer parameters (Figure 3)."""
    best = best_heads(heads_of(scope.of(claim)))
    if _MEDUSA not in best or _REDRAFTER not in best:
        return
    ours, theirs = best[_REDRAFTER], best[_MEDUSA]
    for guess in GUESSES[1:]:
        text = f"redrafter > medusa in validation accuracy at {guess}"
        yield _shares(text, ours, theirs, f"validation {guess}")
    sizes = [int(head["parameters"]) for head in (ours, theirs)]
    evidence = " against ".join(written(size) for size in sizes)
    verdict = HOLDS if sizes[0] < sizes[1] else DOES_NOT_HOLD
    yield Check("redrafter has fewer parameters than medusa", _where(ours), evidence, verdict)


@claim_function("heads_recurrence")
def recurrence(claim: Claim, scope: Scope) -> Iterator[Check]:
    """With the recurrence ahead of without, heads equal in all else that the grid varies.

    One check for each number of blocks. Those that were trained longest decide: what a short
    training has learned first is not what the structure can do.
    """
    heads = heads_of(scope.of(claim))
    grid = heads.drop_duplicates("folder").to_dict("records") if not heads.empty else []
    without = {_setting(head): head for head in grid if head["head"] == NO_RNN}
    pairs = [
        (head, without[_setting(head)])
        for head in grid
        if head["head"] == _REDRAFTER and _setting(head) in without
    ]
    by_blocks: dict[float, dict[float, list[float]]] = {}
    for left, right in pairs:
        by_steps = by_blocks.setdefault(float(left["blocks"]), {})
        own = by_steps.setdefault(float(left["steps"]), [])
        own.append(float(left[ACCURACY]) - float(right[ACCURACY]))
    for blocks, by_steps in sorted(by_blocks.items()):
        yield _recurrence(blocks, by_steps, _where(pairs[0][0]))


def _recurrence(blocks: float, by_steps: Mapping[float, Sequence[float]], where: str) -> Check:
    """Of heads with so many blocks: the differences of those trained longest, as a mean."""
    most, *fewer = sorted(by_steps, reverse=True)
    differences = by_steps[most]
    found = studentised_interval(
        lambda sums: sums[0] / sums[1], [differences, [1.0] * len(differences)]
    )
    assert found is not None, "a mean of numbers is a number"
    short = found.low is None or found.high is None
    basis = (
        f" (no interval: fewer than {FEWEST} pairs of heads)" if short else ", interval over pairs"
    )
    evidence = f"{found:+.4f}{basis}, mean of {_pairs(differences)} trained longest, {most:g} steps"
    for steps in fewer:
        own = by_steps[steps]
        evidence += f"; {steps:g} steps: {fmean(own):+.4f}, mean of {_pairs(own)}"
    text = f"the recurrence raises validation accuracy at t+5, heads of {blocks:g} blocks"
    more, less = p_above(found), p_below(found)
    odds = None if more is None or less is None else Odds(more, less)
    return Check(text, where, evidence, NOT_DECIDED, odds=odds)


@claim_function("heads_correlation")
def correlations(claim: Claim, scope: Scope) -> Iterator[Check]:
    """Heads that guess better decode faster, within each kind (Figure 4)."""
    joined = scope.of(claim)
    for kind in (_REDRAFTER, NO_RNN) if not joined.empty else ():
        own = joined[joined["head"] == kind]
        r = correlation(own[ACCURACY], own.token_rate)
        if r is not None:
            text = f"{kind}: speed follows accuracy at t+5 (r > 0)"
            evidence, odds = f"Pearson's r = {r:.3f} over {len(own)} heads", None
            if len(own) >= FEWEST and abs(r) < 1:
                low, high, odds = fisher(r, len(own))
                evidence += f" {ends_of(low, high, '.3f')}"
            yield Check(text, str(own.task.iloc[0]), evidence, NOT_DECIDED, odds=odds)


def _setting(head: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(head[key] for key in _SAME)


def _pairs(differences: Sequence[float]) -> str:
    count = len(differences)
    return f"{count} pair{'s' if count > 1 else ''} of heads"


def _shares(text: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], column: str) -> Check:
    """One accuracy against another, on the same dialogues; of those the file has sums only."""
    value = float(ours[column]) - float(theirs[column])
    evidence = (
        f"{ours[column]:.3f} against {theirs[column]:.3f}, {value:+.3f} (no interval: the heads' "
        "file has no accuracy by dialogue to pair them)"
    )
    return Check(text, _where(ours), evidence, NOT_DECIDED)


def _where(head: Mapping[str, Any]) -> str:
    count = head.get("validation dialogues")
    return "held-out dialogues" if count is None or pd.isna(count) else f"{count:g} dialogues"
