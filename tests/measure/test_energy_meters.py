"""Counters, sums and settings: whose GPU is whose, what is added up, what is a reason."""

import logging
import sys
import time
from types import SimpleNamespace

import pytest
import yaml

from spec_bench.jobs.work.metering import Metering
from spec_bench.measure.energy import build_meter, energy_settings, meter, meters
from spec_bench.measure.energy.counters import Gpu, job_gpus, visible_gpus
from spec_bench.measure.energy.meters import EnergyMeter, UnmeteredError
from spec_bench.measure.energy.nvidia_smi import integral_j, largest_gap_s, summed_j
from spec_bench.settings.configs import conf_dir, experiments_dir
from tests.measure.conftest import opened, window
from tests.measure.stand_ins import Curve, StandInNvml

# The GPU's energy counter, on a stand-in for the library and on the real one.


@pytest.fixture
def nvml(monkeypatch):
    origin_s = time.time() - 10
    curves = [Curve("ramp", origin_s=origin_s), Curve("steady", low_w=1000.0, origin_s=origin_s)]
    stand_in = StandInNvml(curves)
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return stand_in


@pytest.mark.parametrize(("devices", "gpus"), [(None, [0]), (["GPU-1", 0], [0, 1])])
def test_the_counters_of_the_jobs_gpus_agree_with_the_curves(nvml, devices, gpus):
    with opened("nvml", devices=devices) as counter:
        reading, begin_s, end_s = window(counter, 0.3)
    expected_j = sum(nvml.curves[gpu].energy_j(begin_s, end_s) for gpu in gpus)
    assert reading.energy_j == pytest.approx(expected_j, rel=0.02)
    assert (counter.period_s, reading.note) == (0.1, "")
    assert nvml.started == 0


def test_idle_power_and_a_short_window_are_stated(nvml):
    with opened("nvml", devices=1, idle_s=0.2, update_period_s=5.0) as counter:
        reading = window(counter, 0.05)[0]
    assert counter.idle_power_w == pytest.approx(1000.0, rel=0.02)
    assert reading.note == "window shorter than the meter's update period of 5 s"


@pytest.mark.parametrize(
    ("fault", "value", "reason"),
    [
        ("lost_mj", 10**9, "NVML's energy counter went back: the driver was loaded anew"),
        ("failing", True, "NVML: GPU is lost"),
    ],
)
def test_a_counter_that_goes_back_or_fails_gives_no_number(nvml, fault, value, reason):
    with opened("nvml") as counter:
        reading = window(counter, meanwhile=lambda: setattr(nvml, fault, value))[0]
    assert (reading.energy_j, reading.note) == (None, reason)


def test_without_a_driver_or_the_library_there_is_a_reason(nvml, monkeypatch):
    nvml.curves = []
    with opened("nvml") as counter:
        assert window(counter)[0].note == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with opened("nvml") as counter:
        assert "pynvml is not installed" in window(counter)[0].note


def test_the_real_library_on_a_machine_without_a_gpu_gives_a_reason():
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        with opened("nvml") as counter:
            assert window(counter)[0].note.startswith("NVML: ")
    else:
        pynvml.nvmlShutdown()
        pytest.skip("there is a GPU")


# The processor's counters, in a folder that a test makes.


def zone(root, folder, name, energy_uj, range_uj=10**9):
    path = root / folder
    path.mkdir(parents=True)
    for file, text in (("name", name), ("max_energy_range_uj", range_uj), ("energy_uj", energy_uj)):
        (path / file).write_text(f"{text}\n")
    return path / "energy_uj"


def rapl(root, **settings):
    return opened("rapl", root=str(root), **settings)


def test_packages_and_memory_are_added_up_and_their_parts_are_not(tmp_path):
    zones = {
        "intel-rapl:0": "package-0",
        "intel-rapl:0:0": "core",
        "intel-rapl:0:1": "dram",
        "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys",
        "intel-rapl-mmio:0": "package-0",
    }
    counters = [zone(tmp_path, folder, name, 1_000_000) for folder, name in zones.items()]
    with rapl(tmp_path) as counter:
        counter.begin()
        for joules, file in enumerate(counters, start=1):
            file.write_text(str(1_000_000 + joules * 1_000_000))
        reading = counter.end()
    assert reading.energy_j == pytest.approx(1 + 3 + 4)
    assert (counter.period_s, reading.note) == (0.001, "")


def test_a_counter_that_wrapped_around_counts_on(tmp_path):
    file = zone(tmp_path, "intel-rapl:0", "package-0", 9_500_000, range_uj=9_999_999)
    with rapl(tmp_path, idle_s=0.05) as counter:
        reading = window(counter, meanwhile=lambda: file.write_text("2500000"))[0]
    assert reading.energy_j == pytest.approx(3.0)
    assert counter.idle_power_w == 0.0


def test_without_the_interface_there_is_a_reason(tmp_path):
    with rapl(tmp_path) as counter:
        reading = window(counter)[0]
    assert reading.energy_j is None
    assert reading.note == counter.reason == f"no intel-rapl package in {tmp_path}"


def test_a_counter_that_cannot_be_read_is_a_reason(tmp_path):
    # Root may read a file of mode 000, so the file is a folder instead.
    file = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    file.unlink()
    file.mkdir()
    with rapl(tmp_path) as counter:
        assert window(counter)[0].note == f"cannot read {file}: Is a directory"


def test_a_counter_that_fails_in_a_window_gives_no_number_for_it(tmp_path):
    file = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with rapl(tmp_path) as counter:
        reading = window(counter, meanwhile=lambda: file.write_text("broken"))[0]
        assert reading.energy_j is None
        assert "holds no number" in reading.note
        file.write_text("0")
        assert window(counter, meanwhile=lambda: file.write_text("1000000"))[0].energy_j == 1.0


# From samples to joules, and whose GPU is whose: pure functions on literal data.

TIMES = [0.0, 1.0, 2.0, 4.0]
POWER = [100.0, 200.0, 200.0, 0.0]
GPUS = [Gpu(0, "GPU-aaa1"), Gpu(1, "GPU-aab2"), Gpu(2, "GPU-ccc3")]


@pytest.mark.parametrize(
    ("sums", "begin_s", "end_s", "joules"),
    [
        (integral_j, 0.0, 4.0, 150 + 200 + 200),
        (integral_j, 0.5, 1.5, 0.5 * 175 + 0.5 * 200),
        (integral_j, 2.5, 3.5, (150 + 50) / 2),
        (integral_j, 1.0, 2.0, 200),
        (summed_j, 0.5, 4.0, 400),
        (summed_j, 1.0, 1.5, 200),
        (summed_j, 2.5, 3.5, 0),
    ],
)
def test_trapezoids_with_their_ends_interpolated_or_each_sample_as_a_second(
    sums, begin_s, end_s, joules
):
    assert sums(TIMES, POWER, begin_s, end_s) == joules


@pytest.mark.parametrize(("times", "window"), [(TIMES, (-0.1, 1)), (TIMES, (1, 4.1)), ([], (0, 1))])
def test_samples_that_do_not_reach_over_the_window_give_no_number(times, window):
    with pytest.raises(UnmeteredError, match="do not reach"):
        integral_j(times, POWER[: len(times)], *window)


def test_the_largest_gap_is_of_samples_that_the_window_touches():
    assert largest_gap_s(TIMES, 0.5, 1.5) == 1.0
    assert largest_gap_s(TIMES, 0.5, 2.5) == 2.0


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-aab", [1]),
        ("GPU-ccc3,0", [2, 0]),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("GPU-aa", []),
        ("0,0", []),
        ("", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(visible, indices):
    assert [gpu.index for gpu in visible_gpus(GPUS, visible)] == indices


def test_the_jobs_gpus_are_at_its_place_among_the_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert job_gpus(GPUS, None, (1,)) == [GPUS[1]]
    assert job_gpus(GPUS, None, None) == [GPUS[2], GPUS[1]]
    assert job_gpus(GPUS, ("0", "GPU-ccc3"), (1,)) == [GPUS[0], GPUS[2]]


@pytest.mark.parametrize(
    ("visible", "devices", "message"),
    [("", None, "no GPU"), ("MIG-1234", None, "MIG"), ("0", ("5",), "there are: 0, 1, 2")],
)
def test_no_gpu_to_add_up_is_a_reason(monkeypatch, visible, devices, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UnmeteredError, match=message):
        job_gpus(GPUS, devices, None)


# What a meter can be told: the same in the configs and in the code, and nothing else.


def test_each_meter_has_a_config_with_its_defaults_and_touches_nothing_when_built():
    configs = {path.stem: path for path in (conf_dir() / "energy").glob("*.yaml")}
    assert set(configs) == set(meter)
    for name, path in configs.items():
        assert yaml.safe_load(path.read_text()) == {"meter": name, **meter[name].settings}
        built = build_meter({"meter": name})
        assert (built.name, built.idle_power_w) == (name, None)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"meter": "sundial"}, "sundial"),
        ({"meter": None}, "None"),
        ({}, "None"),
        ({"meter": "none", "idle_s": 3}, "idle_s"),
        ({"meter": "paper", "period_s": 0.1}, "period_s"),
        ({"meter": "nvidia_smi", "period_s": 0}, "period_s"),
        ({"meter": "nvidia_smi", "period_s": "often"}, "often"),
        ({"meter": "nvidia_smi", "period_s": float("nan")}, "nan"),
        ({"meter": "nvml", "idle_s": -1}, "idle_s"),
        ({"meter": "nvml", "update_period_s": True}, "update_period_s"),
        ({"meter": "nvml", "devices": ["first"]}, "first"),
        ({"meter": "nvml", "devices": [0, 0]}, "twice"),
        ({"meter": "nvml", "devices": []}, "devices"),
        ({"meter": "rapl", "root": ""}, "root"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(config, named):
    with pytest.raises(ValueError, match=named) as error:
        build_meter(config)
    assert len(str(error.value).splitlines()) == 1


def test_settings_that_move_a_joule_are_part_of_the_run_id_and_no_meter_is_none():
    one, two = (energy_settings({"meter": "nvidia_smi", "period_s": p}) for p in (0.1, 0.2))
    assert one.identity() != two.identity()
    assert energy_settings({"meter": "nvml", "devices": 1}).identity()["devices"] == ["1"]
    for name in ("none", "auto"):
        assert energy_settings({"meter": name}).identity() == "none"


class Constant(EnergyMeter):
    """So many watts, whatever runs."""

    name = "constant"

    def __init__(self, settings, ordinals=None):
        self.idle_power_w = settings.more["watts"]


def test_a_meter_of_another_package_has_settings_of_its_own():
    meter("constant", watts=40.0, idle_s=1.0)(Constant)
    try:
        assert build_meter({"meter": "constant", "watts": 50.0}).idle_power_w == 50.0
        told = energy_settings({"meter": "constant"})
        assert told.identity() == {"meter": "constant", "watts": 40.0, "idle_s": 1.0}
        with pytest.raises(ValueError, match=r"energy\.wats"):
            energy_settings({"meter": "constant", "wats": 1})
    finally:
        meter.forget("constant")


# The meter that a device has is on without a word; where there is none one line says so.


def job(device):
    """What a meter asks of a job's settings."""
    spec = SimpleNamespace(tensor_parallel=False, device_map=None)
    energy, pair = energy_settings({"meter": "auto"}), SimpleNamespace(specs=(spec,))
    return SimpleNamespace(asked=SimpleNamespace(energy=energy), device=device, pair=pair)


def test_the_first_meter_that_opens_is_taken_under_its_own_name(play_power, monkeypatch):
    play_power(Curve("steady", low_w=250.0))
    quick = {"nvidia_smi": {"idle_s": 0.0, "period_s": 0.01}}
    monkeypatch.setattr(
        meters,
        "energy_settings",
        lambda told: energy_settings({**told, **quick.get(told["meter"], {"idle_s": 0.0})}),
    )
    with Metering(job("cuda")) as metering:
        assert metering.meter.name == "nvidia_smi"  # NVML finds no GPU here
        metering.begin()
        metering.end()
    assert metering._reading.energy_j is not None


def test_a_gpu_without_a_meter_is_said_in_one_line_and_a_cpu_in_none(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="spec_bench"), Metering(job("cuda:0")) as metering:
        assert metering.meter.name == "none"
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("no energy is measured: no meter (nvml: ")
    assert "nvidia_smi: no nvidia-smi on PATH" in line
    caplog.clear()
    with Metering(job("cpu")) as metering:
        assert metering.meter.reason == "no meter"
    assert not caplog.records


def test_an_automatic_meter_that_is_not_open_gives_no_number():
    closed = build_meter({"meter": "auto"})
    closed.begin()
    assert closed.end().energy_j is None


def test_every_recipe_says_how_its_runs_are_logged_and_metered():
    recipes = [path.read_text() for path in experiments_dir().glob("*/*.yaml")]
    recipes = [text for text in recipes if text.startswith("# @package _global_")]
    assert len(recipes) >= 13
    assert all("sink=wandb" in text and "energy=none" in text for text in recipes)
