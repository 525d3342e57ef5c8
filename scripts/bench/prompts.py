"""What the harness costs around decoding: jobs, reports of them, and reading runs again, by size.

Decoders hand out made-up generations, so all that is timed is ours: prompts, records, metrics,
tables. The cost of a prompt should not grow with how many there are, nor with the number of cells,
and that of a folder not with the number of folders. Each line is a process of its own; its seconds
are the processor's, without imports of the job. A slope is the power of the size that they grow
with, from the line before to this one: 1 is linear.
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
from contextlib import redirect_stdout
from dataclasses import dataclass
from math import log
from pathlib import Path
from textwrap import wrap
from typing import Any

from hydra import compose, initialize_config_dir

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.decode.config import DecoderConfig
from spec_bench.jobs import app
from spec_bench.jobs.store.store import CellStore
from spec_bench.records.types import CellFacts, CellResult, Generation, Request, StepRecord
from spec_bench.settings.configs import get_conf_dir
from spec_bench.system import files

STEPS, TOKENS = 16, 32
JOBS = (((100, 3), (1_000, 3), (10_000, 3)), ((100, 30), (100, 300)))
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
    build = DecoderConfig.build
    DecoderConfig.build = lambda *given: MadeUp(build(*given))  # type: ignore[assignment, return-value]
    named = [f"sd:{1 + n % 8}" if n < 8 else f"rsd_c:{_tree(n)}" for n in range(cells - 1)]
    given = (
        *("sink=quiet", "warmup=0", "engine.threads=1", "engine.device=cpu", "task=xsum"),
        *("task.source.kind=local", f"task.source.path={rows}", "task.template='{q}'"),
        *("task.reference=null", "task.scores=[]", "generation.max_new_tokens=32"),
        *(f"prompts={prompts}", f"results={folder / 'results'}", f"cells=[{','.join(named)}]"),
    )
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        config = compose("config", overrides=list(given))
    begun = time.process_time()
    results = app.run_config(config)
    assert len(results) == cells and all(each.status == "complete" for each in results), results
    return time.process_time() - begun


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
        store.write_result(result, "job")
    begun = time.process_time()
    found = [CellStore(folder, path.name).load_result() for path in (folder / files.RUNS).iterdir()]
    assert all(found) and len(found) == count
    return time.process_time() - begun


def report(folder: Path) -> float:
    """Seconds of the table, figure, checks and page of what ``run_job`` left."""
    from spec_bench.__main__ import run_command

    table = str(files.get_results_file(folder / "results", "default"))
    begun = time.process_time()
    with redirect_stdout(sys.stderr):
        assert run_command("report results", [table]) == run_command("page", [table]) == 0
    return time.process_time() - begun


def measured(options: argparse.Namespace) -> list[float]:
    """One line's seconds, of the work and of a report where there is one, and MiB."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if options.job:
            took = [run_job(*options.job, folder), report(folder)]
        else:
            took = [read_folders(options.folders, folder)]
    return [*took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


def lines() -> list[str]:
    """The table, line by line as it comes."""
    shown: list[str] = []
    heads = ["what", "s", "ms each", "slope", "report, s", "slope", "MiB"]
    show(shown, heads, ["---", *["---:"] * 6])
    for group in JOBS:
        before: Line | None = None
        for prompts, cells in group:
            now = Line(prompts * cells, *asked("--job", f"{prompts}", f"{cells}"))
            show(shown, now.row(f"{prompts:,} prompts, {cells} cells", before))
            before = now
    before = None
    for count in FOLDERS:
        seconds, mib = asked("--folders", f"{count}")
        now = Line(count, seconds, None, mib)
        show(shown, now.row(f"{count:,} folders read", before))
        before = now
    return shown


@dataclass(frozen=True)
class Line:
    """What one size took."""

    size: int  # cells' prompts, or folders
    work_s: float  # for all of them
    report_s: float | None  # of a report on them; None where there is none
    mib: float  # the most memory

    def row(self, name: str, before: Line | None) -> list[str]:
        """The line's cells, slopes against the line before it."""
        each_ms = f"{self.work_s / self.size * 1000:.2f}"
        work = [f"{self.work_s:.1f}", each_ms, self._slope(before, "work_s")]
        reported = ["", ""]
        if self.report_s is not None:
            reported = [f"{self.report_s:.1f}", self._slope(before, "report_s")]
        return [name, *work, *reported, f"{self.mib:.0f}"]

    def _slope(self, before: Line | None, what: str) -> str:
        if before is None:
            return ""
        grown = getattr(self, what) / getattr(before, what)
        return f"{log(grown) / log(self.size / before.size):.2f}"


def show(shown: list[str], *rows: Sequence[str]) -> None:
    """Prints rows of the table and keeps them."""
    for row in rows:
        shown.append(f"| {' | '.join(row)} |")
        print(shown[-1], flush=True)


def asked(*given: str) -> list[float]:
    """The same command for one line, in a process of its own."""
    command = [sys.executable, __file__, *given]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [float(each) for each in said.splitlines()[-1].split()]


def main() -> None:
    """One line in a process of its own, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=int, nargs=2, metavar=("PROMPTS", "CELLS"))
    parser.add_argument("--folders", type=int)
    parser.add_argument("--out", type=Path, help="a file for the table")
    options = parser.parse_args()
    if options.job or options.folders:
        print(*measured(options))
        return
    table = lines()
    if options.out:
        what = " ".join(str(__doc__).split("\n\n")[1].split())
        text = "\n".join(["# Load", "", *wrap(what, 100), "", *table, ""])
        files.write_text(options.out, text)


if __name__ == "__main__":
    main()
