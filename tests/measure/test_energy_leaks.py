"""However a job ends, no program that it reads power from is left."""

import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.measure.energy_curves import Curve

# The thread that opens the meter is over at once: whoever spawned from it would lose the program.
JOB = """
import os, sys, threading, time
from spec_bench.measure.energy import build_meter
meter = build_meter({'meter': 'nvidia_smi', 'idle_s': 0})
print('begun', flush=True)
opening = threading.Thread(target=meter.open)
opening.start()
opening.join()
time.sleep(0.3)
meter.begin()
assert meter.end().energy_j is not None, meter.reason
print('open', flush=True)
"""
WAYS = {
    "killed": "time.sleep(60)",
    "terminated": "time.sleep(60)",
    "at once": "os._exit(3)",
    "with an error": "raise KeyError('x')",
    "without closing": "sys.exit(0)",
}


def programs(folder):
    """The stand-ins that were started with this folder in their environment, and still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = str(folder).encode() in (path / "environ").read_bytes()
            runs = (path / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            if ours and runs and b"--loop-ms" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def left(folder):
    """Those that are not gone before long."""
    deadline_s = time.monotonic() + 20
    while (found := programs(folder)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return found


def ended(way, after_s):
    """Runs a job to this end; what it printed.

    Args:
        way: one of ``WAYS``.
        after_s: a signal comes so long after it began; None: when the meter is open.
    """
    job = subprocess.Popen(
        [sys.executable, "-c", JOB + WAYS[way]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert job.stdout is not None
    printed = job.stdout.readline()
    if after_s is None:
        printed += job.stdout.readline()
    else:
        time.sleep(after_s)
    if way in ("killed", "terminated"):
        job.send_signal(signal.SIGKILL if way == "killed" else signal.SIGTERM)
    printed += job.communicate(timeout=60)[0]
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_ends_without_closing_its_meter_leaves_no_program(play_power, tmp_path, way):
    play_power(Curve("steady"), deaf=str(tmp_path / "pid"))
    assert ended(way, None) == "begun\nopen\n"
    assert (tmp_path / "pid").exists() and not left(tmp_path)


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_job_killed_at_a_random_moment_leaves_no_program(play_power, tmp_path, times):
    play_power(Curve("steady"), deaf=str(tmp_path / "pid"))
    begun_s = time.monotonic()
    ended("at once", None)
    usual_s, draws, leaked, begun = time.monotonic() - begun_s, random.Random(0), 0, 0
    for _ in range(times):
        (tmp_path / "pid").unlink(missing_ok=True)
        ended("killed", draws.uniform(0, usual_s))
        leaked += bool(left(tmp_path))
        begun += (tmp_path / "pid").exists()
    assert leaked == 0
    assert begun or times == 2  # some were killed when it was there, others before
