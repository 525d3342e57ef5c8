"""Breaks a rule, a formula or a loop on purpose, one at a time, and sees whether a test notices.

    make mutants              # a random sample of tests/mutants.yaml, ten minutes
    make mutants MINUTES=60   # all of it, where that is long enough
    python scripts/check/mutants.py --only walk,metrics   # those whose name contains one of these
    python scripts/check/mutants.py --minutes 10 --seed 7   # the sample that was drawn by this seed

A mutant is an old text, which must stand in its file exactly once, a new text, and the tests that
should notice, without the slow ones. It is killed where one of them fails, and survives where all
pass; tests that cannot run (a missing file) count as neither. What killed runs once more without a
mutant at the end, and must pass: a test that fails anyway notices nothing. Mutants that change
nothing that can be observed say why (``equivalent``) and are not run.

With ``--minutes`` the order is random, by a seed that is printed, and no mutant starts once nine
tenths of them are over: the rest is for the tests without a mutant.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.system.files import RUNS

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "tests/mutants.yaml"
CODE = ("spec_bench", "tests", "scripts", "conf", "experiments", "pyproject.toml")
COPIED = (*CODE, "docs", "results", "README.md")
RAW = (RUNS, "family", "*.pdf")  # below results; no test reads them
PASSED, FAILED = 0, 1  # pytest's exit statuses; all others mean that the tests did not run
LIMIT_S = 300


@dataclass(frozen=True)
class Mutant:
    """One deliberate error."""

    name: str  # what is broken
    file: str  # below the repository's root
    old: str  # stands in the file exactly once
    new: str  # takes its place
    tests: tuple[str, ...]  # what should notice: files, or files with `::name`
    equivalent: str = ""  # why nothing can be observed; "" where something can


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant  # which
    state: str  # `killed`, `survived`, `equivalent`, `not run`, or `left` for want of time
    seconds: float  # of its tests
    note: str  # the first failing test, or why the tests did not run


def read_mutants(path: Path = MUTANTS) -> list[Mutant]:
    """The mutants of a file.

    Raises:
        ValueError: an old text that does not stand in its file exactly once, a name that occurs
            twice, or tests that are not there; names all of them.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    wrong = []
    names = [mutant.name for mutant in mutants]
    for mutant in mutants:
        file = ROOT / mutant.file
        count = file.read_text(encoding="utf-8").count(mutant.old) if file.is_file() else 0
        if count != 1:
            wrong.append(f"{mutant.name}: its old text stands {count} times in {mutant.file}")
        if mutant.old == mutant.new or names.count(mutant.name) > 1:
            wrong.append(f"{mutant.name}: changes nothing, or its name occurs twice")
        wrong += [
            f"{mutant.name}: no file {test.split('::')[0]}"
            for test in mutant.tests
            if not (ROOT / test.split("::")[0]).exists()
        ]
    if wrong:
        raise ValueError("\n".join(wrong))
    return mutants


def run(mutant: Mutant, tree: Path, limit_s: float = LIMIT_S) -> Outcome:
    """Applies a mutant to a copy of the tree, runs its tests, and puts the copy back."""
    if mutant.equivalent:
        return Outcome(mutant, "equivalent", 0.0, mutant.equivalent)
    file = tree / mutant.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    started = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not gpu", *mutant.tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a mutant of the same second must not be reused
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=limit_s
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        status, output = FAILED, f"FAILED {mutant.tests[0]} - not within {limit_s} s"
    finally:
        file.write_text(text, encoding="utf-8")
    seconds = time.perf_counter() - started
    marks = ("FAILED tests/", "ERROR tests/")  # a log that is shown has lines of ERROR, too
    failed = [line for line in output.splitlines() if line.startswith(marks)]
    first = failed[0].split(" - ")[0] if failed else ""
    # A mutant may break an import that a test makes: that is noticed, too.
    if status == FAILED or (status == 2 and first.startswith("ERROR")):
        return Outcome(mutant, "killed", seconds, first)
    if status == PASSED:
        return Outcome(mutant, "survived", seconds, "")
    return Outcome(mutant, "not run", seconds, (output.splitlines() or [f"status {status}"])[-1])


def copy_of_tree(folder: Path) -> Path:
    """What tests need, in a folder of its own; raw runs and caches stay behind."""
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", *(RAW if name == "results" else ()))
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    return folder


def run_all(mutants: Sequence[Mutant], workers: int, minutes: float = inf) -> list[Outcome]:
    """Runs mutants, some at a time, each worker with a copy of the tree of its own; those that the
    minutes do not suffice for are left.
    """
    until = time.monotonic() + 0.9 * 60 * minutes
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(workers) as pool:
        free = [copy_of_tree(Path(scratch) / str(worker)) for worker in range(workers)]

        def one(mutant: Mutant) -> Outcome:
            if time.monotonic() >= until:
                return Outcome(mutant, "left", 0.0, "")
            tree = free.pop()
            outcome = run(mutant, tree)
            free.append(tree)
            said = f"{outcome.state:10s} {outcome.seconds:5.0f} s  {mutant.name}  {outcome.note}"
            print(said, flush=True)
            return outcome

        outcomes = list(pool.map(one, mutants))
        tests = {each.note.partition(" ")[2] for each in outcomes if each.state == "killed"}
        nothing = Mutant("no mutant", "pyproject.toml", "", "", tuple(sorted(tests)))
        if tests and (left := run(nothing, free[0], 10 * LIMIT_S)).state != "survived":
            print(f"fails without a mutant, too: {left.note}")
            outcomes.append(replace(left, state="not run"))
        return outcomes


def main() -> int:
    """Exit status 1 where a mutant survives or its tests do not run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--minutes", type=float, default=inf, help="of a random sample")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the sample")
    parts = (wanted := parser.parse_args()).only.split(",")
    try:
        mutants = [m for m in read_mutants() if any(part in m.name for part in parts)]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if wanted.list:
        print("\n".join(f"{mutant.file}: {mutant.name}" for mutant in mutants))
        return 0
    if wanted.minutes < inf:
        print(f"a sample of {wanted.minutes:g} minutes, by --seed {wanted.seed}", flush=True)
        random.Random(wanted.seed).shuffle(mutants)
    outcomes = run_all(mutants, wanted.workers, wanted.minutes)
    states = [outcome.state for outcome in outcomes]
    for state in ("killed", "equivalent", "survived", "not run", "left"):
        print(f"{state}: {states.count(state)}")
    return 1 if {"survived", "not run"} & set(states) else 0


if __name__ == "__main__":
    raise SystemExit(main())
