"""What MCSD finds (arXiv:2401.06706, Sections 4.2 to 4.5): candidates, their order, their draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import pandas as pd

from spec_bench.report.claims.cells import (
    cells,
    of_experiment,
    widths_of,
    with_tree_attention,
)
from spec_bench.report.claims.check import (
    DOES_NOT_HOLD,
    HOLDS,
    Check,
    verdict_of,
    verdict_of_equality,
)
from spec_bench.report.claims.contrast import Contrast, Difference, difference
from spec_bench.report.claims.records import Records
from spec_bench.report.load import Group, Row, groups_of, rows_of

_NAMES = {"block_efficiency": "block efficiency", "token_rate": "token rate"}
# Table 4: from the best to the worst rule at the same k-configuration.
_RULES = (
    ("mcsd_wor", "mcsd", "drawing without replacement ahead of with"),
    ("mcsd_wor", "mcns", "naive sampling behind recursive rejection without replacement"),
    ("mcsd", "mcns", "naive sampling behind recursive rejection with replacement"),
)


def mcsd_claims(rows: pd.DataFrame, records: Records) -> list[Check]:
    """All of MCSD's claims that the rows can speak to."""
    tree = with_tree_attention(rows)
    search = _groups(of_experiment(tree, "mcsd-search"))
    acceptance = of_experiment(tree, "mcsd-acceptance")
    ablation = of_experiment(rows, "mcsd-ablation")
    return [
        *(check for group in search for check in _monotone(group, records)),
        *(check for g in _groups(with_tree_attention(ablation)) for check in _rules(g, records)),
        *(check for group in _groups(ablation) for check in _tree_attention(group, records)),
        *(check for group in _groups(acceptance) for check in _more_candidates(group, records)),
        *_tuned_drafts(acceptance, records),
    ]


def _groups(rows: pd.DataFrame) -> list[Group]:
    return [] if rows.empty else groups_of(rows)


def _monotone(group: Group, records: Records) -> Iterator[Check]:
    """The same factors in falling order ahead of rising order (Section 4.4, monotonic rule)."""
    by_widths = {
        widths: row for row in cells(group, "mcsd_wor") if (widths := widths_of(str(row["spec"])))
    }
    contrasts = [
        Contrast((row,), (by_widths[widths[::-1]],))
        for widths, row in by_widths.items()
        if list(widths) == sorted(widths, reverse=True)
        and widths != widths[::-1]
        and widths[::-1] in by_widths
    ]
    for metric, name in _NAMES.items():
        claim = f"falling k-configurations ahead of rising ones of the same factors in {name}"
        found = difference([contrasts], metric, records) if contrasts else None
        if found is None:
            continue
        single = [difference([[contrast]], metric, records) for contrast in contrasts]
        verdicts = [verdict_of(each.low, each.high) for each in single if each is not None]
        evidence = (
            f"{found}, mean of {len(contrasts)} sets of factors; one by one "
            f"{verdicts.count(HOLDS)} ahead, {verdicts.count(DOES_NOT_HOLD)} behind, "
            f"the rest within noise"
        )
        yield Check(claim, group.title, evidence, verdict_of(found.low, found.high))


def _rules(group: Group, records: Records) -> Iterator[Check]:
    """Verification rules on the same k-configurations (Section 4.5, Table 4)."""
    for better, worse, claim in _RULES:
        theirs = {str(row["spec"]): row for row in cells(group, worse)}
        contrasts = [
            Contrast((row,), (theirs[str(row["spec"])],)) for row in cells(group, better, theirs)
        ]
        for metric, name in _NAMES.items():
            yield from _one(f"{claim} in {name}", group, contrasts, metric, records, verdict_of)


def _tree_attention(group: Group, records: Records) -> Iterator[Check]:
    """Tree attention only saves time: the candidates and their verdicts have one law."""
    without = {
        (str(row["decoder"]), str(row["spec"])): row
        for row in rows_of(with_tree_attention(group.rows, wanted=False))
    }
    contrasts = [
        Contrast((row,), (without[str(row["decoder"]), str(row["spec"])],))
        for row in rows_of(with_tree_attention(group.rows))
        if (str(row["decoder"]), str(row["spec"])) in without and row["decoder"] != "ar"
    ]
    same = "tree attention leaves block efficiency as it is"
    yield from _one(same, group, contrasts, "block_efficiency", records, verdict_of_equality)
    faster = "tree attention raises the token rate"
    yield from _one(faster, group, contrasts, "token_rate", records, verdict_of)


def _more_candidates(group: Group, records: Records) -> Iterator[Check]:
    """The acceptance rate rises with k and then converges (Section 4.2, Figures 3 and 5).

    So the largest k must be ahead of the smallest, and no step may fall; a step that adds nothing,
    as where every candidate list is accepted, is no objection.
    """
    found = cells(group, "mcsd_wor")
    ladder = sorted(
        (row for row in found if str(row["spec"]).isdigit()), key=lambda r: int(r["spec"])
    )
    if len(ladder) < 2:
        return
    whole = _rise(ladder[0], ladder[-1], records)
    steps = [(less, more, _rise(less, more, records)) for less, more in pairwise(ladder)]
    known = [(less, more, gap) for less, more, gap in steps if gap is not None]
    if whole is None or not known:
        return
    falls = any(verdict_of(gap.low, gap.high) == DOES_NOT_HOLD for *_, gap in known)
    evidence = f"{ladder[0]['spec']} to {ladder[-1]['spec']}: {whole}; step by step "
    evidence += ", ".join(f"{less['spec']} to {more['spec']} {gap}" for less, more, gap in known)
    verdict = DOES_NOT_HOLD if falls else verdict_of(whole.low, whole.high)
    claim = "the acceptance rate rises with the number of candidates k and falls at no step"
    yield Check(claim, group.title, evidence, verdict)


def _rise(less: Row, more: Row, records: Records) -> Difference | None:
    """The acceptance rate of a tree with more candidates minus that of one with fewer."""
    return difference([[Contrast((more,), (less,))]], "acceptance_rate", records)


def _tuned_drafts(rows: pd.DataFrame, records: Records) -> Iterator[Check]:
    """A draft that was tuned towards its target is accepted more often (Section 4.6, Table 7)."""
    for better, worse in tuned_pairs(rows):
        by_setting = {_setting(group): group for group in _groups(rows[rows.pair == worse])}
        for group in _groups(rows[rows.pair == better]):
            other = by_setting.get(_setting(group))
            if other is None:
                continue
            theirs = {
                str(row["spec"]): row
                for row in cells(other, "mcsd_wor")
                if str(row["spec"]).isdigit()
            }
            contrasts = [
                Contrast((row,), (theirs[str(row["spec"])],))
                for row in cells(group, "mcsd_wor", theirs)
            ]
            claim = f"the draft of {better} ahead of that of {worse} in acceptance rate"
            yield from _one(claim, group, contrasts, "acceptance_rate", records, verdict_of)


def tuned_pairs(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """(pair with the tuned draft, pair with the plain one) of those measured, by their names."""
    pairs = list(dict.fromkeys(rows.pair.astype(str))) if not rows.empty else []
    known = [(pair, pair.replace("_ft", "_")) for pair in pairs if "_ft" in pair]
    known.append(("embedded", "embedded_plain"))
    return [(better, worse) for better, worse in known if better in pairs and worse in pairs]


def _setting(group: Group) -> tuple[object, ...]:
    names = ("task", "temperature", "top_k", "top_p", "seed", "batch_size")
    return tuple(group.rows.iloc[0][name] for name in names)


def _one(
    claim: str,
    group: Group,
    contrasts: Sequence[Contrast],
    metric: str,
    records: Records,
    verdict: Callable[[float | None, float | None], str],
) -> Iterator[Check]:
    """The mean of the contrasts on one task."""
    found = difference([contrasts], metric, records) if contrasts else None
    if found is None:
        return
    specs = ", ".join(dict.fromkeys(str(contrast.left[0]["spec"]) for contrast in contrasts))
    many = f"mean of {len(contrasts)} comparisons: " if len(contrasts) > 1 else ""
    evidence = f"{found}, {many}{specs}"
    yield Check(claim, group.title, evidence, verdict(found.low, found.high))
