"""What cannot be written is one line before any work: of every command that takes an output."""

import os
import re
import sys
from pathlib import Path

import pytest

from spec_bench.audit.bernoulli import main as bernoulli
from spec_bench.exchange.write import main as answers
from spec_bench.report.cli.command_line import ARGUMENTS
from spec_bench.report.cli.command_line import main as report
from spec_bench.report.comparison import main as compare
from spec_bench.settings.arguments import output_file, output_folder
from spec_bench.train.collect import main as collect

ROOT = Path(__file__).resolve().parents[1]


def collected(given):
    sys.argv = ["collect", *given]
    return collect()


# What else is asked for does not exist: an output is looked at first.
COMMANDS = {
    "compare": (compare, ["before", "after", "--output"], "FOLDER"),
    "answers": (answers, ["none.csv", "--output"], "FOLDER"),
    "figure": (report, ["figure", "rsd/7", "--output"], "FOLDER"),
    "results": (report, ["none.csv", "--output"], "FOLDER"),
    "page": (report, ["page", "none", "--output"], "FILE"),
    "sweep": (report, ["sweep", "none", "--output"], "FILE"),
    "table": (report, ["table", "rsd/7", "--output"], "FILE"),
    "wandb": (report, ["wandb", "--dry-run"], "FILE"),
    "bernoulli": (bernoulli, ["--points", "2", "--output"], "FILE"),
    "collect": (collected, ["none", "--out"], "FILE"),
}


def pipe(place, kind):
    os.mkfifo(place / "pipe")
    return place / "pipe"


def other_kind(place, kind):
    (place / "there").touch() if kind == "FOLDER" else (place / "there").mkdir()
    return place / "there"


def link(to):
    def linked(place, kind):
        (place / "link").symlink_to(to)
        return place / "link" if kind == "FOLDER" else place / "link/below"

    return linked


BAD = {
    "a device": lambda place, kind: Path("/dev/null"),
    "below a device": lambda place, kind: Path("/dev/null/x"),
    "a pipe": pipe,
    "a file or a folder": other_kind,
    "a link to nothing": link("nowhere/at/all"),
    "a link to itself": link("link"),
    "a name too long": lambda place, kind: place / ("x" * 300),
    "below a name too long": lambda place, kind: place / ("x" * 300) / "below",
    "a path too long": lambda place, kind: place.joinpath(*["x" * 200] * 30),
    "no place for files": lambda place, kind: Path("/proc/none/at/all"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_is_one_line_before_any_work(
    command, bad, tmp_path, monkeypatch, capsys
):
    main, given, kind = COMMANDS[command]
    output = BAD[bad](tmp_path, kind)
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    with pytest.raises(SystemExit) as stopped:
        main([*given, str(output)])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert given[-1] in line and str(output)[:40] in line and not said.out
    assert sorted(tmp_path.iterdir()) == before


def test_every_option_that_names_an_output_is_checked():
    options = re.compile(r'add_argument\(\s*"--(?:out|output|dry-run)".*?\)\n', re.S)
    found = [
        option
        for path in sorted((ROOT / "spec_bench").rglob("*.py"))
        for option in options.findall(path.read_text(encoding="utf-8"))
    ]
    assert found and all("type=output_" in option for option in found), found
    types = [facts["type"] for _, name, _, facts in ARGUMENTS if name in ("--output", "--dry-run")]
    assert len(types) == 5 and {*types} == {output_file, output_folder}
