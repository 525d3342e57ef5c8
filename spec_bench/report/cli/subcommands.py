"""The commands of the report: options in, files or text out.

A request that cannot be right is a ``ValueError`` here and one line with status 2 in ``main``.
Figures are imported where they are drawn: matplotlib is slow to load.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from spec_bench.report.data.rows import figure_rows, load_rows, read_rows
from spec_bench.report.page.gather import draw, drawings, results_file, shown_tables, stems
from spec_bench.report.papers.paper import find_figure, find_table, load_paper, paper_names
from spec_bench.report.tables import render
from spec_bench.report.tables.build import build_tables, check_pair
from spec_bench.report.tables.measured import Measured
from spec_bench.report.tables.printed import Sheet
from spec_bench.report.tables.progress import list_paper
from spec_bench.report.verdicts import print_checks
from spec_bench.system.files import results_files, write_text

_RESULTS = Path("results")
_PICTURES = ("png", "pdf")
_TABLES: dict[str, Callable[[Sheet], str]] = {
    "md": render.markdown,
    "csv": render.comma,
    "tex": render.latex,
}


def _html(grids: Sequence[Sheet]) -> str:
    from spec_bench.report.page.build import style

    return render.html(grids, style())


FORMATS: dict[str, Callable[[Sequence[Sheet]], str]] = {
    "csv": lambda sheets: render.comma(*sheets),
    "html": _html,
    "latex": lambda grids: "\n".join(map(render.latex, grids)),
    "markdown": lambda grids: "\n".join(map(render.markdown, grids)),
}


def run_plain(options: Namespace) -> None:
    """A results file's table, figure and checks."""
    from spec_bench.report.plain import write_report

    write_report(options.file, options.output or options.file.parent)


def run_table(options: Namespace) -> None:
    """A paper's table, printed or written."""
    item = find_table(options.name)
    measured = Measured.below(options.results)
    grids = build_tables(item, measured, options.pair, _elsewhere(options))
    text = FORMATS[options.format](grids)
    if options.output is None:
        print(text, end="")
    else:
        write_text(options.output, text)
        print(f"table: {options.output}")


def run_list(options: Namespace) -> None:
    """Tables and figures of one paper or of all."""
    papers = [load_paper(name) for name in ([options.paper] if options.paper else paper_names())]
    measured = Measured.below(options.results)
    if options.pair and papers[0].items[0].recipes:
        check_pair(papers[0].items[0], options.pair, measured)
    where = _elsewhere(options)
    print("\n".join(list_paper(paper, measured, options.pair, where) for paper in papers), end="")


def run_figure(options: Namespace) -> None:
    """A paper's figure from the measured rows."""
    from spec_bench.report import figures

    item = find_figure(options.name)
    measured = Measured.below(options.results)
    if options.pair and item.recipes:
        check_pair(item, options.pair, measured)
    folder = options.output or options.results / "figures"
    rows = figure_rows(item, measured.rows, options.results)
    asked = (item.paper, str(item.number), rows, folder, options.pair)
    for path in figures.draw(*asked, alone=True):
        print(f"figure: {path}")


def run_checks(options: Namespace) -> None:
    """A paper's claims on the measured rows."""
    from spec_bench.report.claims import check_claims
    from spec_bench.report.claims.verdict import summary_of

    paper = load_paper(options.paper)
    rows = load_rows(options.results)
    if rows.empty:
        raise ValueError(f"no results below {str(options.results)!r}")
    checks = check_claims(paper.name, rows, options.results)
    print_checks(checks, summary_of(checks, paper))


def run_page(options: Namespace) -> None:
    """An experiment's page."""
    from spec_bench.report.page.build import build_page

    file = results_file(options.name, options.results)
    path = options.output or file.parent / "page.html"
    write_text(path, build_page(file, _elsewhere(options), options.pair))
    print(f"page: {path}")


def run_all(options: Namespace) -> None:
    """Every page, table and figure that measured rows apply to, and an index of all experiments.

    Written again from the same rows, the files are the same; tables and figures of earlier rows or
    recipes that are not written any more are removed.
    """
    from spec_bench.report import stale
    from spec_bench.report.page.build import build_index

    results = options.results
    direct = [path for path in results_files(results) if path.parent.parent == results]
    files = [results_file(name, results) for name in options.names] or direct
    if not files:
        raise ValueError(f"no experiment below {str(results)!r}")
    for file in files:
        written = _write(file, _elsewhere(options))
        print(*written, *stale.remove(file.parent, written), sep="\n")
    write_text(results / "index.html", build_index(results))
    print(results / "index.html")


def run_records(options: Namespace) -> None:
    """The size of each experiment's committed records, and the cells without any."""
    from spec_bench.report.claims import evident
    from spec_bench.report.data.records import kept_size, seal

    results = options.results
    files = [results_file(name, results) for name in options.names] or results_files(results)
    if not files:
        raise ValueError(f"no experiment below {str(results)!r}")
    for file in files:
        if options.seal:
            seal(file)
        rows = evident(read_rows([file]))
        print(f"{file.parent.name}: {kept_size(file, rows.run_id)}")


def run_lengths(options: Namespace) -> None:
    """A table of acceptance lengths and rates in the words of several tools."""
    from rich.console import Console
    from rich.table import Table

    from spec_bench.metrics.calls import lengths_of
    from spec_bench.report.data.records import repeats_of

    file = results_file(options.name, options.results)
    heads = ("decoder", "tree", "ratio of sums", "vLLM", "draft rate", "by position", "SPEED-Bench")
    table = Table(*heads, "joint", "conditional", box=None)
    for row in read_rows([file]).to_dict("records"):
        if not (repeats := repeats_of(file, str(row["run_id"]))):
            continue
        found = lengths_of(repeats[0].values(), isinstance(row.get("later_turns"), str))
        single = (found.ratio_of_sums, found.vllm, found.draft_rate)
        cells = [
            "" if value is None else f"{value:.3f}" for value in (*single, found.mean_of_means)
        ]
        rates = (found.at_position, found.joint, found.conditional)
        lists = [" ".join(f"{value:.2f}" for value in each) for each in rates]
        told = [*cells[:3], lists[0], cells[3], *lists[1:]]
        table.add_row(str(row["decoder"]), str(row["spec"]), *told)
    Console(width=200).print(table)


def run_positions(options: Namespace) -> None:
    """A table of tokens per call by where in the text the call stands."""
    from rich.console import Console
    from rich.table import Table

    from spec_bench.metrics.calls import by_position
    from spec_bench.report.data.records import repeats_of

    file = results_file(options.name, options.results)
    found = {
        (str(row["decoder"]), str(row["spec"]), str(row["temperature"])): {
            each.first: each for each in by_position(repeats[0].values())
        }
        for row in read_rows([file]).to_dict("records")
        if (repeats := repeats_of(file, str(row["run_id"])))
    }
    stretches = {first: each for of_cell in found.values() for first, each in of_cell.items()}
    if not stretches:
        raise ValueError(f"{file}: its records hold no lengths of prompts; newer ones do")
    heads = [f"{stretches[first].first}-{stretches[first].last}" for first in sorted(stretches)]
    table = Table("decoder", "tree", "temperature", *heads, box=None)
    for cell, of_cell in found.items():
        told = (of_cell.get(first) for first in sorted(stretches))
        table.add_row(*cell, *(f"{t.emitted:.2f} ({t.calls})" if t else "" for t in told))
    Console(width=200).print(table)
    print("\nTokens per call and calls, by tokens before the call; 95% over prompts.")
    print("Texts at other positions are other texts: not the drafter's difference alone.")


def run_throughput(options: Namespace) -> None:
    """Tokens/s of one request and of all, by requests under way; where drafting stops paying."""
    from spec_bench.report.figures.throughput import throughput

    print(throughput(results_file(options.name, options.results)), end="")


def run_sweep(options: Namespace) -> None:
    """A page on one results file: recommendations, then figures."""
    from spec_bench.report.sweep.build import build_page

    file = results_file(options.name, options.results)
    path = options.output or file.parent / "sweep.html"
    write_text(path, build_page(file))
    print(f"page: {path}")


def run_answers(options: Namespace) -> None:
    """Answer files of another harness as rows."""
    from spec_bench.exchange.read import read_in

    read_in(options)


def run_wandb(options: Namespace) -> None:
    """A W&B report of a project."""
    from spec_bench.report.wandb_report import publish

    publish(options)


def _write(file: Path, shown: Path | None) -> Sequence[Path]:
    """One experiment's files, each beside its results."""
    from spec_bench.report.page.build import build_page, paper_of

    folder, written = file.parent, [file.parent / "page.html"]
    write_text(written[0], build_page(file, shown))
    (paper, items), measured = paper_of(folder.name), Measured(read_rows([file]))
    tables = list(shown_tables(items, measured, shown))
    for table, stem in zip(tables, stems(tables), strict=True):
        for suffix, rendered in _TABLES.items():
            written.append(folder / "tables" / f"{stem}.{suffix}")
            write_text(written[-1], rendered(table.sheet))
    for drawing in drawings(paper, items, measured) if paper else ():
        written += draw(drawing, measured, folder / "figures", *_PICTURES)
    return written


def _elsewhere(options: Namespace) -> Path | None:
    """The results folder where it is not the default."""
    return None if options.results == _RESULTS else options.results
