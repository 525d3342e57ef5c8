"""DSBD's claims (arXiv:2409.16560), in the words of ``report.claims``.

Each setting of DSBD that is set against a beam width by ``front`` is picked on one half of the
prompts and compared on the other.
"""

from functools import partial
from itertools import chain, pairwise

import numpy as np
import pandas as pd

from spec_bench.report.claims.ask import (
    Checks,
    ClaimQuery,
    cells,
    counted,
    format_metric,
    make_unjudged_check,
    steps,
)
from spec_bench.report.claims.contrast import (
    FEWEST_PICKED,
    RELATIVE,
    WEIGHT,
    WIDER,
    Difference,
    compute_cell_values,
    compute_mean_difference,
    get_contrast_counts,
    is_lower_better,
    pick_counts_on_other_half,
)
from spec_bench.report.claims.general import check_all_exact_scores
from spec_bench.report.claims.verdict import Check, p_value_of_all
from spec_bench.report.data.rows import get_timing_doubt, resolve_metric_columns

# "DSBD can be 1.5-1.9x faster than beam sampling" at the same effectiveness (Section 4.2).
_FACTOR = 1.5
_BEYOND = 0.25  # so far outside the measured places the nearest one stands in
_ROOM = 0.05  # how much worse a score is no worse; a share of a perplexity
_RATE = "token_rate"
_HOW = "each setting picked on one half of the prompts and compared on the other"


def before_single_samples(ask: ClaimQuery) -> Checks:
    """“achieving better output quality than multinomial sampling” (Section 3.1)"""
    yield from _fronts(ask).ahead(
        lambda found: f"dsbd at or {_beyond(found)} ar in {found.metric_title}",
        "dsbd", "ar", "scores",
        evidence=lambda found: (
            f"{found.gap}, mean of {found.contrast_count} settings"
            f"{found.describe_single_verdicts('ahead', 'behind')}"
        ),
    )  # fmt: skip


def no_loss(ask: ClaimQuery) -> Checks:
    """“with no loss in downstream performance” (Abstract)"""

    def text(found):
        room = "5%" if found.column in RELATIVE else "0.05"
        rest = "of that of beam sampling of its average width"
        return f"dsbd's {found.metric_title} within {room} {rest}"

    yield from _at_its_width(
        ask,
        text,
        "scores",
        lambda gap: gap.within(0.05),
        lambda found: found.describe_single_verdicts("ahead", "behind"),
    )


def faster(ask: ClaimQuery) -> Checks:
    """“DSBD can be 1.5–1.9× faster than beam sampling” (Section 4.2)"""

    def said(found):
        factors = [1 + gap.value for gap in found.single_differences]
        return f"; one by one {min(factors):.2f} to {max(factors):.2f} times as fast"

    text = "dsbd faster than beam sampling of its average width"
    yield from _at_its_width(ask, text, _RATE, Difference.better, said)
    text = "dsbd at least 1.5 times as fast as beam sampling of its average width"
    claimed = ", where +50% is claimed"
    yield from _at_its_width(ask, text, _RATE, lambda gap: gap.above(0.5), said, claimed)


def less_energy(ask: ClaimQuery) -> Checks:
    """“simultaneously reducing energy consumption by 1.8–2.5×” (Section 4.2)"""
    text = "dsbd takes fewer J/token than beam sampling of its average width"
    yield from _at_its_width(ask, text, "energy_j_per_token", Difference.better, lambda found: "")


def front(ask: ClaimQuery) -> Checks:
    """“DSBD consistently outperforms beam sampling, signifying that DSBD achieves superior
    effectiveness at any given level of throughput or energy consumption.” (Section 4.2)

    DSBD's Pareto front lies above beam sampling's curve; how much faster at no lower score.
    """
    ask = _fronts(ask)
    for group in ask.groups:
        measured = [group.rows_by_decoder.get(name, []) for name in ("beam_sampling", "dsbd")]
        beams, settings = (
            [row for row in side if not get_timing_doubt(row, _RATE)] for side in measured
        )
        beams.sort(key=lambda row: int(row["spec"]))
        for score in resolve_metric_columns(group, "scores") if all(measured) else ():
            if not (settings and beams):
                rows = chain(*measured)
                yield make_unjudged_check(_claim_above(score), group, rows, _RATE)
                continue
            yield _above(group, score, beams, settings, ask)
            wider = [beam for beam in beams if int(beam["spec"]) > 1]  # width 1 is no beam
            if wider:
                yield _faster_at_no_lower(group, score, wider, settings, ask)


def beams_converge(ask: ClaimQuery) -> Checks:
    """“we observe the improvement in downstream effectiveness and output perplexity begins to
    converge when width is larger than 3.” (Section 4.2)
    """
    yield from _fronts(ask).ahead(
        f"beam sampling of width 4 as good as of 3 in {{metric}}, within {_ROOM}",
        cells("beam_sampling", spec="4"), cells("beam_sampling", spec="3"), "scores",
        expect=lambda gap: gap.within(_ROOM),
    )  # fmt: skip


def accepted_width(ask: ClaimQuery) -> Checks:
    """“We can see that in general, a larger W̄ corresponds to a higher EA score, slower speed, and
    higher energy consumption, which fits our intuition.” (Section C.1)
    """
    rises = "dsbd: {metric} rises with the average accepted width"
    falls = "dsbd: {metric} falls with the average accepted width"
    more = ("score", "energy_j_per_token")
    yield from _by_step(ask, rises, "beam_width", (), more, Difference.above)
    yield from _by_step(ask, falls, "beam_width", (), _RATE, Difference.below)


def small_thresholds_widen(ask: ClaimQuery) -> Checks:
    """“a smaller t leads to a larger W_L^(t)” (Section C.2)"""
    text = "dsbd: average accepted width grows as t falls"
    yield from _by_threshold(ask, text, "beam_width", Difference.above)


def small_thresholds_are_slow(ask: ClaimQuery) -> Checks:
    """“setting t = 0.9 could achieve a higher speed and energy efficiency than setting t = 0.7
    cannot achieve.” (Section C.2)
    """
    yield from _by_threshold(ask, "dsbd: speed falls as t falls", _RATE, Difference.below)


def small_thresholds_are_good(ask: ClaimQuery) -> Checks:
    """“First, we see that t = 0.7 tends to achieve a higher effectiveness.” (Section C.2)"""
    yield from _by_threshold(
        ask, "dsbd: perplexity falls as t falls", "perplexity", Difference.below
    )


def draft_widths_widen(ask: ClaimQuery) -> Checks:
    """“But it also helps increase the number of beams accepted at each layer.” (Section C.3)"""
    yield from _by_width(
        ask, "dsbd: average accepted width grows as W_S grows", "beam_width", Difference.above
    )


def draft_widths_trade(ask: ClaimQuery) -> Checks:
    """“we can see that a higher W_S in general leads to lower efficiency but higher effectiveness.”
    (Section C.3)
    """
    yield from _by_width(ask, "dsbd: speed falls as W_S grows", _RATE, Difference.below)
    yield from _by_width(ask, "dsbd: perplexity falls as W_S grows", "perplexity", Difference.below)


def one_cache_scores(ask: ClaimQuery) -> Checks:
    """“DSBD delivers a significant improvement in output quality, far surpassing the baselines in
    downstream scores.” (Section 4.3)
    """
    yield from _one_cache(ask).ahead(
        lambda found: f"{_named(found)} {_beyond(found)} {found.label[1]} in {found.metric_title}",
        "dsbd_one_cache", ("sd", "ar"), "scores", each=("spec", "right"), evidence="{found}",
    )  # fmt: skip


def one_cache_speed(ask: ClaimQuery) -> Checks:
    """“DSBD achieves speed and energy efficiency close to that of speculative decoding”
    (Section 4.3)

    Table 1 has DSBD 2%, 7%, 5% and 7% behind SD.
    """
    yield from _one_cache(ask).ahead(
        lambda found: f"{_named(found)} at most 10% slower than {found.label[1]}",
        "dsbd_one_cache", "sd", _RATE, each=("spec", "right"), expect=lambda gap: gap.above(-0.1),
        evidence="{found}, where at most -10% is claimed",
    )  # fmt: skip


def before_multinomial_sampling(ask: ClaimQuery) -> Checks:
    """“while being more efficient and effective than multinomial sampling” (Section 4.3)"""
    for metric in (_RATE, "energy_j_per_token"):
        yield from _one_cache(ask).ahead(
            "dsbd of one cache ahead of ar in {metric}",
            "dsbd_one_cache", "ar", metric, evidence="{found}, mean of {n} settings",
        )  # fmt: skip


def one_cache_memory(ask: ClaimQuery) -> Checks:
    """“the memory cost will be similar to the cost of multinomial sampling and speculative
    decoding.” (Section 3.4)
    """

    def said(found):
        _, ours, theirs = found.list_count_pairs()[0]
        mib = f"{ours / 2**20:.2f} MiB against {theirs / 2**20:.2f} MiB"
        return f"{mib}, {-(1 - ours / theirs):+.1%}"

    yield from _one_cache(ask).ahead(
        lambda found: f"{_named(found)} takes the cache of {found.label[1]}, within 5%",
        "dsbd_one_cache", "sd", "cache_bytes",
        each=("spec", "right"), judge=counted(0.05), evidence=said,
    )  # fmt: skip


def same_distribution(ask: ClaimQuery) -> Checks:
    """“speculative decoding matches the same distribution as multinomial sampling” (Abstract)"""
    yield from check_all_exact_scores(ask.of("dsbd-fronts", "dsbd-one-cache"))


def _fronts(ask):
    return ask.of("dsbd-fronts")


def _one_cache(ask):
    return ask.of("dsbd-one-cache")


def _beyond(found):
    return "below" if is_lower_better(found.column) else "above"


def _named(found):
    return f"dsbd with one cache ({found.label[0]})"


def _at_its_width(ask, text, metric, expect, more, claimed=""):
    """DSBD's settings against beam sampling as wide as they are on average."""

    def said(found):
        n = found.contrast_count
        out = len(found.ask.select_side(found.group, found.left)) - n
        mean = f"mean of {n} settings, beam sampling interpolated linearly in its width"
        rest = f", {out} settings outside its widths left out" if out else ""
        return f"{found.gap}{claimed}, {mean}{rest}{more(found)}"

    return _fronts(ask).ahead(
        text, "dsbd", "beam_sampling", metric, by=_interpolated, expect=expect, evidence=said
    )


def _by_threshold(ask, text, metric, expect):
    return _by_step(ask, text, "-threshold", ("width", "depth"), metric, expect)


def _by_width(ask, text, metric, expect):
    return _by_step(ask, text, "width", ("depth", "threshold"), metric, expect)


def _by_step(ask, text, along, same, metric, expect):
    return _fronts(ask).ahead(
        text, "dsbd", "dsbd", metric, by=steps(along), same=same, expect=expect, pooled=True,
        evidence=lambda found: (
            f"{found.gap}, mean of {found.contrast_count} steps"
            f"{found.describe_single_verdicts('so', 'the other way')}"
        ),
    )  # fmt: skip


def _above(group, score, beams, settings, ask):
    """At each beam width the best of the settings that are faster scores higher, and is faster."""
    p_values, said = [], []
    for beam in beams:
        found = _compared([beam], settings, score, ask, _best_of_faster)
        if found is None:
            return _undecided(_claim_above(score), group)
        scores, rates = found
        p_values += [scores.below() if is_lower_better(score) else scores.above(), rates.above()]
        said.append(f"width {beam['spec']}: {format_metric(score)} {scores}, tokens/s {rates}")
    known = [each for each in p_values if each is not None]
    picked = "the best of the faster settings, or the fastest where none is faster"
    evidence = f"{picked}: {'; '.join(said)}; {_HOW}"
    whole = p_value_of_all(known) if len(known) == len(p_values) else None
    return Check(_claim_above(score), group.title, evidence, p_values=whole, pair=_pair(group))


def _faster_at_no_lower(group, score, beams, settings, ask):
    """The fastest setting that scores no worse, mean over the widths above 1."""
    title = format_metric(score)
    claim = f"dsbd at least {_FACTOR:g} times as fast as beam sampling at no worse {title}"
    found = _compared(beams, settings, score, ask, _fastest_of_no_worse)
    if found is None:
        return _undecided(claim, group)
    scores, rates = found
    near = scores.below(_ROOM) if is_lower_better(score) else scores.above(-_ROOM)
    fast = rates.above(_FACTOR - 1)
    evidence = (
        f"tokens/s {rates} ({_FACTOR - 1:+.0%} is claimed), {title} {scores} (no worse: by "
        f"less than {_ROOM:g}), mean of widths {', '.join(str(b['spec']) for b in beams)}; {_HOW}"
    )
    whole = p_value_of_all([fast, near]) if fast and near else None
    return Check(claim, group.title, evidence, p_values=whole, pair=_pair(group))


def _pair(group):
    return str(group.rows.pair.iloc[0])


def _claim_above(score):
    return f"dsbd's front above beam sampling's curve, {format_metric(score)} against tokens/s"


def _undecided(claim, group):
    why = f"no records of {FEWEST_PICKED} prompts that all settings were timed in turn on"
    return Check(claim, group.title, why)


def _compared(beams, settings, score, ask, choice):
    """Differences in score and token rate to the beams, mean over these; None without records."""
    parts = {score: [], _RATE: []}
    for beam in beams:
        contrast = (settings, [beam])
        cells = {name: get_contrast_counts([contrast], name, ask.records) for name in parts}
        prompts = {0 if own is None else own.shape[-1] for own in cells.values()}
        if len(prompts) > 1 or min(prompts) < FEWEST_PICKED:
            return None
        pick = partial(_picked, [*settings, beam], cells, score, choice)
        for name, own in cells.items():
            parts[name] += [
                pick_counts_on_other_half(settings, own[:-1], name, pick)[None],
                own[-1:],
            ]
    contrasts = [(settings[:1], [beam]) for beam in beams]
    found = [
        compute_mean_difference(contrasts, np.concatenate(own), name, name in RELATIVE)
        for name, own in parts.items()
    ]
    if found[0] is None or found[1] is None:
        return None
    return found[0].scale_interval(WIDER), found[1].scale_interval(WIDER)


def _picked(rows, cells, score, choice, seen):
    """The setting that a choice takes when it sees these prompts."""
    rates, scores = (compute_cell_values(rows, cells[n][..., seen], n) for n in (_RATE, score))
    return choice(rates, -scores if is_lower_better(score) else scores)


def _best_of_faster(rates, scores):
    """The best setting of those faster than the beam; the fastest where none is."""
    faster = rates[:-1] > rates[-1]
    if not (faster & np.isfinite(scores[:-1])).any():
        return int(np.nanargmax(rates[:-1]))
    return int(np.nanargmax(np.where(faster, scores[:-1], np.nan)))


def _fastest_of_no_worse(rates, scores):
    """The fastest setting of those that score no worse than the beam; the best where none does."""
    good = scores[:-1] >= scores[-1]
    return int(np.nanargmax(np.where(good, rates[:-1], np.nan) if good.any() else scores[:-1]))


def _interpolated(asked, left, right):
    """Each cell against the right side of its average width, linear between those measured.

    That width is taken as known: its own interval does not enter. Cells outside the right side's
    places by more than a quarter are left out.
    """
    ordered = sorted(right, key=lambda row: asked.ask.get_value(row, "width"))
    for row in left:
        place = row.get("beam_width")
        found = (
            None if place is None or pd.isna(place) else _around(asked.ask, float(place), ordered)
        )
        if found is not None:
            yield [row], found


def _around(ask, place, ordered):
    """The cells on both sides of a place, each with its weight."""
    for lower, upper in pairwise(ordered):
        low, high = ask.get_value(lower, "width"), ask.get_value(upper, "width")
        if low <= place <= high:
            share = (place - low) / (high - low)
            return [{**lower, WEIGHT: 1 - share}, {**upper, WEIGHT: share}]
    for end in (*ordered[:1], *ordered[-1:]):
        if abs(ask.get_value(end, "width") - place) <= _BEYOND:
            return [{**end, WEIGHT: 1.0}]
    return None
