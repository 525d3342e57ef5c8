"""Checks of claims with their evidence and verdicts, and a summary of checks.

A verdict follows from two one-sided p-values (``PValues``): of such numbers if the claim were
false, and if it were true. The verdicts of a family are made together (``correct_verdicts``): a
paper's claims on one pair of models are one family, our own checks on this pair another. Holm's
correction over both p-values of all checks of a family keeps the chance of any false verdict in it
below 5%.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from spec_bench.metrics.p_values import adjust_by_holm
from spec_bench.report.papers.paper import Paper
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.numbers import format_count

HOLDS = "holds"
WITHIN_NOISE = "within noise"
DOES_NOT_HOLD = "does not hold"
# The claim, or its contrary, is shown by its own interval, but not after the correction.
ALONE = "shown alone"
CONTRARY = "contradicted alone"
NOT_DECIDED = "not decided"  # a value without an interval
NOT_COMPARABLE = "not comparable"  # both sides were measured, but with different settings
# Both sides were measured, but the machine was busy or stalled, or their times are those of others.
NOT_JUDGED = "not judged"
_PHRASES = {  # phrases for one check, and for several
    HOLDS: ("holds", "hold"),
    ALONE: tuple(f"{verb} shown alone, not past correction" for verb in ("is", "are")),
    WITHIN_NOISE: ("is within noise", "are within noise"),
    CONTRARY: ("is contradicted alone", "are contradicted alone"),
    DOES_NOT_HOLD: ("does not hold", "do not hold"),
    NOT_DECIDED: tuple(f"{verb} not decided for lack of an interval" for verb in ("is", "are")),
    NOT_COMPARABLE: ("is not comparable", "are not comparable"),
    NOT_JUDGED: tuple(f"{verb} not judged, by doubtful times" for verb in ("is", "are")),
}
VERDICTS = tuple(_PHRASES)
ALPHA = 0.05
"""Largest chance that any verdict of a family is false."""
_MOST = 10_000  # largest number of prompts that is suggested
PValues = tuple[float, float]
"""Two probabilities of such numbers: if the claim is only just false (small if it holds), and if it
is only just true (small if it does not hold).
"""
OfPrompts = Callable[[int], PValues | None]


def return_no_p_values(_: int) -> None:
    """Returns None: p-values for another number of prompts are not known."""


@dataclass(frozen=True)
class Check:
    """A claim on one task, or on the prompts of all tasks together, with its verdict."""

    claim: str
    where: str  # the task
    evidence: str  # the numbers
    verdict: str = NOT_DECIDED  # one of ``VERDICTS``; ``correct_verdicts`` sets it from p_values
    statement: str = ""  # the paper's words, as a quotation; "" if the check is ours
    section: str = ""  # the statement's place in the paper
    number: int = -1  # index of the claim in its paper
    p_values: PValues | None = None  # None if chance plays no part, or if nothing is decided
    pair: str = ""  # of models
    # number of prompts -> p-values for the same difference and spread; None if unknown
    of_prompts: OfPrompts = field(default=return_no_p_values, compare=False)
    is_seed_bound: bool = False  # whether it is undecided because seeds differ


def correct_verdicts(checks: Sequence[Check]) -> list[Check]:
    """Returns the checks with verdicts, corrected for the number of checks in their family. Ends
    the evidence of an undecided check with the number of prompts that may decide, if difference and
    spread stay the same.
    """
    families = group_by_key(
        ((check.pair, bool(check.statement)), place)
        for place, check in enumerate(checks)
        if check.p_values
    )
    corrected_checks = list(checks)
    for places in families.values():
        p_values = [p_value for place in places if (p_value := checks[place].p_values)]
        for place, (verdict, p) in zip(places, _iter_holm_verdicts(p_values), strict=True):
            check = checks[place]
            remark = f"; p {p:.2g}, corrected for {len(places)}" if len(places) > 1 else ""
            if verdict not in (HOLDS, DOES_NOT_HOLD):
                remark += _describe_prompts_to_decide(check, len(places))
            corrected_checks[place] = replace(
                check,
                verdict=verdict,
                evidence=f"{check.evidence}{remark}",
            )
    return corrected_checks


def _iter_holm_verdicts(p_values: Sequence[PValues]) -> Iterator[tuple[str, float]]:
    """Yields each claim's verdict and the smaller of its p-values, corrected for all (Holm)."""
    corrected_p = adjust_by_holm([p for pair in p_values for p in pair])
    for raw_p, supports, against in zip(p_values, corrected_p[::2], corrected_p[1::2], strict=True):
        uncorrected_verdict = ALONE if raw_p[0] <= raw_p[1] else CONTRARY
        open_verdict = uncorrected_verdict if 2 * min(raw_p) <= ALPHA else WITHIN_NOISE
        verdict = (
            DOES_NOT_HOLD if against <= ALPHA else HOLDS if supports <= ALPHA else open_verdict
        )
        yield verdict, min(supports, against)


def list_holm_verdicts(p_values: Sequence[PValues]) -> list[str]:
    """Lists the verdicts of a family of claims, corrected for all of them (Holm)."""
    return [verdict for verdict, _ in _iter_holm_verdicts(p_values)]


def _describe_prompts_to_decide(check: Check, family_size: int) -> str:
    """Describes how many prompts would decide a check in a family of this size; "" if unknown."""
    if check.is_seed_bound:
        return "; more seeds may decide"
    prompt_count = 10
    while prompt_count <= _MOST and (p_values := check.of_prompts(prompt_count)):
        if 2 * family_size * min(p_values) <= ALPHA:
            return f"; about {prompt_count} prompts may decide"
        prompt_count = 10 * ceil(0.11 * prompt_count)
    return f"; {_MOST} prompts would not decide" if prompt_count > _MOST else ""


def p_value_of_all(p_values: Iterable[PValues]) -> PValues:
    """Computes the p-values of a claim that several claims all hold.

    The largest p-value supports it (intersection-union), the smallest opposes it (Bonferroni).
    """
    supports, against = zip(*p_values, strict=True)
    return max(supports), min(1.0, min(against) * len(against))


def p_value_of_any(p_values: Iterable[PValues]) -> PValues:
    """Computes the p-values of a claim that at least one of several claims holds."""
    against, supports = p_value_of_all((against, supports) for supports, against in p_values)
    return supports, against


def p_value_of_most(p_values: Iterable[PValues]) -> PValues:
    """Computes the p-values of a claim that more than half of several claims hold.

    They are of Bonferroni's test that at least a given number of them hold (Benjamini and Heller,
    Biometrics 64, 2008).
    """
    supports, against = zip(*p_values, strict=True)

    def compute_p_value(count: int, values: Sequence[float]) -> float:
        return min(1.0, (len(values) - count + 1) * sorted(values)[count - 1])

    return compute_p_value(len(supports) // 2 + 1, supports), compute_p_value(
        (len(against) + 1) // 2, against
    )


@dataclass(frozen=True)
class ClaimsSummary:
    """Summary of the verdicts on all claims of a paper, or of a results file."""

    sentence: str  # how many hold, are within noise, do not hold, were not measured
    verdicts: tuple[str, ...]  # those that occur, ``not measured`` last
    # (statement, section, pair of models) -> a count for each verdict ("" for 0), and an x if not
    # measured. The pair is "" if there is only one; our own checks come last, with "" for their
    # statement.
    counts_by_claim: dict[tuple[str, str, str], list[str]]


def summarise_claims(checks: Sequence[Check], paper: Paper | None) -> ClaimsSummary:
    """Summarises the checks of a paper's claims, or, without a paper, of a results file."""
    claims = paper.claims if paper else ()
    pairs = [*dict.fromkeys(check.pair for check in checks if check.pair)]
    by_statement: dict[tuple[str, str, str], Counter[str]] = {
        (claim.statement, claim.section, pair): Counter()
        for claim in claims
        for pair in (pairs if len(pairs) > 1 else [""])
    }
    for check in checks if paper else ():
        place = (check.statement, check.section, check.pair if len(pairs) > 1 else "")
        by_statement.setdefault(place, Counter())[check.verdict] += 1
    counts = Counter(check.verdict for check in checks)
    verdicts = [verdict for verdict in VERDICTS if counts[verdict]]
    phrases = [f"{counts[each]} {_PHRASES[each][counts[each] != 1]}" for each in verdicts]
    phrase = " and ".join(filter(None, [", ".join(phrases[:-1]), *phrases[-1:]]))
    text = "nothing was measured that a claim is about"
    if checks:
        text = f"of {format_count(len(checks), 'check')}, {phrase}"
    if paper:
        text = f"{paper.title.partition(':')[0]}: {text}"
    families = Counter((c.pair, bool(c.statement)) for c in checks if c.p_values is not None)
    if max(families.values(), default=0) > 1:
        sizes = " and ".join(map(str, families.values()))
        text += f"; corrected (Holm) by pair, the paper's claims and ours apart, {sizes} together"
        text += ": 1 such family in 20 has a false verdict"
    missing = len(claims) - len({check.number for check in checks}) if paper else 0
    if missing:
        of_all = "its only claim" if len(claims) == 1 else f"{missing} of its {len(claims)} claims"
        text += f"; {of_all} not measured here"
    unmeasured_heads = [] if all(by_statement.values()) else ["not measured"]
    counts_by_claim = {
        place: [
            *(str(counts_here[each] or "") for each in verdicts),
            *("" if counts_here else "x" for _ in unmeasured_heads),
        ]
        for place, counts_here in sorted(by_statement.items(), key=lambda item: not item[0][0])
    }
    return ClaimsSummary(f"{text}.", (*verdicts, *unmeasured_heads), counts_by_claim)


OURS = "not said by the paper, checked beside it"


def group_by_claim(checks: Sequence[Check]) -> dict[tuple[str, str], list[Check]]:
    """Groups checks by the paper's statement and its section."""
    return group_by_key(((check.statement, check.section), check) for check in checks)


def format_statement(text: str, section: str) -> str:
    """Formats a paper's statement with its section; a fixed text for our own checks."""
    return f"{text} ({section})" if text else OURS
