"""What pages show, gathered from results files and the files beside them, and the HTML of an
experiment's page and of the index of all experiments, in the words and order of the templates,
which escape it.
"""

import base64
import functools
import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup
from PIL import Image

from spec_bench.report.claims import check_claims, check_generally
from spec_bench.report.claims.verdict import VERDICTS, group_by_claim, summarise_claims
from spec_bench.report.data.counts import RecordReader, read_origin
from spec_bench.report.data.differences import differences
from spec_bench.report.data.rows import (
    Group,
    check_models,
    footnotes,
    format_group_title,
    format_harness_note,
    group_rows,
    is_from_past_engine,
    read_rows,
    slugs,
    to_rows,
)
from spec_bench.report.data.seeds import pool_seeds, seeds_text
from spec_bench.report.page.headline import answer, headline, headlines
from spec_bench.report.page.results_table import category_tables, results_table, select_columns
from spec_bench.report.papers.items import Item
from spec_bench.report.papers.paper import (
    Figure,
    Paper,
    Table,
    load_paper,
    readable_papers,
    recipes_by_name,
)
from spec_bench.report.tables.build import build_tables
from spec_bench.report.tables.measured import (
    RESULTS,
    MeasuredRows,
    TableProgress,
    build_commands,
    compute_progress,
    list_wanted_cells,
)
from spec_bench.report.tables.printed import RequestedCell, TableSheet
from spec_bench.report.tables.render import environment, html_fragment
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import columns_of_kind

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
        raise UsageError(f"{name!r} is ambiguous, give one of: {', '.join(map(str, named))}")
    known = ", ".join(sorted({path.parent.name for path in tables})) or "none"
    message = f"no experiment {name!r} below {str(results)!r}; there: {known}"
    raise files.make_absence(message, results)


@dataclass(frozen=True)
class PageCells:
    """The cells of results files, as every page shows them."""

    rows: pd.DataFrame  # those that differ in the seed alone as one
    records: RecordReader  # their counts by prompt
    origins: Origins  # of each file


def read_cells(
    tables: Sequence[Path], pair: str | None = None, only: Sequence[str] = ()
) -> PageCells:
    """Reads results files and what lies beside them; of one pair or (None) of all, with ``only``
    some of the measured numbers that have intervals, or all. Raises ValueError: a file has no rows,
    or none is of the pair.
    """
    measured = columns_of_kind("time", "efficiency", "energy") if only else ()
    others = [n for c in measured if c.interval and c.name not in only for n in c.names]
    rows = read_rows(tables).drop(columns=others, errors="ignore")
    if rows.empty:
        raise UsageError(f"{str(tables[0])!r} has no rows")
    rows = check_models(rows)
    if pair is not None:
        known = ", ".join(dict.fromkeys(rows.pair))
        rows = rows[rows.pair == pair]
        if rows.empty:
            raise UsageError(f"no rows of pair {pair!r} in {str(tables[0])!r}; it has {known}")
    origins = [each for path in tables for each in read_origins(path, rows[rows.file == str(path)])]
    records = RecordReader(tables[0])
    return PageCells(pool_seeds(rows, records), records, origins)


def read_origins(file: Path, rows: pd.DataFrame) -> Origins:
    """Lists distinct machines and versions of a file's cells, the most common first."""
    counts: Counter[str] = Counter()
    runs = [run_id for cell in rows.run_id for run_id in str(cell).split(",")]
    for start in filter(None, (read_origin(file, run_id) for run_id in runs[:_ORIGINS])):
        git = start.get("git") or {}
        torch = start.get("torch") or {}
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


class PageFigure(NamedTuple):
    """A figure of a paper and whose rows it shows."""

    item: Figure
    pairs: tuple[str, ...]
    title: str  # a caption, which names a pair that is not the paper's


def list_figures(paper: Paper, items: Sequence[Item], measured: MeasuredRows) -> list[PageFigure]:
    """Lists the experiment's figures with their pairs; pairs of none get those for any pair."""
    figures = [item for item in items if isinstance(item, Figure) and paper.draws(item)]
    pairs = measured.pairs()
    drawn = [
        PageFigure(item, (pair,), f"Figure {item.number}, {pair}. {item.title}")
        for item in figures
        for pair in dict.fromkeys(each.pair for each in list_wanted_cells(paper, item))
        if pair in pairs
    ]
    shown = {pair for drawing in drawn for pair in drawing.pairs}
    others = [pair for pair in pairs if pair not in shown]
    fitting = [item for item in figures if item.any_pair] or figures[:1]
    together = [(item, others) for item in fitting if item.together and others]
    apart = [(item, [pair]) for pair in others for item in fitting if not item.together]
    for item, own in (*together, *apart):
        how = f"drawn as Figure {item.number} of the paper ({item.title})"
        drawn.append(PageFigure(item, tuple(own), f"{', '.join(own)}, {how}"))
    return drawn


def draw(drawing: PageFigure, measured: MeasuredRows, folder: Path, *formats: str) -> list[Path]:
    """Writes a figure's files; none if it shows none of the rows."""
    from spec_bench.report import figures

    item = drawing.item
    pairs = drawing.pairs
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

    sheet: TableSheet
    pair: str  # of the cells, if it is not the paper's; else ""


def stems(tables: Sequence[ShownTable]) -> list[str]:
    """Names the tables' files: the table's name, another pair's name, distinctive settings."""
    parts = slugs(sheet.setting for sheet, _ in tables)
    return [
        f"{sheet.name.replace('/', '-')}{f'-{pair}' if pair else ''}{parts[sheet.setting]}"
        for sheet, pair in tables
    ]


def list_tables(items: Sequence[Item], measured: MeasuredRows) -> list[ShownTable]:
    """Lists the paper's tables of the measured pairs; for another pair, the first of each task."""
    tables = [item for item in items if isinstance(item, Table)]
    sheets = [sheet for item in tables for sheet in build_tables(item, measured)]
    shown = [ShownTable(sheet, "") for sheet in sheets if sheet.measured]
    covered = {asked.pair for sheet, _ in shown for asked in sheet.wanted}
    for pair in [each for each in measured.pairs() if each not in covered]:
        seen = set[tuple[RequestedCell, ...]]()
        for item in tables:
            sheets = build_tables(item, measured, pair)
            wanted = sheets[0].wanted
            if wanted not in seen and any(sheet.measured for sheet in sheets):
                seen.add(wanted)
                shown += [ShownTable(sheet, pair) for sheet in sheets if sheet.measured]
    return shown


_DOT = re.compile(r'class="dot ([\w-]+)"')
_VERDICTS = {"holds": "good", "does not hold": "bad"}
_VERDICTS |= dict.fromkeys(("shown alone", "within noise", "contradicted alone"), "open")
# of all tables, of each one
_MOST_LINES = 600
_FEWEST_LINES = 20
_WIDTH = 1600  # pixels; figures are shown at up to 960
_PICTURES = 5  # drawing takes a second each; the page has commands for the rest
SMALL = "Measured on small models that ship with the package, on invented text; not the {} models."


_environment = environment("spec_bench.report.page")
_environment.filters["fragment"] = lambda sheet: Markup(html_fragment(sheet))  # escaped there
# Of the decoders whose dots stand in a page: the style sheet has their looks and no others.
_environment.filters["decoders"] = lambda page: names.distinct_styles(
    sorted(set(_DOT.findall(page)))
)


def render(template: str, **values: Any) -> str:
    """Fills a template of the folder beside this file with values for its names."""
    return _environment.get_template(template).render(**values)


def find_paper(experiment: str) -> tuple[Paper | None, list[Item]]:
    """Returns the paper whose recipe an experiment is, and its items that it measures."""
    if (recipe := recipes_by_name().get(experiment)) is None:
        return None, []
    paper = load_paper(recipe.partition("=")[0])
    return paper, [item for item in paper.items if experiment in item.experiments]


def build_page(file: Path, results: Path = RESULTS, pair: str | None = None) -> str:
    """Reads a results file, checks and draws: an experiment's whole page, of one pair's rows or all
    (None). Commands name the results folder where it is not the default. Raises ValueError: the
    file has no rows, or none of the pair.
    """
    cells = read_cells([file], pair)
    paper = find_paper(file.parent.name)[0]
    rows = cells.rows
    groups = group_rows(cells.rows)
    columns = select_columns(cells.rows)
    check = functools.partial(check_claims, paper.name) if paper else check_generally
    checks = check(rows, cells.records)
    own = _paper_part(file.parent.name, groups, MeasuredRows(rows, results))
    most = max(_FEWEST_LINES, _MOST_LINES // len(groups))
    views: list[dict[str, Any]] = [
        {
            "title": format_group_title(group),
            "pair": str(group.rows.iloc[0].pair),
            "task": str(group.rows.iloc[0].task),
            "card": headline(group),
            "table": results_table(group, most),
            "categories": list(category_tables(group, cells.records)),
        }
        for group in groups
    ]
    screened = "stage" in rows and (rows.stage == "screen").any()
    return render(
        "page.html.j2",
        **own,
        name=file.parent.name,
        file=file,
        paper=paper,
        days=sorted({origin["day"] for origin, _ in cells.origins if origin["day"]}),
        groups=views,
        measured_on=format_caveat(rows.target, bool(paper)) or format_harness_note(rows),
        answer=answer([view["card"] for view in views if view["card"]]),
        checks=checks,
        claims=group_by_claim(checks),
        summary=summarise_claims(checks, paper),
        verdicts=dict.fromkeys(VERDICTS, "none") | _VERDICTS,
        tiles=_tiles(rows, own["lacking"], file),
        pairs={view["pair"]: view["pair"] for view in views},
        tasks={view["task"]: names.task_title(view["task"]) for view in views},
        remarks=[*footnotes(rows), *differences(to_rows(rows), [c.name for c in columns])],
        files=f"{file.name}{' and screening.csv' if screened else ''} beside this page",
        sampling=_format_sampling(rows),
        origins=cells.origins,
        columns=columns,
    )


def _paper_part(experiment: str, groups: Sequence[Group], measured: MeasuredRows) -> dict[str, Any]:
    """Returns a paper's part of a page and commands for what is lacking; of no paper a figure."""
    paper, items = find_paper(experiment)
    drawn = list_figures(paper, items, measured) if paper else []
    kind = "table" if any(item.kind == "table" for item in items) else "figure"
    shares: dict[tuple[RequestedCell, ...], tuple[Item, TableProgress]] = {}
    for item in items:
        for part in compute_progress(paper, item, measured) if paper and item.kind == kind else ():
            if part.pair in measured.pairs():
                shares.setdefault(part.wanted, (item, part))
    missing = dict.fromkeys(cell for _, part in shares.values() for cell in part.missing)
    recipe = recipes_by_name().get(experiment, "")
    return {
        "pictures": list(_pictures(paper, drawn[:_PICTURES], groups, measured)),
        "more_figures": [
            files.command_line(
                "figure", drawing.item.name, "--pair", pair, results=measured.results
            )
            for drawing in drawn[_PICTURES:]
            for pair in drawing.pairs
        ],
        "tables": list_tables(items, measured),
        "shares": shares,
        "lacking": len(missing),
        "missing": [
            (
                part,
                item.name,
                ", ".join(dict.fromkeys(names.task_title(each.task) for each in part.missing)),
                ", ".join(dict.fromkeys(f"{e.decoder} {e.spec}".strip() for e in part.missing)),
            )
            for item, part in shares.values()
            if part.missing
        ],
        "commands": build_commands(recipe, missing, measured) if shares else [],
    }


def _pictures(
    paper: Paper | None,
    drawn: Sequence[PageFigure],
    groups: Sequence[Group],
    measured: MeasuredRows,
) -> Iterator[tuple[str, str]]:
    """Draws figures; a title and a data URI of each."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if paper is None:
            from spec_bench.report.figures.sweep import draw as draw_plain

            if draw_plain(groups, folder / "figure.png"):
                yield "All decoders, the fastest first", data_uri(folder / "figure.png", _WIDTH)
        for number, drawing in enumerate(drawn):
            for path in draw(drawing, measured, folder / str(number), "png"):
                yield drawing.title, data_uri(path, _WIDTH)


def format_caveat(targets: Iterable[str], paper: bool) -> str:
    """Returns the caveat on rows of embedded targets, in a paper's experiment or another."""
    small = [str(target).startswith("embedded:") for target in targets]
    if not any(small):
        return ""
    text = SMALL.format("paper's" if paper else "papers'")
    return text if all(small) else f"Cells of the embedded pairs: {text[0].lower()}{text[1:]}"


def _tiles(rows: pd.DataFrame, lacking: int, file: Path) -> list[tuple[str, str]]:
    failed = int((rows.status == "failed").sum())
    prompts = rows.prompts.max() if "prompts" in rows else None
    others = {
        "failed": failed,
        "missing": lacking,
        "simulated": int((rows.lossless == "simulated").sum()),
        "timed by an earlier engine: no times": int(is_from_past_engine(rows).sum()),
        "of past weights, data or engines, archived": len(files.read_csv(files.archive_file(file))),
    }
    return [
        (str(len(rows) - failed), "cells measured"),
        (str(rows.pair.nunique()), "pairs" if rows.pair.nunique() > 1 else "pair"),
        (str(rows.task.nunique()), "tasks" if rows.task.nunique() > 1 else "task"),
        ("–" if pd.isna(prompts) else f"{prompts:.0f}", "prompts per cell"),
        *((str(count), f"cells {name}") for name, count in others.items() if count),
    ]


def _format_sampling(rows: pd.DataFrame) -> str:
    rows = rows.assign(seeds=[seeds_text(row) for row in to_rows(rows)])
    settings = rows[["temperature", "top_k", "top_p", "seeds", "batch_size"]].drop_duplicates()
    return "; ".join(
        f"temperature {row.temperature:g}, top-k {row.top_k:g}, top-p {row.top_p:g}, "
        f"{row.seeds}, batch {row.batch_size}"
        for row in settings.itertuples()
    )


_THUMBNAIL = 480  # pixels
_SHOWN = 1  # thumbnails of an experiment; its other figures are links alone
_NAME = re.compile(r"(fig)?(\d*)-?(.*)")  # behind the paper: fig4-PAIR, 1-PAIR


def build_index(results: Path) -> str:
    """Returns the index page of all experiments below a results folder, paper by paper."""
    folders = {path.parent for path in files.results_files(results)}
    folders |= {path.parent for path in results.glob("*/*.png")}  # figures that no cell is behind
    entries = [_entry(folder, results) for folder in sorted(folders)]
    titles = {paper.name: paper.title for paper in readable_papers()} | {"": "Other experiments"}
    listed = {name: [each for each in entries if each["paper"] == name] for name in titles}
    return render(
        "index.html.j2",
        papers=[(name or "others", titles[name], own) for name, own in listed.items() if own],
        count=sum(bool(each["cells"]) for each in entries),
        cells=sum(each["cells"] for each in entries),
        measured_on=format_caveat(chain.from_iterable(each["targets"] for each in entries), False),
    )


def _entry(folder: Path, results: Path) -> dict[str, Any]:
    """One experiment of the index: its page, cells, conclusion, figures and tables."""
    file = folder / files.RESULTS
    page = folder / "page.html"
    name = folder.name
    rows = read_rows([file]) if file.is_file() else pd.DataFrame(columns=["pair", "task"])
    measured = rows[rows.status != "failed"] if "status" in rows else rows
    paper = recipes_by_name().get(name, name.partition("-")[0]).partition("=")[0]
    paper = paper if paper in {each.name for each in readable_papers()} else ""
    days = [origin["day"] for origin, _ in read_origins(file, rows)] if len(rows) else []
    return {
        "name": str(folder.relative_to(results)),
        "paper": paper,
        "page": str(page.relative_to(results)) if page.is_file() else "",
        "pairs": list(dict.fromkeys(map(str, rows.pair))),
        "tasks": [names.task_title(task) for task in dict.fromkeys(map(str, rows.task))],
        "cells": len(measured),
        "answer": answer(headlines(group_rows(rows))) if len(measured) else "",
        "day": max(days, default=""),
        "links": list(_links(folder, results, paper)),
        "targets": list(rows.target) if "target" in rows else [],
    }


def _links(folder: Path, results: Path, paper: str) -> Iterator[tuple[str, str, str]]:
    """Names its figures, then its tables; with their paths and a small picture of the first."""
    pictures = sorted([*folder.glob("*.png"), *(folder / "figures").glob("*.png")])
    for number, path in enumerate([*pictures, *sorted((folder / "tables").glob("*.md"))]):
        kind, counted, pair = _NAME.findall(path.stem.removeprefix(f"{paper}-"))[0]
        title = f"{'Figure' if kind else 'Table'} {counted}{f', {pair}' if pair else ''}"
        small = path.suffix == ".png" and number < _SHOWN
        yield (
            title if counted else path.stem,
            str(path.relative_to(results)),
            data_uri(path, _THUMBNAIL) if small else "",
        )
