"""Everything that a page shows, gathered from results files and the files beside them: the one way
for an experiment, a sweep, a comparison and the index. Knows files and papers, nothing about HTML.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from spec_bench.report.claims import Check, check_claims, check_generally
from spec_bench.report.data.apart import slugs
from spec_bench.report.data.counts import Records
from spec_bench.report.data.records import origin_of
from spec_bench.report.data.rows import Group, groups_of, prompts_of, read_rows
from spec_bench.report.data.seeds import pooled
from spec_bench.report.papers.paper import Figure, Item, Paper, Table, load_paper, recipes_by_name
from spec_bench.report.tables.build import build_tables
from spec_bench.report.tables.commands import commands_for
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.printed import Sheet
from spec_bench.report.tables.progress import Progress, progress_of, wanted_of
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


@dataclass(frozen=True)
class Cells:
    """The cells of results files, as every page shows them."""

    rows: pd.DataFrame  # those that differ in the seed alone as one
    records: Records  # their counts by prompt
    origins: list[tuple[dict[str, str], int]]  # where they were measured, of each file


def read_cells(tables: Sequence[Path], pair: str | None = None) -> Cells:
    """Reads results files and what lies beside them; of one pair or (None) of all.

    Raises:
        ValueError: a file has no rows, or none is of the pair.
    """
    rows = read_rows(tables)
    if rows.empty:
        raise ValueError(f"{str(tables[0])!r} has no rows")
    if pair is not None:
        known = ", ".join(dict.fromkeys(rows.pair))
        rows = rows[rows.pair == pair]
        if rows.empty:
            raise ValueError(f"no rows of pair {pair!r} in {str(tables[0])!r}; it has {known}")
    origins = [each for path in tables for each in origins_of(path, rows[rows.file == str(path)])]
    records = Records(tables[0])
    return Cells(pooled(rows, records), records, origins)


def gather(file: Path, results: Path | None, pair: str | None) -> PageData:
    """Reads, checks and draws.

    Args:
        file: a results file.
        results: the results folder for the commands; None where it is the default.
        pair: this pair's rows only; None: all.

    Raises:
        ValueError: the file has no rows, or none of the pair.
    """
    cells = read_cells([file], pair)
    name = file.parent.name
    recipe = recipes_by_name().get(name)
    paper = load_paper(recipe.partition("=")[0]) if recipe else None
    rows, measured = cells.rows, Measured(cells.rows)
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
        origins=cells.origins,
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


_WIDTH = 1600  # pixels; figures are shown at up to 960
_PICTURES = 5  # drawing takes a second each; the page has commands for the rest


@dataclass(frozen=True)
class Picture:
    """A figure as a PNG."""

    title: str
    data_uri: str


@dataclass(frozen=True)
class Drawing:
    """A figure and whose rows it shows."""

    item: Figure
    pairs: tuple[str, ...]
    in_paper: bool  # whether the paper's figure has these pairs

    @property
    def title(self) -> str:
        """A caption, which names a pair that is not the paper's."""
        names = ", ".join(self.pairs)
        if self.in_paper:
            return f"Figure {self.item.number}, {names}. {self.item.title}"
        return f"{names}, drawn as Figure {self.item.number} of the paper ({self.item.title})"


def drawings(paper: Paper, items: Sequence[Item], measured: Measured) -> list[Drawing]:
    """The figures that the experiment measures with their pairs: pairs that no figure has get the
    figures for any pair, or else the first one.
    """
    figures = [item for item in items if isinstance(item, Figure) and paper.draws(item)]
    pairs = measured.pairs()
    paper_drawings = [
        Drawing(item, (pair,), True)
        for item in figures
        for pair in dict.fromkeys(wanted_of(paper, item).pair)
        if pair in pairs
    ]
    shown = {pair for drawing in paper_drawings for pair in drawing.pairs}
    others = tuple(pair for pair in pairs if pair not in shown)
    if not figures or not others:
        return paper_drawings
    fitting = [item for item in figures if item.any_pair] or figures[:1]
    together = [item for item in fitting if item.together]
    apart = [item for item in fitting if item not in together]
    return [
        *paper_drawings,
        *(Drawing(item, others, False) for item in together),
        *(Drawing(item, (pair,), False) for pair in others for item in apart),
    ]


def draw(drawing: Drawing, measured: Measured, folder: Path, *formats: str) -> list[Path]:
    """Writes a figure's files; none if it shows none of the rows."""
    from spec_bench.report import figures

    item, rows = drawing.item, measured.rows
    shown = rows[rows.pair.isin(drawing.pairs)]
    pair = drawing.pairs[0] if len(drawing.pairs) == 1 else None
    try:
        return list(figures.draw(item.paper, str(item.number), shown, folder, pair, formats))
    except figures.NothingMeasuredError:
        return []


def pictures(
    paper: Paper | None, items: Sequence[Item], groups: Sequence[Group], measured: Measured
) -> list[Picture]:
    """The paper's first figures; for an experiment of no paper the plain one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if paper is None:
            from spec_bench.report.figures.sweep import draw as draw_plain

            draw_plain(groups, folder / "figure.png")
            return [_picture("All decoders, with their 95% intervals", folder / "figure.png")]
        return list(_first(drawings(paper, items, measured)[:_PICTURES], measured, folder))


def more_figures(
    paper: Paper | None, items: Sequence[Item], measured: Measured, results: Path | None
) -> list[str]:
    """The commands that draw the figures that the page leaves out."""
    if paper is None:
        return []
    where = f" --results {results}" if results is not None else ""
    return [
        f"python -m spec_bench.report figure {drawing.item.name} --pair {pair}{where}"
        for drawing in islice(drawings(paper, items, measured), _PICTURES, None)
        for pair in drawing.pairs
    ]


def _first(chosen: Sequence[Drawing], measured: Measured, folder: Path) -> Iterator[Picture]:
    for number, drawing in enumerate(chosen):
        paths = draw(drawing, measured, folder / str(number), "png")
        rows = measured.rows[measured.rows.pair.isin(drawing.pairs)]
        prompts = prompts_of(rows)
        for path in paths:
            yield _picture(f"{drawing.title}{f' ({prompts} a cell)' if prompts else ''}", path)


def _picture(title: str, path: Path) -> Picture:
    return Picture(title, data_uri(path, _WIDTH))


_COLOURS = 64  # a figure has fewer, all else are their edges' shades


def data_uri(path: Path, width: int) -> str:
    """A PNG as a data URI, at most so many pixels each way."""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((width, width))
    stream = io.BytesIO()
    small.quantize(_COLOURS).save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"data:image/png;base64,{data}"


@dataclass(frozen=True)
class ShownTable:
    """A table with measured cells."""

    sheet: Sheet
    pair: str  # of the cells, if it is not the paper's; else ""


def stems(tables: Sequence[ShownTable]) -> list[str]:
    """The names of the tables' files: the table's, another pair's name, distinctive settings."""
    parts = slugs(table.sheet.setting for table in tables)
    names = [table.sheet.name.replace("/", "-") for table in tables]
    return [
        (f"{name}-{table.pair}" if table.pair else name) + parts[table.sheet.setting]
        for name, table in zip(names, tables, strict=True)
    ]


def shown_tables(
    items: Sequence[Item], measured: Measured, results: Path | None
) -> list[ShownTable]:
    """The paper's tables of the measured pairs; for another pair, the first table of each task."""
    tables = [item for item in items if isinstance(item, Table)]
    sheets = [sheet for item in tables for sheet in build_tables(item, measured, None, results)]
    shown = [ShownTable(sheet, "") for sheet in sheets if sheet.measured]
    covered = {pair for each in shown for pair in each.sheet.wanted.pair}
    for pair in measured.pairs():
        if pair in covered:
            continue
        seen: set[str] = set()
        for item in tables:
            sheets = build_tables(item, measured, pair, results)
            key = sheets[0].wanted.to_json()
            if key not in seen and any(sheet.measured for sheet in sheets):
                seen.add(key)
                shown += [ShownTable(sheet, pair) for sheet in sheets if sheet.measured]
    return shown
