"""``spec-bench report THING ...``: tables, figures, claims and pages of measured results.

Papers are the folders below experiments/, experiments those below results/. The message about an
unknown name lists the known names.

A command raises ``UsageError`` for a wrong request; ``main`` prints one line and ends with status
2. Figures are imported where they are drawn, because matplotlib is slow to load.
"""

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from spec_bench.jobs.store.experiment import Experiment
from spec_bench.records.types import Generation
from spec_bench.report.claims.console import print_checks
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.printed import read_printed_rows
from spec_bench.report.data.rows import (
    Row,
    read_rows,
    refuse_or_separate_models,
    select_or_read_figure_rows,
    to_rows,
)
from spec_bench.report.page.build import (
    build_page_tables,
    draw_page_figure,
    find_results_file,
    list_page_figures_by_pair,
    make_table_file_stems,
)
from spec_bench.report.papers.paper import (
    get_figure,
    get_table,
    list_paper_names,
    load_paper,
    load_readable_papers,
)
from spec_bench.report.tables import render
from spec_bench.report.tables.build import build_tables_by_setting, refuse_unknown_pair
from spec_bench.report.tables.measured import RESULTS, MeasuredRows
from spec_bench.report.tables.printed import TableSheet
from spec_bench.report.tables.progress import format_progress_and_commands
from spec_bench.system.errors import UsageError
from spec_bench.system.files import (
    get_results_folder,
    join_path_inside,
    list_results_files,
    make_error_with_stop_hint,
    write_text,
)

_PICTURES = ("png", "pdf")
_TABLES = {"md": "markdown", "csv": "csv", "tex": "latex"}
FORMATS: dict[str, Callable[[Sequence[TableSheet]], str]] = {
    "csv": lambda sheets: render.format_tables_csv(*sheets),
    "html": lambda sheets: render.format_tables_html_page(*sheets),
    "latex": lambda sheets: "\n".join(map(render.format_table_latex, sheets)),
    "markdown": lambda sheets: "\n".join(map(render.format_table_markdown, sheets)),
}


def _find_and_rebuild_results(options: Namespace, all_files: Sequence[Path]) -> list[Path]:
    """Finds the results files of the named experiments, or takes ``all_files``, and brings their
    tables up to date. Raises UsageError if there are no files.
    """
    files = [find_results_file(name, options.results) for name in options.names] or [*all_files]
    if not files:
        raise make_error_with_stop_hint(
            f"no experiment below {str(options.results)!r}", options.results
        )
    for file in files:
        Experiment(get_results_folder(file), file.parent.name).rebuild_tables(wait_s=1)
    return files


def rebuild_and_write_report(options: Namespace) -> None:
    """Writes the table and the figure of a results file, and prints its checks."""
    from spec_bench.report.summary import write_report_and_print_answers

    if options.file.is_file():
        Experiment(
            get_results_folder(options.file), options.file.resolve().parent.name
        ).rebuild_tables(wait_s=1)
    write_report_and_print_answers(
        options.file, options.out or options.file.parent, options.mixed_models
    )


def print_or_write_table(options: Namespace) -> None:
    """Prints or writes a paper's table."""
    item = get_table(options.name)
    cells = MeasuredRows.read_below(
        options.results, protocol=options.protocol, mixed_models=options.mixed_models
    )
    sheets = build_tables_by_setting(item, cells, options.pair)
    is_screen = sys.stdout.isatty() and options.out is None and options.format == "markdown"
    if names := options.columns or sheets[0].metrics[0] * is_screen:
        all_metrics = ", ".join(sheets[0].metrics)
        sheets = [sheet.select_metrics(names.split(",")) for sheet in sheets]
    text = FORMATS[options.format](sheets)
    if is_screen:
        from rich.console import Console
        from rich.markdown import Markdown

        titles = dict.fromkeys(
            render.format_grouped_title(each) for each, _ in render.list_shown_columns(sheets[0])
        )
        if len(titles) == 1:  # printed below the table instead, so that columns are narrow
            text = text.replace(f"{next(iter(titles))}, ", "")
        Console().print(Markdown(text))
        print(f"\nshown: {', '.join(titles)} (--columns {names}); there is: {all_metrics}")
    elif options.out is None:
        print(text, end="")
    else:
        write_text(options.out, text)
        print(f"table: {options.out}")


def print_paper_items(options: Namespace) -> None:
    """Lists the tables and figures of a paper (named itself or by an item), or of all papers."""
    papers = (
        [load_paper(options.paper.partition("/")[0])] if options.paper else load_readable_papers()
    )
    cells = MeasuredRows.read_below(options.results, mixed_models=options.mixed_models)
    if options.pair and papers[0].items[0].recipes:
        refuse_unknown_pair(papers[0].items[0], options.pair, cells)
    print(
        "\n".join(format_progress_and_commands(paper, cells, options.pair) for paper in papers),
        end="",
    )


def draw_paper_figure(options: Namespace) -> None:
    """Draws a paper's figure from the measured rows."""
    from spec_bench.report import figures
    from spec_bench.report.figures.cells import list_recipe_commands

    item = get_figure(options.name)
    cells = MeasuredRows.read_below(
        options.results, item.experiments, mixed_models=options.mixed_models
    )
    if options.pair and item.recipes:
        refuse_unknown_pair(item, options.pair, cells)
    folder = options.out or join_path_inside(options.results, "figures")
    rows = select_or_read_figure_rows(item, cells.rows, options.results)
    refuse_or_separate_models(
        rows[rows.pair == options.pair] if options.pair and "pair" in rows else rows
    )
    try:
        for path in figures.draw_figure_files(
            item, rows, folder, options.pair, allow_printed_only=True
        ):
            print(f"figure: {path}")
    except figures.NothingMeasuredError as error:
        message = str(error)
        for command in list_recipe_commands(item) * (options.results != RESULTS):
            message = message.replace(
                command, f"{command} --out {shlex.quote(str(options.results))}"
            )
        raise UsageError(message) from error


def print_paper_checks(options: Namespace) -> None:
    """Prints the checks of a paper's claims, on measured rows or on its own printed numbers."""
    from spec_bench.report.claims import check_claims
    from spec_bench.report.claims.verdict import summarise_claims

    paper = load_paper(options.paper)
    records = RecordReader(None if options.printed else options.results)
    rows = (
        read_printed_rows(paper)
        if options.printed
        else read_rows(list_results_files(options.results), options.mixed_models)
    )
    if rows.empty:
        commands = " or ".join(dict.fromkeys(r for item in paper.items for r in item.recipes))
        message = f"no results below {str(options.results)!r}; spec-bench run {commands} makes some"
        raise make_error_with_stop_hint(message, options.results)
    checks = check_claims(paper.name, refuse_or_separate_models(rows), records)
    print_checks(checks, summarise_claims(checks, paper))


def write_page(options: Namespace) -> None:
    """Writes an experiment's page."""
    from spec_bench.report.page.build import build_page

    file = find_results_file(options.name, options.results)
    path = options.out or file.parent / "page.html"
    write_text(path, build_page(file, options.results, options.pair, options.mixed_models))
    print(f"page: {path}")


def write_all_reports(options: Namespace) -> None:
    """Writes all pages, tables and figures for which there are measured rows, and an index page.

    The same rows give the same files. Tables and figures of an earlier call that are not written
    again are removed.
    """
    from spec_bench.report.page.build import build_index_page

    results = options.results
    direct_files = [path for path in list_results_files(results) if path.parent.parent == results]
    failures = []
    for file in _find_and_rebuild_results(options, direct_files):
        try:
            _write_experiment_files(file, results, options.mixed_models)
        except UsageError as error:
            failures.append(f"{file}: {error}")
    write_text(results / "index.html", build_index_page(results))
    print(results / "index.html")
    if failures:
        raise UsageError("\n".join(failures))


def _write_experiment_files(file: Path, results: Path, mixed_models: bool) -> None:
    from spec_bench.report.page.build import build_page, find_paper_of_experiment

    folder = file.parent
    tables_folder, figures_folder = (
        join_path_inside(folder, name) for name in ("tables", "figures")
    )
    paths = [file.parent / "page.html"]
    write_text(paths[0], build_page(file, results, mixed_models=mixed_models))
    paper, items = find_paper_of_experiment(folder.name)
    cells = MeasuredRows(read_rows([file], mixed_models), results)
    tables = build_page_tables(items, cells)
    for table, stem in zip(tables, make_table_file_stems(tables), strict=True):
        for suffix, form in _TABLES.items():
            paths.append(tables_folder / f"{stem}.{suffix}")
            write_text(paths[-1], FORMATS[form]([table]))
    for figure in list_page_figures_by_pair(paper, items, cells) if paper else ():
        paths += draw_page_figure(figure, cells, figures_folder, *_PICTURES)
    print(*paths, *_remove_and_list_stale_files(folder, paths), sep="\n")


def _remove_and_list_stale_files(folder: Path, kept_paths: Sequence[Path]) -> Iterator[str]:
    """Removes tables and figures that are not in ``kept_paths``. Yields a line for each of them and
    for each file in their folders that this command did not make.
    """
    for name, endings in (("tables", _TABLES), ("figures", _PICTURES)):
        for path in sorted({*(folder / name).glob("*")} - {*kept_paths}):
            is_ours = (
                path.suffix[1:] in endings and path.name.partition("-")[0] in list_paper_names()
            )
            if is_ours and path.is_file():
                path.unlink()
            yield f"{path}: {'removed, no longer made' if is_ours else 'not made by this command'}"


def _iter_recorded_rows(file: Path) -> Iterator[tuple[Row, list[Generation]]]:
    """Yields each row that has records, with the generations of its first repeat."""
    from spec_bench.report.data.counts import read_repeats

    for row in to_rows(read_rows([file])):
        if repeats := read_repeats(file, str(row["run_id"])):
            yield row, list(repeats[0].values())


def _print_wide_table(table: Any) -> None:
    """Prints a table, 200 characters wide if the output is no terminal."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 200).print(table)


def print_acceptance_lengths(options: Namespace) -> None:
    """Prints a table of acceptance lengths and rates, as several tools define them."""
    from rich.table import Table

    from spec_bench.metrics.acceptance_lengths import compute_acceptance_lengths

    heads = ("decoder", "tree", "ratio of sums", "vLLM", "draft rate", "by position", "SPEED-Bench")
    table = Table(*heads, "joint", "conditional", box=None)
    for row, generations in _iter_recorded_rows(find_results_file(options.name, options.results)):
        lengths = compute_acceptance_lengths(generations, isinstance(row.get("later_turns"), str))
        single = (
            lengths.ratio_of_sums,
            lengths.vllm_mean_length,
            lengths.draft_acceptance_rate,
            lengths.mean_of_means,
        )
        cells = ["" if value is None else f"{value:.3f}" for value in single]
        rates = (lengths.acceptance_by_position, lengths.joint_rates, lengths.conditional_rates)
        lists = [" ".join(f"{value:.2f}" for value in values) for values in rates]
        texts = (*cells[:3], lists[0], cells[3], *lists[1:])
        table.add_row(str(row["decoder"]), str(row["spec"]), *texts)
    _print_wide_table(table)


def print_tokens_by_context_length(options: Namespace) -> None:
    """Prints a table of tokens per call by the number of tokens before the call."""
    from rich.table import Table

    from spec_bench.metrics.calls import compute_tokens_per_call_by_context_length

    file = find_results_file(options.name, options.results)
    cells = {
        tuple(str(row[name]) for name in ("decoder", "spec", "temperature")): {
            length_range.first: length_range
            for length_range in compute_tokens_per_call_by_context_length(generations)
        }
        for row, generations in _iter_recorded_rows(file)
    }
    ranges_by_first = {
        start: length_range
        for ranges_of_cell in cells.values()
        for start, length_range in ranges_of_cell.items()
    }
    if not ranges_by_first:
        raise UsageError(f"{file}: its records hold no lengths of prompts; newer ones do")
    heads = [
        f"{ranges_by_first[start].first}-{ranges_by_first[start].last}"
        for start in sorted(ranges_by_first)
    ]
    table = Table("decoder", "tree", "temperature", *heads, box=None)
    for cell, ranges_of_cell in cells.items():
        cell_ranges = (ranges_of_cell.get(start) for start in sorted(ranges_by_first))
        table.add_row(
            *cell,
            *(f"{t.delivered_per_call:.2f} ({t.call_count})" if t else "" for t in cell_ranges),
        )
    _print_wide_table(table)
    print("\nTokens per call and calls, by tokens before the call; 95% over prompts.")
    print("Texts at other positions are other texts: not the drafter's difference alone.")


def draw_and_print_throughput(options: Namespace) -> None:
    """Draws tokens/s by concurrent requests, and prints them with the point where drafting stops
    paying.
    """
    from spec_bench.report.figures.throughput import draw_and_format_throughput

    file = find_results_file(options.name, options.results)
    print(draw_and_format_throughput(file, options.mixed_models), end="")
