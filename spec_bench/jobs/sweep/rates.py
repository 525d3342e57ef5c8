"""How fast a decoder is known to be: from rows measured here.

Pure functions of rows; reads CSV files and, for a row's device, the cell's config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import yaml

from spec_bench.sinks.csv import read_rows
from spec_bench.system import files

BASELINE = "ar"


@dataclass(frozen=True)
class RateRow:
    """One known rate, named as results name it."""

    target: str
    draft: str  # "" for the baseline
    task: str
    decoder: str
    spec: str  # "-" for the baseline
    tokens_per_s: float  # delivered tokens per second of decoding
    batch_size: int = 1
    device: str | None = None  # ``cpu`` or ``cuda``; None if unknown


@dataclass(frozen=True)
class Rate:
    """A cell's expected rate and where it comes from."""

    tokens_per_s: float
    source: str


@dataclass(frozen=True)
class Wanted:
    """The cell whose rate is looked up, named as results name it."""

    target: str
    draft: str
    task: str
    decoder: str
    spec: str
    batch_size: int
    device: str


def find_rate(wanted: Wanted, measured: Sequence[RateRow]) -> Rate | None:
    """The best guess of a cell's rate; None if nothing is known.

    First rows of the same decoder and tree, then of any decoder's baseline, which stands in for an
    unknown decoder: that is then expected to be no faster. Of several rows those of the same task
    are taken, and of these the median.
    """
    rows = [
        row
        for row in measured
        if row.target == wanted.target
        and row.draft in ("", wanted.draft)
        and row.batch_size == wanted.batch_size
        and row.device in (None, wanted.device)
    ]
    same = [row for row in rows if (row.decoder, row.spec) == (wanted.decoder, wanted.spec)]
    if same:
        return Rate(_of_task(same, wanted.task), "measured")
    baseline = [row for row in rows if row.decoder == BASELINE]
    return Rate(_of_task(baseline, wanted.task), "measured, as ar") if baseline else None


@cache
def known_rates(results: Path) -> list[RateRow]:
    """Measured rows, read once for the jobs of a sweep."""
    return measured_rows(results)


def measured_rows(results: Path) -> list[RateRow]:
    """The rates in all CSVs below a results folder."""
    rates = []
    for path in files.results_files(results):
        for row in read_rows(path):
            if (rate := _number(row.get("token_rate"))) and not row["simulated_acceptance"]:
                target, draft, task = row["target"], row["draft"], row["task"]
                device = _device(files.run_folder(files.results_of(path), row["run_id"]))
                size, kind = int(row["batch_size"] or 1), (row["decoder"], row["spec"])
                rates.append(RateRow(target, draft, task, *kind, rate, size, device))
    return rates


def _of_task(rows: Sequence[RateRow], task: str) -> float:
    same = [row.tokens_per_s for row in rows if row.task == task]
    return median(same or [row.tokens_per_s for row in rows])


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _device(folder: Path) -> str | None:
    """The kind of device that a cell ran on, from its config; None if that is not here."""
    path = folder / files.CONFIG
    if not path.is_file():
        return None
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("device:"):
            return str(yaml.safe_load(line.strip())["device"]).partition(":")[0]
    return None
