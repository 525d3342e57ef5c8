"""The W&B report of a project: curves, cells, and a paper's printed lines beside them.

Nothing here needs an account or a network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spec_bench.report.wandb_report.reference import Reference
from spec_bench.report.wandb_report.sweep import JOB_TYPE, Shown, blocks
from spec_bench.sinks.curves import AXES, METRICS
from spec_bench.sinks.wandb_reports import reports

TITLES = {
    "block_efficiency": "Block efficiency",
    "acceptance_rate": "Acceptance rate",
    "mbsu": "MBSU",
    "token_rate": "Token rate (tokens/s; a paper's on its own machine)",
    "speedup": "Speed-up over autoregressive decoding",
    "energy_j_per_token": "Energy (J/token; where a meter was)",
    "accuracy": "Accuracy (the task's first score)",
    "draft_length": "Draft length",
    "budget": "Target budget (tokens)",
}
# Of single cells, from the summaries that runs have: the axes of scatter plots.
CELLS = (("token_rate", "block_efficiency"), ("token_rate", "energy_j_per_token"))
BARS = ("speedup", "energy_j_per_token")


def build_report(
    project: str, entity: str, task: str, reference: Reference | None, sweep: Shown | None = None
) -> Any:
    """The report of a project's runs, of one task or of all; builds without a network.

    Raises:
        ValueError: the package for reports is not installed.
    """
    wr = reports()
    tables = [wr.Runset(entity, project, "measured", filters=filter_of(task, "table"))]
    if reference:
        # Only where a paper was asked for: another one's lines may lie in the project.
        filters = filter_of(task, "reference", reference.name)
        tables.append(wr.Runset(entity, project, "paper", filters=filters))
    cells = [wr.Runset(entity, project, "cells", filters=filter_of(task, ""))]
    written: list[Any] = []
    if sweep:
        runset = wr.Runset(entity, project, "sweep", filters=filter_of("", JOB_TYPE, sweep.name))
        written += blocks(wr, sweep, runset)
    written.append(wr.P(_about(task, reference)))
    for axis in AXES:
        panels = [_curves(wr, axis, metric, at) for at, metric in enumerate(METRICS)]
        grid = wr.PanelGrid(runsets=tables, panels=panels)
        written += [wr.H2(f"By {TITLES[axis].lower()}"), grid]
    drawn = list(_cells(wr))
    written += [wr.H2("Cells"), wr.PanelGrid(runsets=cells, panels=drawn)]
    table = wr.WeavePanelSummaryTable(table_name="results")
    written += [wr.H2("Results"), wr.PanelGrid(runsets=tables, panels=[table])]
    about = ", ".join(filter(None, [reference.name if reference else "", task]))
    title = f"spec_bench: {about or project}"
    return wr.Report(project=project, entity=entity, title=title, blocks=written, width="fluid")


def _about(task: str, known: Reference | None) -> str:
    text = (
        f"{f'Task {task}' if task else 'All tasks'}. Each line is one decoder at one temperature"
        " (T) with its best tree at that draft length or budget, a mean over seeds; ar is"
        " autoregressive decoding."
    )
    if known:
        text += f" Lines of the run set `paper` are those of {known.title} for {known.pair}."
    return text


def filter_of(task: str, job_type: str, tag: str = "") -> str:
    """The filter of runs: of a task ("": all), of a job type ("": single cells), with a tag."""
    parts = [f"JobType = {job_type!r}"] if job_type else ["JobType != 'table'"]
    parts += [] if job_type else [f"JobType != {each!r}" for each in ("reference", JOB_TYPE)]
    parts += [f"Tags in [{each!r}]" for each in (task, tag) if each]
    return " and ".join(parts)


def spec_of(report: Any) -> str:
    """The report as the JSON that W&B would be sent."""
    text: str = report._to_model().spec.model_dump_json(by_alias=True, exclude_none=True, indent=1)
    return text + "\n"


def curves_named(axis: str, metric: str) -> str:
    """An expression for the names of a metric's curves over an axis, whatever the decoders."""
    return f"^{axis}/{metric}/"


def _curves(wr: Any, axis: str, metric: str, at: int) -> Any:
    """One metric over one axis, a line a decoder and temperature."""
    return wr.LinePlot(
        title=TITLES[metric],
        x=wr.Metric(axis),
        metric_regex=curves_named(axis, metric),
        title_x=TITLES[axis],
        layout=_place(wr, at),
    )


def _cells(wr: Any) -> Iterator[Any]:
    """Plots of single cells: one number against another, and decoders side by side."""
    for at, (x, y) in enumerate(CELLS):
        title = f"{TITLES[y]} against {TITLES[x].split(' (')[0].lower()}"
        yield wr.ScatterPlot(
            title=title, x=wr.SummaryMetric(x), y=wr.SummaryMetric(y), layout=_place(wr, at)
        )
    for at, metric in enumerate(BARS, start=len(CELLS)):
        yield wr.BarPlot(
            title=TITLES[metric],
            metrics=[wr.SummaryMetric(metric)],
            groupby=wr.Config("labels.decoder"),
            layout=_place(wr, at),
        )


def _place(wr: Any, at: int) -> Any:
    return wr.Layout(x=12 * (at % 2), y=8 * (at // 2), w=12, h=8)
