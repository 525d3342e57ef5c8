"""A paper's claims and the axes of its tables, from its folder."""

from __future__ import annotations

import functools

import yaml
from pydantic import ValidationError

from spec_bench.report.claim import Claim
from spec_bench.report.claims.select import Axes
from spec_bench.report.papers.folders import experiments_dir

@functools.cache
def claims_of(paper: str) -> tuple[Claim, ...]:
    """The claims that a paper's data file lists.

    Raises:
        ValueError: there is no such paper, or a claim is not written as one; names the claim.
    """
    path = experiments_dir() / paper / "claims.yml"
    data = yaml.safe_load(path.read_text(encoding="utf-8")).get("claims") or ()
    return tuple(_claim(paper, entry) for entry in data)


def _claim(paper: str, entry: dict[str, object]) -> Claim:
    try:
        return Claim.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        said = entry.get("claim") or entry.get("function") if isinstance(entry, dict) else entry
        raise ValueError(
            f"paper {paper!r}, claim {said!r}: {place + ': ' if place else ''}{first['msg']}"
        ) from None


@functools.cache
def axes_of(paper: str) -> Axes:
    """The axes of a paper's tables: for each, (decoder, tree) -> value.

    They come from the tables and not from the trees: RSD's budgets are nominal.
    """
    from spec_bench.report.figures.published import axis_values
    if paper != "rsd":
        return {}
    return {axis: axis_values(axis) for axis in ("draft_length", "target_budget")}
