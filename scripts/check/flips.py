"""Whether a flipped bit in a file of records is noticed by everything that reads one.

    python scripts/check/flips.py                       # 650 bits, some ten minutes
    python scripts/check/flips.py --bits 100 --commands 5

Bits are drawn evenly over the files that are committed and one that a small job has just written. A
flipped file must be refused by each reader, in one line that names it and with status 2, or every
number that the reader prints or writes must be as before. Each flip is read in a forked process, in
which a crash is seen, too; ``--commands`` of them are read by a command of their own. Exit status 1
where a flip was taken.
"""

import argparse
import functools
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.__main__ import run_command
from spec_bench.settings.arguments import split_known_command
from spec_bench.system import files

_LIMIT_S = 120
_FRESH = ("prompts=2", "warmup=0", "cells=[sd:3,rsd_s:3x3]", "name=fresh")
Reader = Callable[[Path, Path, Path], tuple[str, list[str]]]
READERS: dict[str, Reader] = {
    "report": lambda new, old, out: ("spec_bench.report", [str(new), "--out", str(out)]),
    "verify": lambda new, old, out: ("spec_bench", ["check", "results", str(new.parents[1])]),
    "page": lambda new, old, out: (
        "spec_bench.report",
        ["page", str(new), "--out", str(out / "page.html")],
    ),
    "compare": lambda new, old, out: ("spec_bench", ["compare", str(old), str(new)]),
}
"""Each reader's module and arguments for a table, the same one unaltered, and an output folder."""


@dataclass(frozen=True)
class Said:
    """How a reader ended."""

    status: int  # its exit status; below 0 the signal that ended it
    error: str  # what it wrote to standard error
    numbers: str  # digest of what it printed and wrote


def in_process(name: str, table: Path, before: Path) -> Said:
    """A reader in a fork of this process, which has its modules and none of its caches."""
    with tempfile.TemporaryDirectory() as folder:
        place, out = Path(folder), Path(folder, "out")
        out.mkdir()
        if not (child := os.fork()):
            status = 70
            try:
                signal.alarm(_LIMIT_S)
                with (
                    (place / "said").open("w") as printed,
                    (place / "error").open("w") as error,
                    redirect_stdout(printed),
                    redirect_stderr(error),
                ):
                    try:
                        status = called(name, table, before, out)
                    except Exception:
                        traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return _said(status, (place / "said").read_text(), (place / "error").read_text(), out)


def called(name: str, table: Path, before: Path, out: Path) -> int:
    """A reader's exit status, here and now."""
    _, arguments = READERS[name](table, before, out)
    known = name in ("compare", "verify")
    return run_command(*split_known_command(arguments if known else ["report", *arguments]))


def by_command(name: str, table: Path, before: Path) -> Said:
    """The same as a user would run it."""
    with tempfile.TemporaryDirectory() as folder:
        module, arguments = READERS[name](table, before, Path(folder))
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        return _said(done.returncode, done.stdout, done.stderr, Path(folder))


def _said(status: int, printed: str, error: str, out: Path) -> Said:
    """What was printed and written, but for places and pictures, as one digest."""
    found = hashlib.sha256(printed.replace(str(out), "OUT").encode())
    for path in sorted(out.rglob("*")):
        if path.is_file() and path.suffix not in (".png", ".pdf"):
            found.update(path.read_bytes().replace(str(out).encode(), b"OUT"))
    return Said(status, error, found.hexdigest())


def tables(folder: Path) -> list[Path]:
    """Copies of the committed tables that have records, and of a fresh one, without raw runs."""
    made = folder / "made"
    command = [sys.executable, "-m", "spec_bench", *_FRESH, f"results={made}"]
    subprocess.run(command, check=True, capture_output=True)
    committed = files.list_results_files(Path("results"))
    found = []
    for table in (*committed, files.get_results_file(made, "fresh")):
        if files.get_records_file(table).is_file():
            for side in ("new", "old"):
                to = folder / side / table.parent.name / table.parent.name
                to.mkdir(parents=True)
                for path in (table, files.get_records_file(table)):
                    shutil.copy(path, to / path.name)
            found.append(folder / "new" / table.parent.name / table.parent.name / table.name)
    return found


def flip(path: Path, bit: int) -> None:
    """Turns one bit of a file round."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def checked(table: Path, bit: int, name: str, read: Callable[[str, Path, Path], Said]) -> str:
    """What a reader makes of a table whose records have one bit flipped.

    Returns:
        ``refused``, ``without effect``, or ``TAKEN``.
    """
    path = files.get_records_file(table)
    flip(path, bit)
    try:
        said = read(name, table, unaltered(table))
    finally:
        flip(path, bit)
    lines = said.error.splitlines()
    if said.status == 2 and len(lines) == 1 and str(path) in lines[0]:
        return "refused"
    whole = of_unaltered(name, table)
    same = (said.status, said.numbers) == (whole.status, whole.numbers)
    return "without effect" if same else "TAKEN"


@functools.cache
def of_unaltered(name: str, table: Path) -> Said:
    """What a reader says of a table whose records are as they were written."""
    return in_process(name, table, unaltered(table))


def unaltered(table: Path) -> Path:
    """The same table, of which no bit is ever flipped."""
    return table.parents[3] / "old" / table.parent.name / table.parent.name / table.name


def check_accepted(found: list[Path]) -> None:
    """Whether every unaltered file is read, and by every reader the last one, which is small."""
    with tempfile.TemporaryDirectory() as out, redirect_stdout(io.StringIO()):
        for name in READERS:  # what they load is loaded once, and nothing of what is flipped read
            called(name, unaltered(found[-1]), unaltered(found[-1]), Path(out))
    asked = [("verify", table) for table in found] + [(name, found[-1]) for name in READERS]
    for name, table in asked:
        said = of_unaltered(name, table)
        if said.status not in ((0, 1) if name == "compare" else (0,)):
            sys.exit(f"{name} refuses {table.parent.name} unaltered: {said.error}")


def main() -> int:
    """Checks; 1 where a flipped file was taken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bits", type=int, default=650)
    parser.add_argument("--commands", type=int, default=20, help="bits read by real commands")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random, counts, taken = Random(options.seed), Counter[tuple[str, str]](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        found = tables(Path(folder))
        check_accepted(found)
        for number in range(options.bits + options.commands):
            table = found[number % len(found)]
            bit = random.randrange(8 * files.get_records_file(table).stat().st_size)
            forked = number < options.bits
            names = list(READERS) if forked else [list(READERS)[number % len(READERS)]]
            for name in names:
                verdict = checked(table, bit, name, in_process if forked else by_command)
                counts[name, verdict] += 1
                if verdict == "TAKEN":
                    taken.append(f"{table.parent.name}, bit {bit}: {name}")
    print(f"{options.bits} bits of {len(found)} files, {options.commands} by commands")
    for name in READERS:
        own = {verdict: count for (each, verdict), count in counts.items() if each == name}
        print(f"  {name}: {', '.join(f'{count} {verdict}' for verdict, count in own.items())}")
    print("\n".join(taken) or "none was taken")
    return int(bool(taken))


if __name__ == "__main__":
    sys.exit(main())
