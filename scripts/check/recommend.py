"""Is the recommended decoder as fast as the full grid's best, and what does finding it cost?

    python scripts/check/recommend.py                  # a small grid, minutes on a quiet machine
    python scripts/check/recommend.py --size large     # more prompts, longer answers

For each task: ``recommend`` among all candidates of its recipe; the full grid, every candidate on
as many prompts, repeats=3; then the recommended decoder and the grid's fastest head to head with
plain decoding, repeats=3, on prompts that neither has seen. Printed: the ratio of their token rates
with its 95% interval over prompts and repeats, and what both searches cost in seconds (of the
clock and of this process, models loaded beforehand) and in forward passes of target and draft.
Wanted: a ratio of at least 0.95, or an interval that includes 1; at most a fifth of the grid's
cost. Goes on where it was stopped: jobs keep their cells, and what a search cost is noted in
``costs.json`` as it ends (of one that was stopped, the parts add up).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.app import run_stage, settings_of
from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.compose import register
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work.models import models_of, tokenizer_of
from spec_bench.metrics.intervals import rate_ratio_interval
from spec_bench.recommend.recommend import recommend
from spec_bench.records.types import CellResult
from spec_bench.settings.configs import conf_dir

ROOT = Path(__file__).resolve().parents[2]
SIZES = {  # prompts of the search, of the confirmation, of the grid, of the last; tokens
    "tiny": (2, 3, 3, 3, 12),
    "small": (5, 8, 10, 12, 32),
    "large": (10, 20, 30, 30, 64),
}
REPEATS = 3
Costs = dict[str, float]


class Tally:
    """Seconds and forward passes, kept in a file; what is done twice adds up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.costs: dict[str, Costs] = json.loads(path.read_text()) if path.exists() else {}
        self.passes = 0
        forward = HuggingFaceModel.forward

        def counted(*args: Any, **more: Any) -> Any:
            self.passes += 1
            return forward(*args, **more)

        HuggingFaceModel.forward = counted  # type: ignore[method-assign]

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Adds what is done meanwhile."""
        before = time.perf_counter(), time.process_time(), self.passes
        try:
            yield
        finally:
            now = time.perf_counter(), time.process_time(), self.passes
            known = self.costs.setdefault(name, {"wall_s": 0.0, "cpu_s": 0.0, "passes": 0})
            for key, start, end in zip(known, before, now, strict=True):
                known[key] += end - start
            self.path.write_text(json.dumps(self.costs, indent=1))


def settings(task: str, asked: argparse.Namespace, *more: str) -> JobSettings:
    """A job in two stages on the candidates of the recipe."""
    few, fresh, _, _, tokens = SIZES[asked.size]
    told = [
        *("experiment=recommend", f"task={task}", "sink=quiet", "engine.threads=1"),
        *(f"prompts={few}", f"confirm.prompts={fresh}", f"generation.max_new_tokens={tokens}"),
        *(f"results={asked.folder / asked.size}", *asked.overrides, *more),
    ]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return settings_of(compose("config", overrides=told))


def best_of(rows: list[CellResult]) -> CellResult:
    """The row of the largest speed-up."""
    known = [row for row in rows if row.status == "complete" and row.facts.decoder != BASELINE]
    return max(known, key=lambda row: float(row.metrics["speedup"] or 0))


def ratio(job: JobSettings, rows: list[CellResult]) -> tuple[float, float | None, float | None]:
    """Token rate of the first row over that of the second, with its interval."""
    sums: list[list[list[float]]] = []
    for row in rows:
        repeats = CellStore(job.results, row.run_id).load_repeats()
        ids = sorted(repeats[0])
        for what in (lambda g: float(len(g.tokens)), lambda g: g.decode_s):
            sums.append([[what(repeats[k][i]) for i in ids] for k in range(job.asked.repeats)])
    found = rate_ratio_interval(*sums)
    assert found is not None
    return found.value, found.low, found.high


def check(task: str, asked: argparse.Namespace, tally: Tally) -> tuple[bool, str]:
    """One task: whether it is as wanted, and its line."""
    few, fresh, grid, last, _ = SIZES[asked.size]
    own = settings(task, asked, "name=recommend")
    models_of(own.pair, tokenizer_of(own.pair)[1])  # loaded once, before anything is timed
    searched = remembered(asked, f"{task} recommended", lambda: _search(own, task, tally))
    job = settings(task, asked, "name=grid", f"repeats={REPEATS}")
    full = replace(job, examples=tuple(job.task.examples(grid)), fresh=(), stage="")
    with tally.of(f"{task} grid"):
        rows = run_stage(full, ())
    fastest = best_of(rows)
    names = [searched, _named(fastest)]
    cells = {f"{cell.name}:{cell.spec}": cell for cell in job.cells}
    plainly = f"{BASELINE}:-"  # which may be what is recommended
    wanted = [cells[name] for name in dict.fromkeys([plainly, *names]) if name in cells]
    unseen = tuple(job.task.examples(last, max(grid, few + fresh)))
    asked = replace(full.asked, name="duel")
    duel = replace(full, asked=asked, cells=tuple(wanted), examples=unseen)
    by_name = {_named(row): row for row in run_stage(duel, ())}
    plain = by_name[plainly]
    sides = [by_name.get(name, plain) for name in names]
    value, low, high = (1.0, 1.0, 1.0) if names[0] == names[1] else ratio(duel, sides)
    costs = tally.costs[f"{task} recommended"], tally.costs[f"{task} grid"]
    share = {key: costs[0][key] / max(costs[1][key], 1e-9) for key in costs[0]}
    good = value >= 0.95 or (low is not None and high is not None and low <= 1 <= high)
    cheap = share["wall_s"] <= 0.2
    ends = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return good and cheap, "\n".join(
        [
            f"{task}: recommended {names[0]}, the grid's best {names[1]}: ratio {value:.2f}{ends}"
            f" {'as wanted' if good else 'TOO SLOW'}",
            *(
                f"  {key}: {costs[0][key]:.1f} of {costs[1][key]:.1f}, a share of {share[key]:.3f}"
                for key in share
            ),
            f"  {len(full.cells) - 1} candidates {'as wanted' if cheap else 'TOO DEAR'}",
        ]
    )


def _search(own: JobSettings, task: str, tally: Tally) -> str:
    with tally.of(f"{task} recommended"):
        return ":".join(recommend(own).cell)


def _named(row: CellResult) -> str:
    return f"{row.facts.decoder}:{row.facts.spec}"


def remembered(asked: argparse.Namespace, key: str, work: Callable[[], str]) -> str:
    """What was found before, or is found now: a search is not paid twice."""
    path = asked.folder / asked.size / "found.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if key not in known:
        known[key] = work()
        path.write_text(json.dumps(known, indent=1))
    return str(known[key])


def main() -> None:
    """Prints a few lines a task; exit status 1 where one is not as wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=["alpaca", "dolly", "xsum"])
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "recommend_check")
    parser.add_argument("overrides", nargs="*", help="such as 'cells=[sd:2,rsd_c:2-1]'")
    asked = parser.parse_args()
    (asked.folder / asked.size).mkdir(parents=True, exist_ok=True)
    register()
    tally, all_good = Tally(asked.folder / asked.size / "costs.json"), True
    for task in asked.tasks:
        good, line = check(task, asked, tally)
        all_good = all_good and good
        print(line, flush=True)
    sys.exit(not all_good)


if __name__ == "__main__":
    main()
