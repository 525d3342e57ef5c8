"""A check before it is written: evidence and the fields that a claim's text may name in braces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from string import Formatter
from typing import Any

from spec_bench.report.claims.contrast import RELATIVE
from spec_bench.report.claims.evidence import Evidence, less_is_better
from spec_bench.report.claims.verdict import NOT_DECIDED, Check, Odds
from spec_bench.report.papers.claim import Claim

_COMPARED = ("{found}", ", mean of {many} comparisons fixed in advance", ", {best}", "; {picked}")

_POOLED = "all tasks, pair {pair}"


def titled(metric: str) -> str:
    """A metric's name in a sentence."""
    return {"mbsu": "MBSU"}.get(metric, metric.replace("_", " "))


class Finding(Evidence):
    """The comparison for a claim, with the texts of the claim and its place."""

    def check(self, outcome: str | Odds | None) -> Check:
        """The check with its texts filled in, from its odds or a verdict that no chance is in."""
        place = self.claim.where or "{title}"
        if self.tasks > 1:
            place = self.claim.pooled if isinstance(self.claim.pooled, str) else _POOLED
        where = ", ".join(filter(None, ["".join(self._filled([place])), self.setting]))
        evidence = "".join(self._filled(self.claim.evidence or _COMPARED))
        text = "".join(self._filled([self.claim.claim]))
        odds = outcome if isinstance(outcome, Odds) else None
        verdict = outcome if isinstance(outcome, str) else NOT_DECIDED
        statement, section = self.claim.statement, self.claim.section
        return Check(text, where, evidence, verdict, statement, section, odds=odds)

    def _filled(self, parts: Sequence[str]) -> Iterator[str]:
        """The parts whose fields have values, filled in."""
        for part in parts:
            try:
                yield part.format_map(_Lookup(self))
            except _AbsentError:
                continue

    @property
    def title(self) -> str:
        """The task, and the settings that differ between groups."""
        return self.group.title

    @property
    def title_and_temperature(self) -> str:
        """The title, always with its temperature."""
        temperature = f"temperature {self.group.rows.temperature.iloc[0]:g}"
        return self.title if "temperature" in self.title else f"{self.title}, {temperature}"

    @property
    def task(self) -> str:
        """The task alone."""
        return str(self.group.rows.task.iloc[0])

    @property
    def pair(self) -> str:
        """The pair of models."""
        return str(self.group.rows.pair.iloc[0])

    @property
    def metric(self) -> str:
        """The metric for people."""
        return titled(self.column)

    @property
    def better(self) -> str:
        """The word for better."""
        return "below" if less_is_better(self.column) else "above"

    @property
    def room(self) -> str:
        """The largest difference of equal sides, as text."""
        within = self.claim.within
        if isinstance(within, float):
            return f"{within:.0%}" if self.column in RELATIVE else f"{within:g}"
        return str(within)

    def labelled(self, name: str) -> Any:
        """A value that the claim has one check each for; for sides else their decoders."""
        for side, key in zip(self.sides, ("left", "right"), strict=True):
            if name == key and key not in self.claim.each:
                return " or ".join(side.decoder)
            if name == f"{key}_pair":
                return next(iter(side.where.get("pair", ())), None)
        labels = dict(zip(self.claim.each, self.label, strict=False))
        return labels[self.claim.axis if name == "place" else name]


FIELDS = sorted(
    name
    for part in Finding.__mro__
    for name, value in vars(part).items()
    if isinstance(value, property | cached_property) and not name.startswith("_")
)
_LABELS = ("left", "right", "left_pair", "right_pair", "place", "left_out")


def refuse_unknown_fields(claim: Claim) -> None:
    """Refuses a claim whose texts name fields that there are not.

    Raises:
        ValueError: names the first one, and those there are.
    """
    known = {*FIELDS, *_LABELS, *claim.each}
    for text in (claim.claim, claim.where, *claim.evidence):
        for _, name, _, _ in Formatter().parse(text):
            if name is not None and name not in known:
                choices = ", ".join(sorted(known))
                raise ValueError(f"claim {claim.claim!r}: no field {{{name}}}; fields: {choices}")


class _AbsentError(Exception):
    """A field has no value here."""


class _Lookup(dict[str, Any]):
    """Fields by name, as ``format_map`` asks for them."""

    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self._finding = finding

    def __missing__(self, key: str) -> Any:
        is_field = key in FIELDS or key == "left_out"
        value = getattr(self._finding, key) if is_field else self._finding.labelled(key)
        if value is None:
            raise _AbsentError(key)
        return value
