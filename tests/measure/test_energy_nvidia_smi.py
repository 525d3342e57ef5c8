"""nvidia-smi's power, integrated, against known curves; job's ends.

A square wave is right to 1% only where the sampling period is small against the wave's: an edge
between two samples is off by up to half a sampling period times its height. Here it is 1/200 of it.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from spec_bench.measure.energy import nvidia_smi, power_sampler
from tests.measure.conftest import opened, window
from tests.measure.stand_ins import Curve
from tests.warm import alive, until


@pytest.mark.parametrize("kind", ["steady", "ramp", "square"])
def test_the_integral_of_a_known_curve_is_right_to_one_percent(play_power, kind):
    (curve,) = play_power(Curve(kind))
    with opened("nvidia_smi", period_s=0.005) as meter:
        for _ in range(5):
            reading, begin_s, end_s = window(meter, 1.3)
            if "apart" not in reading.note:  # as on a machine with other work
                break
    assert reading.energy_j == pytest.approx(curve.energy_j(begin_s, end_s), rel=0.01)
    assert (reading.note, meter.period_s) == ("", 0.005)
    assert reading.window_s == pytest.approx(end_s - begin_s, abs=0.3)
    assert end_s - begin_s >= 1.3


def test_only_the_jobs_own_gpus_are_added_up(play_power, monkeypatch):
    play_power(*(Curve("steady", low_w=watts) for watts in (10.0, 200.0, 3000.0)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    with opened("nvidia_smi") as meter:
        reading, begin_s, end_s = window(meter, 0.3)
    assert reading.energy_j == pytest.approx(3010 * (end_s - begin_s), rel=0.02)


def test_idle_power_is_measured_before_the_run_on_the_gpu_that_the_device_names(
    play_power, monkeypatch
):
    play_power(Curve("steady", low_w=61.5), Curve("steady", low_w=200.0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    for name, watts in (("nvidia_smi", 61.5), ("paper", 261.5)):  # all GPUs, as the paper
        with opened(name, ordinals=(1,), idle_s=0.4) as meter:
            assert meter.idle_power_w == pytest.approx(watts, rel=1e-3)


@pytest.mark.parametrize("how", ["unknown", "unsupported"])
def test_without_the_instantaneous_field_power_draw_is_taken(play_power, how):
    play_power(Curve("steady"), **{how: ["power.draw.instant"]})
    with opened("nvidia_smi") as meter:
        reading, begin_s, end_s = window(meter, 0.2)
        process = meter._sampler._process
        assert process.poll() is None
    assert process.poll() is not None  # the meter is closed
    assert reading.energy_j == pytest.approx(100 * (end_s - begin_s), rel=0.02)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"broken": True}, "couldn't communicate with the NVIDIA driver"),
        ({"unsupported": ["power.draw", "power.draw.instant"]}, "power.draw as [N/A] on GPU 0"),
    ],
)
def test_a_gpu_without_power_readings_is_a_reason(play_power, plan, reason):
    play_power(Curve("steady"), **plan)
    with opened("nvidia_smi") as meter:
        reading = window(meter)[0]
    assert reading.energy_j is None
    assert reason in reading.note


@pytest.mark.parametrize("ahead_s", [-3600.0, -0.2, 3600.0])
def test_a_window_in_which_the_clock_was_set_has_no_number_but_a_reason(
    play_power, monkeypatch, ahead_s
):
    play_power(Curve("steady"))
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic)

    def set_clock():
        clock.time = lambda: time.time() + ahead_s

    with opened("nvidia_smi", period_s=0.01) as meter:
        monkeypatch.setattr(nvidia_smi, "time", clock)
        during = window(meter, meanwhile=set_clock)[0]
        meter.begin_window()
    assert (during.energy_j, during.note) == (None, "the machine's clock was set meanwhile")
    assert isinstance(meter._mark, float)


def test_samples_from_before_a_clock_was_set_back_are_forgotten(monkeypatch):
    stamps = ["2026/01/01 10:00:00.0", "2026/01/01 10:00:01.0", "2026/01/01 09:00:00.5"]
    lines = [f"{stamp}, 0, {watts}" for watts, stamp in enumerate(stamps)]
    ended = SimpleNamespace(wait=lambda: 0)
    monkeypatch.setattr(
        power_sampler, "_spawn_on_terminal", lambda _: (ended, os.open(os.devnull, os.O_RDONLY))
    )
    monkeypatch.setattr(power_sampler, "_iter_terminal_lines", lambda _: lines)
    sampler = power_sampler.PowerSampler([power_sampler.Gpu(0, "GPU-0")], "power.draw", 0.1)
    sampler._read_samples([])
    (times, power), *_ = sampler._traces.values()
    assert (len(times), power) == (1, [2.0])


def test_a_program_that_dies_gives_no_number_from_then_on(play_power, tmp_path):
    end = tmp_path / "end"
    play_power(Curve("steady"), dies_of=str(end))

    def kill():
        end.touch()
        assert gone(end.exists)

    with opened("nvidia_smi") as meter:
        before = window(meter, 0.2)[0]
        during = window(meter, meanwhile=kill)[0]
        after = window(meter, 0.1)[0]
    assert before.energy_j is not None
    assert (during.energy_j, after.energy_j) == (None, None)
    assert after.note == "nvidia-smi ended with status 3"


def test_a_program_whose_samples_come_late_costs_a_job_some_seconds_and_not_some_a_window(
    play_power, monkeypatch
):
    monkeypatch.setattr(power_sampler, "_PATIENCE_S", 0.4)
    play_power(Curve("steady"))
    with opened("nvidia_smi", period_s=0.01) as meter:
        meter._sampler._process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        readings = [window(meter, 0.02)[0] for _ in range(10)]
        assert time.monotonic() - began < 2  # and not ten times 0.4 s
    assert {each.note for each in readings} == {"nvidia-smi gave no sample when one was due"}


# The program starts when its parent is dead already: no signal comes any more.
KILLED_EARLY = """
import os, signal
from spec_bench.measure.energy import power_sampler as smi
def late(parent):
    open('PID', 'w').write(str(os.getpid()))
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        pass
    die_with(parent)
die_with, smi._die_with_parent = smi._die_with_parent, late
smi.PowerSampler([smi.Gpu(0, 'GPU-0')], 'power.draw', 0.1).start()
"""
# The program outlives the thread that opens the meter, which is over at once.
JOB = """
import os, sys, threading, time
from spec_bench.measure.energy import build_meter
meter = build_meter({'meter': 'nvidia_smi', 'idle_s': 0})
print('begun', flush=True)
opening = threading.Thread(target=meter.open)
opening.start()
opening.join()
time.sleep(0.3)
meter.begin_window()
assert meter.end_window().energy_j is not None, meter.reason
print('open', flush=True)
"""
WAYS = {
    "killed": "time.sleep(60)",
    "terminated": "time.sleep(60)",
    "at once": "os._exit(3)",
    "with an error": "raise KeyError('x')",
    "without closing": "sys.exit(0)",
}


@pytest.fixture
def deaf(play_power, tmp_path):
    """The file that a stand-in, which goes on when nobody reads it, leaves its process id in."""
    file = tmp_path / "pid"
    play_power(Curve("steady"), deaf=str(file))
    return file


def programs(folder):
    """The stand-ins that were started with this folder in their environment, and still run."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = str(folder).encode() in (path / "environ").read_bytes()
            if ours and alive(int(path.name)) and b"--loop-ms" in (path / "cmdline").read_bytes():
                yield path


def gone(running):
    return until(lambda: not running(), 40)


def test_a_job_killed_while_the_program_starts_takes_it_with_it(deaf):
    killed = subprocess.run([sys.executable, "-c", KILLED_EARLY.replace("PID", str(deaf))])
    assert killed.returncode == -signal.SIGKILL
    assert gone(lambda: alive(int(deaf.read_text())))


def ended(way, after_s):
    """What a job prints that is ended so long after its start or, if None, with the meter open."""
    command = [sys.executable, "-c", JOB + WAYS[way]]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    job = subprocess.Popen(command, **quiet)
    printed = job.stdout.readline()
    if after_s is None:
        printed += job.stdout.readline()
    time.sleep(after_s or 0)
    if way in ("killed", "terminated"):
        job.send_signal(signal.SIGKILL if way == "killed" else signal.SIGTERM)
    return printed + job.communicate(timeout=60)[0]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_ends_without_closing_its_meter_leaves_no_program(deaf, tmp_path, way):
    assert ended(way, None) == "begun\nopen\n"
    assert deaf.exists() and gone(lambda: [*programs(tmp_path)])


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_job_killed_at_a_random_moment_leaves_no_program(deaf, tmp_path, times):
    begun_s = time.monotonic()
    ended("at once", None)
    usual_s, draws, begun = time.monotonic() - begun_s, random.Random(0), 0
    for _ in range(times):
        deaf.unlink(missing_ok=True)
        ended("killed", draws.uniform(0, usual_s))
        assert gone(lambda: [*programs(tmp_path)])
        begun += deaf.exists()
    assert begun or times == 2  # some were killed when it was there, others before
