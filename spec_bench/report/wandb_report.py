"""``spec-bench report wandb``: a project's runs as one W&B report.

Line plots of every cell over its prompts, and the results tables. Publishing needs an account; a
dry run needs none and writes the report's spec to a file.
"""

from argparse import Namespace
from typing import Any

from spec_bench.sinks.wandb import HISTORY, TABLE, TRAINING, log_in
from spec_bench.system.files import write_text

_MISSING = "wandb_workspaces is not installed: pip install -e '.[reports]'"
_ABOUT = "Each line is a cell: a decoder with a tree, by its prompts in their order."


def publish(options: Namespace) -> None:
    """Publishes the report of a project's runs, of one task or ("") of all; or writes it where a
    file is given, as the JSON that W&B would be sent, without a network. Raises ValueError: there
    is no account, or the package for reports is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as wr
    except ModuleNotFoundError as error:
        raise ValueError(_MISSING) from error
    project, entity, task = options.project, options.entity or "", options.task
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
