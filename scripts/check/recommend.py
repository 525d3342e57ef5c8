"""How good is the recommended decoder, and what does finding it cost?

    python scripts/check/recommend.py             # drawn searches, two minutes: recommend.md
    python scripts/check/recommend.py --measured  # this pair, against a full grid, minutes and more
    python scripts/check/recommend.py --measured --size large  # more prompts, longer answers

Drawn: a candidate has a lognormal speed, and its rate on a prompt leans on the prompt, by a part
that all candidates share and by one of its own. How much each varies is taken from the committed
records: of every table of cells beside plain decoding, logarithms of speed-ups by prompt without
their rows' and columns' means; medians over the tables. A search ends with a decoder; its loss is
what the best candidate would have been faster, and its seconds those of all answers, plain
decoding's included. ``halving`` is what `recommend` did before: all on three prompts, five on
these and seven more, three on thirty fresh ones, which named the fastest.

Measured: for each task, ``recommend`` among all candidates of its recipe; the full grid, every
candidate on as many prompts, repeats=3; then the recommended decoder and the grid's fastest head to
head with plain decoding, repeats=3, on prompts that neither has seen. Printed: the ratio of their
token rates with its 95% interval over prompts and repeats, and what both searches cost in seconds
(of the clock and of this process, models loaded beforehand) and in forward passes of target and
draft. Wanted: a ratio of at least 0.95, or an interval that includes 1; at most a fifth of the
grid's cost. Goes on where it was stopped: jobs keep their cells, and what a search cost is noted in
``costs.json`` as it ends (of one that was stopped, the parts add up).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.app import build_unpinned_settings, run_stages
from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.compose import register_config_plugins
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work.models import load_models, load_pair_tokenizer
from spec_bench.metrics.decoder_choice import choose_decoder
from spec_bench.metrics.intervals import rate_ratio_interval
from spec_bench.recommend.race import CandidateElimination
from spec_bench.recommend.recommend import search_fastest_decoder
from spec_bench.records.types import CellResult
from spec_bench.settings.configs import get_conf_dir
from spec_bench.system import files

ROOT = Path(__file__).resolve().parents[2]
SIZES = {  # prompts of the search, of the confirmation, of the grid, of the last; tokens
    "tiny": (2, 3, 3, 3, 12),
    "small": (5, 8, 10, 12, 32),
    "large": (10, 20, 30, 30, 64),
}
REPEATS = 3
Costs = dict[str, float]


# Drawn searches.

OUT = ROOT / "results/benchmarks/recommend.md"
CANDIDATES = (6, 60)
SEARCHED, BEST, FRESH = 15, 3, 30  # prompts of the search; candidates on fresh ones; these
MOST = 3 * (SEARCHED + FRESH)  # prompts that are drawn
CLOSE = 0.05
Array = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Standard deviations of logarithms."""

    candidates: float = 0.0  # of the candidates' speeds
    noise: float = 0.0  # of a candidate's rate by prompt
    unequal: float = 0.0  # of how much the noise of candidates differs
    lean: float = 0.0  # of what all candidates' rates share, by prompt
    length: float = 0.0  # of answers' lengths


@dataclass(frozen=True)
class Found:
    """How a drawn search ended."""

    loss: float  # the best candidate's speed over that of the named one, less 1
    answers: int  # that were decoded
    seconds: float  # that they took, in answers of plain decoding
    answer: str = ""  # what is said of plain decoding: faster, AR, tie or open


class Drawn:
    """One search's answers: candidates' tokens and seconds by prompt, and plain decoding's."""

    def __init__(self, rng: np.random.Generator, world: World, speeds: Array) -> None:
        shape = len(speeds), MOST
        noise = world.noise * np.exp(world.unequal * rng.normal(size=len(speeds)))[:, None]
        logs = world.lean * rng.normal(size=MOST) + noise * rng.normal(size=shape)
        usual = np.exp((world.lean**2 + noise**2) / 2)  # of the seconds of a token
        self.tokens = np.exp(world.length * rng.normal(size=MOST))
        self.seconds = self.tokens / (speeds[:, None] * usual * np.exp(logs))
        self.speeds = speeds
        self.answers, self.spent_s = 0, 0.0

    def decode(self, cells: list[int], prompts: slice) -> tuple[Array, Array]:
        """Tokens and seconds of some candidates, which plain decoding decodes in turn."""
        tokens = self.tokens[prompts]
        seconds = self.seconds[cells, prompts]
        self.answers += (len(cells) + 1) * len(tokens)
        self.spent_s += float(seconds.sum() + tokens.sum())
        return np.broadcast_to(tokens, seconds.shape), seconds

    def rank(self, cells: list[int], prompts: slice) -> list[int]:
        """Some candidates, the fastest first."""
        tokens, seconds = self.decode(cells, prompts)
        order = np.argsort(-tokens.sum(axis=1) / seconds.sum(axis=1), kind="stable")
        return [cells[place] for place in order]

    def end(self, named: int, judged: list[int], prompts: slice, judge: bool) -> Found:
        """The search's end, by what fresh prompts say of the candidates on them."""
        plain = self.tokens[prompts]
        spent = self.spent_s / float(self.tokens.mean())
        speeds = [
            (
                "",
                rate_ratio_interval(plain, self.seconds[cell, prompts], plain, plain),
                len(plain),
                "",
            )
            for cell in judged
            if judge
        ]
        choice = choose_decoder(speeds)  # type: ignore[arg-type]
        answer = "faster" if choice.faster_places else choice.answer
        return Found(self.speeds.max() / self.speeds[named] - 1, self.answers, spent, answer)


def halve(drawn: Drawn, times: float = 1, judge: bool = False) -> Found:
    """A search as it was: 3 prompts, then 10, then fresh ones alone."""
    cells = [*range(len(drawn.speeds))]
    few, many, fresh = (round(times * count) for count in (3, 10, FRESH))
    if len(cells) > 5:
        cells = drawn.rank(cells, slice(few))[:5]
    cells = drawn.rank(cells, slice(many))[:BEST]
    last = slice(MOST - fresh, MOST)
    cells = drawn.rank(cells, last)
    return drawn.end(cells[0], cells, last, judge)


def race(drawn: Drawn, times: float = 1, judge: bool = False) -> Found:
    """A search as it is."""
    count = len(drawn.speeds)
    answers = round(times * (3 * (count + 1) + 4 * SEARCHED))
    running = CandidateElimination([*range(count)], BEST, answers, round(times * SEARCHED))
    while prompts := running.count_next_round_prompts():
        drawn.decode(
            running.candidates,
            slice(running.used_prompts, running.used_prompts + prompts),
        )
        seen = slice(running.used_prompts + prompts)
        rates = drawn.tokens[seen] / drawn.seconds[running.candidates, seen]
        values = drawn.tokens[seen].sum() / drawn.seconds[running.candidates, seen].sum(axis=1)
        by_prompt = pd.DataFrame(rates, index=running.candidates)
        running.drop_candidates_after_round(
            prompts, pd.Series(values, index=running.candidates), by_prompt
        )
    cells = running.candidates[:BEST]
    last = slice(MOST - round(times * FRESH), MOST)
    drawn.decode(cells, last)
    every = np.r_[: running.used_prompts, last]
    fastest = min(cells, key=lambda cell: float(drawn.seconds[cell, every].sum()))
    return drawn.end(fastest, cells, last, judge)


RULES: dict[str, Callable[..., Found]] = {"halving, before": halve, "race": race}


def read_world(folder: Path = ROOT / "results") -> tuple[World, pd.DataFrame]:
    """What the committed records say, and the same by table of cells."""
    worlds = []
    for table in files.list_results_files(folder):
        rows = pd.read_csv(table, dtype={"run_id": str})
        records = pd.read_parquet(
            files.get_records_file(table), columns=["run_id", "prompt_id", "tokens", "decode_s"]
        )
        sums = records.groupby(["run_id", "prompt_id"]).sum()
        alone = rows[(rows.batch_size == 1) & (rows.status != "failed")]
        for _, group in alone.groupby(["pair", "task", "temperature", "seed"]):
            if world := _world_of(group, sums):
                worlds.append(world)
    frame = pd.DataFrame(worlds)
    return World(**frame.median()), frame


def _world_of(group: pd.DataFrame, sums: pd.DataFrame) -> World | None:
    """The spreads of a table's cells beside plain decoding; None of few cells or prompts."""
    found = {run: sums.loc[run] for run in group.run_id if run in sums.index}
    plain = [found[run] for run in group.run_id[group.decoder == BASELINE] if run in found]
    if not plain or len(plain[0]) < 8:
        return None
    cells = [found[run] for run in group.run_id[group.decoder != BASELINE] if run in found]
    cells = [each.loc[plain[0].index] for each in cells if len(each) == len(plain[0])]
    cells = [each for each in cells if (each > 0).all(axis=None)]
    if len(cells) < 4:
        return None
    speeds = np.log([each.tokens / each.decode_s for each in (plain[0], *cells)])
    logs = speeds[1:] - speeds[0]
    count, prompts = logs.shape
    rest = logs - logs.mean(axis=1, keepdims=True) - logs.mean(axis=0) + logs.mean()
    noise = (rest**2).sum(axis=1) / ((prompts - 1) * (1 - 1 / count))
    of_chance = 1 / (2 * (prompts - 1))  # variance of the logarithm of a standard deviation
    variances = (
        logs.mean(axis=1).var(ddof=1) - noise.mean() / prompts,
        noise.mean(),
        np.log(np.sqrt(noise)).var(ddof=1) - of_chance,
        logs.mean(axis=0).var(ddof=1) - noise.mean() / count,
        np.log(plain[0].tokens).var(ddof=1),
    )
    return World(*(float(np.sqrt(max(each, 0.0))) for each in variances))


def draw_speeds(spread: float, size: int, rng: np.random.Generator) -> Array:
    """Candidates of lognormal speeds."""
    return np.asarray(np.exp(spread * rng.normal(size=size)))


def lift_one(gain: float, size: int, rng: np.random.Generator) -> Array:
    """Candidates as fast as plain decoding, but for the first."""
    return 1 + gain * (np.arange(size) == 0)


def search_often(
    rule: Callable[..., Found],
    world: World,
    speeds: Callable[[np.random.Generator], Array],
    count: int,
    **how: Any,
) -> pd.DataFrame:
    """The ends of so many drawn searches, the same ones for each rule."""
    streams = np.random.default_rng(1).spawn(count)
    return pd.DataFrame([rule(Drawn(rng, world, speeds(rng)), **how) for rng in streams])


def simulate(count: int) -> str:
    """The page of drawn searches."""
    usual, worlds = read_world()
    lines = [
        f"{count:,} drawn searches a line (`python scripts/check/recommend.py`; its docstring says "
        "what is drawn).",
        "",
        f"What varies, from {len(worlds)} tables of committed records (standard deviations of "
        "logarithms):",
        "",
        "| | lower quarter | median | upper quarter |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, value in worlds.quantile([0.25, 0.5, 0.75]).items():
        lines.append(f"| {name} | {' | '.join(f'{each:.2f}' for each in value)} |")
    harder = {
        "as measured": usual,
        "candidates closer": replace(usual, candidates=worlds.candidates.quantile(0.25)),
        "prompts noisier": replace(usual, noise=worlds.noise.quantile(0.9)),
    }
    lines += [
        "",
        "Who is named; time is a share of that of `recommend` today.",
        "",
        "| world | candidates | rule | time | within 5% of the best | mean loss | answers "
        "| seconds |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    tries = [
        ("halving, before", 1),
        ("halving, before", 2),
        ("race", 0.7),
        ("race", 1),
        ("race", 2),
    ]
    for (title, world), size in product(harder.items(), CANDIDATES):
        for name, times in tries:
            speeds = partial(draw_speeds, world.candidates, size)
            found = search_often(RULES[name], world, speeds, count, times=times)
            close = (found.loss <= 1 / (1 - CLOSE) - 1).mean()
            lines.append(
                f"| {title} | {size} | {name} | {times:g} | {close:.2f} | {found.loss.mean():.1%} "
                f"| {found.answers.mean():.0f} | {found.seconds.mean():.0f} |"
            )
    lines += [
        "",
        "What is said of plain decoding, by the fresh prompts.",
        "",
        "| candidates | what is there | rule | surely faster | cannot decide yet | a tie | AR |",
        "| ---: | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for size, (there, gain), name in product(
        CANDIDATES, (("nothing is faster", 0.0), ("one is 10% faster", 0.1)), RULES
    ):
        speeds = partial(lift_one, gain, size)
        said = search_often(RULES[name], usual, speeds, count, judge=True).answer
        shares = [(said == each).mean() for each in ("faster", "cannot decide yet", "a tie", "AR")]
        lines.append(
            f"| {size} | {there} | {name} | {' | '.join(f'{each:.3f}' for each in shares)} |"
        )
    return "\n".join(lines) + "\n"


# Measured ones.


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
    with initialize_config_dir(str(get_conf_dir()), version_base="1.3"):
        return build_unpinned_settings(compose("config", overrides=told))


def best_of(rows: list[CellResult]) -> CellResult:
    """The row of the largest speed-up."""
    known = [row for row in rows if row.status == "complete" and row.facts.decoder != BASELINE]
    return max(known, key=lambda row: float(row.metrics["speedup"] or 0))


def ratio(job: JobSettings, rows: list[CellResult]) -> tuple[float, float | None, float | None]:
    """Token rate of the first row over that of the second, with its interval."""
    sums: list[list[list[float]]] = []
    for row in rows:
        repeats = CellStore(job.results_folder, row.run_id).load_repeats()
        ids = sorted(repeats[0])
        for what in (lambda g: float(len(g.tokens)), lambda g: g.decode_s):
            sums.append([[what(repeats[k][i]) for i in ids] for k in range(job.request.repeats)])
    found = rate_ratio_interval(*sums)
    assert found is not None
    return found.value, found.low, found.high


def check(task: str, asked: argparse.Namespace, tally: Tally) -> tuple[bool, str]:
    """One task: whether it is as wanted, and its line."""
    few, fresh, grid, last, _ = SIZES[asked.size]
    own = settings(task, asked, "name=recommend")
    load_models(own.pair, load_pair_tokenizer(own.pair)[1])  # loaded once, before anything is timed
    searched = remembered(asked, f"{task} recommended", lambda: _search(own, task, tally))
    job = settings(task, asked, "name=grid", f"repeats={REPEATS}")
    full = replace(
        job, examples=tuple(job.task.read_examples(grid)), confirmation_examples=(), stage=""
    )
    with tally.of(f"{task} grid"):
        rows = run_stages(full)
    fastest = best_of(rows)
    names = [searched, _named(fastest)]
    cells = {f"{cell.name}:{cell.config.spec}": cell for cell in job.cells}
    plainly = f"{BASELINE}:-"  # which may be what is recommended
    wanted = [cells[name] for name in dict.fromkeys([plainly, *names]) if name in cells]
    unseen = tuple(job.task.read_examples(last, max(grid, few + fresh)))
    asked = replace(full.request, name="duel")
    duel = replace(full, request=asked, cells=tuple(wanted), examples=unseen)
    by_name = {_named(row): row for row in run_stages(duel)}
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
        return ":".join(search_fastest_decoder(own).cell)


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
    parser.add_argument("--searches", type=int, default=500)
    parser.add_argument("--out", type=Path, default=OUT, help="the page of drawn searches")
    parser.add_argument("--measured", action="store_true", help="on this machine, no drawn ones")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "recommend_check")
    parser.add_argument("overrides", nargs="*", help="such as 'cells=[sd:2,rsd_c:2-1]'")
    asked = parser.parse_args()
    if not asked.measured:
        asked.out.write_text(simulate(asked.searches), encoding="utf-8")
        print(asked.out)
        return
    (asked.folder / asked.size).mkdir(parents=True, exist_ok=True)
    register_config_plugins()
    tally, all_good = Tally(asked.folder / asked.size / "costs.json"), True
    for task in asked.tasks:
        good, line = check(task, asked, tally)
        all_good = all_good and good
        print(line, flush=True)
    sys.exit(not all_good)


if __name__ == "__main__":
    main()
