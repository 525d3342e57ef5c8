"""What a training leaves: the heads, their accuracies, the log, and where it all came from."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spec_bench.engine.loading import DTYPES
from spec_bench.measure.provenance import provenance
from spec_bench.system.files import write_text
from spec_bench.train.accuracy import Accuracy, measure
from spec_bench.train.checkpoint import Progress
from spec_bench.train.data import Batches
from spec_bench.train.dialogues import positions
from spec_bench.train.loop import Training

_MOST_TRAIN = 512  # training dialogues that the accuracy of training is measured on


def finish(training: Training, progress: Progress) -> dict[str, Any]:
    """Writes ``settings.out``: heads, ``accuracies.json``, ``training.json``, ``log.csv``.

    The heads are rounded to ``out_dtype`` first: what is stored is what is measured.

    Returns:
        What ``training.json`` holds.
    """
    settings, trainee = training.settings, training.trainee
    trainee.save(settings.out, DTYPES[settings.out_dtype])
    held_out = range(len(training.validation.dialogues))
    seen = range(min(_MOST_TRAIN, len(training.train.dialogues)))
    validation = measure(trainee, training.validation, held_out, settings.ranks)
    train = measure(trainee, training.train, seen, settings.ranks)
    facts = {
        "head": settings.head.name,
        "target": settings.pair.target,
        "target_revision": settings.pair.revisions[0],
        "parameters": trainee.heads.parameter_count,
        "stored_as": settings.out_dtype,
        "settings": settings.config,
        "data": {"train": _size(training.train), "validation": _size(training.validation)},
        "steps": progress.step,
        "dialogues_per_step": training.batch,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 1),
        "processes": training.processes.count,
        "accuracy": {"train": _named(train), "validation": _named(validation)},
        "validation_loss": None if validation is None else _rounded(validation.loss),
        "provenance": _provenance(),
    }
    _write(settings.out / "training.json", facts)
    measured = validation or train
    if measured is not None:
        ranks = [_rounded(head) for head in measured.ranks]
        on = "validation" if validation else "training"
        _write(
            settings.out / "accuracies.json",
            {"measured_on": on, "positions": list(measured.counts), "accuracies": ranks}
            | ({"overlaps": _rounded(measured.overlaps)} if measured.overlaps else {}),
        )
    shutil.copyfile(settings.folder / "log.csv", settings.out / "log.csv")
    return facts


def _size(batches: Batches) -> dict[str, int]:
    return {
        "dialogues": len(batches.dialogues),
        "tokens": sum(len(dialogue.ids) for dialogue in batches.dialogues),
        "positions": sum(len(positions(dialogue)) for dialogue in batches.dialogues),
    }


def _named(accuracy: Accuracy | None) -> dict[str, float] | None:
    """Accuracy of each guess under the papers' name for it."""
    if accuracy is None:
        return None
    return {f"t+{i + 1}": round(share, 4) for i, share in enumerate(accuracy.best)}


def _rounded(values: tuple[float, ...]) -> list[float]:
    return [round(value, 5) for value in values]


def _provenance() -> dict[str, Any]:
    """Where it came from; the command without the folder that this machine has it in."""
    facts = provenance()
    facts["command"] = ["python", "-m", "spec_bench.train", *sys.argv[1:]]
    return facts


def _write(file: Path, value: Mapping[str, Any]) -> None:
    write_text(file, json.dumps(value, indent=2, default=str) + "\n")
