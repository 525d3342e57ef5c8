"""SIGINT and SIGTERM at any moment: one line, status 130 or 143, and a rerun as if nothing was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.tiny import overrides, tokens_of
from tests.warm import Command

LINE = "interrupted; the same command resumes"
SIGNALS = [signal.SIGINT, signal.SIGTERM]
CELLS = ("cells=[sd:3,rsd_s:2x2]", "warmup=0")


def catches(process):
    """Whether a process has a handler for SIGTERM."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    caught = next(line for line in lines if line.startswith("SigCgt")).split()[1]
    return bool(int(caught, 16) & (1 << (signal.SIGTERM - 1)))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("module", "after_s"), [("spec_bench", 0.0), ("spec_bench.train", 0.4)])
def test_a_signal_while_modules_are_imported_ends_the_command_in_one_line(
    tmp_path, module, after_s, number
):
    command = [sys.executable, "-m", module, "sink=quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not catches(process.pid) and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(after_s)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert said.splitlines() == [
        f"interrupted; the same command {'goes on' if 'train' in module else 'resumes'}"
    ]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_it_decodes_ends_the_command_and_a_rerun_equals_an_undisturbed_one(
    run_job, family, tmp_path, number
):
    cut = tmp_path / "cut"
    command = Command("spec_bench", overrides(family, cut, *CELLS), tmp_path)
    deadline = time.monotonic() + 90
    while not list(cut.glob("runs/*/generations.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(command.pid, number)
    status, _, said = command.finish()
    assert status == 128 + number and said.splitlines()[-1] == LINE
    assert "Traceback" not in said
    run_job(*CELLS, results=cut)
    for each in run_job(*CELLS, results=tmp_path / "whole"):
        assert tokens_of(cut, each.run_id) == tokens_of(tmp_path / "whole", each.run_id)


SWALLOWING = """
import os, signal, sys, time
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
