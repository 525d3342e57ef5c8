"""``python -m spec_bench.report wandb``: publishes a report, or writes its spec to a file.

Publishing needs an account. A dry run needs none: it writes the report's spec to a file and the
runs that it shows, of a sweep's figures and of a paper's lines, offline beside it.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from spec_bench.report.wandb_report.build import build_report, spec_of
from spec_bench.report.wandb_report.reference import GROUP, log_reference, reference
from spec_bench.report.wandb_report.sweep import log_sweep, shown
from spec_bench.sinks.wandb import Wandb, build_wandb
from spec_bench.system.files import write_text


def publish(options: Namespace) -> None:
    """Logs the paper's lines and the sweep's figures, and publishes the report or writes it.

    Raises:
        ValueError: there is no such paper, pair or sweep; the package for reports is not installed.
    """
    printed = reference(options.paper, options.target, options.draft, options.task)
    sweep = shown(options.sweep, options.results) if options.sweep else None
    report = build_report(options.project, options.entity or "", options.task, printed, sweep)
    if printed:
        log_reference(_sink(options, options.results / GROUP), printed)
    if sweep:
        log_sweep(_sink(options, sweep.folder), sweep)
    if options.dry_run:
        write_text(options.dry_run, spec_of(report))
        print(f"report: {options.dry_run}")
    else:
        report.save()
        print(f"report: {report.url}")


def _sink(options: Namespace, folder: Path) -> Wandb:
    """The sink of a run: in a dry run offline, beside its output."""
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
