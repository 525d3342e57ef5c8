"""Weights & Biases for a training: its log as curves, its accuracies as the summary.

As with the benchmark's cells the file on disk comes first, and W&B gets what it says. Knows the
log's columns as names and numbers only.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_bench.settings.fields import one_line
from spec_bench.sinks.settings import WandbSettings
from spec_bench.sinks.wandb import Wandb, build_wandb, failures, open_run
from spec_bench.system import files

log = logging.getLogger(__name__)


def build_training_sink(config: WandbSettings, folder: Path) -> Wandb | None:
    """The sink that ``sink.wandb`` describes; None where it is off.

    Raises:
        ValueError: ``online`` without an account.
    """
    return build_wandb(config, folder)


def log_training(sink: Wandb, name: str, facts: Mapping[str, Any], file: Path) -> None:
    """Logs a finished training as one run; a failure of W&B is one warning."""
    if sink.mode == "disabled":
        return
    rows = files.read_csv(file)
    content = json.dumps([facts["settings"], rows], sort_keys=True, default=str)
    run_id = f"heads-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    tags = [facts["head"], facts["target"]]
    try:
        with open_run(sink, run_id, name, "train", tags, dict(facts["settings"])) as run:
            for row in rows:
                numbers = {key: float(value) for key, value in row.items() if value != ""}
                run.log(numbers, step=int(row["step"]))
            for side, accuracy in facts["accuracy"].items():
                for guess, share in (accuracy or {}).items():
                    run.summary[f"final {side} {guess}"] = share
            run.summary["parameters"] = facts["parameters"]
    except failures() as error:
        log.error("W&B: %s: %s", type(error).__name__, one_line(error))
