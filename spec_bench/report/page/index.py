"""``index.html`` at the top of a results folder: every experiment with its page and figures."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from PIL import Image

from spec_bench import files, names
from spec_bench.report.page.build import measured_on
from spec_bench.report.page.gather import origins_of
from spec_bench.report.page.templating import render
from spec_bench.report.paper import load_paper, paper_names, recipes_by_name
from spec_bench.report.rows import read_rows

_WIDTH = 480  # of a thumbnail, in pixels
_SHOWN = 1  # thumbnails of an experiment; all its figures are links
_OTHERS = "Other experiments"


@dataclass(frozen=True)
class Thumbnail:
    """A figure of an experiment.

    Attributes:
        name: for people.
        path: of the figure, from the index page.
        data_uri: a small picture of it; "" for a link alone.
    """

    name: str
    path: str
    data_uri: str


@dataclass(frozen=True)
class Entry:
    """One experiment.

    Attributes:
        name: its folder, from the index page.
        paper: the paper's name; "" for an experiment of no paper.
        page: its page from the index page; "" where none was written.
        pairs: names of the pairs.
        tasks: names of the tasks.
        cells: how many were measured.
        day: when it was last measured; "" where the raw runs are not there.
        figures: its pictures.
        targets: the target of each cell.
    """

    name: str
    paper: str
    page: str
    pairs: str
    tasks: str
    cells: int
    day: str
    figures: tuple[Thumbnail, ...]
    targets: tuple[str, ...]


def build_index(results: Path) -> str:
    """The index page of all experiments below a results folder."""
    folders = {path.parent for path in files.results_files(results)}
    folders |= {path.parent for path in results.glob("*/*.png")}  # figures that no cell is behind
    entries = [_entry(folder, results) for folder in sorted(folders)]
    papers = []
    for paper in [*paper_names(), ""]:
        own = [entry for entry in entries if entry.paper == paper]
        title = load_paper(paper).title if paper else _OTHERS
        if own:
            short = title.partition(":")[0]
            papers.append(
                {"key": paper or "others", "title": title, "short": short, "experiments": own}
            )
    return render(
        "index.html.j2",
        papers=papers,
        count=sum(bool(entry.cells) for entry in entries),
        cells=sum(entry.cells for entry in entries),
        measured_on=measured_on([each for entry in entries for each in entry.targets], False),
    )


def _entry(folder: Path, results: Path) -> Entry:
    """What is known of one experiment's folder."""
    file, page = folder / files.RESULTS, folder / "page.html"
    rows = read_rows([file]) if file.is_file() else pd.DataFrame(columns=["pair", "task"])
    measured = rows[rows.status != "failed"] if "status" in rows else rows
    paper = _paper_of(folder.name)
    days = [origin["day"] for origin, _ in origins_of(file, rows)] if len(rows) else []
    pictures = sorted([*folder.glob("*.png"), *(folder / "figures").glob("*.png")])
    return Entry(
        name=str(folder.relative_to(results)),
        paper=paper,
        page=str(page.relative_to(results)) if page.is_file() else "",
        pairs=", ".join(dict.fromkeys(map(str, rows.pair))),
        tasks=", ".join(names.task(task) for task in dict.fromkeys(map(str, rows.task))),
        cells=len(measured),
        day=max(days, default=""),
        figures=tuple(
            Thumbnail(
                path.stem.removeprefix(f"{paper}-"),
                str(path.relative_to(results)),
                _small(path) if number < _SHOWN else "",
            )
            for number, path in enumerate(pictures)
        ),
        targets=tuple(map(str, rows.target)) if "target" in rows else (),
    )


def _paper_of(name: str) -> str:
    """Whose recipe writes to a folder of this name, else the paper that its name begins with."""
    paper = recipes_by_name().get(name, name.partition("-")[0]).partition("=")[0]
    return paper if paper in paper_names() else ""


def _small(path: Path) -> str:
    """A small picture as a data URI."""
    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((_WIDTH, _WIDTH))
    stream = io.BytesIO()
    small.quantize(64).save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"data:image/png;base64,{data}"
