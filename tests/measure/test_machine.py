"""Load and clock beside a row: where they come from, and what reading them costs."""

import os
import sys
import time

from spec_bench.measure.machine import Machine, cpu_mhz
from tests.measure.energy_curves import Curve
from tests.measure.energy_nvml import StandInNvml


def test_the_clock_is_the_mean_of_the_processors_listed(tmp_path):
    listed = tmp_path / "cpuinfo"
    listed.write_text("cpu MHz\t\t: 2000.5\nflags : x\ncpu MHz\t\t: 3000.5\ncpu MH")
    assert cpu_mhz(listed) == 2500.5
    listed.write_text("processor : 0\n")
    assert cpu_mhz(listed) is None
    assert cpu_mhz(tmp_path / "none") is None


def test_the_load_is_the_systems_and_a_reading_is_cheap(monkeypatch):
    with Machine("cpu") as machine:
        taken = []
        for _ in range(50):
            began = time.perf_counter()
            machine.read()
            taken.append(time.perf_counter() - began)
        assert min(taken) < 1e-4
        monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 1.0, 1.0))
        assert machine.read().load_average == 2.5


def test_without_a_load_or_nvml_nothing_is_said(monkeypatch):
    monkeypatch.delattr(os, "getloadavg")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with Machine("cuda") as machine:
        assert machine.read() == (None, None)


def test_the_clock_of_a_gpu_is_its_own(monkeypatch):
    stand_in = StandInNvml([Curve("steady"), Curve("steady")])
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with Machine("cuda", (0,)) as machine:
        assert machine.read().clock_mhz == 1001
    with Machine("cuda") as machine:
        assert machine.read().clock_mhz == 1000.5
    assert stand_in.started == 0
