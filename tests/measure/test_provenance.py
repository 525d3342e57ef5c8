"""What a run says of its checkout and its machine, and what reading it costs."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from spec_bench.engine.model import set_cuda_precision_flags
from spec_bench.measure import monitors, provenance
from spec_bench.measure.monitors import LoadAndClockMonitor, read_cpu_mhz
from spec_bench.measure.provenance import read_git_state, read_gpu_states
from tests.conftest import CORE_WAITS
from tests.measure.stand_ins import Curve, StandInNvml
from tests.simcuda import SimCuda

ONE, TWO = "GPU-5f4ad2f0-9c1e-4c3b-a2d7-0c1f2e3d4a5b", "GPU-00000000-0000-0000-0000-000000000000"
# As the program prints with --format=csv,noheader,nounits.
PRINTED = {
    ONE: f"NVIDIA H200, {ONE}, 570.86.15, 345, 1980, 3201, 3201, 700.00, 700.00, Enabled, Disabled",
    TWO: f"NVIDIA A100-SXM4-80GB, {TWO}, 570.86.15, [N/A], 1410, 1593, [Not Supported], 400.00, "
    "400.00, Enabled, [N/A]",
}


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """A program that answers one question as the real one does."""
    asked = f"--query-gpu={','.join(provenance.GPU_FIELDS.values())} --format=csv,noheader,nounits"
    lines = "\n".join(PRINTED.values())
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = '{asked}' ] || exit 1\necho '{lines}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_clocks_and_limits_are_those_of_the_gpus_asked_for_in_their_order(smi, monkeypatch):
    two, one = read_gpu_states([TWO, ONE])
    assert one == {
        "name": "NVIDIA H200", "uuid": ONE, "driver": "570.86.15",
        "sm_clock_mhz": 345.0, "most_sm_clock_mhz": 1980.0,
        "memory_clock_mhz": 3201.0, "most_memory_clock_mhz": 3201.0,
        "power_limit_w": 700.0, "default_power_limit_w": 700.0,
        "persistence_mode": "Enabled", "mig_mode": "Disabled",
    }  # fmt: skip
    assert (two["name"], two["power_limit_w"]) == ("NVIDIA A100-SXM4-80GB", 400.0)
    unknown = (two["sm_clock_mhz"], two["most_memory_clock_mhz"], two["mig_mode"])
    assert unknown == (None, None, None)
    assert read_gpu_states(["GPU-another"]) == []
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_gpu_states([ONE]) == []


def test_a_gpus_name_uuid_driver_versions_and_switches_are_recorded(smi):
    set_cuda_precision_flags()
    with SimCuda():
        state = provenance.collect_torch_state()
    assert (state["devices"], state["device_uuids"]) == (["Simulated"], [TWO])
    assert [each["power_limit_w"] for each in state["gpus"]] == [400.0]
    assert state["cuda"] == torch.version.cuda
    assert state["cudnn"] == torch.backends.cudnn.version()
    assert state["attention_kernels"] == ["flash", "memory_efficient", "math"]
    assert state["tf32"] is False
    without = provenance.collect_torch_state()  # no GPU is asked where torch sees none
    assert (without["gpus"], without["device_uuids"], without["driver"]) == ([], [], None)


def test_new_results_are_no_change_of_a_checkout_and_other_code_is(tmp_path):
    assert read_git_state(tmp_path) is None
    (tmp_path / "code.py").write_text("x = 1\n")
    for words in (["init"], ["add", "."], ["commit", "-m", "one"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "results.csv").write_text("run_id\n")
    state = read_git_state(tmp_path)
    assert (len(state["revision"]), state["dirty"]) == (40, False)
    (tmp_path / "code.py").write_text("x = 2\n")
    assert read_git_state(tmp_path)["dirty"] is True


def test_a_clock_is_the_mean_of_the_processors_listed_and_a_driver_is_its_modules(tmp_path):
    file, listed = tmp_path / "version", tmp_path / "cpuinfo"
    file.write_text("570.86.15\n")
    assert provenance.read_nvidia_driver_version(file) == "570.86.15"
    assert provenance.read_nvidia_driver_version(tmp_path / "none") is None
    listed.write_text("cpu MHz\t\t: 2000.5\nflags : x\ncpu MHz\t\t: 3000.5\ncpu MH")
    assert read_cpu_mhz(listed) == 2500.5
    listed.write_text("processor : 0\n")
    assert read_cpu_mhz(listed) is None
    assert read_cpu_mhz(tmp_path / "none") is None


def test_the_load_is_the_systems_if_it_has_one_and_a_reading_is_cheap(monkeypatch):
    with LoadAndClockMonitor("cpu") as machine:
        machine.begin_window()
        taken = []
        for _ in range(50):
            began = time.perf_counter()
            machine.end_window()
            taken.append(time.perf_counter() - began)
        assert min(taken) < 1e-3
        monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 1.0, 1.0))
        assert machine.end_window()["load_average"] == 2.5
    monkeypatch.delattr(os, "getloadavg")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with LoadAndClockMonitor("cuda") as machine:
        machine.begin_window()
        read = machine.end_window()
        assert (read["load_average"], read["clock_mhz"]) == (None, None)


def test_the_share_of_a_window_is_of_the_thread_that_waited_longest_for_a_core(monkeypatch, caplog):
    waits = iter(
        [{"1": 3.0, "2": 1.0}, {"1": 3.1, "2": 1.5, "3": 0.2}, {}, {"1": 9.0}, {"1": 12.0}, {}]
    )
    clock = iter([0.0, 1.0, 2.0, 3.0, 7.0, 8.0])
    monkeypatch.setattr(monitors, "read_thread_waits_s", lambda: next(waits))
    own = {"perf_counter": lambda: next(clock), "time": lambda: 9.0}
    monkeypatch.setattr(monitors, "time", SimpleNamespace(**own))
    monitors.log_busy_cores_warning_once.cache_clear()
    machine = LoadAndClockMonitor("cpu")
    machine.begin_window()
    read = machine.end_window()
    assert (read["core_wait"], read["ended_at"]) == (pytest.approx(0.5), 9.0)
    assert not caplog.records  # a moment's work of others
    machine.begin_window()  # the system does not tell, then tells
    machine.begin_window()
    assert machine.end_window()["core_wait"] == pytest.approx(0.75)
    assert len(caplog.records) == 1 and "disturbs times" in caplog.text
    assert machine.end_window()["core_wait"] == 0 and len(caplog.records) == 1


def test_a_thread_that_finds_no_core_is_seen_to_wait(monkeypatch):
    monkeypatch.setattr(monitors, "read_thread_waits_s", CORE_WAITS)
    if not CORE_WAITS():
        return  # this system's scheduler does not tell
    core = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, core)
        os.sched_setaffinity(0, core)
        time.sleep(0.1)
        with LoadAndClockMonitor("cpu") as machine:
            machine.begin_window()
            until = time.perf_counter() + 0.5
            while time.perf_counter() < until:
                pass
            assert machine.end_window()["core_wait"] > 0.2  # half of it, if nothing else runs
    finally:
        os.sched_setaffinity(0, before)
        busy.kill()
        busy.wait()


def test_the_clock_of_a_gpu_is_its_own(monkeypatch):
    stand_in = StandInNvml([Curve("steady"), Curve("steady")])
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with LoadAndClockMonitor("cuda", (0,)) as machine:
        machine.begin_window()
        assert machine.end_window()["clock_mhz"] == 1001
    with LoadAndClockMonitor("cuda") as machine:
        machine.begin_window()
        assert machine.end_window()["clock_mhz"] == 1000.5
    assert stand_in.started == 0
