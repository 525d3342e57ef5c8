"""What a paper's checks come to: how many hold, claim by claim, in a sentence and a small table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from spec_bench.report.claims.verdict import VERDICTS, Check
from spec_bench.report.papers.paper import Paper

NOT_MEASURED = "not measured"
_SAID = {
    "holds": ("holds", "hold"),
    "within noise": ("is within noise", "are within noise"),
    "does not hold": ("does not hold", "do not hold"),
    "not decided": tuple(f"{verb} not decided for lack of an interval" for verb in ("is", "are")),
    "not comparable": ("is not comparable", "are not comparable"),
}


@dataclass(frozen=True)
class Line:
    """What the checks of one thing that the paper says come to.

    Attributes:
        said: what the paper says, its words as a quotation; "" for what is checked beside it.
        section: where the paper says it.
        counts: verdict -> how many checks; none where nothing was measured for it.
    """

    said: str
    section: str
    counts: Counter[str]

    def cells(self, verdicts: Sequence[str]) -> list[str]:
        """A count for each verdict, empty for none; under ``not measured`` a dash where so."""
        own = {NOT_MEASURED: "" if self.counts else "x"}
        return [own.get(verdict, str(self.counts[verdict] or "")) for verdict in verdicts]


@dataclass(frozen=True)
class Summary:
    """What the checks of a paper, or of a results file, come to.

    Attributes:
        sentence: how many hold, are within noise, do not hold; and how many claims were not
            measured.
        verdicts: those that occur, ``not measured`` last.
        lines: one for each thing that the paper says, in its order; none where there is no paper.
    """

    sentence: str
    verdicts: tuple[str, ...]
    lines: tuple[Line, ...]


def summary_of(checks: Sequence[Check], paper: Paper | None) -> Summary:
    """The summary of checks of a paper's claims, or of a results file's of no paper."""
    counts = Counter(check.verdict for check in checks)
    lines = _lines(checks, paper) if paper else ()
    missing = 0 if paper is None else len(paper.claims) - len({check.number for check in checks})
    parts = [
        f"{counts[verdict]} {_SAID[verdict][counts[verdict] != 1]}"
        for verdict in VERDICTS
        if counts[verdict]
    ]
    whose = f"{paper.title.partition(':')[0]}: " if paper else ""
    text = (
        f"{whose}of {_counted(len(checks), 'check')}, {_listed(parts)}"
        if checks
        else (f"{whose}nothing was measured that a claim is about")
    )
    together = sum(check.odds is not None for check in checks)
    if together > 1:
        text += f"; corrected for {together} made together (Holm): 1 page in 20 has a false verdict"
    if paper and missing:
        text += f"; {missing} of its {_counted(len(paper.claims), 'claim')} not measured here"
    named = [verdict for verdict in VERDICTS if counts[verdict]]
    return Summary(f"{text}.", (*named, *([NOT_MEASURED] if missing else [])), lines)


def _lines(checks: Sequence[Check], paper: Paper) -> tuple[Line, ...]:
    """One for each thing said; what is ours comes last, together."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for number, claim in enumerate(paper.claims):
        own = found.setdefault((claim.said, claim.section), Counter())
        own.update(check.verdict for check in checks if check.number == number)
    ordered = sorted(found.items(), key=lambda item: not item[0][0])
    return tuple(Line(said, section, counts) for (said, section), counts in ordered)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
