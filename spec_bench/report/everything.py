"""Every page, table and figure that measured rows apply to, each beside its results file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spec_bench.files import results_files, write_text
from spec_bench.report.page.build import build_page
from spec_bench.report.page.gather import gather, results_file
from spec_bench.report.page.index import build_index
from spec_bench.report.page.pictures import draw, drawings
from spec_bench.report.page.tables import shown_tables
from spec_bench.report.papers import comma, latex, markdown
from spec_bench.report.papers.index import load_paper, recipes_by_name
from spec_bench.report.papers.measured import Measured, read_measured

_TABLES = {"md": markdown.render, "csv": comma.render, "tex": latex.render}
_FORMATS = ("png", "pdf")


def write_everything(results: Path, names: Sequence[str], shown: Path | None) -> list[Path]:
    """Writes ``page.html``, ``tables/`` and ``figures/`` of experiments, and ``index.html`` of all.

    Written again from the same rows, the files are the same.

    Args:
        results: the results folder.
        names: experiments; none: all that have a results file right below the folder.
        shown: the folder as commands name it; None where it is the default.

    Returns:
        The files written.

    Raises:
        ValueError: no such experiment, or none at all.
    """
    own = [path for path in results_files(results) if path.parent.parent == results]
    files = [results_file(name, results) for name in names] or own
    if not files:
        raise ValueError(f"no experiment below {str(results)!r}")
    written = [path for file in files for path in _write(file, shown)]
    index = results / "index.html"
    write_text(index, build_index(results))
    return [*written, index]


def _write(file: Path, shown: Path | None) -> list[Path]:
    """One experiment's files."""
    page = file.parent / "page.html"
    write_text(page, build_page(gather(file, shown, None)))
    recipe = recipes_by_name().get(file.parent.name)
    if recipe is None:
        return [page]
    paper = load_paper(recipe.partition("=")[0])
    items = [item for item in paper.items if file.parent.name in item.experiments]
    measured = Measured(read_measured([file]))
    written = [page]
    for table in shown_tables(items, measured, shown):
        own = table.grid.name.replace("/", "-")
        stem = f"{own}-{table.pair}" if table.pair else own
        for suffix, render in _TABLES.items():
            written.append(file.parent / "tables" / f"{stem}.{suffix}")
            written[-1].parent.mkdir(exist_ok=True)
            written[-1].write_text(render(table.grid), encoding="utf-8")
    for drawing in drawings(paper, items, measured):
        try:
            written += draw(drawing, measured, file.parent / "figures", *_FORMATS)
        except ValueError:
            continue  # some rows, but none that this figure shows
    return written
