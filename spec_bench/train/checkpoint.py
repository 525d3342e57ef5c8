"""Checkpoints that a training goes on from exactly, and the log beside them.

What follows from the step is not stored: the learning rate, and which dialogues come next.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from spec_bench.settings.fields import one_line
from spec_bench.system.disk import naming
from spec_bench.system.files import digest, replacing, set_aside, write_csv

log = logging.getLogger(__name__)
# What reading a file that is none, or half of one, raises.
_FAULTS = (RuntimeError, ValueError, KeyError, TypeError, EOFError, OSError, UnpicklingError)


@dataclass
class Progress:
    """How far a training has come.

    Attributes:
        step: optimiser steps done.
        tokens: positions trained on.
        seconds: spent training, validation included.
        window: sums since the last line of the log, by name.
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    window: dict[str, Any] | None = None


class Checkpoint:
    """One file in a training's folder, replaced as a whole; that of other settings is refused."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.file = folder / "checkpoint.pt"
        self.settings = digest(settings)

    def save(
        self, module: torch.nn.Module, optimiser: torch.optim.Optimizer, progress: Progress
    ) -> None:
        """Writes everything, atomically."""
        state = {
            "settings": self.settings,
            "module": module.state_dict(),
            "optimiser": optimiser.state_dict(),
            "progress": vars(progress),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        with replacing(self.file) as partial, partial.open("wb") as stream:
            torch.save(state, stream)  # not by name: torch would not say why it cannot

    def load(self, module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> Progress:
        """Goes back to the last checkpoint; without one nothing changes.

        Raises:
            ValueError: the checkpoint is of other settings.
        """
        if not self.file.is_file():
            return Progress()
        state = self._read()
        if state is not None and state["settings"] != self.settings:
            raise ValueError(
                f"{self.file.parent} holds a training with other settings; give this one another "
                "name=..., or remove that folder"
            )
        fresh = deepcopy((module.state_dict(), optimiser.state_dict()))
        try:
            return Progress() if state is None else _restored(state, module, optimiser)
        except _FAULTS as error:
            self._set_aside(error)
            module.load_state_dict(fresh[0])
            optimiser.load_state_dict(fresh[1])
            return Progress()

    def _read(self) -> dict[str, Any] | None:
        """The file; None, with a warning, where it is not one."""
        try:
            state = torch.load(self.file, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or not isinstance(state["settings"], str):
                raise ValueError("it holds no training")
        except _FAULTS as error:
            self._set_aside(error)
            return None
        return state

    def _set_aside(self, error: Exception) -> None:
        reason = one_line(error, 120)
        try:
            name = set_aside(self.file).name
        except FileNotFoundError:  # another process of the training was first
            return
        log.warning("%s: %s; it is now %s, training begins anew", self.file, reason, name)


def _restored(
    state: Mapping[str, Any], module: torch.nn.Module, optimiser: torch.optim.Optimizer
) -> Progress:
    """Puts everything back as it was saved."""
    progress = Progress(**state["progress"])
    module.load_state_dict(state["module"])
    optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["random"])
    if state["random_cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["random_cuda"])
    return progress


class TrainingLog:
    """``log.csv``: a line every so many steps."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self.file, self.columns = file, list(columns)

    def rewind(self, step: int) -> None:
        """Drops the lines of steps after ``step``, which are about to be done again."""
        rows = [row for row in self.rows() if int(row["step"]) <= step]
        write_csv(self.file, rows, self.columns)

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a line; what the row does not name stays empty."""
        with naming(self.file), self.file.open("a", encoding="utf-8", newline="") as stream:
            csv.DictWriter(stream, self.columns).writerow(row)

    def rows(self) -> list[dict[str, str]]:
        """All lines, as text."""
        if not self.file.is_file():
            return []
        with self.file.open(encoding="utf-8", newline="") as stream:
            return [row for row in csv.DictReader(stream) if row.get(self.columns[-1]) is not None]
