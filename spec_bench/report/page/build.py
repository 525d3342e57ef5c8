"""Builds an experiment's HTML page and the index page of all experiments.

Their content comes from results files and the files in the same folders; the templates arrange and
escape it.
"""

import base64
import functools
import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup
from PIL import Image

from spec_bench.records.sampling import describe_sampling
from spec_bench.report.claims import check_claims, check_general_claims
from spec_bench.report.claims.verdict import VERDICTS, group_by_claim, summarise_claims
from spec_bench.report.data.counts import RecordReader, read_provenance
from spec_bench.report.data.differences import describe_differences_from_papers
from spec_bench.report.data.rows import (
    Group,
    format_harness_note,
    format_title_without_pair,
    group_rows,
    list_mark_meanings,
    mask_past_engine,
    read_rows,
    refuse_or_separate_models,
    to_rows,
)
from spec_bench.report.data.seeds import format_seed_list, pool_seeds
from spec_bench.report.data.splits import make_file_suffixes
from spec_bench.report.page.headline import format_answer, make_headline, make_headlines
from spec_bench.report.page.results_table import (
    build_results_table,
    iter_category_tables,
    select_columns,
)
from spec_bench.report.papers.items import Item
from spec_bench.report.papers.paper import (
    Figure,
    Paper,
    Table,
    find_recipes_by_folder,
    load_paper,
    load_readable_papers,
)
from spec_bench.report.tables.build import build_tables_by_setting
from spec_bench.report.tables.measured import RESULTS, MeasuredRows
from spec_bench.report.tables.printed import RequestedCell, TableSheet
from spec_bench.report.tables.progress import (
    ItemProgress,
    build_training_and_run_commands,
    compute_progress_by_pair,
    list_wanted_cells,
)
from spec_bench.report.tables.render import format_table_html, make_template_environment
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import list_columns_of_kind

_ORIGINS = 400  # most runs that are looked up; an experiment's cells share a few machines
_COLOURS = 64  # a figure has fewer colours; the rest are shades at their edges
Origins = list[tuple[dict[str, str], int]]
"""Distinct machines, versions and revisions of cells, each with its number of cells."""


def find_results_file(name: str, results: Path) -> Path:
    """Finds an experiment's results file. ``name`` is a path to the file or its folder, or the name
    of a folder in ``results``, in ``results/embedded`` or deeper below ``results``; the first match
    in this order wins. Raises UsageError, with the choices, if there is none or if several folders
    have the name.
    """
    folders = (Path(name), results / name, results / "embedded" / name)
    for file in (Path(name), *(folder / files.RESULTS for folder in folders)):
        if file.is_file():
            return file
    tables = files.list_results_files(results)
    matches = [path for path in tables if path.parent.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{name!r} is ambiguous, give one of: {', '.join(map(str, matches))}")
    names = ", ".join(sorted({path.parent.name for path in tables})) or "none"
    message = f"no experiment {name!r} below {str(results)!r}; there: {names}"
    raise files.make_error_with_stop_hint(message, results)


@dataclass(frozen=True)
class LoadedResults:
    """Cells of results files, with their records and origins."""

    rows: pd.DataFrame  # cells that differ only in the seed are pooled in one row
    records: RecordReader  # the cells' counts by prompt
    origins: Origins  # of all files, one after the other


def load_results(
    tables: Sequence[Path],
    pair: str | None = None,
    kept_columns: Sequence[str] = (),
    mixed_models: bool = False,
) -> LoadedResults:
    """Reads results files, of one pair or (None) of all pairs. With ``kept_columns``, the other
    columns of times, efficiency and energy are dropped. Raises UsageError if there are no rows, or
    none of the pair.
    """
    measured_columns = list_columns_of_kind("time", "efficiency", "energy") if kept_columns else ()
    dropped_names = [
        n for c in measured_columns if c.interval and c.name not in kept_columns for n in c.names
    ]
    rows = read_rows(tables, mixed_models).drop(columns=dropped_names, errors="ignore")
    if rows.empty:
        raise UsageError(f"{str(tables[0])!r} has no rows")
    rows = refuse_or_separate_models(rows)
    if pair is not None:
        pairs = ", ".join(dict.fromkeys(rows.pair))
        rows = rows[rows.pair == pair]
        if rows.empty:
            raise UsageError(f"no rows of pair {pair!r} in {str(tables[0])!r}; it has {pairs}")
    origins = [
        origin
        for path in tables
        for origin in read_distinct_origins(path, rows[rows.file == str(path)])
    ]
    records = RecordReader(tables[0])
    return LoadedResults(pool_seeds(rows, records), records, origins)


def read_distinct_origins(file: Path, rows: pd.DataFrame) -> Origins:
    """Lists the distinct machines and versions of a file's cells, the most common first."""
    counts: Counter[str] = Counter()
    runs = [run_id for cell in rows.run_id for run_id in str(cell).split(",")]
    for start in filter(None, (read_provenance(file, run_id) for run_id in runs[:_ORIGINS])):
        git = start.get("git") or {}
        torch = start.get("torch") or {}
        versions = start.get("versions") or {}
        dirty_mark = " with uncommitted changes" if git.get("dirty") else ""
        origin = {
            "revision": str(git.get("revision") or "unknown")[:12] + dirty_mark,
            "day": str(start.get("time", ""))[:10],
            "device": ", ".join(map(str, torch.get("devices") or [])) or str(start.get("cpu", "")),
            "threads": str(torch.get("threads", "")),
            "torch": str(versions.get("torch", "")),
            "transformers": str(versions.get("transformers", "")),
            "python": str(start.get("python", "")),
            "system": str(start.get("platform", "")),
        }
        counts[json.dumps(origin)] += 1
    return [(json.loads(origin), count) for origin, count in counts.most_common()]


class PageFigure(NamedTuple):
    """A figure of a paper, with the pairs that it shows."""

    item: Figure
    pairs: tuple[str, ...]
    title: str  # a caption, which names the pairs


def list_page_figures_by_pair(
    paper: Paper, items: Sequence[Item], cells: MeasuredRows
) -> list[PageFigure]:
    """Lists the experiment's figures with their pairs. A measured pair that is in none of them gets
    the figures that are drawn for any pair, or else the first figure.
    """
    figures = [
        item for item in items if isinstance(item, Figure) and paper.find_drawing_function(item)
    ]
    pairs = cells.list_pairs()
    page_figures = [
        PageFigure(item, (pair,), f"Figure {item.number}, {pair}. {item.title}")
        for item in figures
        for pair in dict.fromkeys(cell.pair for cell in list_wanted_cells(paper, item))
        if pair in pairs
    ]
    pairs_drawn = {pair for figure in page_figures for pair in figure.pairs}
    other_pairs = [pair for pair in pairs if pair not in pairs_drawn]
    any_pair_items = [item for item in figures if item.any_pair] or figures[:1]
    joint = [(item, other_pairs) for item in any_pair_items if item.together and other_pairs]
    single = [
        (item, [pair]) for pair in other_pairs for item in any_pair_items if not item.together
    ]
    for item, item_pairs in (*joint, *single):
        caption = f"drawn as Figure {item.number} of the paper ({item.title})"
        page_figures.append(
            PageFigure(item, tuple(item_pairs), f"{', '.join(item_pairs)}, {caption}")
        )
    return page_figures


def draw_page_figure(
    figure: PageFigure, cells: MeasuredRows, folder: Path, *formats: str
) -> list[Path]:
    """Draws a figure in these formats and returns its files; none if it shows none of the rows."""
    from spec_bench.report import figures

    item = figure.item
    pairs = figure.pairs
    rows = cells.rows[cells.rows.pair.isin(pairs)]
    pair = pairs[0] if len(pairs) == 1 else None
    try:
        return figures.draw_figure_files(item, rows, folder, pair, formats)
    except figures.NothingMeasuredError:
        return []


def to_data_uri(path: Path, max_pixels: int) -> str:
    """Converts a PNG to a data URI, with at most ``max_pixels`` on either side."""
    with Image.open(path) as picture:
        thumbnail = picture.convert("RGB")
        thumbnail.thumbnail((max_pixels, max_pixels))
    stream = io.BytesIO()
    thumbnail.quantize(_COLOURS).save(stream, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def make_table_file_stems(sheets: Sequence[TableSheet]) -> list[str]:
    """Makes the tables' file names without endings: table, other pair, distinctive settings."""
    parts = make_file_suffixes(sheet.setting for sheet in sheets)
    return [
        "-".join([*sheet.name.split("/"), *filter(None, [sheet.other_pair])]) + parts[sheet.setting]
        for sheet in sheets
    ]


def build_page_tables(items: Sequence[Item], cells: MeasuredRows) -> list[TableSheet]:
    """Builds the paper's tables that have measured cells. A measured pair that is in none of them
    gets the paper's tables, too, but only the first of those with the same cells.
    """
    tables = [item for item in items if isinstance(item, Table)]
    sheets = [
        sheet
        for item in tables
        for sheet in build_tables_by_setting(item, cells)
        if sheet.is_measured
    ]
    pairs_covered = {request.pair for sheet in sheets for request in sheet.wanted}
    for pair in [pair_name for pair_name in cells.list_pairs() if pair_name not in pairs_covered]:
        requests_before = set[tuple[RequestedCell, ...]]()
        for item in tables:
            measured = [e for e in build_tables_by_setting(item, cells, pair) if e.is_measured]
            if measured and measured[0].wanted not in requests_before:
                requests_before.add(measured[0].wanted)
                sheets += [replace(sheet, other_pair=pair) for sheet in measured]
    return sheets


_DOT = re.compile(r'class="dot ([\w-]+)"')
_VERDICTS = {"holds": "good", "does not hold": "bad"}
_VERDICTS |= dict.fromkeys(("shown alone", "within noise", "contradicted alone"), "open")
# The tables of a page share the most lines, but each may have the fewest.
_MOST_LINES = 600
_FEWEST_LINES = 20
_WIDTH = 1600  # pixels; figures are shown at up to 960
_PICTURES = 5  # drawing one takes a second; the page has commands for the others
SMALL = "Measured on small models that ship with the package, on invented text; not the {} models."


_environment = make_template_environment("spec_bench.report.page")
_environment.filters["fragment"] = lambda sheet: Markup(format_table_html(sheet))  # is escaped
# The style sheet has the styles of only those decoders that have a dot in the page.
_environment.filters["decoders"] = lambda page: names.make_distinct_styles(
    sorted(set(_DOT.findall(page)))
)


def render_template(template: str, **values: Any) -> str:
    """Renders a template of this package with ``values``."""
    return _environment.get_template(template).render(**values)


def find_paper_of_experiment(experiment: str) -> tuple[Paper | None, list[Item]]:
    """Finds the paper that an experiment's recipe belongs to, and the paper's items that the
    experiment measures. Returns (None, []) if the experiment has no recipe.
    """
    if (recipe := find_recipes_by_folder().get(experiment)) is None:
        return None, []
    paper = load_paper(recipe.partition("=")[0])
    return paper, [item for item in paper.items if experiment in item.experiments]


def build_page(
    file: Path, results: Path = RESULTS, pair: str | None = None, mixed_models: bool = False
) -> str:
    """Builds an experiment's HTML page from a results file, for one pair or (None) for all pairs.
    The page's commands name ``results`` if it is not the default folder. Raises UsageError if the
    file has no rows, or none of the pair.
    """
    cells = load_results([file], pair, mixed_models=mixed_models)
    paper = find_paper_of_experiment(file.parent.name)[0]
    rows = cells.rows
    groups = group_rows(cells.rows)
    columns = select_columns(cells.rows)
    check = functools.partial(check_claims, paper.name) if paper else check_general_claims
    checks = check(rows, cells.records)
    paper_part = _build_paper_part(file.parent.name, groups, MeasuredRows(rows, results))
    max_lines = max(_FEWEST_LINES, _MOST_LINES // len(groups))
    views: list[dict[str, Any]] = [
        {
            "title": format_title_without_pair(group),
            "pair": str(group.rows.iloc[0].pair),
            "task": str(group.rows.iloc[0].task),
            "card": make_headline(group),
            "table": build_results_table(group, max_lines),
            "categories": list(iter_category_tables(group, cells.records)),
        }
        for group in groups
    ]
    has_screening = "stage" in rows and (rows.stage == "screen").any()
    return render_template(
        "page.html.j2",
        **paper_part,
        name=file.parent.name,
        file=file,
        paper=paper,
        days=sorted({origin["day"] for origin, _ in cells.origins if origin["day"]}),
        groups=views,
        measured_on=format_embedded_caveat(rows.target, bool(paper)) or format_harness_note(rows),
        answer=format_answer([view["card"] for view in views if view["card"]]),
        checks=checks,
        claims=group_by_claim(checks),
        summary=summarise_claims(checks, paper),
        verdicts=dict.fromkeys(VERDICTS, "none") | _VERDICTS,
        tiles=_list_summary_tiles(rows, paper_part["lacking"], file),
        pairs={view["pair"]: view["pair"] for view in views},
        tasks={view["task"]: names.get_task_title(view["task"]) for view in views},
        remarks=[
            *list_mark_meanings(rows),
            *describe_differences_from_papers(to_rows(rows), [c.name for c in columns]),
        ],
        files=f"{file.name}{' and screening.csv' if has_screening else ''} beside this page",
        sampling=_format_sampling_seeds_and_batches(rows),
        origins=cells.origins,
        columns=columns,
    )


def _build_paper_part(
    experiment: str, groups: Sequence[Group], cells: MeasuredRows
) -> dict[str, Any]:
    """Builds the part of a page about its paper, with commands that measure missing cells. Without
    a paper, the part is a figure of all decoders.
    """
    paper, items = find_paper_of_experiment(experiment)
    page_figures = list_page_figures_by_pair(paper, items, cells) if paper else []
    kind = "table" if any(item.kind == "table" for item in items) else "figure"
    shares: dict[tuple[RequestedCell, ...], tuple[Item, ItemProgress]] = {}
    for item in items:
        for part in (
            compute_progress_by_pair(paper, item, cells) if paper and item.kind == kind else ()
        ):
            if part.pair in cells.list_pairs():
                shares.setdefault(part.wanted, (item, part))
    missing_cells = dict.fromkeys(cell for _, part in shares.values() for cell in part.missing)
    recipe = find_recipes_by_folder().get(experiment, "")
    return {
        "pictures": list(_draw_pictures(paper, page_figures[:_PICTURES], groups, cells)),
        "more_figures": [
            files.format_own_command(
                "figure", figure.item.name, "--pair", pair, results=cells.results
            )
            for figure in page_figures[_PICTURES:]
            for pair in figure.pairs
        ],
        "tables": build_page_tables(items, cells),
        "shares": shares,
        "lacking": len(missing_cells),
        "missing": [
            (
                part,
                item.name,
                ", ".join(
                    dict.fromkeys(
                        names.get_task_title(cell_request.task) for cell_request in part.missing
                    )
                ),
                ", ".join(dict.fromkeys(f"{e.decoder} {e.spec}".strip() for e in part.missing)),
            )
            for item, part in shares.values()
            if part.missing
        ],
        "commands": build_training_and_run_commands(recipe, missing_cells, cells) if shares else [],
    }


def _draw_pictures(
    paper: Paper | None,
    page_figures: Sequence[PageFigure],
    groups: Sequence[Group],
    cells: MeasuredRows,
) -> Iterator[tuple[str, str]]:
    """Draws figures; yields the title and the data URI of each."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if paper is None:
            from spec_bench.report.figures.sweep import save_sweep_picture

            if save_sweep_picture(groups, folder / "figure.png"):
                yield "All decoders, the fastest first", to_data_uri(folder / "figure.png", _WIDTH)
        for number, figure in enumerate(page_figures):
            for path in draw_page_figure(figure, cells, folder / str(number), "png"):
                yield figure.title, to_data_uri(path, _WIDTH)


def format_embedded_caveat(targets: Iterable[str], is_of_paper: bool) -> str:
    """Formats the caveat on rows of embedded targets, for a paper's experiment or another one; ""
    if there are no such rows.
    """
    embedded = [str(target).startswith("embedded:") for target in targets]
    if not any(embedded):
        return ""
    text = SMALL.format("paper's" if is_of_paper else "papers'")
    return text if all(embedded) else f"Cells of the embedded pairs: {text[0].lower()}{text[1:]}"


def _list_summary_tiles(
    rows: pd.DataFrame, missing_count: int, file: Path
) -> list[tuple[str, str]]:
    failures = int((rows.status == "failed").sum())
    prompts = rows.prompts.max() if "prompts" in rows else None
    other_counts = {
        "failed": failures,
        "missing": missing_count,
        "simulated": int((rows.lossless == "simulated").sum()),
        "timed by an earlier engine: no times": int(mask_past_engine(rows).sum()),
        "of past weights, data or engines, archived": len(
            files.read_csv(files.get_archive_path(file))
        ),
    }
    return [
        (str(len(rows) - failures), "cells measured"),
        (str(rows.pair.nunique()), "pairs" if rows.pair.nunique() > 1 else "pair"),
        (str(rows.task.nunique()), "tasks" if rows.task.nunique() > 1 else "task"),
        ("–" if pd.isna(prompts) else f"{prompts:.0f}", "prompts per cell"),
        *((str(count), f"cells {name}") for name, count in other_counts.items() if count),
    ]


def _format_sampling_seeds_and_batches(rows: pd.DataFrame) -> str:
    rows = rows.assign(seeds=[format_seed_list(row) for row in to_rows(rows)])
    texts = (
        f"{describe_sampling(row)}, {row['seeds']}, batch {row['batch_size']}"
        for row in to_rows(rows)
    )
    return "; ".join(dict.fromkeys(texts))


_THUMBNAIL = 480  # pixels
_MAX_THUMBNAILS = 1  # of an experiment; its other figures are only links
_NAME = re.compile(r"(fig)?(\d*)-?(.*)")  # after the paper's name: fig4-PAIR, 1-PAIR


def build_index_page(results: Path) -> str:
    """Builds the index page of all experiments below a results folder, grouped by paper."""
    folders = {path.parent for path in files.list_results_files(results)}
    folders |= {path.parent for path in results.glob("*/*.png")}  # figures without measured cells
    entries = [_make_index_entry(folder, results) for folder in sorted(folders)]
    titles = {paper.name: paper.title for paper in load_readable_papers()} | {
        "": "Other experiments"
    }
    by_paper = {name: [entry for entry in entries if entry["paper"] == name] for name in titles}
    return render_template(
        "index.html.j2",
        papers=[
            (name or "others", titles[name], papers_entries)
            for name, papers_entries in by_paper.items()
            if papers_entries
        ],
        count=sum(bool(entry["cells"]) for entry in entries),
        cells=sum(entry["cells"] for entry in entries),
        measured_on=format_embedded_caveat(
            chain.from_iterable(entry["targets"] for entry in entries), False
        ),
    )


def _make_index_entry(folder: Path, results: Path) -> dict[str, Any]:
    """Makes an experiment's entry in the index: its page, cells, conclusion, figures and tables."""
    file = folder / files.RESULTS
    page = folder / "page.html"
    name = folder.name
    rows = read_rows([file]) if file.is_file() else pd.DataFrame(columns=["pair", "task"])
    valid_rows = rows[rows.status != "failed"] if "status" in rows else rows
    paper = find_recipes_by_folder().get(name, name.partition("-")[0]).partition("=")[0]
    paper = paper if paper in {each.name for each in load_readable_papers()} else ""
    days = [origin["day"] for origin, _ in read_distinct_origins(file, rows)] if len(rows) else []
    return {
        "name": str(folder.relative_to(results)),
        "paper": paper,
        "page": str(page.relative_to(results)) if page.is_file() else "",
        "pairs": list(dict.fromkeys(map(str, rows.pair))),
        "tasks": [names.get_task_title(task) for task in dict.fromkeys(map(str, rows.task))],
        "cells": len(valid_rows),
        "answer": format_answer(make_headlines(group_rows(rows))) if len(valid_rows) else "",
        "day": max(days, default=""),
        "links": list(_iter_links_with_thumbnails(folder, results, paper)),
        "targets": list(rows.target) if "target" in rows else [],
    }


def _iter_links_with_thumbnails(
    folder: Path, results: Path, paper: str
) -> Iterator[tuple[str, str, str]]:
    """Yields the title, path and thumbnail of each figure, then of each table. The thumbnail is a
    data URI, and "" after the first figure.
    """
    pictures = sorted([*folder.glob("*.png"), *(folder / "figures").glob("*.png")])
    for number, path in enumerate([*pictures, *sorted((folder / "tables").glob("*.md"))]):
        kind, counted, pair = _NAME.findall(path.stem.removeprefix(f"{paper}-"))[0]
        title = f"{'Figure' if kind else 'Table'} {counted}{f', {pair}' if pair else ''}"
        has_thumbnail = path.suffix == ".png" and number < _MAX_THUMBNAILS
        yield (
            title if counted else path.stem,
            str(path.relative_to(results)),
            to_data_uri(path, _THUMBNAIL) if has_thumbnail else "",
        )
