"""Everything a page shows, gathered from a results file and what lies beside it.

Knows files and the papers' index; nothing about HTML.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.load import Group, groups_of
from spec_bench.report.orderings import Check, check_all
from spec_bench.report.others import claims_of, draw_figure
from spec_bench.report.papers.build import build_table
from spec_bench.report.papers.commands import commands_for
from spec_bench.report.papers.grid import Grid, Wanted
from spec_bench.report.papers.index import Item, Paper, load_paper, recipes_by_name
from spec_bench.report.papers.measured import Measured, read_measured, results_files
from spec_bench.report.papers.progress import Progress, progress_of, wanted_of

_PICTURES = 2  # drawing takes seconds each; the page has commands for the rest
_PROVENANCE_FILES = 400  # cells of one experiment share a few machines; reading all tells no more


@dataclass(frozen=True)
class Picture:
    """A figure as a PNG.

    Attributes:
        title: its caption.
        data_uri: the picture itself.
    """

    title: str
    data_uri: str


@dataclass(frozen=True)
class PageData:
    """What a page shows.

    Attributes:
        name: the experiment's.
        file: the results file.
        rows: its rows, of the pair that was asked for.
        groups: comparable cells, a pair and task each.
        paper: whose recipe it is; None for an experiment of no paper.
        pictures: its figures, some of them.
        more_figures: commands that draw the others.
        checks: claims with their verdicts.
        progress: per table of the paper, what of each pair is measured.
        commands: what would run the missing cells.
        tables: the paper's tables with ours beside.
        origins: machines, versions and revisions it was measured with, and on how many cells.
    """

    name: str
    file: Path
    rows: pd.DataFrame
    groups: list[Group]
    paper: Paper | None
    pictures: list[Picture]
    more_figures: list[str]
    checks: list[Check]
    progress: list[tuple[Item, Progress]]
    commands: list[str]
    tables: list[Grid]
    origins: list[tuple[dict[str, str], int]]


def results_file(name: str, results: Path) -> Path:
    """The results file of an experiment.

    Args:
        name: a folder below ``results``, one or two levels down, or a path.
        results: the results folder.

    Raises:
        ValueError: there is none, or several; the message lists the choices.
    """
    if Path(name).is_file():
        return Path(name)
    files = results_files(results)
    found = [path for path in files if path.parent.name == name]
    direct = [path for path in found if path.parent.parent == results]
    if direct or len(found) == 1:
        return (direct or found)[0]
    if found:
        raise ValueError(f"{name!r} is ambiguous, give one of: {', '.join(map(str, found))}")
    known = sorted({path.parent.name for path in files})
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
    rows = read_measured([file])
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
    groups = groups_of(rows)
    measured = Measured(rows)
    items = [item for item in paper.items if name in item.experiments] if paper else []
    progress = _progress(paper, items, measured)
    commands = []
    if recipe:
        missing = dict.fromkeys(cell for _, part in progress for cell in part.missing)
        commands = commands_for(recipe, missing, measured, results)
    return PageData(
        name=name,
        file=file,
        rows=rows,
        groups=groups,
        paper=paper,
        pictures=_pictures(paper, items, groups, rows, measured),
        more_figures=_more_figures(paper, items, measured, results),
        checks=_checks(paper, groups, rows, file),
        progress=progress,
        commands=commands,
        tables=_tables(items, measured, results),
        origins=_origins(file, rows),
    )


def _progress(
    paper: Paper | None, items: Sequence[Item], measured: Measured
) -> list[tuple[Item, Progress]]:
    """What of each table is measured on the pairs that the results have; equal needs once."""
    found: list[tuple[Item, Progress]] = []
    seen: set[tuple[Wanted, ...]] = set()
    pairs = measured.pairs()
    for item in items:
        if paper is None or item.kind != "table":
            continue
        for part in progress_of(paper, item, measured):
            if part.pair not in pairs:
                continue
            asked = [each for each in wanted_of(paper, item) if each.pair == part.pair]
            key = tuple(asked or wanted_of(paper, item, part.pair))
            if key not in seen:
                seen.add(key)
                found.append((item, part))
    return found


def _tables(items: Sequence[Item], measured: Measured, results: Path | None) -> list[Grid]:
    """The paper's tables of the measured pairs; for another pair, the first table of each task."""
    grids: list[Grid] = []
    tables = [item for item in items if item.kind == "table"]
    own = {item.name: build_table(item, measured, None, results) for item in tables}
    shown = [grid for grid in own.values() if grid.measured]
    grids += shown
    covered = {wanted.pair for grid in shown for wanted in grid.wanted()}
    for pair in measured.pairs():
        if pair in covered:
            continue
        seen: set[tuple[Wanted, ...]] = set()
        for item in tables:
            grid = build_table(item, measured, pair, results)
            key = tuple(grid.wanted())
            if grid.measured and key not in seen:
                seen.add(key)
                grids.append(grid)
    return grids


def _pictures(
    paper: Paper | None,
    items: Sequence[Item],
    groups: Sequence[Group],
    rows: pd.DataFrame,
    measured: Measured,
) -> list[Picture]:
    """The paper's figures; for an experiment of no paper the plain one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if paper is None:
            from spec_bench.report.figure import draw

            draw(groups, folder / "figure.png")
            return [_picture("All decoders, with their 95% intervals", folder / "figure.png")]
        found = []
        for number, (item, pair) in enumerate(_drawn(paper, items, measured)[:_PICTURES]):
            try:
                paths = draw_figure()(
                    paper.name, str(item.number), rows, folder / str(number), pair, ("png",)
                )
            except ValueError:
                continue
            title = f"Figure {item.number}, {pair}. {item.title}"
            found += [_picture(title, path) for path in paths]
        return found


def _more_figures(
    paper: Paper | None, items: Sequence[Item], measured: Measured, results: Path | None
) -> list[str]:
    """The commands that draw what the page leaves out."""
    if paper is None:
        return []
    where = f" --results {results}" if results is not None else ""
    return [
        f"python -m spec_bench.report figure {item.name} --pair {pair}{where}"
        for item, pair in _drawn(paper, items, measured)[_PICTURES:]
    ]


def _drawn(paper: Paper, items: Sequence[Item], measured: Measured) -> list[tuple[Item, str]]:
    """Which figures there are, of which pair: a pair that no figure has gets the first one."""
    figures = [item for item in items if item.kind == "figure"]
    pairs = measured.pairs()
    drawn = [
        (item, pair)
        for item in figures
        for pair in dict.fromkeys(each.pair for each in wanted_of(paper, item))
        if pair in pairs
    ]
    shown = {pair for _, pair in drawn}
    return drawn + [(figures[0], pair) for pair in pairs if figures and pair not in shown]


def _picture(title: str, path: Path) -> Picture:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return Picture(title, f"data:image/png;base64,{data}")


def _checks(
    paper: Paper | None, groups: Sequence[Group], rows: pd.DataFrame, file: Path
) -> list[Check]:
    """The paper's claims; for an experiment of no paper the general ones."""
    if paper is None:
        return check_all(groups, file)
    try:
        return list(claims_of()(paper.name, rows, file))
    except ValueError:
        return []


def _origins(file: Path, rows: pd.DataFrame) -> list[tuple[dict[str, str], int]]:
    """Distinct machines and versions with the number of cells, the most common first."""
    counts: dict[str, int] = {}
    runs = file.resolve().parent.parent / "runs"
    for run_id in list(rows.run_id)[:_PROVENANCE_FILES]:
        path = runs / str(run_id) / "provenance.json"
        if path.is_file():
            key = json.dumps(_origin(json.loads(path.read_text(encoding="utf-8"))[-1]))
            counts[key] = counts.get(key, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [(dict(json.loads(key)), count) for key, count in ordered]


def _origin(start: dict[str, Any]) -> dict[str, str]:
    """What of a provenance record is shown."""
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
