"""Files of strangers: is each refused in one line, or without effect outside of its folder?

    python scripts/check/received.py [--only answers,folders,configs] [--sample 10] [--out FILE.md]

Answer files with impossible numbers, deep or huge or packed to bombs; results folders with links,
pipes, paths for names, values of other types and texts that steer a terminal; configs that call
programs, move files or grow. A folder or config begins as a good one, checksums included, so that
what is tried is what the checksums protect. Each is given to the command that reads it, in a
process of its own, next to files that nobody may touch. It fails where a traceback, an escape
character or a link comes out, where anything outside changes, where a command takes more than
``MOST_MIB`` or does not end. Exit status 0: none fails.
"""

import argparse
import bz2
import gzip
import json
import lzma
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.records import cell_folder, checksums
from spec_bench.system.files import (
    GENERATIONS,
    RESULTS,
    RUNS,
    list_results_files,
    read_csv,
    write_csv,
    write_redacted_json,
    write_text,
)

ROOT = Path(__file__).resolve().parents[2]
MOST_MIB = 2500
PATIENCE_S = 120
STEERING = "\x1b]0;owned\x07\x1b[2J"
LINK = "[prize](http://thief.example/?q=1)"
SMALL = ("prompts=2", "warmup=0", "cells=[sd:2]", "generation.max_new_tokens=8", "sink=quiet")

Make = Callable[[Path, Path], Sequence[str]]
"""Makes a case in a folder, with a file outside that is the user's; the command's words."""


@dataclass(frozen=True)
class Case:
    """Something that a stranger sends."""

    kind: str  # answers, folders or configs
    name: str
    make: Make


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    case: Case
    status: int | None  # None: it was killed
    line: str  # the last one that it printed
    mib: int
    seconds: float
    wrong: str  # "" where nothing is


# Answer files.

CHOICE: dict[str, Any] = {"turns": ["a"], "new_tokens": [3], "wall_time": [1.0]}
CHOICE |= {"accept_lengths": [3]}
HUGE = 10**9


def answer(choice: Any = CHOICE, **more: Any) -> dict[str, Any]:
    return {"question_id": 1, "model_id": "m", "category": "qa", "choices": [choice]} | more


def choices_of() -> Iterator[dict[str, Any]]:
    """The first choice with one thing wrong."""
    nan, inf = float("nan"), float("inf")
    for name in ("wall_time", "decode_time", "prefill_time"):
        times = {"prefill_time": [0.0], "decode_time": [1.0]}
        for value in (-1, 1e-300, nan, inf, -inf, 1e300, HUGE * 10, True, None, "soon", [1.0], {}):
            if name == "wall_time" or value not in (1e-300, [1.0], {}) or name == "decode_time":
                yield CHOICE | times | {name: [value]}
    for value in (-1, HUGE, 10**400, True, 3.5, "3", None, [3]):
        yield CHOICE | {"new_tokens": [value]}
    for value in (0, -3, HUGE, True, 2.5):
        yield CHOICE | {"accept_lengths": [value]}
    yield CHOICE | {"accept_lengths": None, "idxs": [HUGE]}
    yield CHOICE | {"accept_lengths": None, "idxs": [-5]}
    yield CHOICE | {"new_tokens": [], "wall_time": []}
    yield CHOICE | {"new_tokens": [1] * 5000, "wall_time": [1.0] * 5000}
    yield CHOICE | {"turns": 5}


def write_large(opened: Callable[..., Any], letter: bytes, path: Path, good: str) -> None:
    """Writes a file of 900 MB in pieces: a child's peak memory begins with its parent's."""
    with opened(path, "wb") as stream:
        stream.write(f'{good}\n{{"a": "'.encode() if letter == b"x" else b"")
        for _ in range(900 if letter != b"x" else 200):
            stream.write(letter * 1_000_000)


def answer_texts() -> Iterator[tuple[str, str | bytes | Callable[[Path, str], None]]]:
    """Whole files, or what writes them, by the ending that they have."""
    for choice in choices_of():
        yield "jsonl", json.dumps(answer(choice))
    good = json.dumps(answer())
    yield "jsonl", json.dumps(answer(None))
    yield "jsonl", json.dumps(answer(choices=[]))
    yield "jsonl", json.dumps(answer(choices={"0": CHOICE}))
    yield "jsonl", json.dumps(answer(question_id={"a": 1}))
    yield "jsonl", json.dumps(answer(category="x" * 100_000))
    yield "jsonl", f'{good}\n{{"question_id": 2, "choices": {"[" * 200_000}{"]" * 200_000}}}'
    yield "jsonl", f"{good}\n{'[' * 200_000}"
    yield "jsonl", partial(write_large, open, b"x")
    yield "jsonl", f"{good}\n" + "\n".join(
        json.dumps(answer(CHOICE | {"new_tokens": [2**20], "accept_lengths": [4096] * 256}) |
                   {"question_id": n}) for n in range(2, 8)
    )  # fmt: skip
    yield "jsonl", good.encode() + b"\n\xff\xfe\x00"
    yield "jsonl", partial(write_large, open, b"\n")
    yield "jsonl.gz", partial(write_large, gzip.open, b"\n")
    yield "jsonl.bz2", partial(write_large, bz2.open, b"\n")
    yield "jsonl.xz", partial(write_large, lzma.open, b"\n")
    yield "jsonl.gz", gzip.compress(good.encode() * 3)[:-9]
    yield "jsonl.xz", b"\xfd7zXZ\x00nothing of the kind"
    yield "jsonl", json.dumps(answer(model_id=f"m{STEERING}{LINK}", category=f"{STEERING}{LINK}"))


def answer_cases() -> Iterator[Case]:
    for number, (ending, text) in enumerate(answer_texts()):

        def make(folder: Path, _: Path, text: Any = text, ending: str = ending) -> list[str]:
            theirs, base = folder / f"theirs.{ending}", folder / "base.jsonl"
            if callable(text):
                text(theirs, json.dumps(answer()))
            else:
                theirs.write_bytes(text.encode() if isinstance(text, str) else text)
            base.write_text(json.dumps(answer()))
            where = ["--harness", "spec_bench", "--name", "read", "--results", str(folder / "out")]
            return ["report", "answers", str(theirs), "--baseline", str(base), *where]

        start = "a large file" if callable(text) else repr(text[-60:])
        yield Case("answers", f"{number:02d} {ending}: {start}", make)


# Results folders.


def copied(folder: Path) -> Path:
    """A good results folder, which a run of ours left once for all cases."""
    results = folder / "results"
    shutil.copytree(good_results(), results, symlinks=True)
    return results


def good_results(kept: list[Path] = []) -> Path:  # noqa: B006
    """Runs a small job, once."""
    if not kept:
        kept.append(Path(tempfile.mkdtemp(prefix="spec_bench-received-")) / "results")
        words = [f"results={kept[0]}", *SMALL]
        subprocess.run([sys.executable, "-m", "spec_bench", "run", *words], check=True)
    return kept[0]


def runs_of(results: Path) -> list[Path]:
    return sorted(path.parent for path in results.glob("runs/*/cell.json"))


def change_cell(results: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes each ``cell.json`` and its checksum."""
    for run in runs_of(results):
        cell = cell_folder.read_cell_json(run)
        change(cell)
        cell_folder.write_cell_json(run, {k: v for k, v in cell.items() if k != "run_id"})


def change_lines(results: Path, change: Mapping[str, Any]) -> None:
    """Changes each generation and gives its line a check that fits."""
    for run in runs_of(results):
        path = run / GENERATIONS
        lines = [json.loads(line) | change for line in path.read_text().splitlines()]
        texts = [json.dumps({k: v for k, v in line.items() if k != "check"})[:-1] for line in lines]
        checks = [cell_folder._compute_line_checksum(text.encode(), run.name) for text in texts]
        both = zip(texts, checks, strict=True)
        write_text(path, "".join(f'{text},"check":"{check}"}}\n' for text, check in both))

        def forget(cell: dict[str, Any]) -> None:
            cell.pop("generations", None)

        change_cell(results, forget)


def change_rows(results: Path, **values: str) -> None:
    """Changes each row of the tables, and takes away what tells that they were changed."""
    for table in list_results_files(results):
        rows = [row | values for row in read_csv(table)]
        write_csv(table, rows, [*rows[0]])
        table.with_name("records.parquet").unlink()
    shutil.rmtree(results / RUNS / "jobs")


def result_of(cell: dict[str, Any], **values: Any) -> None:
    cell["result"] |= values


def labels_of(cell: dict[str, Any], **values: Any) -> None:
    cell["result"]["labels"] |= values


def rebuilt(results: Path) -> None:
    """Takes away the index, so that the tables are made from the cells."""
    for index in results.glob("runs/jobs/*/index.jsonl"):
        index.unlink()


PAGE = ("page", "default", "--results")
REPORT = ("report",)
ANSWERS = ("answers",)
VERIFY = ("check", "results")
RUN = ("run", *SMALL)


def words_of(command: Sequence[str], results: Path) -> list[str]:
    if command == RUN:
        return [*command, f"results={results}"]
    table = results / "default" / RESULTS
    return [*command, str(table if command in (REPORT, ANSWERS) else results)]


def linked(*places: str) -> Callable[[Path, Path], None]:
    """Lays links to the user's file in places below the results."""

    def change(results: Path, mine: Path) -> None:
        for place in places:
            for path in (runs_of(results) if "RUN" in place else [results])[:1]:
                link = path / place.removeprefix("RUN/")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(mine)

    return change


def linked_folder(place: str) -> Callable[[Path, Path], None]:
    def change(results: Path, mine: Path) -> None:
        path = results / place
        if path.is_dir():
            shutil.move(path, mine.parent / "moved")
        else:
            (mine.parent / "moved").mkdir()
        path.symlink_to(mine.parent / "moved")

    return change


def pipe(place: str) -> Callable[[Path, Path], None]:
    def change(results: Path, _: Path) -> None:
        path = results / place if "RUN" not in place else runs_of(results)[0] / place[4:]
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return change


def cells(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path, Path], None]:
    def both(results: Path, _: Path) -> None:
        change_cell(results, change)
        rebuilt(results)

    return both


def lines(**change: Any) -> Callable[[Path, Path], None]:
    def both(results: Path, _: Path) -> None:
        change_lines(results, change)
        rebuilt(results)

    return both


def rows(**values: str) -> Callable[[Path, Path], None]:
    return lambda results, _: change_rows(results, **values)


def note(**values: Any) -> Callable[[Path, Path], None]:
    """Changes the notes of jobs and their checksums."""

    def change(results: Path, _: Path) -> None:
        for path in (results / RUNS / "jobs").glob("*/*.json"):
            write_redacted_json(
                path, checksums.redact_and_add_checksum(checksums.read_verified_json(path) | values)
            )

    return change


def judged(cell: dict[str, Any]) -> None:
    """A task that is judged, whose rows are a file of the user's."""
    cell["settings"]["task"] |= {"judged": True, "name": "../../../out"}
    labels_of(cell, task="../../../out")


FOLDERS: Sequence[tuple[str, Sequence[str], Callable[[Path, Path], None]]] = [
    ("locks are links", RUN, linked("RUN/.lock", "runs/jobs/default/.lock")),
    ("locks are links", PAGE, linked("RUN/.lock", "runs/jobs/default/.lock")),
    ("generations are a link", RUN, linked("RUN/generations.jsonl")),
    ("generations are a link", PAGE, linked("RUN/generations.jsonl")),
    ("cell.json is a link", RUN, linked("RUN/cell.json")),
    ("a trace is a link", RUN, linked("RUN/trace.txt")),
    ("the table is a link", REPORT, linked("default/results.csv")),
    ("the table is a link", RUN, linked("default/results.csv")),
    ("records are a link", RUN, linked("default/records.parquet")),
    ("the archive is a link", RUN, linked("default/archive.csv", "default/screening.csv")),
    ("the figure is a link", REPORT, linked("default/figure.png", "default/table.md")),
    ("the page is a link", PAGE, linked("default/page.html")),
    ("the index is a link", PAGE, linked("runs/jobs/default/index.jsonl")),
    ("answers are a link", ANSWERS, linked_folder("default/answers")),
    ("answers of a run are a link", ANSWERS, linked("default/answers/run_1/ar.jsonl")),
    ("the experiment is a link", PAGE, linked_folder("default")),
    ("the experiment is a link", RUN, linked_folder("default")),
    ("a lock is a pipe", RUN, pipe("RUN/.lock")),
    ("the notes' lock is a pipe", PAGE, pipe("runs/jobs/default/.lock")),
    ("generations are a pipe", RUN, pipe("RUN/generations.jsonl")),
    ("the table is a pipe", REPORT, pipe("default/results.csv")),
    ("a judged task leads out", ANSWERS, cells(judged)),
    ("a row's run id is a path", REPORT, rows(run_id="../../../mine")),
    ("a row's run id is a path", ANSWERS, rows(run_id="../../../mine")),
    ("a row's task is a path", ANSWERS, rows(task="../../../out")),
    ("a row's decoder is a path", ANSWERS, rows(decoder="../../../out")),
    ("a row steers", REPORT, rows(decoder=f"sd{STEERING}", task=STEERING, pair=LINK)),
    ("a row steers", PAGE, rows(decoder=f"<script>x</script>{STEERING}{LINK}")),
    ("a row's reason steers", REPORT, rows(status="failed", reason=f"{STEERING}{LINK}")),
    ("a row's numbers are texts", REPORT, rows(speedup="fast", block_efficiency="nan")),
    ("a row's numbers are no rates", REPORT, rows(speedup="1e308", token_rate="-1")),
    ("a cell's result is a list", PAGE, cells(lambda cell: cell.update(result=[1]))),
    ("a cell's labels are a text", PAGE, cells(lambda cell: result_of(cell, labels="x"))),
    ("a cell's metrics are nested", PAGE, cells(lambda c: result_of(c, metrics={"speedup": [1]}))),
    ("a cell's run id is a path", PAGE, cells(lambda c: result_of(c, run_id="../../../mine"))),
    ("a cell steers", PAGE, cells(lambda cell: labels_of(cell, decoder=f"sd{STEERING}{LINK}"))),
    ("a cell steers", RUN, cells(lambda cell: labels_of(cell, decoder=f"sd{STEERING}{LINK}"))),
    ("a cell has no settings", ANSWERS, cells(lambda cell: cell.pop("settings"))),
    ("a cell's starts are numbers", PAGE, cells(lambda cell: cell.update(starts=[7]))),
    ("a cell's scores are texts", PAGE, cells(lambda cell: cell.update(scores={"x": "y"}))),
    ("a generation took no time", PAGE, lines(decode_s=-1.0)),
    ("a generation's seconds are a text", PAGE, lines(decode_s="long")),
    ("a generation's tokens are texts", PAGE, lines(tokens=["a", "b"])),
    ("a generation's tokens are many", ANSWERS, lines(tokens=[10**12])),
    ("a generation's category steers", REPORT, lines(category=f"{STEERING}{LINK}")),
    ("a generation's category steers", PAGE, lines(category=f"<img src=x>{STEERING}{LINK}")),
    ("a generation's id is a path", ANSWERS, lines(prompt_id="../../../out/0")),
    ("a note's cells are paths", PAGE, note(cells=["../../../mine"])),
    ("a note ended in another age", PAGE, note(ended=1e300)),
    ("a folder's names steer", VERIFY, lambda results, _: (results / f"x{STEERING}").mkdir()),
]  # fmt: skip


def folder_cases() -> Iterator[Case]:
    for name, command, change in FOLDERS:

        def make(
            folder: Path,
            mine: Path,
            command: Sequence[str] = command,
            change: Callable[[Path, Path], None] = change,
        ) -> list[str]:
            results = copied(folder)
            change(results, mine)
            return words_of(command, results)

        yield Case("folders", f"{name}: {command[0]}", make)


# Configs.

CALL = "{_target_: pathlib.Path.unlink, self: MINE}"
HYDRA = "# @package _global_\nhydra: "
CONFIGS: Sequence[tuple[str, str]] = [
    ("experiment/x", f"{HYDRA}{{callbacks: {{x: {CALL}}}}}"),
    ("experiment/x", f"{HYDRA}{{callbacks: {{x: {{_target_: pandas.read_pickle, path: MINE}}}}}}"),
    ("experiment/x", f"{HYDRA}{{job_logging: {{handlers: {{file: {{class: logging.FileHandler, "
     "filename: MINE, mode: w}}, root: {handlers: [file]}}}"),
    ("experiment/x", f"{HYDRA}{{hydra_logging: {{version: 1}}}}"),
    ("experiment/x", f"{HYDRA}{{run: {{dir: ../outside}}, output_subdir: .hydra}}"),
    ("experiment/x", f"{HYDRA}{{sweep: {{dir: ../outside}}, mode: MULTIRUN}}"),
    ("experiment/x", f"{HYDRA}{{searchpath: ['file://..']}}"),
    ("experiment/x", f"{HYDRA}{{job: {{chdir: true, env_set: {{PATH: /}}}}}}"),
    ("experiment/x", f"{HYDRA}{{launcher: {CALL}, mode: MULTIRUN}}"),
    ("experiment/x", f"{HYDRA}{{sweeper: {CALL}, mode: MULTIRUN}}"),
    ("experiment/x", f"{HYDRA}{{mode: MULTIRUN, sweeper: {{params: {{+hydra.callbacks.x: 1}}}}}}"),
    ("experiment/x", "# @package hydra.callbacks\nx: " + CALL),
    ("experiment/x", "# @package _global_\ndefaults: [/decoder/sd@hydra.callbacks.x]"),
    ("experiment/x", "# @package _global_\ndefaults: [override /hydra/job_logging: default]"),
    ("experiment/x", "# @package _global_\ndefaults: [override /hydra/launcher: slurm]"),
    ("experiment/x", f"decoder: {CALL}"),
    ("hydra/launcher/basic", f"# @package hydra.launcher\nx: {CALL}"),
    ("hydra/config", f"callbacks: {{x: {CALL}}}"),
    ("hydra/job_logging/stdout", "version: 1"),
    ("decoder/x", "name: x\ntree: " + CALL),
    ("decoder/x", "name: \"x\\e]0;owned\\a\"\ndefaults: [sd]"),
    ("decoder/x", "a: " + "[" * 5000 + "]" * 5000),
    ("decoder/x", "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))),
    ("decoder/x", "a: &a [*a]"),
    ("decoder/x", "x: !!python/object/apply:os.system ['touch ../outside']"),
    ("task/x", "defaults: [jsonl]\nname: ../../../outside\nsource: {path: MINE}"),
    ("pair/x", "target: /dev/zero"),
    ("pair/x", f"target: {'x' * 100_000}"),
    ("decoder/x", "\x00\x01\x02"),
    ("decoder/x", "- a\n- b"),
]  # fmt: skip


def config_cases() -> Iterator[Case]:
    for place, text in CONFIGS:

        def make(folder: Path, mine: Path, place: str = place, text: str = text) -> list[str]:
            path = folder / "conf" / f"{place}.yaml"
            path.parent.mkdir(parents=True)
            path.write_text(text.replace("MINE", str(mine)))
            group, _, name = place.rpartition("/")
            chosen = [] if "hydra" in place else [f"{group}={name}"]
            where = ["--config-dir", str(folder / "conf"), f"results={folder / 'out'}"]
            return ["run", *where, "plan=true", *chosen]

        yield Case("configs", f"{place}: {text[:60]!r}", make)


# What is done with each.


def state_of(top: Path, but: Path) -> dict[str, Any]:
    """Whatever lies below a folder: what it is, and its bytes."""
    found = {}
    for path in sorted(top.rglob("*")):
        if path != but and but not in path.parents:
            is_file = path.is_file() and not path.is_symlink()
            found[str(path)] = path.read_bytes() if is_file else path.lstat().st_mode
    return found


def told(text: str) -> str:
    """What is wrong with what was printed."""
    if "Traceback" in text:
        return "a traceback"
    return "it steers the terminal" if "\x1b" in text or "\x07" in text else ""


def shown(folder: Path) -> str:
    """What is wrong with the pages and tables that were written."""
    for path in folder.rglob("*.*"):
        if path.suffix in (".md", ".html") and path.is_file():
            text = path.read_text(encoding="utf-8")
            link = "](http://thief" if path.suffix == ".md" else 'href="http://thief'
            if "\x1b" in text or link in text:
                return f"{path.name} has a link or steers"
            if "<script>x" in text or "<img src=x>" in text:
                return f"{path.name} has a stranger's HTML"
    return ""


def attempt(case: Case, top: Path) -> Outcome:
    """Gives a case to its command."""
    for name in ("given", "home", "work"):
        (top / name).mkdir(parents=True)
    mine = top / "home" / "mine"
    mine.write_text('{"mine": true}')  # one line without an end
    words = case.make(top / "given", mine)
    before = state_of(top, top / "given")
    names = ("MPLCONFIGDIR", "XDG_CACHE_HOME", "SPEC_BENCH_CACHE")
    caches = {name: str(top.parent / "caches") for name in names}
    environment = {**os.environ, **caches, "HOME": str(top / "home"), "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    with (top.parent / "printed").open("w+b") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "spec_bench", *words], stdout=stream, stderr=stream,
            stdin=subprocess.DEVNULL, cwd=top / "work", env=environment,
        )  # fmt: skip
        status, used = wait(process)
        stream.seek(0)
        text = stream.read().decode(errors="replace")
    found = [told(text), shown(top / "given")]
    after = state_of(top, top / "given")
    if changed := [name for name in {**before, **after} if before.get(name) != after.get(name)]:
        found.append(f"{changed[0]} outside was changed")
    if status is None:
        found.append("it did not end")
    if (mib := used.ru_maxrss >> 10) > MOST_MIB:
        found.append(f"{mib} MiB")
    if status and len(text.splitlines()) > 4:
        found.append("several lines")
    last = (text.strip().splitlines() or [""])[-1]
    wrong = "; ".join(filter(None, found))
    return Outcome(case, status, last, mib, time.monotonic() - began, wrong)


def wait(process: subprocess.Popen[bytes]) -> tuple[int | None, resource.struct_rusage]:
    """Waits for a process: its status, None where it had to be killed, and what it used."""
    until = time.monotonic() + PATIENCE_S
    while True:
        done, status, used = os.wait4(process.pid, os.WNOHANG)
        if done:
            process.returncode = os.waitstatus_to_exitcode(status)
            return (None if process.returncode < 0 else process.returncode), used
        if time.monotonic() > until:
            process.kill()
        time.sleep(0.02)


def attempt_all(cases: Sequence[Case]) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory(prefix="spec_bench-received-") as top:
        for number, case in enumerate(cases):
            yield attempt(case, Path(top) / str(number))
            shutil.rmtree(Path(top) / str(number))


def cases_of(kinds: Sequence[str], sample: int | None = None, seed: int = 0) -> list[Case]:
    """All cases of some kinds, or a sample of each kind."""
    every = {"answers": answer_cases, "folders": folder_cases, "configs": config_cases}
    found = []
    for kind in kinds:
        cases = [*every[kind]()]
        draws = random.Random(seed)
        found += cases if sample is None else draws.sample(cases, min(sample, len(cases)))
    return found


def table(outcomes: Sequence[Outcome]) -> str:
    heads = "| what | tried | refused | without effect | wrong | peak MiB | longest s |"
    rows = [heads, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for kind in dict.fromkeys(each.case.kind for each in outcomes):
        own = [each for each in outcomes if each.case.kind == kind]
        good = [each for each in own if not each.wrong]
        refused = sum(bool(each.status) for each in good)
        counts = [len(own), refused, len(good) - refused, len(own) - len(good)]
        peaks = [max(each.mib for each in own), round(max(each.seconds for each in own))]
        rows.append(f"| {kind} | {' | '.join(map(str, [*counts, *peaks]))} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="answers,folders,configs")
    parser.add_argument("--sample", type=int, help="cases of each kind, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the table")
    parser.add_argument("--name", default="", help="only cases with that text in their name")
    options = parser.parse_args()
    outcomes = []
    cases = cases_of(options.only.split(","), options.sample, options.seed)
    for outcome in attempt_all([each for each in cases if options.name in each.name]):
        mark = "WRONG" if outcome.wrong else "ok"
        facts = f"{outcome.status} {outcome.mib} MiB {outcome.seconds:.1f} s"
        case = f"{outcome.case.kind} {outcome.case.name}"
        print(f"{mark:6}{case}: {facts} {outcome.wrong} | {outcome.line[:230]!r}", flush=True)
        outcomes.append(outcome)
    print(table(outcomes))
    if options.out:
        write_text(options.out, f"# What strangers send\n\n{table(outcomes)}\n")
    return int(any(outcome.wrong for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
