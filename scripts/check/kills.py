"""Kills what the project does at random moments; does the same command then end as undisturbed?

    make kill-check                                          # all of them; goes on where it was
    python scripts/check/kills.py --only job,joblib --kills 5

Each kind runs once undisturbed. Then it is started again and again in a fresh folder, its group of
processes is killed -9 at a moment drawn with a seed (while it starts, behind a drawn number of
lines on disk, behind the last one), and the same command is run to its end. Held against the
undisturbed one: every row of the CSV but for times, energy, load and clock; of a training all
weights, bit by bit, and its log; of a conversion and of a report all files. Nothing that was on
disk may be lost, nothing half written be left, and nothing may have to be set aside. Of the index
of tables, which is a cache, all, half or nothing is left after a kill. With Slurm
(``scripts/check/slurm.py``) a task is killed, and who waits for it; without Slurm's programs
submitit's own processes take its place. Ray is killed where it is installed.

Every kill is noted in ``kills.jsonl`` as it ends. Exit status: 0 where all are equal.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.check import slurm
from scripts.check.process_groups import tasks, wait_for_quiet
from spec_bench.records.types import ENGINE
from spec_bench.system.files import (
    RESULTS,
    get_results_file,
    get_screening_path,
    hash_json,
    read_csv,
    write_redacted_json,
    write_text,
)
from spec_bench.vocabulary import columns
from tests.engine.test_gguf import written
from tests.warm import Command

ROOT = Path(__file__).resolve().parents[2]

CELLS = ("cells=[sd:3,rsd_s:2x2,mcsd:2-2]", "prompts=4", "warmup=0")
JOB = (*CELLS, "generation.max_new_tokens=12", "sink=quiet", "engine.threads=1", "task=xsum")
SWEEP = ("-m", *JOB, "seed=0,1")
# Two stages; who goes on hangs on no clock.
SEARCH = ("recommend", "cells=[sd:1,sd:2,rsd_s:2x1,rsd_s:2x2]", "prompts=2", *JOB[2:])
SEARCH += ("name=default", "confirm={best: 2, by: block_efficiency, prompts: 2}")
# Of jobs that have their baseline in common.
SHARED = ("-m", "decoder=sd", "spec=2,3,4", *JOB[1:], "hydra/launcher=workers")
RAY = ("hydra/launcher=ray_cluster", "+hydra.launcher.ray.init.num_cpus=2")
TRAINING = (
    *("name=heads", "head=redrafter", "engine.threads=1", "data.kind=prompts"),
    *("data.answers.max_new_tokens=24", "data.validation=0.3", "optimiser.steps=16"),
    *("optimiser.batch=2", "log_every=1", "validate_every=4", "save_every=2"),
    *("sink.progress=false", "out_dtype=float32"),
)
# What ``spec-bench serve`` starts in vLLM's place: a server that answers with fixed tokens.
SERVER = """#!{python}
import runpy, sys
sys.path.insert(0, {root!r})
words = [sys.argv[sys.argv.index(each) + 1] for each in ("--port", "--served-model-name")]
sys.argv = ["server", *words, *["speculates"] * ("--speculative-config" in sys.argv)]
runpy.run_module("tests.jobs.serving_engine", run_name="__main__")
"""
SERVE = ("serve", "vllm", "--with", "ngram", *CELLS[1:], *JOB[3:5], "task=xsum", "server.wait_s=0")
QUESTIONS = ("Translate", "Article: It", "A", "The boat", "Summary:", "In the town")
PHASES = {"while it starts": 0.2, "between lines": 0.55, "behind the last line": 0.25}
PATIENCE_S = 600.0
LATE = 6  # draws until a command is killed before it ends


@dataclass(frozen=True)
class Kind:
    """What is killed."""

    name: str  # in the table
    kills: int  # how many
    module: str  # after `python -m`
    words: tuple[str, ...]  # what follows, but for the folder
    tasks: bool = False  # whether a task of a launcher's is killed and not the command's own group


KINDS = (
    Kind("job", 20, "spec_bench", JOB),
    Kind("sweep", 20, "spec_bench", SWEEP),
    Kind("joblib", 20, "spec_bench", (*SWEEP, "hydra/launcher=workers", "hydra.launcher.n_jobs=2")),
    Kind("shared", 10, "spec_bench", (*SHARED, "hydra.launcher.n_jobs=2")),
    Kind("training", 5, "spec_bench.train", TRAINING),
    Kind("serve", 5, "spec_bench", SERVE),
    Kind("convert", 10, "spec_bench", ("convert",)),
    Kind("recommend", 10, "spec_bench", SEARCH),
    Kind("tables", 10, "spec_bench", ("report",)),
    Kind("slurm", 5, "spec_bench", (*SWEEP, *slurm.SLURM), tasks=True),
    Kind("ray", 10, "spec_bench", (*SWEEP, *RAY)),
)
HERE = (*SWEEP, "hydra/launcher=submitit_local", "hydra.launcher.timeout_min=600")
STAND_IN = Kind("submitit", 5, "spec_bench", HERE, tasks=True)


def start(kind: Kind, folder: Path) -> Command:
    """The kind's command in a folder of its own, leading a group of processes."""
    folder.mkdir(parents=True, exist_ok=True)
    words, results = [*kind.words], f"results={folder / 'results'}"
    if kind.name == "convert":
        written(folder / "tiny.gguf")
        kept = {"SPEC_BENCH_CACHE": str(folder / "cache")}
        return Command(kind.module, [*words, str(folder / "tiny.gguf")], folder, kept, group=True)
    if kind.name == "tables":  # of finished cells: the CSV, the records, a table and a figure
        if not (folder / "made").exists():
            shutil.copytree(measured(folder.parent), folder / "made")
        words.append(str(folder / "made/default" / RESULTS))
        return Command(kind.module, words, folder, group=True)
    words.append(results)
    if kind.name == "serve":
        program = folder.parent / "server.py"  # its path is part of run ids
        write_text(program, SERVER.format(python=sys.executable, root=str(ROOT)))
        program.chmod(0o755)
        words += ["--program", str(program)]
    if kind.module.endswith("train"):
        path = folder / "prompts.jsonl"
        write_text(path, "".join(json.dumps({"prompt": each}) + "\n" for each in QUESTIONS))
        words.append(f"data.path={path}")
    return Command(kind.module, words, folder, group=True)


def measured(folder: Path) -> Path:
    """Finished cells without their tables, which are measured there once."""
    made = folder / "made"
    if not (made / "done").exists():
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        finish(Command("spec_bench", [*JOB, f"results={made}"], made, group=True))
        shutil.rmtree(made / "default")
        (made / "done").touch()
    return made


def finish(command: Command) -> None:
    """Waits for its end. Raises RuntimeError: it failed."""
    status, _, said = command.finish(PATIENCE_S)
    if status:
        raise RuntimeError(f"status {status}: {said[-2000:]}")


def lines(folder: Path) -> dict[Path, bytes]:
    """The whole lines of everything that is written line by line."""
    results = folder / "results"
    found = [*results.glob("runs/*/*.jsonl"), *results.glob("cache/*.jsonl")]
    found += results.glob("*/log.csv")
    data = {path: path.read_bytes() for path in found}
    return {path: text[: text.rfind(b"\n") + 1] for path, text in data.items()}


def count(folder: Path) -> int:
    """How many lines are on disk."""
    return sum(text.count(b"\n") for text in lines(folder).values())


def outcome(kind: Kind, folder: Path) -> Any:
    """What must be equal."""
    if kind.name == "convert":
        files = [each for each in (folder / "cache/models").glob("[!.]*/*") if each.is_file()]
        return {each.name: each.read_bytes() for each in files}
    if kind.name == "tables":
        return {each.name: each.read_bytes() for each in (folder / "made/default").iterdir()}
    if kind.module.endswith("train"):
        heads = folder / "results/heads/heads"
        log = read_csv(folder / "results/heads/log.csv")
        timed = ("seconds", "tokens_per_s")
        rows = [{name: row[name] for name in row if name not in timed} for row in log]
        names = ("model.safetensors", "config.json", "accuracies.json")
        return {"log": rows, **{name: (heads / name).read_bytes() for name in names}}
    screened = read_csv(get_screening_path(get_results_file(folder / "results", "default")))
    found = [*slurm.rows(folder / "results"), *map(slurm.timeless, screened)]
    return {row["run_id"]: row for row in found}


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Where two outcomes differ; "" where they do not."""
    names = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    first = [(found.get(name), expected.get(name)) for name in names[:1]]
    cells = [
        f"{key} {ours.get(key)!r} for {theirs.get(key)!r}"
        for ours, theirs in first
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping)
        for key in theirs
        if ours.get(key) != theirs.get(key)
    ]
    return "; ".join([*names, *cells[:4]])


def undisturbed(kind: Kind, folder: Path) -> dict[str, float]:
    """Runs it once, unless that was done: how many lines it writes, and when."""
    note = folder / "timeline.json"
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)
        command, began, seen = start(kind, folder), time.monotonic(), 0
        first = last = began
        while command.poll() is None:
            if (now := count(folder)) > seen:
                last, first, seen = time.monotonic(), first if seen else time.monotonic(), now
            time.sleep(0.01)
        finish(command)
        end = time.monotonic()
        values = {"start_s": first - began, "lines_s": last - first, "end_s": end - last}
        write_redacted_json(note, {"lines": count(folder), **values})
    return json.loads(note.read_text())


def moment(draws: random.Random, usual: Mapping[str, float]) -> tuple[str, int, float]:
    """A phase, the lines to wait for, and seconds to wait behind them."""
    phase = draws.choices([*PHASES], [*PHASES.values()])[0]
    if not (total := int(usual["lines"])):  # conversions and tables write none: at any moment
        return "while it starts", 0, draws.uniform(0, usual["end_s"])
    if phase == "while it starts":
        return phase, 0, draws.uniform(0, usual["start_s"])
    if phase == "between lines":
        return phase, draws.randint(1, total - 1), draws.uniform(0, usual["lines_s"] / total)
    return phase, total, draws.uniform(0, usual["end_s"])


def kill(kind: Kind, folder: Path, after: int, delay_s: float, draws: random.Random) -> bool:
    """Starts the command and kills it then; whether it was still at work."""
    command, began = start(kind, folder), time.monotonic()
    try:
        while command.poll() is None and count(folder) < after:
            assert time.monotonic() < began + PATIENCE_S, "it never came so far"
            time.sleep(0.002)
        while kind.tasks and command.poll() is None and not tasks(folder):
            time.sleep(0.01)
        time.sleep(delay_s)
        if command.poll() is not None:
            return False
        for process in draws.sample(found, 1) if (found := tasks(folder)) else ():
            with suppress(ProcessLookupError):
                os.killpg(os.getpgid(process), signal.SIGKILL)
    finally:
        command.kill()
    wait_for_quiet(command.pid, folder)
    return True


def key(kind: Kind, seed: int) -> str:
    """What kills are of: of another command or another table they are no answer."""
    return hash_json([seed, kind.words, list(columns.define_all_column_names()), ENGINE])


def once(kind: Kind, number: int, top: Path, seed: int) -> dict[str, Any]:
    """One kill and what came of it, as it is noted."""
    whole, folder = top / kind.name / f"whole-{key(kind, seed)}", top / kind.name / f"{number}"
    usual, draws = undisturbed(kind, whole), random.Random(f"{seed} {kind.name} {number}")
    for _ in range(LATE):
        shutil.rmtree(folder, ignore_errors=True)
        phase, after, delay_s = moment(draws, usual)
        if kill(kind, folder, after, delay_s, draws):
            break
    else:
        raise RuntimeError(f"{kind.name}: it always ended before it could be killed")
    before = lines(folder)
    for index in folder.glob("results/runs/jobs/*/index.jsonl"):
        data = index.read_bytes()
        index.write_bytes(data[: draws.choice([0, len(data) // 2, len(data)])])
    had = {
        "lines": sum(text.count(b"\n") for text in before.values()),
        "results": sum('"result"' in each.read_text() for each in folder.rglob("cell.json")),
        "csv": (folder / "results/default/results.csv").exists(),
    }
    wrong = ended_unlike(kind, folder, whole, before)
    if not wrong:
        shutil.rmtree(folder)
    said = {"phase": phase, "delay_s": round(delay_s, 3), **had, "wrong": wrong}
    return {"kind": kind.name, "number": number, "digest": key(kind, seed), **said}


def ended_unlike(kind: Kind, folder: Path, whole: Path, before: Mapping[Path, bytes]) -> str:
    """Runs the command to its end: what is then other than undisturbed, or lost; "" for nothing."""
    try:
        finish(start(kind, folder))
        wrong = differences(outcome(kind, folder), outcome(kind, whole))
    except (RuntimeError, TimeoutError, OSError) as error:
        return f"it did not end well: {error}"
    now = lines(folder)
    if not kind.module.endswith("train"):  # whose log goes back to the checkpoint
        # The last line's prompt is decoded again where no baseline was timed beside it.
        kept = {p: b"".join(text.splitlines(keepends=True)[:-1]) for p, text in before.items()}
        wrong += "".join(f"; lost lines of {p}" for p in kept if not now[p].startswith(kept[p]))
    left = [path for ending in ("bad-*", "tmp") for path in folder.rglob(f"*.{ending}")]
    return wrong + "".join(f"; set aside or left behind: {path}" for path in left)


def table(kinds: Sequence[Kind], notes: Sequence[Mapping[str, Any]]) -> str:
    """One line a kind."""
    heads = ["what", "kills", "equal", *PHASES, "lines on disk"]
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)]]
    for kind in kinds:
        own = [note for note in notes if note["kind"] == kind.name]
        counts = [sum(note["phase"] == phase for note in own) for phase in PHASES]
        spread = [note["lines"] for note in own] or [0]
        equal = sum(not note["wrong"] for note in own)
        cells = [kind.name, f"{len(own)} of {kind.kills}", equal, *counts]
        rows.append([*map(str, cells), f"{min(spread)} to {max(spread)}"])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="kinds, such as job,slurm")
    parser.add_argument("--kills", type=int, help="of each kind at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("outputs/kill_check"))
    parser.add_argument("--out", type=Path, help="a file for the table")
    options = parser.parse_args()
    there = all(map(slurm.find, slurm.PROGRAMS))
    kinds = [each if there or each.name != "slurm" else STAND_IN for each in KINDS]
    kinds = [each for each in kinds if each.name in (options.only or each.name).split(",")]
    kinds = [each for each in kinds if each.name != "ray" or find_spec("ray")]
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "kills.jsonl"
    written = path.read_text().splitlines() if path.exists() else []
    known = {
        (note["kind"], note["number"], note["digest"]): note for note in map(json.loads, written)
    }
    notes = []
    for kind in kinds:
        place: Callable[[], Any] = slurm.anywhere if kind.name == "slurm" else nullcontext
        wanted = range(min(kind.kills, options.kills or kind.kills))
        keys = [(kind.name, number, key(kind, options.seed)) for number in wanted]
        with place() if any(each not in known for each in keys) else nullcontext():
            for each in keys:
                if each not in known:
                    known[each] = once(kind, each[1], folder, options.seed)
                    with path.open("a") as stream:
                        stream.write(json.dumps(known[each]) + "\n")
                notes.append(known[each])
                print(json.dumps(known[each]), flush=True)
    text = table(kinds, notes)
    print(text)
    if options.out:
        write_text(options.out, f"# Killed at random moments, and run again\n\n{text}")
    return int(any(note["wrong"] for note in notes))


if __name__ == "__main__":
    sys.exit(main())
