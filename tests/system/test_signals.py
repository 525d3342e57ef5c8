"""How commands end in one line: by a signal, an output that cannot be, a missing package."""

import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from spec_bench.__main__ import main
from spec_bench.report.papers.paper import import_paper_code
from spec_bench.settings.arguments import COMMANDS as COMMANDS_THERE_ARE
from spec_bench.settings.arguments import get_option_arguments
from spec_bench.settings.configs import get_experiments_dir
from spec_bench.sinks.console import print_results
from spec_bench.system.signals import exits_in_one_line
from spec_bench.train.collect import write_training_table as collect
from tests.commands import answers, audit, compare, report
from tests.report.rows import row, write
from tests.warm import Command, run

SAID = "interrupted; what was written is whole"


JOB = ["spec_bench", "sink=quiet"]
TRAINING = ["spec_bench.train", "sink=quiet"]


@pytest.mark.parametrize(
    ("command", "number", "after_s", "line"),
    [
        (JOB, signal.SIGINT, 0, "interrupted; the same command resumes"),
        (JOB, signal.SIGTERM, 0, "interrupted; the same command resumes"),
        (TRAINING, signal.SIGINT, 0.4, "interrupted; the same command goes on"),
        (["spec_bench", "report", "list"], signal.SIGINT, 0, SAID),
        (["spec_bench.audit"], signal.SIGTERM, 0, "interrupted; what no table shows"),
        ([*JOB, "plan=true"], signal.SIGINT, 0, "interrupted\n"),
    ],
)
def test_a_signal_ends_a_command_in_one_line_from_its_imports_on(
    tmp_path, command, number, after_s, line
):
    started = [sys.executable, "-m", *command]
    process = subprocess.Popen(started, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline, caught, status = time.monotonic() + 60, 0, Path(f"/proc/{process.pid}/status")
    while not caught & (1 << (signal.SIGTERM - 1)) and time.monotonic() < deadline:
        time.sleep(0.002)
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
    time.sleep(after_s)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.startswith(line) and said.count("\n") == 1


def test_a_terminal_that_lacks_a_letter_shows_another_and_ends_no_command(monkeypatch):
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    with exits_in_one_line(SAID):
        print_results((), ["sd 3: 1.50×"])
        print("τ")
    assert screen.buffer.getvalue() == b"sd 3: 1.50?\n?\n"


@pytest.mark.parametrize(("goal", "asked"), [("table", "T=rsd/7"), ("page", "E=rsd-exp1")])
def test_make_asks_for_what_a_target_wants_before_it_makes_an_environment(goal, asked):
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        ["make", "--no-print-directory", "-n", goal], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 2 and asked in done.stderr and not done.stdout
    assert (
        subprocess.run(["make", "-n", goal, asked], cwd=root, capture_output=True).returncode == 0
    )


SWALLOWING = """
import os, signal, time
from spec_bench.system import signals
with signals.exits_in_one_line("ended"):
    with signals.signals_as_interrupts():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except BaseException:
            pass
    print("it went on", flush=True)
"""


IGNORING = """
import os, signal, time, weakref
from spec_bench.system import signals
class Watched: pass
with signals.exits_in_one_line("ended"), signals.signals_as_interrupts():
    watched = Watched()
    kept = weakref.ref(watched, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    del watched
    print("it went on", flush=True)
    time.sleep(9)
    print("to the end")
"""


@pytest.mark.parametrize("script", [SWALLOWING, IGNORING], ids=["a library", "a finaliser"])
def test_a_signal_whose_exception_is_swallowed_still_ends_the_command(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "it went on\n", "ended\n")


RUN = """
import sys
from spec_bench.system import signals
def main():
    {}
    return 0
with signals.exits_in_one_line("interrupted"), signals.signals_as_interrupts():
    sys.exit(main())
"""
PRINTING = {
    "print": "print('line\\n' * 100_000)",
    "one line at the end": "print('line')",
    "rich": "from rich.console import Console; Console().print('line\\n' * 1_000)",
    "logging": "import logging; logging.basicConfig(stream=sys.stdout, level=20); "
    "logging.info('line'); open('after', 'w').close()",
}


@pytest.mark.parametrize("how", PRINTING)
def test_a_reader_who_went_away_ends_a_command_without_a_word(tmp_path, how):
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-c", RUN.format(PRINTING[how])]
    done = subprocess.run(command, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    logs = how == "logging"  # which is not what a command is for: the rest is done
    assert (done.returncode, done.stderr) == (0 if logs else 128 + signal.SIGPIPE, "")
    assert (tmp_path / "after").exists() == logs


def test_a_pipe_that_is_not_standard_output_is_an_error_as_before():
    broken = "import os; ours, theirs = os.pipe(); os.close(ours); os.write(theirs, b'x')"
    done = subprocess.run([sys.executable, "-c", RUN.format(broken)], capture_output=True)
    assert done.returncode == 1 and b"BrokenPipeError" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_report_that_is_ended_leaves_whole_files_only(tmp_path, number):
    rates = {"token_rate": (50.0, 49.0, 51.0), "block_efficiency": (2.0, 1.9, 2.1)}
    cells = [row(*each, **rates) for each in (("ar", "-"), ("sd", "2"), ("rsd_s", "3x2"))]
    given = ["all", "--results", "results"]
    for name in ("whole", "cut"):
        write(tmp_path / name / "results", "rsd-exp1", *cells)
    for _ in range(2):  # the first command of all also starts what forks the others
        begun = time.monotonic()
        assert run("spec_bench", "report", *given, folder=tmp_path / "whole")[0] == 0
    usual_s, draws = time.monotonic() - begun, random.Random(0)
    ended = 0
    for _ in range(6):
        command = Command("spec_bench", ["report", *given], tmp_path / "cut")
        time.sleep(draws.uniform(0.3, 0.9) * usual_s)
        if command.poll() is None:
            os.kill(command.pid, number)
        status, _, said = command.finish()
        assert status in (0, 128 + number), said
        ended += status > 0
        assert said.splitlines() == ([SAID] if status else [])
        for path in (tmp_path / "cut").rglob("*.*"):
            assert not path.name.endswith(".tmp")
            if path.suffix in (".md", ".html", ".csv", ".tex"):
                other = tmp_path / "whole" / path.relative_to(tmp_path / "cut")
                assert path.read_bytes() == other.read_bytes()
    assert ended


ROOT = Path(__file__).resolve().parents[2]


def collected(given):
    sys.argv = ["collect", *given]
    collect()


# What else is asked for does not exist: an output is looked at first.
COMMANDS = {
    "compare": (compare, ["before", "after", "--out"], "FOLDER"),
    "answers": (answers, ["none.csv", "--out"], "FOLDER"),
    "figure": (report, ["figure", "rsd/7", "--out"], "FOLDER"),
    "results": (report, ["none.csv", "--out"], "FOLDER"),
    "page": (report, ["page", "none", "--out"], "FILE"),
    "table": (report, ["table", "rsd/7", "--out"], "FILE"),
    "wandb": (report, ["wandb", "--dry-run"], "FILE"),
    "bernoulli": (
        import_paper_code(get_experiments_dir() / "rsd", "bernoulli").main,
        ["--points", "2", "--out"],
        "FILE",
    ),
    "collect": (collected, ["none", "--out"], "FILE"),
}


def link(to):
    def linked(place, kind):
        (place / "link").symlink_to(to)
        return place / "link" if kind == "FOLDER" else place / "link/below"

    return linked


BAD = {
    "a device": lambda place, kind: Path("/dev/null"),
    "below a device": lambda place, kind: Path("/dev/null/x"),
    "a pipe": lambda place, kind: os.mkfifo(place / "pipe") or place / "pipe",
    "a file or a folder": lambda place, kind: place / ("file" if kind == "FOLDER" else "folder"),
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
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    output = BAD[bad](tmp_path, kind)
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    with pytest.raises(SystemExit) as stopped:
        sys.exit(main([*given, str(output)]))
    assert stopped.value.code == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert given[-1] in line and str(output)[:40] in line and not said.out
    assert sorted(tmp_path.iterdir()) == before


def test_every_option_that_names_an_output_is_checked():
    options = {
        (command, name): facts.get("type", facts.get("means"))
        for command in COMMANDS_THERE_ARE
        for name, facts in get_option_arguments(command).items()
        if name in ("--out", "--dry-run")
    }
    assert len(options) > 8
    assert {*options.values()} == {"out_file", "out_folder", "results={}", "out={}"}


@pytest.mark.parametrize(
    ("command", "given", "name", "missing"),
    [
        (audit, ["--target", "embedded:target"], "spec-bench check decoders", "--draft"),
        (compare, ["one"], "spec-bench compare", "a second folder, or --cells"),
        (answers, [], "spec-bench answers", "FILE"),
    ],
)
def test_a_wrong_request_is_one_line_without_the_usage(command, given, name, missing, capsys):
    with pytest.raises(SystemExit) as stopped:
        sys.exit(command(given))
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{name}: ") and missing in line


HIDING = """
import runpy, sys
HIDDEN = sys.argv.pop(1)
class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hiding())
sys.path.insert(0, %r)
runpy.run_module("spec_bench", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("-S -m spec_bench prompts=3", ""),
        ("-S -m spec_bench --help", ""),
        ("-S -m spec_bench compare a b", ""),
        ("-S -m spec_bench report page default", ""),
        ("-S -m spec_bench.train head=medusa", ""),
        ("-S -m spec_bench.audit", ""),
        ("hiding.py hydra prompts=1 sink=quiet", "'hydra'"),
        ("hiding.py torch prompts=1 sink=quiet", "'torch'"),
    ],
)
def test_a_python_without_packages_is_one_line_that_says_how_to_get_them(words, named, tmp_path):
    (tmp_path / "hiding.py").write_text(HIDING % str(ROOT))
    told = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    told |= {"capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words.split()], **told)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert all(each in done.stderr for each in (named, "source .venv/bin/activate", "make env"))


MISTAKE = "zip() argument 2 is shorter than argument 1"
PLACES = [  # what has the mistake, and the command that meets it
    ("spec_bench.jobs.app.parse_request", "run prompts=1"),
    ("spec_bench.jobs.app.build_settings", "run prompts=1"),
    ("spec_bench.jobs.sweep.sweep.build_settings", "run -m seed=0,1 prompts=1"),
    ("spec_bench.report.cli.command_line.build_tables_by_setting", "table rsd/7"),
    ("spec_bench.report.compare.compare_results", "compare before after"),
    ("spec_bench.audit.command_line.list_parts_of_groups", "check decoders --only sd"),
]


@pytest.mark.parametrize(("place", "words"), PLACES)
def test_a_mistake_of_ours_keeps_its_traceback_and_says_what_is_kept(
    place, words, tmp_path, monkeypatch, capfd
):
    def mistaken(*_, **__):
        raise ValueError(MISTAKE)

    module, _, name = place.rpartition(".")
    monkeypatch.setattr(import_module(module), name, mistaken)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["spec-bench", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    *trace, last = capfd.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert "Traceback" in "".join(trace) and f"ValueError: {MISTAKE}" in trace
    assert "a fault of spec_bench, not of the request; " in last


@pytest.mark.parametrize("word", ["pair.target=no/such", "name=..", "generation.temperature=-1"])
def test_a_wrong_request_is_one_line_with_status_2_in_a_sweep_too(
    word, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    for words in (["run", word], ["run", "-m", "seed=0,1", word]):
        monkeypatch.setattr(sys, "argv", ["spec-bench", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        (line,) = capfd.readouterr().err.splitlines()
        assert ended.value.code == 2 and word.partition("=")[2] in line


def test_a_package_that_ray_lacks_is_in_rays_environment(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spec-bench", "-m", "hydra/launcher=ray_cluster"])
    with pytest.raises(SystemExit), exits_in_one_line(SAID):
        raise ModuleNotFoundError(name="msgpack")
    assert re.search("'msgpack'.*constraints-ray.txt", capsys.readouterr().err)
