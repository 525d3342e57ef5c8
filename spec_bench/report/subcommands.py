"""What each command of the report does: options in, files or text out.

A request that cannot be right is a ``ValueError`` here and one line with status 2 in ``main``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from spec_bench.report.others import claims_of, draw_figure
from spec_bench.report.paper import find_table
from spec_bench.report.papers import comma, html, latex, markdown
from spec_bench.report.papers.build import build_table, check_pair
from spec_bench.report.papers.figure_rows import figure_rows
from spec_bench.report.papers.grid import Grid
from spec_bench.report.papers.index import Item, find_item, load_paper, paper_names
from spec_bench.report.papers.listing import list_paper
from spec_bench.report.papers.measured import Measured
from spec_bench.report.verdicts import print_checks

_DEFAULT_RESULTS = Path("results")


def _html(grid: Grid) -> str:
    from spec_bench.report.page.build import style

    return html.render(grid, style())


FORMATS: dict[str, Callable[[Grid], str]] = {
    "csv": comma.render,
    "html": _html,
    "latex": latex.render,
    "markdown": markdown.render,
}


def run_plain(options: Namespace) -> int:
    """A results file's table, figure and checks."""
    from spec_bench.report.plain import write_report  # matplotlib is slow to load

    write_report(options.file, options.output or options.file.parent)
    return 0


def run_table(options: Namespace) -> int:
    """A paper's table, printed or written."""
    item = find_table(options.name)
    grid = build_table(item, Measured.below(options.results), options.pair, _elsewhere(options))
    text = FORMATS[options.format](grid)
    if options.output is None:
        print(text, end="")
    else:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")
        print(f"table: {options.output}")
    return 0


def run_list(options: Namespace) -> int:
    """Tables and figures of one paper or of all."""
    papers = [load_paper(name) for name in ([options.paper] if options.paper else paper_names())]
    measured = Measured.below(options.results)
    if options.pair:
        _check_any(papers[0].items[0], options.pair, measured)
    print(
        "\n".join(
            list_paper(paper, measured, options.pair, _elsewhere(options)) for paper in papers
        ),
        end="",
    )
    return 0


def run_figure(options: Namespace) -> int:
    """A paper's figure from the measured rows."""
    item = find_item("figure", options.name)
    measured = Measured.below(options.results)
    if options.pair and item.recipes:
        check_pair(item, options.pair, measured)
    folder = options.output or options.results / "figures"
    rows = figure_rows(item, measured.rows, options.results)
    for path in draw_figure()(item.paper, str(item.number), rows, folder, options.pair):
        print(f"figure: {path}")
    return 0


def run_checks(options: Namespace) -> int:
    """A paper's claims on the measured rows."""
    paper = load_paper(options.paper)
    measured = Measured.below(options.results)
    if measured.rows.empty:
        raise ValueError(f"no results below {str(options.results)!r}")
    print_checks(claims_of()(paper.name, measured.rows, options.results))
    return 0


def run_page(options: Namespace) -> int:
    """An experiment's page."""
    from spec_bench.report.page.build import build_page  # matplotlib is slow to load
    from spec_bench.report.page.gather import gather, results_file

    file = results_file(options.name, options.results)
    path = options.output or file.parent / "page.html"
    text = build_page(gather(file, _elsewhere(options), options.pair))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"page: {path}")
    return 0


def run_all(options: Namespace) -> int:
    """Pages, tables and figures."""
    from spec_bench.report.everything import write_everything  # matplotlib is slow to load

    for path in write_everything(options.results, options.names, _elsewhere(options)):
        print(path)
    return 0


def _elsewhere(options: Namespace) -> Path | None:
    """The results folder where it is not the default."""
    return None if options.results == _DEFAULT_RESULTS else options.results


def _check_any(item: Item, pair: str, measured: Measured) -> None:
    """Refuses an unknown pair, for papers without a recipe too."""
    if item.recipes:
        check_pair(item, pair, measured)
