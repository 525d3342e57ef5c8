"""nvidia-smi's power, integrated and as the paper summed it, against known curves.

A square wave is right to 1% only where the sampling period is small against the wave's: an edge
between two samples is off by up to half a sampling period times its height. Here it is 1/200 of it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spec_bench.measure.energy import EnergyMeter, EnergyReading, build_meter
from tests.measure.conftest import PlayPower
from tests.measure.energy_curves import Curve


def opened(meter: str = "nvidia_smi", **settings: Any) -> EnergyMeter:
    built = build_meter({"meter": meter, "idle_s": 0, **settings})
    built.open()
    return built


def window(meter: EnergyMeter, seconds: float) -> tuple[EnergyReading, float, float]:
    """A window, with its begin and end in seconds since the epoch."""
    begin_s = time.time()
    meter.begin()
    time.sleep(seconds)
    end_s = time.time()
    return meter.end(), begin_s, end_s


@pytest.mark.parametrize("kind", ["steady", "ramp", "square"])
def test_the_integral_of_a_known_curve_is_right_to_one_percent(
    play_power: PlayPower, kind: str
) -> None:
    (curve,) = play_power(Curve(kind))
    meter = opened(period_s=0.005)
    try:
        for _ in range(5):
            reading, begin_s, end_s = window(meter, 1.3)
            # A machine with other work may keep the program from sampling; the meter says so.
            if "apart" not in reading.flag:
                break
        assert reading.energy_j == pytest.approx(curve.energy_j(begin_s, end_s), rel=0.01)
        assert reading.flag == reading.reason == ""
        assert (reading.method, reading.period_s) == ("nvidia_smi", 0.005)
        assert reading.window_s == pytest.approx(1.3, abs=0.3)
    finally:
        meter.close()


def test_the_papers_sum_counts_samples_and_not_seconds(play_power: PlayPower) -> None:
    play_power(Curve("steady", low_w=200.0))
    meter = opened("paper")
    try:
        readings = [window(meter, 0.4)[0] for _ in range(3)]
    finally:
        meter.close()
    # 80 J each; a window of 0.4 s holds one sample of 200 W or none.
    assert {reading.energy_j for reading in readings} <= {0.0, 200.0}
    assert all("shorter than" in reading.flag for reading in readings)
    assert (readings[0].method, readings[0].period_s) == ("paper", 1.0)


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("1", [1]), ("2,0", [2, 0]), ("GPU-1", [1]), (None, [0, 1, 2])],
)
def test_only_the_jobs_own_gpus_are_added_up(
    play_power: PlayPower, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: list[int]
) -> None:
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


def test_the_job_counts_the_gpu_that_its_device_names(
    play_power: PlayPower, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_power(Curve("steady", low_w=10.0), Curve("steady", low_w=200.0))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    meter = build_meter({"meter": "nvidia_smi", "idle_s": 0.3}, ordinals=(1,))
    meter.open()
    meter.close()
    assert meter.idle_power_w == pytest.approx(10.0, rel=0.02)


def test_the_instantaneous_field_is_integrated_and_the_averaged_one_is_the_check(
    play_power: PlayPower,
) -> None:
    (curve,) = play_power(Curve("ramp", slope_w_per_s=100.0), averaged=True)
    meter = opened(period_s=0.01)
    try:
        reading, begin_s, end_s = window(meter, 0.5)
    finally:
        meter.close()
    assert reading.energy_j == pytest.approx(curve.energy_j(begin_s, end_s), rel=0.01)
    # A mean over the last second shows a ramp half a second late: 50 W less.
    late_j = curve.energy_j(begin_s, end_s) - 50 * (end_s - begin_s)
    assert reading.check_j == pytest.approx(late_j, rel=0.01)


@pytest.mark.parametrize("how", ["unknown", "unsupported"])
def test_without_the_instantaneous_field_power_draw_is_taken_and_there_is_no_check(
    play_power: PlayPower, how: str
) -> None:
    play_power(Curve("steady"), **{how: ["power.draw.instant"]})
    meter = opened()
    try:
        reading, begin_s, end_s = window(meter, 0.2)
    finally:
        meter.close()
    assert reading.energy_j == pytest.approx(100 * (end_s - begin_s), rel=0.02)
    assert reading.check_j is None


def test_a_window_shorter_than_the_update_period_is_flagged(play_power: PlayPower) -> None:
    play_power(Curve("steady"))
    meter = opened(update_period_s=0.5)
    try:
        short, long = window(meter, 0.2)[0], window(meter, 0.6)[0]
    finally:
        meter.close()
    assert short.flag == "window shorter than the meter's update period of 0.5 s"
    assert short.energy_j is not None
    assert "shorter" not in long.flag


def test_idle_power_is_measured_before_the_run(play_power: PlayPower) -> None:
    play_power(Curve("steady", low_w=61.5))
    for name in ("nvidia_smi", "paper"):
        meter = opened(name, idle_s=0.4)
        meter.close()
        assert meter.idle_power_w == pytest.approx(61.5, rel=1e-3)


def test_without_the_program_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia_smi", "paper"):
        meter = opened(name)
        meter.begin()
        reading = meter.end()
        meter.close()
        assert reading.energy_j is None
        assert reading.reason == meter.reason == "no nvidia-smi on PATH"


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"broken": True}, "couldn't communicate with the NVIDIA driver"),
        (
            {"unsupported": ["power.draw", "power.draw.instant"]},
            "power.draw as [N/A] on GPU 0",
        ),
    ],
)
def test_a_gpu_without_power_readings_is_a_reason(
    play_power: PlayPower, plan: dict[str, Any], reason: str
) -> None:
    play_power(Curve("steady"), **plan)
    meter = opened()
    meter.begin()
    reading = meter.end()
    assert reading.energy_j is None
    assert reason in reading.reason


def test_a_program_that_dies_gives_no_number_from_then_on(play_power: PlayPower) -> None:
    play_power(Curve("steady"), die_after_s=2.0)
    meter = opened()
    try:
        before, during, after = (window(meter, seconds)[0] for seconds in (0.2, 2.2, 0.1))
    finally:
        meter.close()
    assert before.energy_j is not None
    assert (during.energy_j, after.energy_j) == (None, None)
    assert after.reason == "nvidia-smi ended with status 3"


def test_no_process_is_left_when_the_meter_is_closed(play_power: PlayPower) -> None:
    play_power(Curve("steady"))
    meter = opened()
    process = meter._sampler._process  # type: ignore[attr-defined]
    assert process.poll() is None
    meter.close()
    assert process.poll() is not None
    assert shutil.which("nvidia-smi")


def test_a_killed_job_takes_the_program_with_it(play_power: PlayPower, tmp_path: Path) -> None:
    identity = tmp_path / "pid"
    play_power(Curve("steady"), deaf=str(identity))
    code = (
        "import os, signal\n"
        "from spec_bench.measure.energy import build_meter\n"
        "build_meter({'meter': 'nvidia_smi', 'idle_s': 0.1}).open()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    left = Path("/proc") / identity.read_text() / "stat"
    deadline_s = time.monotonic() + 5
    while running(left) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not running(left)


def running(stat: Path) -> bool:
    """Whether a process of /proc is there and is no zombie that nobody has waited for."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
