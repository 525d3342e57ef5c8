"""``spec-bench report wandb``: a project's runs as one W&B report.

W&B draws what the runs logged: speed-ups, block efficiency by nodes, scores and joules of each pair
and task, and at last every cell's prompts. Between the panels stand texts made of the results files
here: numbers with intervals, a paper's printed beside ours, and the checks. Publishing needs an
account; a dry run needs none and writes the report's spec to a file.
"""

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from spec_bench.records.types import CellResult
from spec_bench.report import summary
from spec_bench.report.claims import check_claims, check_general_claims
from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import (
    Group,
    drop_duplicates_with_fewer_prompts,
    find_filled_column,
    format_title_without_pair,
    group_rows,
    to_rows,
)
from spec_bench.report.page.build import (
    build_page_tables,
    find_paper_of_experiment,
    find_results_file,
    load_results,
)
from spec_bench.report.tables import render
from spec_bench.report.tables.measured import MeasuredRows
from spec_bench.settings.fields import to_one_line
from spec_bench.sinks.console import print_results
from spec_bench.sinks.rows import result_from_json, result_to_row, write_results_csv
from spec_bench.sinks.sink import WandbSettings
from spec_bench.sinks.wandb import HISTORY, TABLE, TRAINING, log_in_to_wandb, read_logged_projects
from spec_bench.system.errors import UsageError
from spec_bench.system.files import get_results_folder, list_results_files, write_text
from spec_bench.vocabulary import columns, names

_NOT_INSTALLED = "wandb_workspaces is not installed: pip install -e '.[reports]'"
_READER = (sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json")
_MOST_RUNS = 100  # that a panel shows
_JOULES = "energy_j_per_token"


def read_offline_runs(folder: Path) -> list[CellResult]:
    """Reads the cells of offline runs with W&B's own reader; the last run of a cell counts. Raises
    UsageError if there are none, or W&B cannot read one.
    """
    if not folder.is_dir():
        raise UsageError(f"no such folder: {str(folder)!r}")
    results = dict[str, CellResult]()
    for file in sorted(folder.rglob("run-*.wandb")):
        process = subprocess.run([*_READER, file], capture_output=True, text=True)
        if process.returncode:
            raise UsageError(
                f"no W&B since 0.31 that reads {str(file)!r}: {to_one_line(process.stderr)}"
            )
        record = json.loads(process.stdout)
        row = {
            "labels": record["config"].get("labels"),
            "run_id": record["run_id"],
            **record["summary"],
        }
        if "status" in row:  # else a table
            metrics = {key: value for key, value in record["summary"].items() if key[0] != "_"}
            results[row["run_id"]] = result_from_json({**row, "metrics": metrics})
    if not results:
        raise UsageError(f"no cell of an offline run in {str(folder)!r}")
    return [*results.values()]


def publish_or_write_wandb_report(options: Namespace) -> None:
    """Publishes the report of a project's runs, of one task or ("") of all; or writes it where a
    file is given, as the JSON that W&B would be sent, without a network; or prints what offline
    runs hold. Raises ValueError: there is no account, the package for reports is not installed, or
    an experiment is not there.
    """
    if options.offline:
        cells = read_offline_runs(options.offline)
        print_results(cells, ())
        if options.out:
            write_results_csv(options.out, [result_to_row(cell) for cell in cells])
        return
    try:
        import wandb_workspaces.reports.v2 as wr
    except ModuleNotFoundError as error:
        raise UsageError(_NOT_INSTALLED) from error
    project = options.project or os.environ.get("WANDB_PROJECT") or WandbSettings.project
    entity = options.entity or os.environ.get("WANDB_ENTITY")
    results = options.results
    tables = [find_results_file(name, results) for name in options.names]
    tables = tables or [
        path for path in list_results_files(results) if project in read_logged_projects(path)
    ]
    if not tables:
        print(f"below {str(results)!r} is nothing of project {project!r}: panels without tables")
    settings = {"project": project, "title": f"spec_bench: {options.task or project}"}
    blocks = iter_report_blocks(wr, tables, options.task, options.mixed_models)
    settings |= {"blocks": [*blocks], "width": "fluid"}
    if options.dry_run:
        report: Any = wr.Report(entity=entity or "", **settings)
        spec = report._to_model().spec
        text = spec.model_dump_json(by_alias=True, exclude_none=True, indent=1)
        write_text(options.dry_run, f"{text}\n")
        print(f"report: {options.dry_run}")
    else:
        log_in_to_wandb("report wandb", "--dry-run FILE needs no account.")
        report = wr.Report(**settings, **({"entity": entity} if entity else {}))
        report.save()
        print(f"report: {report.url}")


def iter_report_blocks(
    wr: ModuleType, tables: Sequence[Path], task: str = "", mixed_models: bool = False
) -> Iterator[Any]:
    """Yields the report of one task, or ("") of all, top to bottom: panels and a table of each pair
    and task; of each experiment its paper's tables and the checks; all rows; the prompts one by
    one. Without a results file all runs are in the same panels.
    """
    cells = load_results(tables, mixed_models=mixed_models) if tables else None
    rows = cells.rows if cells else pd.DataFrame(columns=["task", "file"])
    rows = rows[rows.task == task] if task else rows
    groups = group_rows(drop_duplicates_with_fewer_prompts(rows)) if len(rows) else []
    of_task = f" and Tags in [{task!r}]" if task else ""
    no_cell = f"JobType != {TABLE!r} and JobType != {TRAINING!r}"
    all_cells = wr.Runset(name=task or "all tasks", filters=f"{no_cell}{of_task}")
    for group in groups:
        runset = _make_runset(wr, group)
        yield wr.H2(runset.name)
        yield wr.PanelGrid(runsets=[runset], panels=_make_summary_panels(wr, group.rows))
        yield wr.MarkdownBlock(
            summary.format_groups_markdown([group], Path(group.rows.file.iloc[0]))
        )
    if not groups:
        yield wr.H2("Cells")
        yield wr.PanelGrid(runsets=[all_cells], panels=_make_summary_panels(wr, rows))
    records = cells.records if cells else RecordReader(None)
    for file, part in rows.groupby("file", sort=False):
        yield from _iter_paper_and_check_blocks(wr, Path(file), part, records)
    table_runs = wr.Runset(name="tables", filters=f"JobType = {TABLE!r}{of_task}")
    yield wr.H2("All rows")
    table = wr.WeavePanelSummaryTable(table_name="results", layout=wr.Layout(w=24, h=10))
    yield wr.PanelGrid(runsets=[table_runs], panels=[table])
    yield wr.H2("Prompt by prompt: a line is a cell, a step is a prompt")
    for group in groups:
        runset = _make_runset(wr, group)
        yield wr.H3(runset.name)
        yield wr.PanelGrid(runsets=[runset], panels=_make_history_panels(wr, group.rows))
    if not groups:
        yield wr.PanelGrid(runsets=[all_cells], panels=_make_history_panels(wr, rows))


def _make_runset(wr: ModuleType, group: Group) -> Any:
    """Makes the set of a group's runs, the fastest first, each in its decoder's colour."""
    colours = {
        run_id: names.get_decoder_style(str(row["decoder"])).colour.light
        for row in to_rows(group.rows)
        for run_id in str(row["run_id"]).split(",")
    }
    return wr.Runset(
        name=f"{group.rows.iloc[0].pair}: {format_title_without_pair(group)}",
        filters=f"ID in {[*colours]}",
        order=[wr.OrderBy(wr.SummaryMetric("speedup"))],
        run_settings={run_id: wr.RunSettings(colour) for run_id, colour in colours.items()},
    )


def _make_summary_panels(wr: ModuleType, rows: pd.DataFrame) -> list[Any]:
    """Makes panels for the columns that the rows have: bars with the ends of their intervals, and
    block efficiency by nodes.
    """
    titles = {"speedup": "Speed-up, between its 95% ends"}
    titles |= {
        name: f"{title}, plain decoding's beside it" for name, title in _list_score_titles(rows)
    }
    titles |= {_JOULES: "Joules per token"}
    panels = []
    for name, title in titles.items():
        bars = [bar for bar in (f"{name}_low", name, f"{name}_high") if _may_have_values(rows, bar)]
        if bars:
            panels.append(
                wr.BarPlot(
                    title=title, metrics=bars,
                    max_runs_to_show=_MOST_RUNS, max_bars_to_show=_MOST_RUNS,
                )
            )  # fmt: skip
    if _may_have_values(rows, "block_efficiency") and _may_have_values(rows, "nodes_per_call"):
        title = "Block efficiency by budget (nodes of a call)"
        panels.insert(1, wr.ScatterPlot(title=title, x="nodes_per_call", y="block_efficiency"))
    return panels


def _make_history_panels(wr: ModuleType, rows: pd.DataFrame) -> list[Any]:
    """Makes panels for the values that were logged prompt by prompt."""
    lines = {name: title for name, title in HISTORY.items() if "energy" not in name}
    lines |= {
        f"prompt/{name}": title
        for name, title in _list_score_titles(rows)
        if columns.find_column(name)
    }
    if _may_have_values(rows, _JOULES):
        lines["prompt/energy_j"] = HISTORY["prompt/energy_j"]
    return [
        wr.LinePlot(
            title=title,
            y=[name],
            title_x="prompt",
            max_runs_to_show=_MOST_RUNS,
        )
        for name, title in lines.items()
    ]


def _may_have_values(rows: pd.DataFrame, name: str) -> bool:
    """Returns whether some row has a value in a column; without rows any run may."""
    return rows.empty or find_filled_column(rows, [name]) is not None


def _list_score_titles(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Lists the scores that some row has, with their titles; without rows all of ours."""
    present = columns.get_columns(rows.columns) if len(rows) else columns.COLUMNS
    return [
        (c.name, c.title) for c in present if c.kind == "score" and _may_have_values(rows, c.name)
    ]


def _iter_paper_and_check_blocks(
    wr: ModuleType,
    file: Path,
    rows: pd.DataFrame,
    records: RecordReader,
) -> Iterator[Any]:
    """Yields a paper's tables, printed beside measured, and the checks of its claims; of an
    experiment that is no paper's our own checks.
    """
    paper, items = find_paper_of_experiment(file.parent.name)
    tables = build_page_tables(items, MeasuredRows(rows, get_results_folder(file)))
    checks = (
        check_claims(paper.name, rows, records) if paper else check_general_claims(rows, records)
    )
    heading = "printed beside measured, and " if tables else ""
    yield wr.H2(f"{file.parent.name}: {heading}the checks")
    yield from (wr.MarkdownBlock(render.format_table_markdown(table)) for table in tables)
    yield wr.MarkdownBlock(summary.format_checks_markdown(checks, paper))
