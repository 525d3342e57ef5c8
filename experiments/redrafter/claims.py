"""ReDrafter's claims (arXiv:2403.09919), in the words of ``report.claims``.

Of trained heads ``heads.csv`` has sums only: two of them are right and wrong on the same
dialogues, so that a difference of two has no interval.
"""

from itertools import product
from math import inf
from statistics import fmean

import pandas as pd

from spec_bench.metrics.interval import FEWEST
from spec_bench.metrics.p_values import p_value_above, p_value_below
from spec_bench.metrics.resampling import bootstrap_interval
from spec_bench.report.claims.ask import (
    Checks,
    ClaimQuery,
    best,
    cells,
    counted,
    ends,
    make_unjudged_check,
    steps,
)
from spec_bench.report.claims.contrast import (
    Difference,
    compute_correlation,
    compute_fisher_interval,
    has_choice,
)
from spec_bench.report.claims.verdict import DOES_NOT_HOLD, HOLDS, Check
from spec_bench.report.data.rows import Group, select_undoubted_rows, to_rows
from spec_bench.report.papers.pairs import format_parameter_count
from spec_bench.vocabulary.numbers import format_ends

from .heads import ACCURACY, GUESSES, KINDS, NO_RNN, best_heads, heads_of, with_heads

BOTH = ("block_efficiency", "token_rate")
_MEDUSA, _REDRAFTER, _ = KINDS
_SAME = ("blocks", "learning_rate", "steps")
_ROUNDS = "a job each: decided from two rounds (seeds) on"
FACTORS = {"vicuna_7b": 2.67, "vicuna_13b": 2.92}
"""Printed speed-ups over greedy AR, by the pair that they are of."""
_CLOSE = 0.05  # a share: comparable


def heads_accuracy(ask: ClaimQuery) -> Checks:
    """“the recurrent drafter achieves higher predictive accuracy on both the training and
    validation sets.” (Figure 3)

    ReDrafter ahead of Medusa at t+2 and later, with fewer parameters.
    """
    found = best_heads(heads_of(_grid(ask).rows))
    if _MEDUSA not in found or _REDRAFTER not in found:
        return
    ours, theirs = found[_REDRAFTER], found[_MEDUSA]
    for guess in GUESSES[1:]:
        text = f"redrafter > medusa in validation accuracy at {guess}"
        yield _shares(text, ours, theirs, f"validation {guess}", _pair(ask))
    sizes = [int(head["parameters"]) for head in (ours, theirs)]
    evidence = " against ".join(format_parameter_count(size) for size in sizes)
    verdict = HOLDS if sizes[0] < sizes[1] else DOES_NOT_HOLD
    text = "redrafter has fewer parameters than medusa"
    yield Check(text, _where(ours), evidence, verdict, pair=_pair(ask))


def heads_recurrence(ask: ClaimQuery) -> Checks:
    """“RNN models achieve better accuracy, demonstrating the benefits of incorporating the
    recurrent structure.” (Figure 4)

    With the recurrence ahead of without, heads equal in all else that the grid varies: one check
    for each number of blocks. Those that were trained longest decide: what a short training has
    learned first is not what the structure can do.
    """
    heads = heads_of(_grid(ask).rows)
    grid = heads.drop_duplicates("folder").to_dict("records") if not heads.empty else []
    without = {_setting(head): head for head in grid if head["head"] == NO_RNN}
    pairs = [
        (head, without[_setting(head)])
        for head in grid
        if head["head"] == _REDRAFTER and _setting(head) in without
    ]
    by_blocks = {}
    for left, right in pairs:
        by_steps = by_blocks.setdefault(float(left["blocks"]), {})
        own = by_steps.setdefault(float(left["steps"]), [])
        own.append(float(left[ACCURACY]) - float(right[ACCURACY]))
    for blocks, by_steps in sorted(by_blocks.items()):
        yield _recurrence(blocks, by_steps, _where(pairs[0][0]), _pair(ask))


def recurrence(ask: ClaimQuery) -> Checks:
    """“it also enables the models to potentially achieve a higher ceiling in terms of both accuracy
    and efficiency during inference.” (Section 3.1)
    """
    known = _grid(ask, across="pair", join=with_heads)
    apart = (
        "each head in a job of its own, and the interval knows nothing of the machine's load, so "
        "left open"
    )
    for metric, expect, more in (
        ("block_efficiency", Difference.better, ""),
        ("token_rate", lambda gap: None, f"; {apart}"),
    ):
        yield from known.ahead(
            "the recurrence raises {metric}",
            cells("redrafter", head="redrafter"), cells("redrafter", head=NO_RNN), metric,
            same=_SAME, each="blocks", expect=expect,
            where=lambda found: f"{_task(found)}, heads of {found.label[0]:g} blocks",
            evidence=f"{{found}}, mean of {{n}} pairs of heads{more}",
        )  # fmt: skip


def heads_correlation(ask: ClaimQuery) -> Checks:
    """“we observed a high Pearson correlation coefficient 0.907, between validation accuracy at t +
    5 and inference speed within this group.” (Section 3.1)
    """
    joined = _grid(ask, join=with_heads).rows
    for kind in (_REDRAFTER, NO_RNN) if not joined.empty else ():
        measured = joined[joined["head"] == kind]
        own = select_undoubted_rows(measured, "token_rate")
        text = f"{kind}: speed follows accuracy at t+5 (r > 0)"
        r = compute_correlation(own[ACCURACY], own.token_rate)
        if r is None and len(own) < len(measured):
            group = Group(str(measured.task.iloc[0]), measured)
            yield make_unjudged_check(text, group, to_rows(measured), "token_rate")
        elif r is not None:
            evidence, p_values = f"Pearson's r = {r:.3f} over {len(own)} heads", None
            if len(own) >= FEWEST and abs(r) < 1:
                low, high, p_values = compute_fisher_interval(r, len(own))
                evidence += f" {format_ends(low, high, '.3f')}, heads trained apart as the sample"
            pair = str(own.pair.iloc[0])
            yield Check(text, str(own.task.iloc[0]), evidence, p_values=p_values, pair=pair)


def before_medusa(ask: ClaimQuery) -> Checks:
    """“ReDrafter demonstrated superior speed, outpacing AR by 2.67x in greedy decoding, compared to
    Medusa’s 2.28x on Vicuna 7B.” (Section 3.2)
    """
    yield from _against_medusa(ask, "exact rule", "redrafter", "medusa")


def as_much_faster(ask: ClaimQuery) -> Checks:
    """“ReDrafters, with their smaller sizes, achieved a greater speed increase (2.67x for Vicuna 7B
    and 2.92x for 13B) compared to Medusa (2.28x for Vicuna 7B and 2.37x for 13B) during greedy
    decoding.” (Table 1)

    Of these two pairs alone; that ReDrafter is ahead is asked of every pair.
    """
    for pair, factor in FACTORS.items():
        known = ask.of(
            "redrafter-decoding",
            only=True,
            given=lambda row, pair=pair: (row["temperature"], row["pair"]) == (0, pair),
        )
        yield from known.ahead(
            f"redrafter {factor} times as fast as ar, greedy, or up to 10% less",
            "redrafter", "ar", "token_rate", by=best, where=_task_and_pair,
            expect=lambda gap, factor=factor: gap.above(0.9 * factor - 1),
        )  # fmt: skip


def typical_before_greedy(ask: ClaimQuery) -> Checks:
    """“With typical acceptance, ReDrafter achieved even greater efficiencies, up to 3.28x.”
    (Section 3.2)

    Than its own greedy decoding: Table 1 divides both by greedy AR. They are jobs of their own.
    """
    yield from ask.of("redrafter-decoding", only=True, across="temperature").ahead(
        "typical acceptance (approximate) > the exact rule, greedy, in {metric}",
        "redrafter_typical", cells("redrafter", temperature=0), BOTH,
        by=best, where=_task_and_pair,
    )  # fmt: skip


def typical_before_medusa(ask: ClaimQuery) -> Checks:
    """ReDrafter before Medusa where both accept what is typical, as in Table 1.

    At temperature 0 the argmax is all that is typical.
    """
    rule = "typical acceptance (approximate)"
    sides = ("redrafter_typical", "medusa_typical")
    yield from _against_medusa(ask, rule, *sides, given=lambda row: row["temperature"] != 0)


def typical_as_exact(ask: ClaimQuery) -> Checks:
    """“Our empirical investigation reveals comparable performance between the two sampling
    approaches for our method when the temperature is lower than 0.7.” (Section 3.3)

    Its exact rule is rejection sampling, ours exact match.
    """
    text = f"typical acceptance (approximate) as fast as the exact rule, within {_CLOSE:.0%}"
    yield from _typical(
        ask, text, lambda t: 0 < t < 0.7, "token_rate", lambda gap: gap.within(_CLOSE)
    )


def typical_is_worse(ask: ClaimQuery) -> Checks:
    """“At higher temperature settings, such as 0.9, typical sampling may underperform, resulting in
    a significant drop in quality scores relative to rejection sampling.” (Section 3.3)
    """
    if "judge_score" in ask.rows:
        text = "typical acceptance (approximate) < exact rule in {metric}"
        yield from _typical(ask, text, lambda t: t >= 0.9, "judge_score", Difference.below)


def typical_before_exact(ask: ClaimQuery) -> Checks:
    """Typical acceptance before exact match, which accepts less the warmer the target is."""
    text = "typical acceptance (approximate) > exact rule in {metric}"
    yield from _typical(ask, text, lambda t: t >= 0.7, BOTH, Difference.better)


def wider_beams(ask: ClaimQuery) -> Checks:
    """“As the beam size increases, the chance of finding a candidate with a greater number of
    accepted tokens also rises, leading to an increase in tokens generated per forward step.”
    (Section 3.3)
    """
    yield from _beams(ask).ahead(
        "block efficiency grows with the beam width",
        "redrafter", "redrafter", "block_efficiency", by=steps("width"), where=_warmth,
        evidence=lambda found: (
            f"{found.gap}, mean of {found.contrast_count} steps, "
            f"{found.first_cells_of_sides[0][1]['spec']} to "
            f"{found.first_cells_of_sides[-1][0]['spec']}"
            f"{found.describe_single_verdicts('so', 'the other way')}"
        ),
    )  # fmt: skip


def merging(ask: ClaimQuery) -> Checks:
    """“enabling significant reductions in computational and memory demands by efficiently
    compressing candidates.” (Section 3.3)
    """
    text = "merging saves nodes, mean share of all beams' tokens"
    yield from _merging(ask, text, "nodes_per_call")


def merging_of_outliers(ask: ClaimQuery) -> Checks:
    """“with the compression ratio remaining predictable even in outlier scenarios (99th and 1st
    percentiles).” (Section 3.3)
    """
    text = "merging saves nodes even at the 99th percentile of calls"
    yield from _merging(ask, text, "nodes_per_call_p99")


def stable_over_lengths(ask: ClaimQuery) -> Checks:
    """“the number of generated tokens per-step is pretty stable for various output lengths.”
    (Section 3.3)
    """

    def said(found):
        longest, shortest = found.first_cells_of_sides[0]
        lengths = f"{_along(shortest)} to {_along(longest)} tokens"
        mean = f"longest less shortest {found.gap}, mean of {found.contrast_count} widths"
        return f"{mean}; {lengths}; stable: within {0.1 * found.gap.left:.2f} (10%)"

    def _along(row):
        return _written(row["max_new_tokens"])

    yield from _beams(ask, across="max_new_tokens").ahead(
        "block efficiency is stable over the length of answers",
        "redrafter", "redrafter", "block_efficiency", by=ends("max_new_tokens"), same="spec",
        expect=lambda gap: gap.within_share_of_left(0.1), where=_task, evidence=said,
    )  # fmt: skip


def throughput(ask: ClaimQuery) -> Checks:
    """“overall throughput (illustrated by the red lines, calculated as batch size multiplied by
    tokens/second) continues to rise.” (Section 3.3)
    """
    text = "{place}: throughput grows with the batch, up to 16"
    yield from _ends_of_batches(ask, text, "batch_size", "token_rate", _rates, most=16)


def throughput_saturates(ask: ClaimQuery) -> Checks:
    """“Beyond a batch size of 16, computational constraints become the limiting factor, and further
    increases in batch size no longer enhance overall throughput.” (Section 3.3)
    """
    text = f"{{place}}: throughput grows by less than {_CLOSE:.0%} beyond a batch of 16"
    yield from _ends_of_batches(
        ask, text, "batch_size", "token_rate", lambda _: "", least=16,
        expect=lambda gap: gap.below(_CLOSE),
    )  # fmt: skip


def slower_requests(ask: ClaimQuery) -> Checks:
    """“when the batch size exceeds 4, we encounter a computational bottleneck, leading to a decline
    in tokens/second.” (Section 3.3)
    """
    text = "{place}: a request is slower in a batch"
    for least, more in ((1, ""), (4, ", from 4 on")):
        metric = "token_rate_per_request"
        yield from _ends_of_batches(ask, text + more, "-batch_size", metric, lambda _: "", least)


def merging_changes_nothing(ask: ClaimQuery) -> Checks:
    """Beams merged in one row and as rows of the batch: as many tokens a call, fewer nodes."""
    yield from _merged(ask).ahead(
        "merging changes no block efficiency, greedy, beams {place}, within 1%",
        *_ATTENTION, "block_efficiency", expect=lambda gap: gap.within_share_of_left(0.01),
        **_BATCHES, evidence="{found}, mean of {n} batch sizes",
    )  # fmt: skip

    def said(found):
        _, merged, rows = found.list_count_pairs()[0]
        return f"{merged:.1f} against {rows:.1f} a call, {1 - merged / rows:.0%} fewer; a count"

    yield from _merged(ask).ahead(
        "merging saves nodes, beams {place}",
        *_ATTENTION,
        "nodes_per_call",
        judge=counted(),
        evidence=said,
        **_BATCHES,
    )


def attention_raises_throughput(ask: ClaimQuery) -> Checks:
    """“implementing tree attention can mitigate both computational and memory bottlenecks for
    ReDrafter, thereby enabling higher throughput and higher tokens/second.” (Section 3.3)
    """

    def said(found):
        places = {
            contrast[0][0]["batch_size"]: found.compute_single_difference(contrast)
            for contrast in found.first_contrasts
        }
        by_size = ", ".join(f"{place}: {gap}" for place, gap in places.items())
        return f"{found.gap}, mean of batch sizes, {_ROUNDS}; {by_size}"

    yield from _merged(ask, rounds=True).ahead(
        "tree attention raises throughput, beams {place}",
        *_ATTENTION, "token_rate", evidence=said, **_BATCHES,
    )  # fmt: skip


def _grid(ask, **more):
    return ask.of("redrafter-grid", only=True, **more)


def _pair(ask):
    return str(_grid(ask).rows.pair.iloc[0])


def _beams(ask, **more):
    return ask.of("redrafter-beams", only=True, **more)


def _merged(ask, **more):
    across = ("batch_size", "batching")
    return ask.of("redrafter-batches", only=True, across=across, paths_as_rows=True, **more)


def _against_medusa(ask, rule, left, right, given=None):
    def said(found):
        singles = "; ".join(
            f"{one['spec']} against {other['spec']} "
            f"{found.compute_single_difference(([one], [other]))}"
            for one, other in product(*found.first_contrasts[0])
        )
        more = f"; one by one: {singles}" if has_choice(found.first_contrasts[0]) else ""
        return f"{found.gap}, {found.best_trees_text}{found.pick_method_text}{more}"

    yield from ask.of("redrafter-decoding", only=True, given=given).ahead(
        f"redrafter > medusa in {{metric}}, {rule}",
        left, right, BOTH, by=best, where=_warmth, evidence=said,
    )  # fmt: skip


def _typical(ask, text, warm, metric, expect):
    for name in ("redrafter-decoding", "redrafter-temperatures"):
        yield from ask.of(name, only=True, given=lambda row: warm(row["temperature"])).ahead(
            text, "redrafter_typical", "redrafter", metric, same="spec", where=_warmth,
            expect=expect, evidence="{found}, redrafter, {n} beams",
        )  # fmt: skip


def _merging(ask, text, metric):
    def said(found):
        shares = ", ".join(
            f"{spec} {1 - left / right:.0%}"
            for spec, left, right in found.list_count_pairs("nodes")
        )
        return f"{shares}; counted"

    several = cells("redrafter", width=lambda width: width >= 2)
    yield from _beams(ask).ahead(
        text,
        several,
        "redrafter",
        metric,
        judge=counted(against="nodes"),
        same="spec",
        where=_warmth,
        evidence=said,
    )


def _ends_of_batches(ask, text, along, metric, more, least=1, most=inf, expect=Difference.better):
    def said(found):
        sizes = " against ".join(
            _written(row["batch_size"]) for row in found.first_cells_of_sides[0]
        )
        return f"batch {sizes} {found.gap}; {more(found)}{_ROUNDS}, their spread in the interval"

    some = cells(batch_size=lambda size: least <= size <= most)
    across = ("batch_size", "batching")
    yield from ask.of("redrafter-batches", only=True, across=across, rounds=True).ahead(
        text, some, some, metric, by=ends(along), same=("decoder", "spec"), each="left",
        where=_task_and_pair, expect=expect, evidence=said,
    )  # fmt: skip


def _rates(found):
    """The number at each batch size of the line that the contrast is an end of."""
    line = found.get_line_key(found.first_cells_of_sides[0][0])
    members = found.group_by_line(found.ask.select_side(found.group, found.left))[line]
    rates = sorted((row["batch_size"], row[found.column]) for row in members)
    return f"tokens/s at {', '.join(f'{_written(size)}: {rate:.0f}' for size, rate in rates)}; "


def _task(found):
    return str(found.group.rows.task.iloc[0])


def _task_and_pair(found):
    return f"{_task(found)}, pair {found.group.rows.pair.iloc[0]}"


def _warmth(found):
    temperature = f"temperature {found.group.rows.temperature.iloc[0]:g}"
    title = found.group.title
    return title if "temperature" in title else f"{title}, {temperature}"


def _written(value):
    return f"{value:g}" if isinstance(value, float) else str(value)


def _recurrence(blocks, by_steps, where, pair):
    """Of heads with so many blocks: the differences of those trained longest, as a mean."""
    most, *fewer = sorted(by_steps, reverse=True)
    differences = by_steps[most]
    found = bootstrap_interval(
        lambda sums: sums[0] / sums[1], [differences, [1.0] * len(differences)]
    )
    assert found is not None, "a mean of numbers is a number"
    short = found.low is None or found.high is None
    basis = (
        f" (no interval: fewer than {FEWEST} pairs of heads)" if short else ", interval over pairs"
    )
    evidence = f"{found:+.4f}{basis}, mean of {_pairs(differences)} trained longest, {most:g} steps"
    for count in fewer:
        own = by_steps[count]
        evidence += f"; {count:g} steps: {fmean(own):+.4f}, mean of {_pairs(own)}"
    text = f"the recurrence raises validation accuracy at t+5, heads of {blocks:g} blocks"
    more, less = p_value_above(found), p_value_below(found)
    p_values = None if more is None or less is None else (more, less)
    return Check(text, where, evidence, p_values=p_values, pair=pair)


def _setting(head):
    return tuple(head[key] for key in _SAME)


def _pairs(differences):
    count = len(differences)
    return f"{count} pair{'s' if count > 1 else ''} of heads"


def _shares(text, ours, theirs, column, pair):
    """One accuracy against another, on the same dialogues; of those the file has sums only."""
    value = float(ours[column]) - float(theirs[column])
    evidence = (
        f"{ours[column]:.3f} against {theirs[column]:.3f}, {value:+.3f} (no interval: the heads' "
        "file has no accuracy by dialogue to pair them)"
    )
    return Check(text, _where(ours), evidence, pair=pair)


def _where(head):
    count = head.get("validation dialogues")
    return "held-out dialogues" if count is None or pd.isna(count) else f"{count:g} dialogues"


_ATTENTION = [cells("redrafter", tree_attention=merged) for merged in (True, False)]
_BATCHES = {"same": ("spec", "batch_size"), "each": "spec", "where": _task_and_pair}
