"""Summary of a paper's checks: how many hold, claim by claim, in a sentence and a small table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spec_bench.report.claims.verdict import VERDICTS, Check
from spec_bench.report.papers.paper import Paper

NOT_MEASURED = "not measured"
_PHRASES = {
    "holds": ("holds", "hold"),
    "within noise": ("is within noise", "are within noise"),
    "does not hold": ("does not hold", "do not hold"),
    "not decided": tuple(f"{verb} not decided for lack of an interval" for verb in ("is", "are")),
    "not comparable": ("is not comparable", "are not comparable"),
}


@dataclass(frozen=True)
class Line:
    """Verdicts on one statement of the paper."""

    statement: str  # its words as a quotation; "" for our additional checks
    section: str  # of the paper, with the statement
    counts: Counter[str]  # verdict -> how many checks; empty if unmeasured

    def cells(self, verdicts: Sequence[str]) -> list[str]:
        """A count for each verdict, empty for none; under ``not measured`` an x if so."""
        marks = {NOT_MEASURED: "" if self.counts else "x"}
        return [marks.get(verdict, str(self.counts[verdict] or "")) for verdict in verdicts]


@dataclass(frozen=True)
class Summary:
    """Verdicts on all claims of a paper, or of a results file."""

    sentence: str  # how many hold, are within noise, do not hold, were not measured
    verdicts: tuple[str, ...]  # those that occur, ``not measured`` last
    lines: tuple[Line, ...]  # one for each statement of the paper, in its order


def summary_of(checks: Sequence[Check], paper: Paper | None) -> Summary:
    """The summary of checks of a paper's claims, or of a results file's of no paper."""
    counts = Counter(check.verdict for check in checks)
    lines = _lines(checks, paper) if paper else ()
    missing = 0 if paper is None else len(paper.claims) - len({check.number for check in checks})
    parts = [
        f"{counts[verdict]} {_PHRASES[verdict][counts[verdict] != 1]}"
        for verdict in VERDICTS
        if counts[verdict]
    ]
    whose = f"{paper.title.partition(':')[0]}: " if paper else ""
    text = (
        f"{whose}of {_counted(len(checks), 'check')}, {_listed(parts)}"
        if checks
        else (f"{whose}nothing was measured that a claim is about")
    )
    together = sum(check.p_values is not None for check in checks)
    if together > 1:
        text += f"; corrected for {together} made together (Holm): 1 page in 20 has a false verdict"
    if paper and missing:
        text += f"; {missing} of its {_counted(len(paper.claims), 'claim')} not measured here"
    named = [verdict for verdict in VERDICTS if counts[verdict]]
    return Summary(f"{text}.", (*named, *([NOT_MEASURED] if missing else [])), lines)


def _lines(checks: Sequence[Check], paper: Paper) -> tuple[Line, ...]:
    """One for each statement; our own checks come last, together."""
    by_statement: dict[tuple[str, str], Counter[str]] = {}
    for number, claim in enumerate(paper.claims):
        counter = by_statement.setdefault((claim.statement, claim.section), Counter())
        counter.update(check.verdict for check in checks if check.number == number)
    ordered = sorted(by_statement.items(), key=lambda item: not item[0][0])
    return tuple(Line(statement, section, counts) for (statement, section), counts in ordered)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
