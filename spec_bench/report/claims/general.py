"""Checks for any results file: order of decoders, exact decoders' scores, the fastest decoder."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pandas as pd

from spec_bench.metrics.p_values import sign_flip_p_value
from spec_bench.metrics.resampling import Array, pseudo_values
from spec_bench.report.claims.ask import (
    UNAUDITED,
    ClaimQuery,
    Comparison,
    cells,
    make_unjudged_check,
)
from spec_bench.report.claims.contrast import Contrast, compute_difference, get_contrast_counts
from spec_bench.report.claims.verdict import HOLDS, NOT_COMPARABLE, NOT_JUDGED, Check, PValues
from spec_bench.report.data.categories import describe_shared_clocks, group_prompts_by_category
from spec_bench.report.data.counts import RecordReader, compute_metric_from_sums
from spec_bench.report.data.differences import find_relative_chance_difference
from spec_bench.report.data.rows import (
    Group,
    Row,
    find_score_column,
    format_prompt_count,
    select_undoubted_rows,
    to_rows,
)
from spec_bench.vocabulary.columns import ENDS, get_columns
from spec_bench.vocabulary.names import format_decoder_and_tree
from spec_bench.vocabulary.numbers import format_count

SIMILAR = 0.05
"""Scores count as similar if they differ by at most this share of their possible range."""


def iter_general_checks(ask: ClaimQuery) -> Iterator[Check]:
    """Yields all checks of a results file: orders, exact decoders' scores, the fastest decoder."""
    ask = ask.of()
    measured_cells = partial(cells, status=("complete", "partial"), lossless="exact")

    def pair_first(_: Comparison, left_rows: list[Row], right: list[Row]) -> Iterator[Contrast]:
        if left_rows and right:
            yield left_rows[:1], right[:1]

    # The first trees of a file, ordered as in RSD's Figure 4 (arXiv:2402.14160).
    for left_name, right in (("rsd_s", "rsd_c"), ("rsd_c", "spectr"), ("spectr", "sd")):
        results = ask.ahead(
            "{left} > {right} in {metric}",
            measured_cells(left_name), measured_cells(right), "block_efficiency",
            by=pair_first, pooled="all tasks", evidence="difference {found}",
        )  # fmt: skip
        yield from (check for check in results if check.p_values or check.verdict == NOT_COMPARABLE)
    yield from check_all_exact_scores(ask)
    for group in ask.groups:  # whether our fastest decoder is really faster than the baseline
        yield from check_fastest_beats_baseline(group, ask.records, group.title)
    for group in ask.groups:
        shared_clocks = describe_shared_clocks(group)
        for kind, prompts in group_prompts_by_category(group, ask.records).items():
            location = f"{group.title}, category {kind}"
            checks = check_fastest_beats_baseline(group, ask.records, location, frozenset(prompts))
            for check in checks:
                if shared_clocks:
                    check = Check(check.claim, location, shared_clocks, NOT_JUDGED, pair=check.pair)
                yield check


def check_all_exact_scores(ask: ClaimQuery) -> Iterator[Check]:
    """Checks, group by group, that exact decoders' scores differ from AR's only by noise."""
    for group in ask.groups:
        yield from check_exact_scores(group, ask.records)


def check_exact_scores(group: Group, records: RecordReader) -> Iterator[Check]:
    """Compares exact decoders' scores with AR's in one group.

    If all draw from one distribution, either of two decoders could have given either answer to a
    prompt: the claim fails if the signs of the prompts' differences are too lopsided for that (a
    randomisation test on the discordant prompts, McNemar's for right and wrong; Bonferroni over
    decoders). It holds if the mean over decoders is within ``SIMILAR`` of AR's.
    """
    score = find_score_column(group.rows)
    baseline = group.baseline
    if score is None or baseline is None or pd.isna(baseline[score]):
        return
    exact = [
        row
        for row in to_rows(group.rows)
        if row["decoder"] != "ar" and row["lossless"] == "exact" and not pd.isna(row[score])
    ]
    if not exact:
        return
    lowest, highest = get_columns([score, f"{score}{ENDS[0]}"])[0].limits
    room = SIMILAR * ((1.0 if highest is None else highest) - (lowest or 0.0))
    claim = f"{score} of exact decoders is that of ar, within {room:g}"
    contrasts = [([row], [baseline]) for row in exact]
    table = get_contrast_counts(contrasts, score, records)
    if group.rows.temperature.eq(0).all() and table is not None and (table == table[0]).all():
        same_text = f"the same on {table.shape[-1]} of {table.shape[-1]} prompts; a count"
        yield Check(claim, group.title, same_text, HOLDS)
        return
    mean = compute_difference([contrasts], score, records)
    equivalence = mean.within(room) if mean else None
    if equivalence is None or table is None or table.shape[-1] < 2:
        p_equal = equivalence if table is None else None
        yield Check(claim, group.title, str(mean), p_values=p_equal, pair=str(baseline["pair"]))
        return
    sides = zip(contrasts, np.split(table.sum(axis=2), len(contrasts)), strict=True)
    p, name = min(
        (_compute_sign_p_value(contrast, sums, score), format_decoder_and_tree(contrast[0][0]))
        for contrast, sums in sides
    )
    count_text = f"mean of {len(exact)} decoders, " if len(exact) > 1 else ""
    evidence = f"{count_text}{mean}; most lopsided by prompt: {name}, p = {p:.2g}"
    against = min(1.0, p * len(exact))
    pair = str(baseline["pair"])

    def compute_p_values_at(count: int) -> PValues | None:
        near = mean.rescale_to_prompts(count).within(room) if mean else None
        return near and (near[0], against)

    p_values = equivalence[0], against
    yield Check(
        claim, group.title, evidence, p_values=p_values, pair=pair, of_prompts=compute_p_values_at
    )


def _compute_sign_p_value(contrast: Contrast, sums: Array, score: str) -> float:
    """Computes the p-value of the signs of differences by prompt, of sums (counts, prompts) per
    cell.
    """
    left_values, right_values = (
        pseudo_values(partial(compute_metric_from_sums, row=cell, name=score), side)
        for cell, side in zip(chain(*contrast), sums, strict=True)
    )
    return sign_flip_p_value(left_values - right_values)


def check_fastest_beats_baseline(
    group: Group,
    records: RecordReader,
    location: str,
    prompts: frozenset[str] | None = None,
) -> Iterator[Check]:
    """Checks that a group's fastest decoder beats AR: each half of the prompts picks a decoder,
    which is compared on the other half.
    """
    rows = group.rows
    baseline = group.baseline
    is_measured = ~rows.lossless.isin([UNAUDITED, "simulated"]) & (rows.status != "failed")
    timed_rows = rows[(rows.decoder != "ar") & is_measured]
    timed_rows = (
        timed_rows[timed_rows.speedup.notna()] if "speedup" in timed_rows else timed_rows.iloc[:0]
    )
    rows = select_undoubted_rows(timed_rows, "speedup")
    claim = "the fastest beats ar"
    if rows.empty and not timed_rows.empty and prompts is None:
        yield make_unjudged_check(claim, group, to_rows(timed_rows), "speedup")
    if rows.empty or baseline is None:
        return
    gap = compute_difference(
        [[(to_rows(rows), [baseline])]], "token_rate", records, prompts=prompts
    )
    if gap is None:
        return
    gap = replace(gap, chance_share=find_relative_chance_difference(to_rows(rows), "token_rate"))
    basis = ""
    count = format_count(len(prompts or ()), "prompt")
    if prompts is None:
        best = rows.loc[rows.speedup.idxmax()]
        basis = f"; on all prompts {best.decoder} {best.spec}, {best.speedup:.2f} times"
        count = format_prompt_count(rows)
    if len(rows) > 1:
        method = (
            ", picked on one half of the prompts and timed on the other"
            if gap.ends_on_value_scale
            else ""
        )
        basis = f"{method}{basis}, best of {len(rows)}" + (f" on {count}" if count else "")
    elif count:
        basis = f"{basis}, on {count}"
    evidence = f"{gap} against ar's token rate{basis}"
    yield Check(
        claim,
        location,
        evidence,
        p_values=gap.above(),
        pair=str(baseline["pair"]),
        of_prompts=lambda n: gap.rescale_to_prompts(n).above(),
    )
