"""Runs the printed commands on published pairs, against a stand-in for the hub on this machine.

    make rehearse                                     # all of them, two at a time
    python scripts/check/rehearse.py --list
    python scripts/check/rehearse.py --only rsd=exp1,train  # those that contain one of these
    python scripts/check/rehearse.py --part 1/4             # every fourth
    python scripts/check/rehearse.py --each 3               # three of each paper
    python scripts/check/rehearse.py --whole                # every cell of each recipe
    python scripts/check/rehearse.py --folder FOLDER        # kept; goes on where it stopped

Every id of ``conf/pair`` has a tiny model of random weights behind it, every public dataset a few
rows in its published layout. The commands run as printed, with words appended: one prompt, a few
tokens, the first cells of each kind, the CPU in the GPU's place. It shows that the commands ask for
the right things and end in rows, not what the real models would measure. Exit status: 0 where every
command ran.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.hub.repository import TOKEN
from tests.hub.server import serving

ROOT = Path(__file__).resolve().parents[2]

if TYPE_CHECKING:
    from tests.hub.commands import Command
    from tests.hub.rehearsal import Outcome


def environment(url: str, folder: Path) -> dict[str, str]:
    """What libraries read when they are imported: the stand-in is asked, with a cache apart."""
    return {
        "HF_ENDPOINT": url,
        "HF_HOME": str(folder / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_MODE": "offline",
        "OMP_NUM_THREADS": "1",  # no threads before a fork
    }


def chosen(options: argparse.Namespace) -> list[Command]:
    """The commands that the options ask for."""
    from tests.hub.commands import Command, few_of_each, printed_commands

    if options.of:
        lines = options.of.read_text(encoding="utf-8").splitlines()
        found = [Command(line, (options.of.name,)) for line in lines]
    else:
        found = printed_commands()
    found = [c for c in found if any(word in c.text for word in options.only.split(","))]
    if options.each:
        found = few_of_each(found, options.each)
    first, of = map(int, options.part.split("/"))
    return found[first - 1 :: of]


def in_order(commands: Sequence[Command]) -> tuple[list[list[Command]], list[list[Command]]]:
    """What must run first, and groups that share no cells: one experiment's each."""
    training = [[command] for command in commands if command.trains]
    rest = sorted((c for c in commands if not c.trains), key=lambda c: c.recipe or "")
    groups = [list(group) for _, group in groupby(rest, key=lambda c: c.recipe or "")]
    return training, sorted(groups, key=lambda group: -sum(c.jobs for c in group))


def write_hub(folder: Path) -> None:
    """Models and data, in a process of its own, which may have threads; what is whole is kept."""
    done = folder / "written"
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    if not (child := os.fork()):
        status = 1
        try:
            from tests.hub.data import write_datasets
            from tests.hub.models import write_models

            write_models(folder)
            write_datasets(folder)
            done.touch()
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the stand-in's models could not be written")


def run_all(
    commands: Sequence[Command], folder: Path, options: argparse.Namespace
) -> Iterator[Outcome]:
    """The outcomes as they come, those of an earlier rehearsal in the folder first."""
    from tests.hub.forked import IMPORTED, side_by_side
    from tests.hub.rehearsal import Notes, outcome_of, prepare, started

    for name in IMPORTED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    work, notes = folder / "work", Notes(folder / "outcomes.jsonl")
    prepare(work)
    write_hub(folder / "hub")
    before = notes.ran(commands, options.whole)
    for outcome in before:
        yield shown(outcome, "before ")
    known = {outcome.command.text for outcome in before}
    for groups in in_order([command for command in commands if command.text not in known]):
        ended = side_by_side(
            groups, options.at_once, lambda each: started(each, work, options.whole)
        )
        for command, left in ended:
            outcome = outcome_of(command, left, work)
            notes.add(outcome, options.whole)
            yield shown(outcome)


def shown(outcome: Outcome, when: str = "") -> Outcome:
    text = outcome.command.text.removeprefix("python -m ")
    line = f"{when}{outcome.kind:<8}{outcome.seconds:6.1f} s {outcome.cpu_s:5.1f} s  {text}"
    print(f"{line}\n{'':18}{outcome.detail}", flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="words, one of which a command contains")
    parser.add_argument("--part", default="1/1", help="I/N: every Nth command from the Ith")
    parser.add_argument("--each", type=int, default=0, help="so many of each paper; 0: all")
    parser.add_argument("--of", type=Path, help="a file of commands in place of the printed ones")
    parser.add_argument("--whole", action="store_true", help="every cell of each recipe")
    parser.add_argument("--at-once", type=int, default=2, help="commands that run side by side")
    parser.add_argument("--folder", type=Path, help="kept, and gone on with; else a temporary one")
    parser.add_argument(
        "--list", action="store_true", help="print the commands and who prints them"
    )
    options = parser.parse_args()
    # No TemporaryDirectory: forked commands, which end as an interpreter does, would remove it.
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="rehearsal-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with serving(folder / "hub") as url:
            os.environ.update(environment(url, folder))
            return rehearse(folder, options)
    finally:
        if not options.folder:
            shutil.rmtree(folder)


def rehearse(folder: Path, options: argparse.Namespace) -> int:
    """Lists or runs the commands; imports what reads the environment."""
    from tests.hub.rehearsal import RAN, totals

    commands = chosen(options)
    if options.list:
        for command in commands:
            print(f"{command.text}\n    {', '.join(command.places)}")
        return 0
    began = time.monotonic()
    outcomes = list(run_all(commands, folder, options))
    print(f"{totals(outcomes)}, in {time.monotonic() - began:.0f} s")
    for outcome in outcomes:
        if outcome.kind not in RAN:
            print(f"{outcome.kind}: {outcome.command.text}: {outcome.detail}")
    return 0 if all(outcome.kind in RAN for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
