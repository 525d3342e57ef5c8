"""nvidia-smi's power, integrated and as the paper summed it, against known curves.

A square wave is right to 1% only where the sampling period is small against the wave's: an edge
between two samples is off by up to half a sampling period times its height. Here it is 1/200 of it.
"""

import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spec_bench.measure.energy import build_meter
from tests.measure.conftest import kill_meter
from tests.measure.energy_curves import Curve


def opened(meter="nvidia_smi", **settings):
    built = build_meter({"meter": meter, "idle_s": 0, **settings})
    built.open()
    return built


def window(meter, seconds):
    """A window, with its begin and end in seconds since the epoch, as the meter marked them."""
    marks = [time.time()]
    mark = type(meter).mark
    meter.mark = lambda: marks.append(mark(meter)) or marks[-1]
    meter.begin()
    time.sleep(seconds)
    reading = meter.end()
    del meter.mark
    return reading, marks[-2] if len(marks) > 2 else marks[0], marks[-1]


@pytest.mark.parametrize("kind", ["steady", "ramp", "square"])
def test_the_integral_of_a_known_curve_is_right_to_one_percent(play_power, kind):
    (curve,) = play_power(Curve(kind))
    meter = opened(period_s=0.005)
    try:
        for _ in range(5):
            reading, begin_s, end_s = window(meter, 1.3)
            # A machine with other work may keep the program from sampling; the meter says so.
            if "apart" not in reading.note:
                break
        assert reading.energy_j == pytest.approx(curve.energy_j(begin_s, end_s), rel=0.01)
        assert reading.note == ""
        assert meter.period_s == 0.005
        assert reading.window_s == pytest.approx(end_s - begin_s, abs=0.3)
        assert end_s - begin_s >= 1.3
    finally:
        meter.close()


def test_the_papers_sum_counts_samples_and_not_seconds(play_power):
    play_power(Curve("steady", low_w=200.0))
    meter = opened("paper")
    try:
        readings = [window(meter, 0.4)[0] for _ in range(3)]
    finally:
        meter.close()
    # 80 J each; a window of 0.4 s holds one sample of 200 W or none, on a busy machine maybe more.
    assert {reading.energy_j for reading in readings} <= {0.0, 200.0, 400.0, 600.0}
    assert all(("shorter than" in r.note) == (r.window_s < 1.0) for r in readings)
    assert meter.period_s == 1.0


@pytest.mark.parametrize(
    ("visible", "gpus"), [("1", [1]), ("2,0", [2, 0]), ("GPU-1", [1]), (None, [0, 1, 2])]
)
def test_only_the_jobs_own_gpus_are_added_up(play_power, monkeypatch, visible, gpus):
    curves = play_power(*(Curve("steady", low_w=watts) for watts in (10.0, 200.0, 3000.0)))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    meter = opened()
    try:
        reading, begin_s, end_s = window(meter, 0.3)
    finally:
        meter.close()
    expected = sum(curves[gpu].energy_j(begin_s, end_s) for gpu in gpus)
    assert reading.energy_j == pytest.approx(expected, rel=0.02)


def test_the_job_counts_the_gpu_that_its_device_names(play_power, monkeypatch):
    play_power(Curve("steady", low_w=10.0), Curve("steady", low_w=200.0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    meter = build_meter({"meter": "nvidia_smi", "idle_s": 0.3}, ordinals=(1,))
    meter.open()
    meter.close()
    assert meter.idle_power_w == pytest.approx(10.0, rel=0.02)


@pytest.mark.parametrize("how", ["unknown", "unsupported"])
def test_without_the_instantaneous_field_power_draw_is_taken(play_power, how):
    play_power(Curve("steady"), **{how: ["power.draw.instant"]})
    meter = opened()
    try:
        reading, begin_s, end_s = window(meter, 0.2)
    finally:
        meter.close()
    assert reading.energy_j == pytest.approx(100 * (end_s - begin_s), rel=0.02)


@pytest.mark.parametrize(("update_period_s", "short"), [(0.05, False), (60, True)])
def test_a_window_shorter_than_the_update_period_is_flagged(play_power, update_period_s, short):
    play_power(Curve("steady"))
    meter = opened(update_period_s=update_period_s)
    try:
        reading = window(meter, 0.1)[0]
    finally:
        meter.close()
    flag = f"window shorter than the meter's update period of {update_period_s:g} s"
    assert (flag in reading.note) == short
    assert reading.energy_j is not None


def test_idle_power_is_measured_before_the_run(play_power):
    play_power(Curve("steady", low_w=61.5))
    for name in ("nvidia_smi", "paper"):
        meter = opened(name, idle_s=0.4)
        meter.close()
        assert meter.idle_power_w == pytest.approx(61.5, rel=1e-3)


def test_without_the_program_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia_smi", "paper"):
        meter = opened(name)
        meter.begin()
        reading = meter.end()
        meter.close()
        assert reading.energy_j is None
        assert reading.note == meter.reason == "no nvidia-smi on PATH"


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"broken": True}, "couldn't communicate with the NVIDIA driver"),
        ({"unsupported": ["power.draw", "power.draw.instant"]}, "power.draw as [N/A] on GPU 0"),
    ],
)
def test_a_gpu_without_power_readings_is_a_reason(play_power, plan, reason):
    play_power(Curve("steady"), **plan)
    meter = opened()
    meter.begin()
    reading = meter.end()
    assert reading.energy_j is None
    assert reason in reading.note


def test_a_program_that_dies_gives_no_number_from_then_on(play_power, tmp_path):
    play_power(Curve("steady"), dies_of=str(tmp_path / "end"))
    meter = opened()
    try:
        before = window(meter, 0.2)[0]
        meter.begin()
        kill_meter(tmp_path / "end")
        during = meter.end()
        after = window(meter, 0.1)[0]
    finally:
        meter.close()
    assert before.energy_j is not None
    assert (during.energy_j, after.energy_j) == (None, None)
    assert after.note == "nvidia-smi ended with status 3"


def test_no_process_is_left_when_the_meter_is_closed(play_power):
    play_power(Curve("steady"))
    meter = opened()
    process = meter._sampler._process
    assert process.poll() is None
    meter.close()
    assert process.poll() is not None
    assert shutil.which("nvidia-smi")


def test_a_killed_job_takes_the_program_with_it(play_power, tmp_path):
    identity = tmp_path / "pid"
    play_power(Curve("steady"), deaf=str(identity))
    code = (
        "import os, signal\n"
        "from spec_bench.measure.energy import build_meter\n"
        "build_meter({'meter': 'nvidia_smi', 'idle_s': 0.1}).open()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert ends(identity)


def test_a_job_killed_while_the_program_starts_takes_it_along(play_power, tmp_path):
    """The program starts when its parent is dead already: no signal comes any more."""
    identity = tmp_path / "pid"
    play_power(Curve("steady"), deaf=str(identity))
    code = (
        "import os, signal\n"
        "from spec_bench.measure.energy import nvidia_smi as smi\n"
        "def late(parent):\n"
        f"    open({str(identity)!r}, 'w').write(str(os.getpid()))\n"
        "    os.kill(parent, signal.SIGKILL)\n"
        "    while os.getppid() == parent:\n"
        "        pass\n"
        "    die_with(parent)\n"
        "die_with, smi._die_with = smi._die_with, late\n"
        "smi.SmiSampler([smi.Gpu(0, 'GPU-0')], 'power.draw', 0.1).start()\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert ends(identity)


def test_the_program_outlives_the_thread_that_opened_the_meter(play_power):
    play_power(Curve("steady"))
    meter = build_meter({"meter": "nvidia_smi", "idle_s": 0})
    thread = threading.Thread(target=meter.open)
    thread.start()
    thread.join()
    try:
        assert window(meter, 0.2)[0].energy_j is not None
    finally:
        meter.close()


def ends(identity):
    """Whether the process of this id, written by itself, is gone before long."""
    left = Path("/proc") / identity.read_text() / "stat"
    deadline_s = time.monotonic() + 60
    while running(left) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not running(left)


def running(stat):
    """Whether a process of /proc is there and is no zombie that nobody has waited for."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
