"""``index.html`` at the top of a results folder: every experiment with its page and figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from spec_bench.report.data.rows import groups_of, read_rows
from spec_bench.report.page.build import measured_on, render
from spec_bench.report.page.gather import data_uri, origins_of
from spec_bench.report.page.headline import answer, headlines
from spec_bench.report.papers.paper import load_paper, paper_names, recipes_by_name
from spec_bench.system import files
from spec_bench.vocabulary import names

_WIDTH = 480  # of a thumbnail, in pixels
_SHOWN = 1  # thumbnails of an experiment; its other figures are links alone
_OTHERS = "Other experiments"
_NAME = re.compile(r"(fig)?(\d*)-?(.*)")  # behind the paper: fig4-PAIR, 1-PAIR
_DAY = re.compile(r" · measured (?:[0-9-]+ to )?([0-9-]{10})</p>")


@dataclass(frozen=True)
class Link:
    """A figure or table of an experiment."""

    name: str  # for people
    path: str  # of the file, from the index page
    data_uri: str  # a small picture of it; "" for a link alone


@dataclass(frozen=True)
class Entry:
    """One experiment."""

    name: str  # its folder, from the index page
    paper: str  # the paper's name; "" for an experiment of no paper
    page: str  # its page from the index page; "" where none was written
    pairs: str  # names of the pairs
    tasks: str  # names of the tasks
    cells: int  # how many were measured
    answer: str  # the conclusion, in a sentence
    day: str  # of the last measurement; "" where that is not known
    links: tuple[Link, ...]  # its figures, then its tables
    targets: tuple[str, ...]  # the target of each cell


def build_index(results: Path) -> str:
    """The index page of all experiments below a results folder."""
    folders = {path.parent for path in files.results_files(results)}
    folders |= {path.parent for path in results.glob("*/*.png")}  # figures that no cell is behind
    entries = [_entry(folder, results) for folder in sorted(folders)]
    papers = []
    for paper in [*paper_names(), ""]:
        listed = [entry for entry in entries if entry.paper == paper]
        title = load_paper(paper).title if paper else _OTHERS
        if listed:
            short = title.partition(":")[0]
            papers.append(
                {"key": paper or "others", "title": title, "short": short, "experiments": listed}
            )
    return render(
        "index.html.j2",
        papers=papers,
        count=sum(bool(entry.cells) for entry in entries),
        cells=sum(entry.cells for entry in entries),
        measured_on=measured_on([each for entry in entries for each in entry.targets], False),
    )


def _entry(folder: Path, results: Path) -> Entry:
    """The entry of one experiment's folder."""
    file, page = folder / files.RESULTS, folder / "page.html"
    rows = read_rows([file]) if file.is_file() else pd.DataFrame(columns=["pair", "task"])
    measured = rows[rows.status != "failed"] if "status" in rows else rows
    paper = _paper_of(folder.name)
    return Entry(
        name=str(folder.relative_to(results)),
        paper=paper,
        page=str(page.relative_to(results)) if page.is_file() else "",
        pairs=", ".join(dict.fromkeys(map(str, rows.pair))),
        tasks=", ".join(names.task(task) for task in dict.fromkeys(map(str, rows.task))),
        cells=len(measured),
        answer=answer(headlines(groups_of(rows))) if len(measured) else "",
        day=_day(file, rows, page),
        links=tuple(_links(folder, results, paper)),
        targets=tuple(map(str, rows.target)) if "target" in rows else (),
    )


def _links(folder: Path, results: Path, paper: str) -> Iterator[Link]:
    """Its figures, of which the first ones are shown small, then its tables."""
    pictures = sorted([*folder.glob("*.png"), *(folder / "figures").glob("*.png")])
    for number, path in enumerate([*pictures, *sorted((folder / "tables").glob("*.md"))]):
        match = _NAME.fullmatch(path.stem.removeprefix(f"{paper}-"))
        kind, counted, pair = match.groups() if match else ("", "", "")
        noun = "Figure" if kind else "Table"
        shown = path.suffix == ".png" and number < _SHOWN
        yield Link(
            f"{noun} {counted}{f', {pair}' if pair else ''}" if counted else path.stem,
            str(path.relative_to(results)),
            data_uri(path, _WIDTH) if shown else "",
        )


def _day(file: Path, rows: pd.DataFrame, page: Path) -> str:
    """The day of its last measurement; from its page where the raw runs are gone."""
    days = [origin["day"] for origin, _ in origins_of(file, rows)] if len(rows) else []
    if not any(days) and page.is_file():
        days = _DAY.findall(page.read_text(encoding="utf-8"))[:1]
    return max(days, default="")


def _paper_of(name: str) -> str:
    """The paper whose recipe writes to a folder of this name, else the one named at its start."""
    paper = recipes_by_name().get(name, name.partition("-")[0]).partition("=")[0]
    return paper if paper in paper_names() else ""
