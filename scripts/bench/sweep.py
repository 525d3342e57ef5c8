"""What a sweep costs beyond its decoding: ``make bench-sweep``.

Runs one job of a paper's table (``rsd=exp2``: 41 cells) on the embedded pair through the command
line, in a fresh folder, and holds the wall seconds of the process, from its start to its exit,
against the seconds of decoding that its cells state. A second run of the same job says where the
rest goes: the functions that divide it are timed from outside, so nothing of it stands in the
package. Prefill is a row of its own: it is part of generating, yet no part of ``decode_s``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.system import files

ROOT = Path(__file__).resolve().parents[2]
DECODING, PREFILL, AROUND, OTHER = "decoding", "prefill", "generating, besides", "other"
START, EXIT = "start-up and imports", "exit of the process"
LOADING, BUILDING, WARM_UP = "loading models", "building decoders", "warm-up"
SETTINGS, METRICS, INTERVALS = "settings and prompts", "metrics", "bootstrap intervals"
FILES = "reading and writing files"
PARTS = (
    *(DECODING, PREFILL, AROUND, WARM_UP, START, SETTINGS, LOADING, BUILDING),
    *(METRICS, INTERVALS, FILES, OTHER, EXIT),
)
# What is timed, each without what it calls of the others.
TIMED = {
    "spec_bench.jobs.config.settings:build_settings": SETTINGS,
    "spec_bench.jobs.work.prompts:JobPrompts.from_settings": SETTINGS,
    "spec_bench.jobs.work.models:load_pair_tokenizer": LOADING,
    "spec_bench.jobs.work.models:load_models": LOADING,
    "spec_bench.jobs.job.job:ModelBackend.build_and_warm_up_decoders": BUILDING,
    "spec_bench.jobs.job.job:_warm_up": WARM_UP,
    "spec_bench.decode.loop:DecodingLoop.generate": AROUND,
    "spec_bench.jobs.job.results:write_results": METRICS,
    "spec_bench.metrics.resampling:bootstrap_interval": INTERVALS,
    "spec_bench.jobs.store.store:CellStore.write_settings": FILES,
    "spec_bench.jobs.store.store:CellStore.append_generations": FILES,
    "spec_bench.jobs.store.store:CellStore.load_first_repeat": FILES,
    "spec_bench.jobs.store.store:CellStore.load_result": FILES,
    "spec_bench.jobs.store.store:CellStore.write_result": FILES,
    "spec_bench.jobs.store.experiment:Experiment.rebuild_tables": FILES,
}


class Clocks:
    """Seconds by part; a part's time does not count for the one that called it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[str] = [OTHER]
        self._since_s = time.perf_counter()

    def turn(self) -> None:
        """Books the time since the last reading on the part that was open."""
        now_s = time.perf_counter()
        self.seconds[self._open[-1]] += now_s - self._since_s
        self._since_s = now_s

    def wrap(self, inner: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, its time booked on ``part``."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.turn()
            self._open.append(part)
            try:
                return inner(*args, **kwargs)
            finally:
                self.turn()
                self._open.pop()

        return timed

    def install(self, place: str, part: str) -> None:
        """Times ``module:function`` or ``module:Class.method`` wherever it was imported to."""
        name, _, path = place.partition(":")
        owner: Any = import_module(name)
        *classes, attribute = path.split(".")
        for each in classes:
            owner = getattr(owner, each)
        inner = getattr(owner, attribute)
        timed: Any = self.wrap(inner, part)
        if classes:
            bound = hasattr(inner, "__self__")  # a class method
            setattr(owner, attribute, staticmethod(timed) if bound else timed)
            return
        for module in list(sys.modules.values()):
            ours = getattr(module, "__name__", "").startswith("spec_bench")
            if ours and vars(module).get(attribute) is inner:
                setattr(module, attribute, timed)


def clocked(started_s: float, report: Path, overrides: Sequence[str]) -> None:
    """The command line with its parts timed; ``started_s``: when the process was asked for."""
    function, options = import_module("spec_bench.__main__").load_command("run", overrides)
    clocks = Clocks()
    for place, part in TIMED.items():
        clocks.install(place, part)
    clocks.seconds[START] = time.time() - started_s
    try:
        sys.exit(function(options))
    finally:
        clocks.turn()
        found = {"seconds": dict(clocks.seconds), "ended_s": time.time()}
        report.write_text(json.dumps(found), encoding="utf-8")


def run(command: Sequence[str], folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Runs a job; its wall seconds and the time it was started.

    Raises:
        CalledProcessError: the job failed.
    """
    settings = [
        *(options.recipe, f"task={options.task}", f"prompts={options.prompts}"),
        *(f"engine.threads={options.threads}", f"results={folder}", "sink=quiet"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    started_s, start_s = time.time(), time.perf_counter()
    given = [part.replace("STARTED", repr(started_s)) for part in command]
    subprocess.run([sys.executable, *given, *settings], cwd=ROOT, env=environment, check=True)
    return time.perf_counter() - start_s, started_s


def stated(folder: Path) -> dict[str, float]:
    """Cells of the job's CSV, their decoding and their prefill, in seconds.

    Raises:
        ValueError: a cell is not complete.
    """
    (file,) = files.list_results_files(folder)
    rows = files.read_csv(file)
    if unfinished := [row["reason"] for row in rows if row["status"] != "complete"]:
        raise ValueError(f"{len(unfinished)} cells are not complete: {unfinished[0]}")
    sums = {part: sum(float(row[part]) for row in rows) for part in ("decode_s", "prefill_s")}
    return {"cells": len(rows), **sums}


def measure(options: argparse.Namespace) -> None:
    """The job as a user runs it, and its wall time over its decoding."""
    profile = ["-m", "cProfile", "-o", options.profile] if options.profile else []
    with tempfile.TemporaryDirectory() as folder:
        wall_s, _ = run([*profile, "-m", "spec_bench"], Path(folder), options)
        found = stated(Path(folder))
    decode_s, prefill_s = found["decode_s"], found["prefill_s"]
    print(f"{options.recipe} {options.task}: {found['cells']} cells of {options.prompts} prompts")
    print(f"wall {wall_s:.1f} s, decoding {decode_s:.1f} s, prefill {prefill_s:.1f} s")
    print(f"wall / decoding: {wall_s / decode_s:.3f}")
    print(f"wall / (prefill + decoding): {wall_s / (prefill_s + decode_s):.3f}", flush=True)


def divide(options: argparse.Namespace) -> None:
    """The same job with its parts timed, as a table."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "clocks.json"
        command = [str(Path(__file__).resolve()), "--clocked", "STARTED", str(report)]
        wall_s, started_s = run(command, Path(folder) / "results", options)
        found = stated(Path(folder) / "results")
        noted = json.loads(report.read_text(encoding="utf-8"))
    seconds = defaultdict(float, noted["seconds"])
    seconds[DECODING], seconds[PREFILL] = found["decode_s"], found["prefill_s"]
    seconds[AROUND] -= found["decode_s"] + found["prefill_s"]
    seconds[EXIT] = wall_s - (noted["ended_s"] - started_s)
    print(f"\ntimed from outside, wall / decoding {wall_s / found['decode_s']:.3f}:\n")
    print("| part | s | share of decoding |\n| --- | ---: | ---: |")
    for part in PARTS:
        print(f"| {part} | {seconds[part]:.2f} | {seconds[part] / found['decode_s']:.1%} |")
    print(f"| wall | {wall_s:.2f} | {wall_s / found['decode_s']:.1%} |")


def main() -> None:
    """Runs the job twice: as it is, and divided into parts."""
    if sys.argv[1:2] == ["--clocked"]:
        clocked(float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="rsd=exp2", help="one of experiments/: one table a job")
    parser.add_argument("--task", default="xsum")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", help="write a cProfile of the run there; it takes longer")
    options = parser.parse_args()
    measure(options)
    if not options.profile:
        divide(options)


if __name__ == "__main__":
    main()
