"""What pages show, gathered from results files and the files beside them: the one way for an
experiment, a sweep, a comparison and the index. Knows files and papers, nothing about HTML.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from PIL import Image

from spec_bench.report.data.counts import Records, origin_of
from spec_bench.report.data.grouping import slugs
from spec_bench.report.data.rows import read_rows
from spec_bench.report.data.seeds import pooled
from spec_bench.report.papers.items import Item
from spec_bench.report.papers.paper import Figure, Paper, Table
from spec_bench.report.tables.build import build_tables
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.printed import Asked, Sheet
from spec_bench.report.tables.progress import wanted_of
from spec_bench.system import files
from spec_bench.vocabulary.columns import of_kind

_ORIGINS = 400  # cells of one experiment share a few machines
_COLOURS = 64  # a figure has fewer, all else are their edges' shades
Origins = list[tuple[dict[str, str], int]]
"""Machines, versions and revisions that cells were measured with, and how many cells."""


def results_file(name: str, results: Path) -> Path:
    """Finds an experiment's results file: of a folder below ``results``, below ``embedded`` in it,
    or below another of its folders, the first of these that is there; or by a path to a folder or a
    file. Raises ValueError: there is none, or several; the message lists the choices.
    """
    folders = (Path(name), results / name, results / "embedded" / name)
    for file in (Path(name), *(folder / files.RESULTS for folder in folders)):
        if file.is_file():
            return file
    tables = files.results_files(results)
    named = [path for path in tables if path.parent.name == name]
    if len(named) == 1:
        return named[0]
    if named:
        raise ValueError(f"{name!r} is ambiguous, give one of: {', '.join(map(str, named))}")
    known = ", ".join(sorted({path.parent.name for path in tables})) or "none"
    raise ValueError(f"no experiment {name!r} below {str(results)!r}; there: {known}")


@dataclass(frozen=True)
class Cells:
    """The cells of results files, as every page shows them."""

    rows: pd.DataFrame  # those that differ in the seed alone as one
    records: Records  # their counts by prompt
    origins: Origins  # of each file


def read_cells(tables: Sequence[Path], pair: str | None = None, only: Sequence[str] = ()) -> Cells:
    """Reads results files and what lies beside them; of one pair or (None) of all, with ``only``
    some of the measured numbers that have intervals, or all. Raises ValueError: a file has no rows,
    or none is of the pair.
    """
    measured = of_kind("time", "efficiency", "energy") if only else ()
    others = [n for c in measured if c.interval and c.name not in only for n in c.names]
    rows = read_rows(tables).drop(columns=others, errors="ignore")
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


def origins_of(file: Path, rows: pd.DataFrame) -> Origins:
    """Lists distinct machines and versions of a file's cells, the most common first."""
    counts: Counter[str] = Counter()
    runs = [run_id for cell in rows.run_id for run_id in str(cell).split(",")]
    for start in filter(None, (origin_of(file, run_id) for run_id in runs[:_ORIGINS])):
        git, torch = start.get("git") or {}, start.get("torch") or {}
        versions = start.get("versions") or {}
        changed = " with uncommitted changes" if git.get("dirty") else ""
        shown = {
            "revision": str(git.get("revision") or "unknown")[:12] + changed,
            "day": str(start.get("time", ""))[:10],
            "device": ", ".join(map(str, torch.get("devices") or [])) or str(start.get("cpu", "")),
            "threads": str(torch.get("threads", "")),
            "torch": str(versions.get("torch", "")),
            "transformers": str(versions.get("transformers", "")),
            "python": str(start.get("python", "")),
            "system": str(start.get("platform", "")),
        }
        counts[json.dumps(shown)] += 1
    return [(json.loads(shown), count) for shown, count in counts.most_common()]


class Drawing(NamedTuple):
    """A figure of a paper and whose rows it shows."""

    item: Figure
    pairs: tuple[str, ...]
    title: str  # a caption, which names a pair that is not the paper's


def drawings(paper: Paper, items: Sequence[Item], measured: Measured) -> list[Drawing]:
    """Lists the experiment's figures with their pairs; pairs of none get those for any pair."""
    figures = [item for item in items if isinstance(item, Figure) and paper.draws(item)]
    pairs = measured.pairs()
    drawn = [
        Drawing(item, (pair,), f"Figure {item.number}, {pair}. {item.title}")
        for item in figures
        for pair in dict.fromkeys(each.pair for each in wanted_of(paper, item))
        if pair in pairs
    ]
    shown = {pair for drawing in drawn for pair in drawing.pairs}
    others = [pair for pair in pairs if pair not in shown]
    fitting = [item for item in figures if item.any_pair] or figures[:1]
    together = [(item, others) for item in fitting if item.together and others]
    apart = [(item, [pair]) for pair in others for item in fitting if not item.together]
    for item, own in (*together, *apart):
        how = f"drawn as Figure {item.number} of the paper ({item.title})"
        drawn.append(Drawing(item, tuple(own), f"{', '.join(own)}, {how}"))
    return drawn


def draw(drawing: Drawing, measured: Measured, folder: Path, *formats: str) -> list[Path]:
    """Writes a figure's files; none if it shows none of the rows."""
    from spec_bench.report import figures

    item, pairs = drawing.item, drawing.pairs
    rows = measured.rows[measured.rows.pair.isin(pairs)]
    pair = pairs[0] if len(pairs) == 1 else None
    try:
        return list(figures.draw(item, rows, folder, pair, formats))
    except figures.NothingMeasuredError:
        return []


def data_uri(path: Path, width: int) -> str:
    """Returns a PNG as a data URI, at most so many pixels each way."""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((width, width))
    stream = io.BytesIO()
    small.quantize(_COLOURS).save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


class ShownTable(NamedTuple):
    """A table with measured cells."""

    sheet: Sheet
    pair: str  # of the cells, if it is not the paper's; else ""


def stems(tables: Sequence[ShownTable]) -> list[str]:
    """Names the tables' files: the table's name, another pair's name, distinctive settings."""
    parts = slugs(sheet.setting for sheet, _ in tables)
    return [
        f"{sheet.name.replace('/', '-')}{f'-{pair}' if pair else ''}{parts[sheet.setting]}"
        for sheet, pair in tables
    ]


def shown_tables(items: Sequence[Item], measured: Measured) -> list[ShownTable]:
    """Lists the paper's tables of the measured pairs; for another pair, the first of each task."""
    tables = [item for item in items if isinstance(item, Table)]
    sheets = [sheet for item in tables for sheet in build_tables(item, measured)]
    shown = [ShownTable(sheet, "") for sheet in sheets if sheet.measured]
    covered = {asked.pair for sheet, _ in shown for asked in sheet.wanted}
    for pair in [each for each in measured.pairs() if each not in covered]:
        seen = set[tuple[Asked, ...]]()
        for item in tables:
            sheets = build_tables(item, measured, pair)
            wanted = sheets[0].wanted
            if wanted not in seen and any(sheet.measured for sheet in sheets):
                seen.add(wanted)
                shown += [ShownTable(sheet, pair) for sheet in sheets if sheet.measured]
    return shown
