"""How many threads a job computes with on a CPU if its settings name no number.

Passes of a small model are faster on one thread than on many, which wait for each other; those of
a large one on all there are. So passes of the target are timed on one thread and on as many as
torch would use, in turn, and the faster is chosen. The choice is kept in the results folder, by
machine and target, so that the cells of a sweep, and of its later jobs, are timed alike.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from spec_bench.engine.model import LanguageModel
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.measure.provenance import machine
from spec_bench.system import files, locks

log = logging.getLogger(__name__)
_TOKENS = 8  # of a pass: between one token and a tree
_ROUNDS = 15
_SECONDS = 2.0  # after which no further round begins


def use_threads(settings: JobSettings, target: LanguageModel) -> None:
    """Sets torch's number of threads: the one asked for, else the faster one. It stays where the
    target is no module, or on a GPU.
    """
    if settings.engine.threads is not None:
        torch.set_num_threads(settings.engine.threads)
        return
    usual, module = torch.get_num_threads(), getattr(target, "module", None)
    if usual == 1 or module is None or settings.device != "cpu":
        return
    tokens = torch.zeros(1, _TOKENS, dtype=torch.long)

    def run_pass() -> None:
        with torch.inference_mode():
            module(tokens, use_cache=False)

    key = f"{settings.pair.specs[0].path}, {machine('cpu')}"
    torch.set_num_threads(kept(files.threads_file(settings.results), key, usual, run_pass))


def kept(path: Path, key: str, usual: int, run_pass: Callable[[], object]) -> int:
    """The number measured earlier; if there is none, it is measured now, by one process at a time.

    Args:
        path: the file that keeps it.
        key: machine and model.
        usual: torch's number of threads, the most.
        run_pass: a forward pass.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        locks.lock(lock, wait=True)
        known = _read(path)
        if not isinstance(known.get(key), int):
            known = {**known, key: faster(seconds_by_threads(usual, run_pass))}
            log.info("computing on %s of %s threads: faster here", known[key], usual)
            files.write_json(path, known)
        return max(1, min(known[key], usual))


def seconds_by_threads(usual: int, run_pass: Callable[[], object]) -> dict[int, float]:
    """Median seconds of a pass on one thread and on ``usual``, timed in turn.

    Torch's number of threads is as before when this returns.
    """
    counts, taken = (1, usual), {1: list[float](), usual: list[float]()}
    began = perf_counter()
    try:
        for round_ in range(_ROUNDS + 1):
            for count in counts:
                torch.set_num_threads(count)
                start = perf_counter()
                run_pass()
                if round_:  # the first warms up
                    taken[count].append(perf_counter() - start)
            if round_ and perf_counter() - began > _SECONDS:
                break
    finally:
        torch.set_num_threads(usual)
    return {count: median(seconds) for count, seconds in taken.items()}


def faster(seconds: Mapping[int, float]) -> int:
    """The number of threads with the least time; the smaller of equal ones."""
    return min(seconds, key=lambda count: (seconds[count], count))


def _read(path: Path) -> dict[str, int]:
    """What the file keeps; nothing if it is missing or unreadable."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
