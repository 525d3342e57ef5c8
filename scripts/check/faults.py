"""What damages, dying writers, full disks and wrong clocks do to the files of an experiment.

    python scripts/check/faults.py                                   # a minute
    python scripts/check/faults.py --damages 20 --sizes 3 --writers 4 --clocks 5

No model is loaded: made-up answers are stored as a job stores them. A damaged file must be named by
``check results``, or tables made again must be as they were. Of several writers in one folder two
are killed -9: no job that was noted may be lost, and what is left must be whole. A file system that
takes no file larger than so many bytes must end a job in one line that names the file; once it
takes them the same job must end as undisturbed. Whatever the machines' clocks say, the job that
ended last must have the table. Exit status 1 where something did not hold. ``kills.py`` kills real
jobs.
"""

import argparse
import logging
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from random import Random
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.__main__ import run_command
from spec_bench.jobs.store.experiment import Experiment, JobRecord
from spec_bench.jobs.store.store import CellStore
from spec_bench.records import cell_folder, parquet
from spec_bench.records.types import Generation, StepRecord
from spec_bench.system import files
from tests.cells import result

NAME = "name"
SETTINGS = {"pair": {"name": "p"}, "seed": 0}
MORE = Generation("more", (5, 6), "stop", (StepRecord(2, 2, 1, 2),), 0.1, 0.2, 0.0, 0.1)


def end_job(results: Path, number: int, revision: str = "w") -> str:
    """Stores a job of one cell as a job does; the cell's run id."""
    settings = {**SETTINGS, "number": number, "revision": revision}
    store = CellStore(results, files.hash_json(settings))
    store.folder.mkdir(parents=True, exist_ok=True)
    done = store.repair_and_load()[0]
    store.write_settings(settings, {"revision": "r", "host": "h"})
    answers = [replace(MORE, prompt_id=f"{each}") for each in range(8)]
    store.append_generations(each for each in answers if each.prompt_id not in done)
    facts = replace(result().facts, target_revision=revision, spec=f"{number}")
    run = replace(result(store.folder.name, {"mbsu": 1.5, "prompts": 8}), facts=facts)
    store.write_result(run, "job", {"bleu": {f"{each}": 0.5 for each in range(8)}})
    experiment = Experiment(results, NAME)
    experiment.write_job_record(JobRecord(number, (run.run_id,)))
    experiment.rebuild_tables()
    return run.run_id


def table_of(results: Path) -> dict[str, bytes]:
    """The bytes of the table and of its records."""
    mine = Experiment(results, NAME)
    return {path.name: path.read_bytes() for path in (mine.csv, mine.records) if path.exists()}


def rows_of(results: Path) -> tuple[list[bytes], list[str]]:
    """The lines of the table and the cells in its records, whose order goes with the jobs' notes;
    nothing of a table that is none.
    """
    tables = table_of(results)
    with suppress(ValueError):
        kept = parquet.read_records(Experiment(results, NAME).records)
        return sorted(tables[files.RESULTS].splitlines()), sorted(kept.run_ids)
    return [], []


def check_damages(top: Path, count: int, draws: Random) -> Iterator[tuple[str, str]]:
    """Yields what each damage was and whether it was ``named``, ``without effect`` or TAKEN."""
    results = top / "damages"
    for number in range(3):
        end_job(results, number)
    whole = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    stored = [path for path, data in whole.items() if data]
    before = rows_of(results)

    def line_behind(path: Path, data: bytes) -> bytes:
        more = cell_folder.format_generation_line(MORE, path.parent.name).encode()
        return data + more if path.name == files.GENERATIONS else data + b"\n"

    kinds: dict[str, Callable[[Path, bytes], bytes | None]] = {
        "a bit": lambda path, data: _flip(data, draws.randrange(8 * len(data))),
        "cut": lambda path, data: data[: draws.randrange(len(data))],
        "zeros": lambda path, data: bytes(len(data)),
        "twice": lambda path, data: data * 2,
        "another's": lambda path, data: whole[draws.choice(stored)],
        "gone": lambda path, data: None,
        "a line more": line_behind,
    }
    for _ in range(count):
        path, kind = draws.choice(stored), draws.choice([*kinds])
        data = kinds[kind](path, whole[path])
        path.unlink() if data is None else path.write_bytes(data)
        said = StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            status = run_command("check results", [str(results)])
        told = "named" if status == 2 and str(path.parent) in said.getvalue() else ""
        with suppress(ValueError):  # a table that is none is refused
            Experiment(results, NAME).rebuild_tables()
        same = rows_of(results) == before
        yield f"{kind} of {path.name}", told or ("without effect" if same else "TAKEN")
        shutil.rmtree(results)
        for each, content in whole.items():
            each.parent.mkdir(parents=True, exist_ok=True)
            each.write_bytes(content)
        Experiment(results, NAME).rebuild_tables()


def _flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def forked(work: Callable[[], None]) -> int:
    """Starts a process that does this and ends; its id."""
    if child := os.fork():
        return child
    status = 70
    try:
        work()
        status = 0
    except OSError as error:
        status = 1 if files.explain_write_error(error) else 70
    finally:
        os._exit(status)


def check_writers(top: Path, count: int, draws: Random) -> Iterator[tuple[str, str]]:
    """Yields what became of the rows of writers of which two are killed."""
    results = top / "writers"

    def write(first: int) -> None:
        for number in range(first, first + 6):
            end_job(results, number)

    children = [forked(lambda n=n: write(100 * n)) for n in range(count)]  # type: ignore[misc]
    for child in draws.sample(children, min(2, count - 1)):
        time.sleep(draws.uniform(0.02, 0.3))
        os.kill(child, signal.SIGKILL)
    ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    for number in (100 * n + job for n in range(count) for job in range(6)):
        end_job(results, number)  # the same commands again
    whole = top / "whole"
    for number in (100 * n + job for n in range(count) for job in range(6)):
        end_job(whole, number)
    same = table_of(results) == table_of(whole)
    aside = [*results.rglob("*.bad-*")]
    held = same and not aside and {*ended} <= {0, -signal.SIGKILL}
    yield f"{count} writers, {ended.count(-signal.SIGKILL)} killed", "held" if held else "LOST"


def check_sizes(top: Path, count: int, draws: Random) -> Iterator[tuple[str, str]]:
    """Yields what jobs did where no file may be larger than drawn sizes."""
    whole = top / "room"
    for number in range(3):
        end_job(whole, number)
    largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    for place in range(count):
        results, size = top / f"size-{place}", draws.randrange(largest)

        def write(results: Path = results, size: int = size) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            for number in range(3):
                end_job(results, number)

        status = os.waitstatus_to_exitcode(os.waitpid(forked(write), 0)[1])
        for number in range(3):
            end_job(results, number)
        held = status == 1 and table_of(results) == table_of(whole)
        yield f"files of {size} bytes", "held" if held else f"LOST (status {status})"


def check_clocks(top: Path, count: int, draws: Random) -> Iterator[tuple[str, str]]:
    """Yields whose rows have the table after jobs on machines whose clocks are apart."""
    results = top / "clocks"
    for number in range(count):
        off = draws.choice([0, 1, 60, 3600, 10**6, 10**8]) * draws.choice([-1, 1])
        with patch.object(files, "read_folder_clock_s", lambda folder, off=off: time.time() + off):
            mine = end_job(results, 0, draws.choice("abcd"))
        ours = [row["run_id"] for row in files.read_csv(Experiment(results, NAME).csv)]
        yield f"job {number}, {off} s off", "held" if ours == [mine] else "LOST"


CHECKS = {
    "damages": (check_damages, 385),
    "writers": (check_writers, 8),
    "sizes": (check_sizes, 13),
    "clocks": (check_clocks, 40),
}


def main(arguments: list[str] | None = None) -> int:
    """Prints what held; 1 where something did not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (_, usual) in CHECKS.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args(arguments))
    logging.disable()
    bad = list[str]()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, (check, _) in CHECKS.items():
                draws = Random(f"{options['seed']} {name}")
                found = [*check(Path(folder), options[name], draws)] if options[name] else []
                counts = Counter(verdict for _, verdict in found)
                told = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
                print(f"{name}: {len(found)}: {told}", flush=True)
                bad += [
                    ": ".join(each) for each in found if each[1][:5] in ("TAKEN", "LOST", "LOST ")
                ]
    finally:
        logging.disable(logging.NOTSET)
    print("\n".join(bad) or "all held")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
