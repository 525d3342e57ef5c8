"""The GPU's energy counter, on a stand-in for the library and on the real one."""

import sys
import time

import pytest

from spec_bench.measure.energy import build_meter
from tests.measure.energy_curves import Curve
from tests.measure.energy_nvml import StandInNvml


@pytest.fixture
def nvml(monkeypatch):
    origin_s = time.time() - 10
    curves = [Curve("ramp", origin_s=origin_s), Curve("steady", low_w=1000.0, origin_s=origin_s)]
    stand_in = StandInNvml(curves)
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return stand_in


def opened(**settings):
    meter = build_meter({"meter": "nvml", "idle_s": 0, **settings})
    meter.open()
    return meter


def window(meter, seconds=0.3):
    begin_s = time.time()
    meter.begin()
    time.sleep(seconds)
    end_s = time.time()
    return meter.end(), begin_s, end_s


def test_the_counter_agrees_with_the_curve(nvml):
    meter = opened()
    reading, begin_s, end_s = window(meter)
    meter.close()
    expected_j = nvml.curves[0].energy_j(begin_s, end_s)
    assert reading.energy_j == pytest.approx(expected_j, rel=0.02)
    assert (meter.period_s, reading.note) == (0.1, "")
    assert nvml.started == 0


def test_the_jobs_gpus_are_added_up(nvml):
    meter = opened(devices=["GPU-1", 0])
    reading, begin_s, end_s = window(meter)
    meter.close()
    expected_j = sum(curve.energy_j(begin_s, end_s) for curve in nvml.curves)
    assert reading.energy_j == pytest.approx(expected_j, rel=0.02)


def test_idle_power_and_a_short_window_are_stated(nvml):
    meter = opened(devices=1, idle_s=0.2, update_period_s=5.0)
    reading = window(meter, 0.05)[0]
    meter.close()
    assert meter.idle_power_w == pytest.approx(1000.0, rel=0.02)
    assert reading.note == "window shorter than the meter's update period of 5 s"


def test_a_counter_that_goes_back_or_fails_gives_no_number(nvml):
    meter = opened()
    meter.begin()
    nvml.lost_mj = 10**9
    assert "went back" in meter.end().note
    meter.begin()
    nvml.failing = True
    assert meter.end().note == "NVML: GPU is lost"
    meter.close()


def test_without_a_driver_there_is_a_reason(nvml):
    nvml.curves = []
    meter = opened()
    reading = window(meter, 0.0)[0]
    assert (reading.energy_j, reading.note) == (None, "NVML: Driver Not Loaded")
    meter.close()


def test_without_the_library_there_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = opened()
    assert "pynvml is not installed" in window(meter, 0.0)[0].note
    meter.close()


def test_the_real_library_on_a_machine_without_a_gpu_gives_a_reason():
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        meter = opened()
        assert window(meter, 0.0)[0].note.startswith("NVML: ")
        meter.close()
    else:
        pynvml.nvmlShutdown()
        pytest.skip("there is a GPU")
