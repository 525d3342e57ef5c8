"""What ends a command from its imports on: a signal, or a reader who went away."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.report.rows import row, write
from tests.warm import Command, run

REPORT = "spec_bench.report"
SAID = "interrupted; what was written is whole"


def catches(process):
    """Whether a process has a handler for SIGTERM."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt")).split()[1]
    return bool(int(caught, 16) & (1 << (signal.SIGTERM - 1)))


JOB = ["spec_bench", "sink=quiet"]
TRAINING = ["spec_bench.train", "sink=quiet"]
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("command", "number", "after_s", "line"),
    [
        (JOB, signal.SIGINT, 0, "interrupted; the same command resumes"),
        (JOB, signal.SIGTERM, 0, "interrupted; the same command resumes"),
        *(
            pytest.param(TRAINING, number, 0.4, "interrupted; the same command goes on", marks=SLOW)
            for number in (signal.SIGINT, signal.SIGTERM)
        ),
        ([REPORT, "list"], signal.SIGINT, 0, SAID),
        (["spec_bench.audit"], signal.SIGTERM, 0, "interrupted; nothing is proven"),
    ],
)
def test_a_signal_ends_a_command_in_one_line_from_its_imports_on(
    tmp_path, command, number, after_s, line
):
    started = [sys.executable, "-m", *command]
    process = subprocess.Popen(started, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not catches(process.pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(after_s)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.startswith(line) and said.count("\n") == 1


SWALLOWING = """
import os, signal, time
from spec_bench.system import signals
with signals.orderly("ended"):
    with signals.raising():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        except BaseException:
            pass
    print("it went on", flush=True)
"""


def test_a_signal_whose_exception_is_swallowed_still_ends_the_command():
    done = subprocess.run([sys.executable, "-c", SWALLOWING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "it went on\n", "ended\n")


PRINTING = {
    "print": "print('line\\n' * 100_000)",
    "one line at the end": "print('line')",
    "rich": "from rich.console import Console; Console().print('line\\n' * 1_000)",
    "logging": "import logging; logging.basicConfig(stream=sys.stdout, level=20); "
    "logging.info('line'); open('after', 'w').close()",
}


@pytest.mark.parametrize("how", PRINTING)
def test_a_reader_who_went_away_ends_a_command_without_a_word(tmp_path, how):
    code = (
        "import sys\nfrom spec_bench.system import signals\n"
        f"def main():\n    {PRINTING[how]}\n    return 0\n"
        "signals.run(lambda: main, 'interrupted')\n"
    )
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    logs = how == "logging"  # which is not what a command is for: the rest is done
    assert (done.returncode, done.stderr) == (0 if logs else 128 + signal.SIGPIPE, "")
    assert (tmp_path / "after").exists() == logs


def test_a_pipe_that_is_not_standard_output_is_an_error_as_before(tmp_path):
    code = (
        "import os\nfrom spec_bench.system import signals\n"
        "def main():\n    ours, theirs = os.pipe()\n    os.close(ours)\n"
        "    os.write(theirs, b'x')\n"
        "signals.run(lambda: main, 'interrupted')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "BrokenPipeError" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_report_that_is_ended_leaves_whole_files_only(tmp_path, number):
    rates = {"token_rate": (50.0, 49.0, 51.0), "block_efficiency": (2.0, 1.9, 2.1)}
    cells = [row(*each, **rates) for each in (("ar", "-"), ("sd", "2"), ("rsd_s", "3x2"))]
    given = ["all", "--results", "results"]
    for name in ("whole", "cut"):
        write(tmp_path / name / "results", "rsd-exp1", *cells)
    begun = time.monotonic()
    assert run(REPORT, *given, folder=tmp_path / "whole")[0] == 0
    usual_s, draws = time.monotonic() - begun, random.Random(0)
    ended = 0
    for _ in range(6):
        command = Command(REPORT, given, tmp_path / "cut")
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
