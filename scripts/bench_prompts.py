"""What the harness costs around decoding: a prompt's share of a job, and of reading runs again.

Decoders hand out made-up generations, so all that is timed is ours: prompts, records, metrics,
tables. The cost of a prompt should not grow with how many there are, nor with the number of cells,
and that of a folder not with the number of folders. Each line is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from spec_bench import files
from spec_bench.configs import conf_dir
from spec_bench.records import CellFacts, CellResult, Generation, Request, StepRecord
from spec_bench.run import app, job
from spec_bench.run.store import CellStore

STEPS, TOKENS = 16, 32
JOBS = ((100, 3), (1_000, 3), (10_000, 3), (100, 30), (100, 300))
FOLDERS = (2_000, 20_000)


class MadeUp:
    """A decoder that decodes nothing.

    Args:
        real: what it is in all else.
    """

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def reserve(self, slots: int) -> None:
        """Nothing is cached."""

    def generate(
        self, requests: Sequence[Request], seed: int, progress: Any = None, meter: Any = None
    ) -> list[Generation]:
        """The same answer to everything."""
        steps = (StepRecord(3, 3, 1, 2),) * STEPS
        if progress is not None:
            progress(STEPS * len(requests), TOKENS * len(requests))
        return [
            Generation(
                *(each.prompt_id, (7,) * TOKENS, "length", steps, 0.01, 0.2, 0.05, 0.1),
                log_likelihood=-1.0,
                latency_s=0.2,
            )
            for each in requests
        ]


def run_job(prompts: int, cells: int, folder: Path) -> float:
    """Seconds of a job."""
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"id": f"{n}", "q": f"say {n}"}) + "\n" for n in range(prompts))
    )
    build = job.build_decoder
    job.build_decoder = lambda *given: MadeUp(build(*given))  # type: ignore[assignment, return-value]
    named = [f"sd:{1 + n % 8}" if n < 8 else f"rsd_c:{_tree(n)}" for n in range(cells - 1)]
    given = (
        *("sink=quiet", "warmup=0", "engine.threads=1", "engine.device=cpu", "task=xsum"),
        *("task.source.kind=local", f"task.source.path={rows}", "task.template='{q}'"),
        *("task.reference=null", "task.scores=[]", "generation.max_new_tokens=32"),
        *(f"prompts={prompts}", f"results={folder / 'results'}", f"cells=[{','.join(named)}]"),
    )
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=list(given))
    begun = time.perf_counter()
    results = app.run_config(config)
    assert len(results) == cells and all(each.status == "complete" for each in results), results
    return time.perf_counter() - begun


def _tree(number: int) -> str:
    """The widths of a small tree, another one for each number up to 300."""
    digits = [1 + number // 5**place % 5 for place in range(4)]
    return "-".join(map(str, digits))


def read_folders(count: int, folder: Path) -> float:
    """Seconds to read so many cells' results again."""
    facts = CellFacts("p", "t", ("d",), "bench", "sd", "3")
    for number in range(count):
        store = CellStore(folder, f"{number:012x}")
        store.folder.mkdir(parents=True)
        result = CellResult(store.folder.name, facts, "complete", "exact", (), {"mbsu": 1.5})
        store.finish(result, "job", None)
    begun = time.perf_counter()
    found = [CellStore(folder, path.name).result() for path in (folder / files.RUNS).iterdir()]
    assert all(found) and len(found) == count
    return time.perf_counter() - begun


def main() -> None:
    """One line in a process of its own, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=int, nargs=2, metavar=("PROMPTS", "CELLS"))
    parser.add_argument("--folders", type=int)
    options = parser.parse_args()
    if options.job or options.folders:
        with tempfile.TemporaryDirectory() as place:
            seconds = (
                run_job(*options.job, Path(place))
                if options.job
                else read_folders(options.folders, Path(place))
            )
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{seconds:.2f} {mib:.0f}")
        return
    print("| what | s | ms each | MiB |\n| --- | --- | --- | --- |")
    for prompts, cells in JOBS:
        line(
            f"{prompts} prompts, {cells} cells", prompts * cells, "--job", f"{prompts}", f"{cells}"
        )
    for count in FOLDERS:
        line(f"{count} folders read", count, "--folders", f"{count}")


def line(name: str, count: int, *given: str) -> None:
    """Measures and prints one line of the table."""
    command = [sys.executable, __file__, *given]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    seconds, mib = map(float, said[-2].split())
    print(f"| {name} | {seconds:.1f} | {seconds / count * 1000:.2f} | {mib:.0f} |", flush=True)


if __name__ == "__main__":
    main()
