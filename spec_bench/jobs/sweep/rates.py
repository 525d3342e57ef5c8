"""How fast a decoder is known to be: from rows measured here, else from published tables.

Pure functions of rows; reads CSV files and, for a row's device, the cell's config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import yaml

from spec_bench.sinks.csv import read_rows
from spec_bench.system import files
from spec_bench.vocabulary.published import FILE, read_published

BASELINE = "ar"


@dataclass(frozen=True)
class RateRow:
    """One known rate.

    Attributes:
        target: the model, as results or as papers name it.
        draft: likewise; "" for the baseline.
        task: the task's name, "" if not given.
        decoder: the decoder's name.
        spec: its tree; "-" for the baseline.
        tokens_per_s: delivered tokens per second of decoding.
        batch_size: prompts that decoded together.
        device: ``cpu`` or ``cuda``; None if unknown.
    """

    target: str
    draft: str
    task: str
    decoder: str
    spec: str
    tokens_per_s: float
    batch_size: int = 1
    device: str | None = None


@dataclass(frozen=True)
class Rate:
    """A cell's expected rate and where it comes from."""

    tokens_per_s: float
    source: str


@dataclass(frozen=True)
class Wanted:
    """The cell whose rate is looked up.

    Attributes:
        target: as results name it.
        draft: likewise.
        printed: (target, draft) as papers print them.
    """

    target: str
    draft: str
    printed: Sequence[tuple[str, str]]
    task: str
    decoder: str
    spec: str
    batch_size: int
    device: str


def find_rate(
    wanted: Wanted, measured: Sequence[RateRow], published: Sequence[RateRow]
) -> Rate | None:
    """The best guess of a cell's rate; None if nothing is known.

    In this order: rows measured here of the same decoder and tree, of any decoder's baseline, and
    the same of published tables. A baseline stands in for an unknown decoder, which is then
    expected to be no faster. Of several rows those of the same task are taken, and of these the
    median.
    """
    here = [
        row
        for row in measured
        if row.target == wanted.target
        and row.batch_size == wanted.batch_size
        and row.device in (None, wanted.device)
    ]
    of_draft = [row for row in here if row.draft in ("", wanted.draft)]
    printed = [
        row
        for row in published
        if wanted.batch_size == row.batch_size
        and wanted.device == "cuda"
        and any(row.target == target for target, _ in wanted.printed)
        and any(row.draft in ("", draft) or _is_baseline(row) for _, draft in wanted.printed)
    ]
    for rows, source in ((of_draft, "measured"), (printed, "published")):
        same = [row for row in rows if (row.decoder, row.spec) == (wanted.decoder, wanted.spec)]
        if same:
            return Rate(_of_task(same, wanted.task), source)
        if baseline := [row for row in rows if _is_baseline(row)]:
            return Rate(_of_task(baseline, wanted.task), f"{source}, as ar")
    return None


@cache
def known_rates(results: Path, experiments: Path) -> tuple[list[RateRow], list[RateRow]]:
    """Measured and published rows, read once for the jobs of a sweep."""
    return measured_rows(results), published_rows(experiments)


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


def published_rows(experiments: Path) -> list[RateRow]:
    """The rates in the papers' reference tables that state tokens per second."""
    rates = []
    for path in sorted(experiments.glob(f"*/{FILE}")):
        numbers = (row for row in read_published(path) if row["metric"] == "token_rate")
        rates += [_published(row) for row in numbers if row["value"] and row["target"]]
    return rates


def _published(row: Mapping[str, str]) -> RateRow:
    """A printed token rate; the baseline has no draft."""
    draft = "" if row["decoder"] == BASELINE else row["draft"]
    return RateRow(
        row["target"], draft, row["task"], row["decoder"], row["spec"], float(row["value"])
    )


def _is_baseline(row: RateRow) -> bool:
    return row.decoder == BASELINE


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
