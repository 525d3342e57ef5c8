"""Builds a W&B report of a project: curves, cells, and a paper's printed lines beside them.

    make wandb-report WITH='--project mine --sweep NAME'      # the page of results/NAME, and curves
    make wandb-report WITH='--project mine'                             # curves alone, all tasks
    python -m spec_bench.report wandb --project spec_bench --paper rsd --task xsum
    python -m spec_bench.report wandb --project spec_bench --paper dsbd --dry-run report.json

Publishing needs an account. ``--dry-run`` needs none: it writes the report's spec to a file and the
runs that it shows, of a sweep's figures and of a paper's lines, offline beside it. Needs
``pip install 'spec-bench[reports]'``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from wandb_sweep import JOB_TYPE, Shown, blocks, log_sweep, shown

from spec_bench.report.papers.paper import load_paper
from spec_bench.sinks.curves import AXES, METRICS, curves
from spec_bench.sinks.wandb import Wandb, build_wandb, log_curves
from spec_bench.vocabulary.published import side_by_side

EXPERIMENT_AXIS = {"draft_length": "draft_length", "target_budget": "budget"}  # the CSV's names
GROUP = "paper"
MISSING = "wandb_workspaces is not installed: pip install 'spec-bench[reports]'"
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
# Of single cells, from the summaries that runs have: what each is drawn against.
CELLS = (("token_rate", "block_efficiency"), ("token_rate", "energy_j_per_token"))
BARS = ("speedup", "energy_j_per_token")
Row = dict[str, str]


@dataclass(frozen=True)
class Reference:
    """A paper's printed numbers of one pair.

    Attributes:
        title: of the paper.
        name: of its folder.
        pair: as the paper prints it.
        rows: a cell each, of one or several tasks.
    """

    title: str
    name: str
    pair: str
    rows: tuple[Row, ...]


def main(arguments: list[str] | None = None) -> int:
    """Logs the paper's lines and publishes the report, or writes it to a file."""
    options = _parser().parse_args(arguments)
    try:
        found = reference(options.paper, options.target, options.draft, options.task)
        sweep = shown(options.sweep, options.results) if options.sweep else None
        report = build_report(options.project, options.entity or "", options.task, found, sweep)
        if found:
            log_reference(_sink(options, options.results / GROUP), found)
        if sweep:
            log_sweep(_sink(options, sweep.folder), sweep)
    except (ValueError, ModuleNotFoundError) as error:
        print(f"wandb_report: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        options.dry_run.write_text(spec_of(report), encoding="utf-8")
        print(f"report: {options.dry_run}")
    else:
        report.save()
        print(f"report: {report.url}")
    return 0


def reference(paper: str, target: str, draft: str | None, task: str) -> Reference | None:
    """The printed cells of a paper's pair.

    Args:
        paper: a folder below ``experiments``; "": none.
        target: as the paper prints it; "": its first that has the task.
        draft: likewise; None: any.
        task: of ours; "": all.

    Raises:
        ValueError: there is no such paper, or it prints nothing of that pair and task.
    """
    if not paper:
        return None
    known = load_paper(paper)
    rows = side_by_side(known.numbers)
    pairs = dict.fromkeys(_pair(row) for row in rows)
    if not pairs:
        raise ValueError(f"{paper} prints no numbers of decoders")
    own = [r for r in rows if target in ("", r["target"]) and draft in (None, r["draft"])]
    if not own:
        asked = f"{target or 'any target'} with {draft or 'any draft'}"
        raise ValueError(f"{paper} prints nothing of {asked}; choose from {', '.join(pairs)}")
    chosen = [row for row in own if task in ("", row["task"])]
    if not chosen:
        tasks = ", ".join(sorted({row["task"] for row in own if row["task"]}))
        raise ValueError(f"{paper} prints nothing of task {task}; {_pair(own[0])} has {tasks}")
    pair = _pair(chosen[0])
    title = f"{known.title}, arXiv {known.arxiv}"
    return Reference(title, paper, pair, tuple(r for r in chosen if _pair(r) == pair))


def _pair(row: Row) -> str:
    return " with ".join(filter(None, [row["target"], row["draft"]]))


def reference_lines(rows: Sequence[Row]) -> list[dict[str, float]]:
    """The best spec of each decoder over draft length and budget.

    A table that is divided by one of both has its lines over that one alone.
    """
    lines = curves([row for row in rows if row["axis"] not in EXPERIMENT_AXIS])
    for name, axis in EXPERIMENT_AXIS.items():
        lines += curves([row for row in rows if row["axis"] == name], [axis])  # AR's among them
    return lines


def log_reference(sink: Wandb, found: Reference) -> None:
    """A run a task with the paper's curves under the names that measured curves have."""
    for task, rows in groupby(sorted(found.rows, key=_task), key=_task):
        own = list(rows)
        words = [GROUP, found.name, *found.pair.replace("/", " ").split(), task]
        labels = {"pair": found.pair, "task": task, "paper": found.title}
        log_curves(
            sink,
            "-".join(filter(None, words)).lower(),
            f"{found.name} paper: {found.pair} {task}".strip(),
            "reference",
            [each for each in (task, GROUP, found.name) if each],
            {"labels": labels},
            reference_lines(own),
            own,
        )


def _task(row: Row) -> str:
    return row["task"]


def build_report(
    project: str, entity: str, task: str, found: Reference | None, sweep: Shown | None = None
) -> Any:
    """The report object; builds without a network.

    Args:
        project: whose runs it shows.
        entity: the account; "" in a dry run.
        task: whose runs it shows; "" of all tasks.
        found: the printed numbers beside them; None where there are none.
        sweep: a results file whose page it shows first; None: none.

    Raises:
        ModuleNotFoundError: what makes reports is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as wr
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING) from error

    tables = [wr.Runset(entity, project, "measured", filters=filter_of(task, "table"))]
    if found:
        # Only where a paper was asked for: another one's lines may lie in the project.
        own = filter_of(task, "reference", found.name)
        tables.append(wr.Runset(entity, project, "paper", filters=own))
    cells = [wr.Runset(entity, project, "cells", filters=filter_of(task, ""))]
    written: list[Any] = []
    if sweep:
        own = wr.Runset(entity, project, "sweep", filters=filter_of("", JOB_TYPE, sweep.name))
        written += blocks(wr, sweep, own)
    written.append(wr.P(_about(task, found)))
    for axis in AXES:
        panels = [_curves(wr, axis, metric, at) for at, metric in enumerate(METRICS)]
        grid = wr.PanelGrid(runsets=tables, panels=panels)
        written += [wr.H2(f"By {TITLES[axis].lower()}"), grid]
    drawn = list(_cells(wr))
    written += [wr.H2("Cells"), wr.PanelGrid(runsets=cells, panels=drawn)]
    table = wr.WeavePanelSummaryTable(table_name="results")
    written += [wr.H2("Results"), wr.PanelGrid(runsets=tables, panels=[table])]
    title = f"spec_bench: {', '.join(filter(None, [found and found.name, task])) or project}"
    return wr.Report(project=project, entity=entity, title=title, blocks=written, width="fluid")


def _about(task: str, found: Reference | None) -> str:
    said = (
        f"{f'Task {task}' if task else 'All tasks'}. Each line is one decoder at one temperature"
        " (T) with its best tree at that draft length or budget, a mean over seeds; ar is"
        " autoregressive decoding."
    )
    if found:
        said += f" Lines of the run set `paper` are those of {found.title} for {found.pair}."
    return said


def filter_of(task: str, job_type: str, tag: str = "") -> str:
    """Which runs: of a task ("": all), of a job type ("": single cells), with a tag."""
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
    """What single cells' runs measured: one number against another, and decoders side by side."""
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


def _sink(options: argparse.Namespace, folder: Path) -> Wandb:
    """Where a run goes: in a dry run offline, beside what that writes."""
    folder = options.dry_run.parent if options.dry_run else folder
    config = {
        "enabled": True,
        "project": options.project,
        "entity": options.entity,
        "group": GROUP,
        "mode": "offline" if options.dry_run else "online",
    }
    sink = build_wandb(config, folder)
    assert sink is not None
    return sink


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="W&B report of a project")
    parser.add_argument("--project", default="spec_bench")
    parser.add_argument("--entity", help="the account or team; default: the account's own")
    parser.add_argument("--sweep", default="", metavar="NAME", help="an experiment or results.csv")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where NAME lies")
    parser.add_argument("--task", default="", help="such as xsum; default: all tasks")
    parser.add_argument("--paper", default="", help="such as rsd: its printed lines stand beside")
    parser.add_argument("--target", default="", help="of the paper's lines; default: its first")
    parser.add_argument("--draft", help="of the paper's lines; default: the target's first")
    parser.add_argument("--dry-run", type=Path, metavar="FILE", help="write the spec, publish none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
