"""Runs the printed commands on published pairs, against a stand-in for the hub on this machine.

    make rehearse                                     # all of them, two at a time
    python scripts/rehearse.py --list
    python scripts/rehearse.py --only rsd=exp1,train  # those that contain one of these
    python scripts/rehearse.py --part 1/4             # every fourth
    python scripts/rehearse.py --each 3 --brief       # three of each paper, few cells

Every id of ``conf/pair`` has a tiny model of random weights behind it, every public dataset a few
rows in its published layout. The commands run as printed, with words appended: one prompt, a few
tokens, the CPU in the GPU's place. It shows that the commands ask for the right things and end in
rows, not what the real models would measure. Exit status: 0 where every command ran.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
os.environ["HF_HUB_OFFLINE"] = "0"  # before anything reads it: the stand-in is asked

from tests.hub.commands import TRAIN, Command, printed_commands  # noqa: E402
from tests.hub.rehearsal import Outcome, prepare, rehearse, stand_in, totals  # noqa: E402

RAN = ("rows", "plan", "heads")


def chosen(commands: Sequence[Command], options: argparse.Namespace) -> list[Command]:
    """The commands that the options ask for; those that train come first."""
    found = [c for c in commands if any(word in c.text for word in options.only.split(","))]
    if options.each:
        papers: dict[str, int] = {}
        few = []
        for command in found:
            paper = "train" if command.module == TRAIN else (command.recipe or "").split("=")[0]
            papers[paper] = papers.get(paper, 0) + 1
            few += [command] if paper and papers[paper] <= options.each else []
        found = few
    first, of = map(int, options.part.split("/"))
    return found[first - 1 :: of]


def in_order(commands: Sequence[Command]) -> tuple[list[Command], list[list[Command]]]:
    """What must run first, and groups that share no cells: one experiment's each."""
    training = [command for command in commands if command.module == TRAIN]
    rest = sorted(
        (command for command in commands if command.module != TRAIN), key=lambda c: c.recipe or ""
    )
    groups = [list(group) for _, group in groupby(rest, key=lambda c: c.recipe or "")]
    return training, sorted(groups, key=lambda group: -max(c.jobs for c in group))


def run_all(
    commands: Sequence[Command], folder: Path, options: argparse.Namespace
) -> Iterator[Outcome]:
    """The outcomes as they come."""
    work = folder / "work"
    prepare(work)
    training, groups = in_order(commands)
    with stand_in(folder) as variables:
        # The server that commands are forked from reads these once.
        os.environ.update(variables)

        def each(group: Sequence[Command], values: Mapping[str, str] = variables) -> list[Outcome]:
            return [shown(rehearse(one, work, values, options.brief)) for one in group]

        yield from each(training)
        with ThreadPoolExecutor(options.at_once) as pool:
            for outcomes in pool.map(each, groups):
                yield from outcomes


def shown(outcome: Outcome) -> Outcome:
    text = outcome.command.text.removeprefix("python -m ")
    print(f"{outcome.kind:<8}{outcome.seconds:6.1f} s  {text}\n{'':18}{outcome.detail}", flush=True)
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="words, one of which a command contains")
    parser.add_argument("--part", default="1/1", help="I/N: every Nth command from the Ith")
    parser.add_argument("--each", type=int, default=0, help="so many of each paper; 0: all")
    parser.add_argument("--brief", action="store_true", help="few cells of each recipe")
    parser.add_argument("--at-once", type=int, default=2, help="commands that run side by side")
    parser.add_argument("--folder", type=Path, help="kept; else a temporary one")
    parser.add_argument(
        "--list", action="store_true", help="print the commands and who prints them"
    )
    options = parser.parse_args()
    commands = chosen(printed_commands(), options)
    if options.list:
        for command in commands:
            print(f"{command.text}\n    {', '.join(command.places)}")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        outcomes = list(run_all(commands, folder, options))
    print(f"{totals(outcomes)}, in {time.monotonic() - began:.0f} s")
    for outcome in outcomes:
        if outcome.kind not in RAN:
            print(f"{outcome.kind}: {outcome.command.text}: {outcome.detail}")
    return 0 if all(outcome.kind in RAN for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
