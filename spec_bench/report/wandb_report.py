"""``spec-bench report wandb``: a project's runs as one W&B report.

Line plots of every cell over its prompts, and the results tables. Publishing needs an account; a
dry run needs none and writes the report's spec to a file.
"""

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from spec_bench.records.types import CellResult
from spec_bench.settings.fields import one_line
from spec_bench.sinks.console import print_outcome
from spec_bench.sinks.rows import restored, row_of, write_csv
from spec_bench.sinks.wandb import HISTORY, TABLE, TRAINING, log_in
from spec_bench.system.files import write_text

_MISSING = "wandb_workspaces is not installed: pip install -e '.[reports]'"
_READER = (sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json")
_ABOUT = "Each line is a cell: a decoder with a tree, by its prompts in their order."


def read_offline(folder: Path) -> list[CellResult]:
    """Reads the cells of offline runs with W&B's own reader; of a cell's several runs the last
    counts. Raises ValueError: there is none, or W&B cannot read it.
    """
    if not folder.is_dir():
        raise ValueError(f"no such folder: {str(folder)!r}")
    found = dict[str, CellResult]()
    for file in sorted(folder.rglob("run-*.wandb")):
        done = subprocess.run([*_READER, file], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(f"no W&B since 0.31 that reads {str(file)!r}: {one_line(done.stderr)}")
        run = json.loads(done.stdout)
        row = {"labels": run["config"].get("labels"), "run_id": run["run_id"], **run["summary"]}
        if "status" in row:  # else a table
            metrics = {key: value for key, value in run["summary"].items() if key[0] != "_"}
            found[row["run_id"]] = restored({**row, "metrics": metrics})
    if not found:
        raise ValueError(f"no cell of an offline run in {str(folder)!r}")
    return [*found.values()]


def publish(options: Namespace) -> None:
    """Publishes the report of a project's runs, of one task or ("") of all; or writes it where a
    file is given, as the JSON that W&B would be sent, without a network; or prints what offline
    runs hold. Raises ValueError: there is no account, or the package for reports is not installed.
    """
    if options.offline:
        cells = read_offline(options.offline)
        print_outcome(cells, ())
        if options.output:
            write_csv(options.output, [row_of(cell) for cell in cells])
        return
    try:
        import wandb_workspaces.reports.v2 as wr
    except ModuleNotFoundError as error:
        raise ValueError(_MISSING) from error
    project = options.project
    entity = options.entity or ""
    task = options.task
    of_task = f" and Tags in [{task!r}]" if task else ""
    no_cell = f"JobType != {TABLE!r} and JobType != {TRAINING!r}"
    cells = wr.Runset(entity, project, "cells", filters=f"{no_cell}{of_task}")
    tables = wr.Runset(entity, project, "tables", filters=f"JobType = {TABLE!r}{of_task}")
    places = [wr.Layout(x=12 * (at % 2), y=8 * (at // 2), w=12, h=8) for at in range(len(HISTORY))]
    plots = [
        wr.LinePlot(title=title, x="Step", y=[name], title_x="prompt", layout=place)
        for place, (name, title) in zip(places, HISTORY.items(), strict=True)
    ]
    results = wr.WeavePanelSummaryTable(table_name="results")
    blocks = [
        wr.P(f"{f'Task {task}' if task else 'All tasks'}. {_ABOUT}"),
        *(wr.H2("Cells"), wr.PanelGrid(runsets=[cells], panels=plots)),
        *(wr.H2("Results"), wr.PanelGrid(runsets=[tables], panels=[results])),
    ]
    title = f"spec_bench: {task or project}"
    whole = {"title": title, "blocks": blocks, "width": "fluid"}
    report: Any = wr.Report(project=project, entity=entity, **whole)
    if options.dry_run:
        spec = report._to_model().spec
        text = spec.model_dump_json(by_alias=True, exclude_none=True, indent=1)
        write_text(options.dry_run, f"{text}\n")
        print(f"report: {options.dry_run}")
    else:
        log_in("report wandb", "--dry-run FILE needs no account.")
        report.save()
        print(f"report: {report.url}")
