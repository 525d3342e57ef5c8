"""Builds a W&B report of a project: the four metrics by decoder, the papers' lines beside them.

    python scripts/wandb_report.py --project spec_bench --task xsum
    python scripts/wandb_report.py --project spec_bench --task xsum --dry-run report.json

Publishing needs an account. ``--dry-run`` needs none: it writes the report's spec to a file and the
reference run offline beside it. Needs ``pip install 'spec-bench[reports]'``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from spec_bench.published import read_published, side_by_side
from spec_bench.sinks.curves import AXES, METRICS, curve_of, curves
from spec_bench.sinks.wandb import Wandb, build_wandb, log_curves

REFERENCE = Path(__file__).resolve().parents[1] / "experiments" / "rsd" / "reference.csv"
EXPERIMENT_AXIS = {"draft_length": "draft_length", "target_budget": "budget"}  # the CSV's names
GROUP = "paper"
TITLES = {
    "block_efficiency": "Block efficiency",
    "mbsu": "MBSU",
    "token_rate": "Token rate (tokens/s; the paper's on its own machine)",
    "accuracy": "Accuracy (BLEU, ROUGE-2 or exact match)",
    "draft_length": "Draft length",
    "budget": "Target budget (tokens)",
}


def main(arguments: list[str] | None = None) -> int:
    """Logs the paper's lines and publishes the report, or writes it to a file."""
    options = _parser().parse_args(arguments)
    try:
        rows = reference_rows(options.target, options.draft, options.task)
        folder = options.dry_run.parent if options.dry_run else Path("results") / GROUP
        log_reference(_sink(options, folder), rows)
        report = build_report(options.project, options.entity or "", options.task, rows)
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


def reference_rows(target: str, draft: str, task: str) -> list[dict[str, str]]:
    """The published rows of one pair and task, both experiments.

    Raises:
        ValueError: the paper has no such table.
    """
    rows = side_by_side(read_published(REFERENCE))
    found = [row for row in rows if (row["target"], row["draft"]) == (target, draft)]
    if not found:
        pairs = dict.fromkeys(f"{row['target']} with {row['draft']}" for row in rows)
        raise ValueError(f"no table of {target} with {draft}; choose from {', '.join(pairs)}")
    chosen = [row for row in found if row["task"] == task]
    if not chosen:
        tasks = sorted({row["task"] for row in found})
        raise ValueError(f"no table of task {task}; {target} has {', '.join(tasks)}")
    return chosen


def reference_lines(rows: list[dict[str, str]]) -> list[dict[str, float]]:
    """The best spec of each decoder, over draft length in experiment 1, over budget in 2."""
    lines = []
    for name, axis in EXPERIMENT_AXIS.items():
        lines += curves([row for row in rows if row["axis"] == name], [axis])  # AR's among them
    return lines


def log_reference(sink: Wandb, rows: list[dict[str, str]]) -> None:
    """One run with the paper's curves under the names that measured curves have."""
    first = rows[0]
    pair = f"{first['target']}+{first['draft']}"
    run_id = "-".join([GROUP, "rsd", pair.replace("+", "-"), first["task"]]).lower()
    labels = {"pair": pair, "task": first["task"], "paper": "RSD, arXiv 2402.14160"}
    title = f"RSD paper: {pair} {first['task']}"
    tags, config = [first["task"], GROUP], {"labels": labels}
    log_curves(sink, run_id, title, "reference", tags, config, reference_lines(rows), rows)


def build_report(project: str, entity: str, task: str, rows: list[dict[str, str]]) -> Any:
    """The report object; builds without a network.

    Args:
        project: whose runs it shows.
        entity: the account; "" in a dry run.
        task: whose table runs it shows.
        rows: the published ones, for the decoders' names, the temperature and the text.
    """
    import wandb_workspaces.reports.v2 as wr

    lines = list(dict.fromkeys(f"{row['decoder']}/{curve_of(row)}" for row in rows))
    pair = f"{rows[0]['target']} with {rows[0]['draft']}"
    runs = [
        wr.Runset(entity, project, "measured", filters=_filter("table", task)),
        wr.Runset(entity, project, "paper", filters=_filter("reference", task)),
    ]
    blocks: list[Any] = [
        wr.P(
            f"Task {task}. Each line is one decoder at one temperature (T) with its best tree at"
            " that draft length or budget, a mean over seeds; ar is autoregressive decoding. Lines"
            f" of the run set `paper` are RSD's (arXiv 2402.14160) for {pair}."
        )
    ]
    for axis in AXES:
        panels = [_panel(wr, axis, metric, lines, at) for at, metric in enumerate(METRICS)]
        blocks += [wr.H2(f"By {TITLES[axis].lower()}"), wr.PanelGrid(runsets=runs, panels=panels)]
    table = wr.WeavePanelSummaryTable(table_name="results")
    blocks += [wr.H2("Results"), wr.PanelGrid(runsets=runs[:1], panels=[table])]
    return wr.Report(
        project=project, entity=entity, title=f"spec_bench: {task}", blocks=blocks, width="fluid"
    )


def spec_of(report: Any) -> str:
    """The report as the JSON that W&B would be sent."""
    text: str = report._to_model().spec.model_dump_json(by_alias=True, exclude_none=True, indent=1)
    return text + "\n"


def _panel(wr: Any, axis: str, metric: str, lines: list[str], at: int) -> Any:
    """One metric over one axis, a line a decoder and temperature."""
    return wr.LinePlot(
        title=TITLES[metric],
        x=wr.Metric(axis),
        y=[wr.Metric(f"{axis}/{metric}/{line}") for line in lines],
        title_x=TITLES[axis],
        layout=wr.Layout(x=12 * (at % 2), y=8 * (at // 2), w=12, h=8),
    )


def _filter(job_type: str, task: str) -> str:
    return f"JobType = '{job_type}' and Tags in ['{task}']"


def _sink(options: argparse.Namespace, folder: Path) -> Wandb:
    """Where the reference run goes: offline in a dry run."""
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
    parser = argparse.ArgumentParser(description="W&B report with the paper's reference lines")
    parser.add_argument("--project", default="spec_bench")
    parser.add_argument("--entity", help="the account or team; default: the account's own")
    parser.add_argument("--task", default="xsum", help="xsum, wmt18_deen or dolly")
    parser.add_argument("--target", default="Llama-2-7B", help="of the paper's lines")
    parser.add_argument("--draft", default="Llama-2-115M", help="of the paper's lines")
    parser.add_argument("--dry-run", type=Path, metavar="FILE", help="write the spec, publish none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
