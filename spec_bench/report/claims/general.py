"""What is checked of any results file: orderings, exact decoders' scores, the fastest decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pandas as pd

from spec_bench.metrics.bounded import added_by_prompt, sign_flip_p
from spec_bench.report.claims.ask import Ask
from spec_bench.report.claims.contrast import Contrast, Difference, counts_of, difference
from spec_bench.report.claims.question import cells, first
from spec_bench.report.claims.select import name_of, of_our_engine
from spec_bench.report.claims.verdict import HOLDS, NOT_DECIDED, Check, PValues
from spec_bench.report.data.categories import kinds_of
from spec_bench.report.data.counts import Records, value_of_sums
from spec_bench.report.data.rows import Group, Row, prompts_of, rows_of, score_column
from spec_bench.vocabulary.columns import ENDS, columns_in

SIMILAR = 0.05
"""Scores are similar that differ by at most this share of the range that they can have."""


def checks(ask: Ask) -> Iterator[Check]:
    """All of them."""
    ask = ask.of()
    yield from _orderings(ask)
    yield from exact_scores(ask)
    yield from fastest(ask)
    yield from _fastest_by_category(ask)


def _orderings(ask: Ask) -> Iterator[Check]:
    """The first trees of a file, ordered as in RSD's Figure 4 (arXiv:2402.14160)."""
    known = partial(cells, status=("complete", "partial"), lossless="exact")
    for left, right in (("rsd_s", "rsd_c"), ("rsd_c", "spectr"), ("spectr", "sd")):
        yield from ask.ahead(
            "{left} > {right} in {metric}",
            known(left),
            known(right),
            "block_efficiency",
            by=first,
            recorded=True,
            pooled="all tasks",
            evidence="difference {found}",
        )


def exact_scores(ask: Ask) -> Iterator[Check]:
    """Exact decoders draw from the target's distribution, so scores differ from AR's by noise
    only.
    """
    for group in ask.groups:
        yield from exact_scores_of(group, ask.records)


def exact_scores_of(group: Group, records: Records) -> Iterator[Check]:
    """Exact decoders' scores against AR's in one group.

    If all draw from one distribution, either of two decoders could have given either answer to a
    prompt: the claim fails where the signs of the prompts' differences are too lopsided for that (a
    randomisation test on the discordant prompts, McNemar's for right and wrong; Bonferroni over
    decoders). It holds where the mean over decoders is within ``SIMILAR`` of AR's.
    """
    score = score_column(group.rows)
    baselines = [row for row in group.by_decoder.get("ar", []) if row["status"] != "failed"]
    if score is None or not baselines or pd.isna(baselines[0][score]):
        return
    exact = [
        row
        for row in rows_of(group.rows)
        if row["decoder"] != "ar" and row["lossless"] == "exact" and not pd.isna(row[score])
    ]
    if not exact:
        return
    claim = f"{score} of exact decoders is that of ar, within {_room(score):g}"
    contrasts = [Contrast((row,), (baselines[0],)) for row in exact]
    if group.rows.temperature.eq(0).all() and (same := _same(contrasts, score, records)):
        yield Check(claim, group.title, f"the same on {same}; a count", HOLDS)
        return
    mean = difference([contrasts], score, records)
    tests = list(_tests(exact, baselines[0], score, records))
    near = mean.within(_room(score)) if mean else None
    if near is None or len(tests) < len(exact):
        yield Check(claim, group.title, str(mean), NOT_DECIDED)
        return
    least, name = min(tests)
    p_values = PValues(near.for_claim, min(1.0, least * len(exact)))
    several = f"mean of {len(exact)} decoders, " if len(exact) > 1 else ""
    evidence = f"{several}{mean}; most lopsided by prompt: {name}, p = {least:.2g}"
    yield Check(claim, group.title, evidence, NOT_DECIDED, p_values=p_values)


def _same(contrasts: Sequence[Contrast], score: str, records: Records) -> str:
    """On how many prompts all greedy answers score the same; "" where some do not, or unknown."""
    table = counts_of(contrasts, score, records)
    if table is None:
        return ""
    cells = table.reshape(2 * len(contrasts), -1, *table.shape[1:])
    return f"{table.shape[2]} of {table.shape[2]} prompts" if (cells == cells[0]).all() else ""


def _tests(
    exact: Sequence[Row], baseline: Row, score: str, records: Records
) -> Iterator[tuple[float, str]]:
    """The p-value and the name of every decoder whose prompts are known."""
    for row in exact:
        table = counts_of([Contrast((row,), (baseline,))], score, records)
        if table is None or table.shape[2] < 2:
            continue
        half = len(table) // 2
        sides = table.sum(axis=1)
        added = [
            added_by_prompt(partial(value_of_sums, row=cell, name=score), side)
            for cell, side in ((row, sides[:half]), (baseline, sides[half:]))
        ]
        yield sign_flip_p(added[0] - added[1]), name_of(row)


def _room(score: str) -> float:
    """The largest difference of similar scores."""
    least, most = columns_in([score, f"{score}{ENDS[0]}"])[0].limits
    return SIMILAR * ((1.0 if most is None else most) - (least or 0.0))


def fastest(ask: Ask) -> Iterator[Check]:
    """Whether our fastest speculative decoder is really faster than the baseline."""
    for group in ask.groups:
        yield from fastest_of(group, ask.records, group.title)


def _fastest_by_category(ask: Ask) -> Iterator[Check]:
    """The same on each category of prompts alone."""
    for group in ask.groups:
        for kind in kinds_of(group, ask.records):
            where = f"{group.title}, category {kind.name}"
            yield from fastest_of(group, ask.records, where, frozenset(kind.prompts))


def fastest_of(
    group: Group, records: Records, where: str, prompts: frozenset[str] | None = None
) -> Iterator[Check]:
    """The check of one group: the decoder that half of the prompts picks, timed on the others."""
    rows = of_our_engine(group.rows[group.rows.decoder != "ar"])
    rows = rows[rows.status != "failed"]
    baselines = [row for row in group.by_decoder.get("ar", []) if row["status"] != "failed"]
    if "speedup" not in rows or rows.speedup.isna().all() or not baselines:
        return
    rows = rows[rows.speedup.notna()]
    cells = tuple(rows_of(rows))
    gap = difference([[Contrast(cells, (baselines[0],))]], "token_rate", records, prompts=prompts)
    if gap is None:
        return
    evidence = f"{gap} against ar's token rate{_basis(rows, prompts, gap)}"
    yield Check("the fastest beats ar", where, evidence, NOT_DECIDED, p_values=gap.above())


def _basis(rows: pd.DataFrame, prompts: frozenset[str] | None, gap: Difference) -> str:
    """The text on the fastest decoder on all prompts, and on the number of decoders."""
    if prompts is None:
        best = rows.loc[rows.speedup.idxmax()]
        text = f"; on all prompts {best.decoder} {best.spec}, {best.speedup:.2f} times"
        count = prompts_of(rows)
    else:
        text, count = "", f"{len(prompts)} prompts"
    if len(rows) == 1:
        return f"{text}, on {count}" if count else text
    how = ", picked on one half of the prompts and timed on the other" if gap.paired else ""
    return f"{how}{text}, best of {len(rows)}" + (f" on {count}" if count else "")
