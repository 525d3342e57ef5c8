"""Everything a page shows, gathered from a results file and the files beside it.

Knows files and the papers' index; nothing about HTML.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.claims import Check, check_claims, check_generally
from spec_bench.report.data.records import origin_of
from spec_bench.report.data.rows import Group, groups_of, read_rows
from spec_bench.report.page.pictures import Picture, more_figures, pictures
from spec_bench.report.page.tables import ShownTable, shown_tables
from spec_bench.report.papers.paper import Item, Paper, load_paper, recipes_by_name
from spec_bench.report.tables.commands import commands_for
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.progress import Progress, progress_of
from spec_bench.system import files

_ORIGINS = 400  # cells of one experiment share a few machines


@dataclass(frozen=True)
class PageData:
    """The contents of a page."""

    name: str  # the experiment's
    file: Path  # the results file
    rows: pd.DataFrame  # its rows, of the pair that was asked for
    groups: list[Group]  # comparable cells, a pair and task each
    paper: Paper | None  # whose recipe it is; None for an experiment of no paper
    pictures: list[Picture]  # its figures, some of them
    more_figures: list[str]  # commands that draw the others
    checks: list[Check]  # claims with their verdicts
    progress: list[tuple[Item, Progress]]  # per table of the paper, the measured share of each pair
    commands: list[str]  # those that would run the missing cells
    tables: list[ShownTable]  # the paper's tables with ours beside
    # machines, versions and revisions it was measured with, and on how many cells
    origins: list[tuple[dict[str, str], int]]


def results_file(name: str, results: Path) -> Path:
    """The results file of an experiment.

    Args:
        name: a folder below ``results``, below ``embedded`` in it, or below another of its folders,
            the first of these that is there; or a path to a folder or a file.
        results: the results folder.

    Raises:
        ValueError: there is none, or several; the message lists the choices.
    """
    if Path(name).is_file():
        return Path(name)
    if (file := Path(name) / files.RESULTS).is_file():
        return file
    for folder in (results, results / "embedded"):
        if (file := files.results_file(folder, name)).is_file():
            return file
    tables = files.results_files(results)
    named = [path for path in tables if path.parent.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        raise ValueError(f"{name!r} is ambiguous, give one of: {', '.join(map(str, named))}")
    known = sorted({path.parent.name for path in tables})
    raise ValueError(
        f"no experiment {name!r} below {str(results)!r}; there: {', '.join(known) or 'none'}"
    )


def gather(file: Path, results: Path | None, pair: str | None) -> PageData:
    """Reads, checks and draws.

    Args:
        file: a results file.
        results: the results folder for the commands; None where it is the default.
        pair: this pair's rows only; None: all.

    Raises:
        ValueError: the file has no rows, or none of the pair.
    """
    rows = read_rows([file])
    if rows.empty:
        raise ValueError(f"{str(file)!r} has no rows")
    if pair is not None:
        known = list(dict.fromkeys(rows.pair))
        rows = rows[rows.pair == pair]
        if rows.empty:
            raise ValueError(
                f"no rows of pair {pair!r} in {str(file)!r}; it has {', '.join(known)}"
            )
    name = file.parent.name
    recipe = recipes_by_name().get(name)
    paper = load_paper(recipe.partition("=")[0]) if recipe else None
    origins, measured = origins_of(file, rows), Measured(rows)
    rows = measured.rows
    groups = groups_of(rows)
    items = [item for item in paper.items if name in item.experiments] if paper else []
    progress = _progress(paper, items, measured)
    commands = []
    if recipe:
        missing = [part.missing for _, part in progress]
        commands = commands_for(recipe, pd.concat(missing), measured, results) if missing else []
    return PageData(
        name=name,
        file=file,
        rows=rows,
        groups=groups,
        paper=paper,
        pictures=pictures(paper, items, groups, measured),
        more_figures=more_figures(paper, items, measured, results),
        checks=check_claims(paper.name, rows, file) if paper else check_generally(rows, file),
        progress=progress,
        commands=commands,
        tables=shown_tables(items, measured, results),
        origins=origins,
    )


def _progress(
    paper: Paper | None, items: Sequence[Item], measured: Measured
) -> list[tuple[Item, Progress]]:
    """The measured shares of tables, or of figures without tables, on the results' pairs."""
    shares: list[tuple[Item, Progress]] = []
    seen: set[str] = set()
    pairs = measured.pairs()
    kind = "table" if any(item.kind == "table" for item in items) else "figure"
    for item in items:
        if paper is None or item.kind != kind:
            continue
        for part in progress_of(paper, item, measured):
            if part.pair not in pairs:
                continue
            key = part.wanted.to_json()
            if key not in seen:
                seen.add(key)
                shares.append((item, part))
    return shares


def origins_of(file: Path, rows: pd.DataFrame) -> list[tuple[dict[str, str], int]]:
    """Distinct machines and versions with the number of cells, the most common first."""
    counts: dict[str, int] = {}
    runs = [run_id for cell in rows.run_id for run_id in str(cell).split(",")]
    for run_id in runs[:_ORIGINS]:
        if origin := origin_of(file, run_id):
            key = json.dumps(_origin(origin))
            counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [(dict(json.loads(key)), count) for key, count in ordered]


def _origin(start: dict[str, Any]) -> dict[str, str]:
    """The shown part of a provenance record."""
    git, torch = start.get("git") or {}, start.get("torch") or {}
    revision = str(git.get("revision") or "unknown")[:12]
    versions = start.get("versions") or {}
    return {
        "revision": revision + (" with uncommitted changes" if git.get("dirty") else ""),
        "day": str(start.get("time", ""))[:10],
        "device": ", ".join(map(str, torch.get("devices") or [])) or str(start.get("cpu", "")),
        "threads": str(torch.get("threads", "")),
        "torch": str(versions.get("torch", "")),
        "transformers": str(versions.get("transformers", "")),
        "python": str(start.get("python", "")),
        "system": str(start.get("platform", "")),
    }
