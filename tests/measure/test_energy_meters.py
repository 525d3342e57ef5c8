"""Counters, sums, settings and jobs: whose GPU is whose, what is added up, what is a reason."""

import logging
import sys
import time
from types import SimpleNamespace

import pytest
import yaml

from spec_bench.decode.decoder import Decoder
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work.metering import EnergyMetering, add_equal_energy_shares
from spec_bench.measure.energy import (
    EnergyReading,
    build_meter,
    meter,
    meters,
    parse_energy_settings,
)
from spec_bench.measure.energy.counters import Gpu, select_job_gpus, select_visible_gpus
from spec_bench.measure.energy.meters import EnergyMeter, UnmeteredError
from spec_bench.measure.energy.nvidia_smi import (
    find_largest_gap_touching_window_s,
    integrate_power_j,
)
from spec_bench.records.types import Generation
from spec_bench.settings.configs import get_conf_dir
from tests.jobs.tiny import rows_of
from tests.measure.conftest import opened, window
from tests.measure.stand_ins import Curve, StandInNvml
from tests.warm import until


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


def test_a_counter_that_goes_back_or_fails_gives_no_number(nvml):
    with opened("nvml") as counter:
        back = window(counter, meanwhile=lambda: setattr(nvml, "lost_mj", 10**9))[0]
        lost = window(counter, meanwhile=lambda: setattr(nvml, "failing", True))[0]
    assert (back.energy_j, lost.energy_j, lost.note) == (None, None, "NVML: GPU is lost")
    assert back.note == "NVML's energy counter went back: the driver was loaded anew"


def test_without_a_driver_or_the_library_there_is_a_reason(nvml, monkeypatch):
    nvml.curves = []
    with opened("nvml") as counter:
        assert window(counter)[0].note == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with opened("nvml") as counter:
        assert window(counter)[0].note == "pynvml is missing: pip install nvidia-ml-py"


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


def zone(root, folder, name, energy_uj, range_uj=10**9):
    path = root / folder
    path.mkdir(parents=True)
    for file, text in (("name", name), ("max_energy_range_uj", range_uj), ("energy_uj", energy_uj)):
        (path / file).write_text(f"{text}\n")
    return path / "energy_uj"


def test_packages_and_memory_are_added_up_and_their_parts_are_not(tmp_path):
    zones = {":0": "package-0", ":0:0": "core", ":0:1": "dram", ":1": "package-1", ":2": "psys"}
    zones |= {"-mmio:0": "package-0"}
    counters = [zone(tmp_path, f"intel-rapl{at}", name, 10**6) for at, name in zones.items()]
    with opened("rapl", root=str(tmp_path)) as counter:
        counter.begin_window()
        for joules, file in enumerate(counters, start=1):
            file.write_text(str(10**6 * (1 + joules)))
        time.sleep(0.002)  # longer than the counter's period
        reading = counter.end_window()
    assert reading.energy_j == pytest.approx(1 + 3 + 4)
    assert (counter.period_s, reading.note) == (0.001, "")


def test_a_counter_that_wrapped_around_counts_on(tmp_path):
    file = zone(tmp_path, "intel-rapl:0", "package-0", 9_500_000, range_uj=9_999_999)
    with opened("rapl", root=str(tmp_path), idle_s=0.05) as counter:
        reading = window(counter, meanwhile=lambda: file.write_text("2500000"))[0]
    assert reading.energy_j == pytest.approx(3.0)
    assert counter.idle_power_w == 0.0


def test_a_counter_that_wraps_several_times_in_a_window_is_counted_each_time(tmp_path):
    file = zone(tmp_path, "intel-rapl:0", "package-0", 0, range_uj=1_999_999)
    with opened("rapl", root=str(tmp_path)) as counter:

        def turns():  # 13 J at 1 J a step, by a counter of 2 J: shown was 1 J
            for step in range(1, 14):
                partial = tmp_path / "partial"
                partial.write_text(f"{step * 1_000_000 % 2_000_000}")
                partial.replace(file)
                counted = step * 1_000_000
                assert until(lambda least=counted: sum(counter._counted_uj.values()) >= least)

        reading = window(counter, meanwhile=turns)[0]
    assert (reading.energy_j, reading.note) == (13.0, "")


def test_counters_of_a_processor_are_read_every_quarter_of_a_minute_and_no_longer_once_closed(
    tmp_path,
):
    waited = []
    zone(tmp_path, "intel-rapl:0", "package-0", 0, range_uj=65_532_610_987)
    with opened("rapl", root=str(tmp_path)) as counter:
        over = counter._stop_event
        counter._stop_event = SimpleNamespace(wait=lambda seconds: waited.append(seconds) or True)
        counter._keep_reading()
        counter._stop_event = over
    assert waited == [pytest.approx(16.4, abs=0.1)] and over.is_set()


def test_counters_that_are_not_there_or_cannot_be_read_are_a_reason(tmp_path):
    with opened("rapl", root=str(tmp_path)) as counter:
        assert window(counter)[0].note == counter.reason == f"no intel-rapl package in {tmp_path}"
    file = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    file.unlink()
    file.mkdir()  # root may read a file of mode 000
    with opened("rapl", root=str(tmp_path)) as counter:
        assert window(counter)[0].note == f"cannot read {file}: Is a directory"


def test_a_counter_that_fails_in_a_window_gives_no_number_for_it(tmp_path):
    file = zone(tmp_path, "intel-rapl:0", "package-0", 0)
    with opened("rapl", root=str(tmp_path)) as counter:
        broken = window(counter, meanwhile=lambda: file.write_text("broken"))[0]
        file.write_text("0")
        whole = window(counter, meanwhile=lambda: file.write_text("1000000"))[0]
    assert (broken.energy_j, whole.energy_j) == (None, 1.0) and "holds no number" in broken.note


@pytest.mark.parametrize("joules", [-1.0, float("nan"), float("inf")])
def test_joules_that_cannot_be_are_a_reason(joules):
    meter = build_meter({"meter": "none"})
    meter.reason, meter.mark, meter.joules = "", lambda: 0, lambda *_: (joules, "")
    meter.begin_window()
    reading = meter.end_window()
    assert (reading.energy_j, reading.note) == (None, f"none gives {joules:g} J")


TIMES = [0.0, 1.0, 2.0, 4.0]
POWER = [100.0, 200.0, 200.0, 0.0]
GPUS = [Gpu(0, "GPU-aaa1"), Gpu(1, "GPU-aab2"), Gpu(2, "GPU-ccc3")]


@pytest.mark.parametrize(
    ("begin_s", "end_s", "joules"),
    [
        (0.0, 4.0, 150 + 200 + 200),
        (0.5, 1.5, 0.5 * 175 + 0.5 * 200),
        (2.5, 3.5, (150 + 50) / 2),
        (1.0, 2.0, 200),
    ],
)
def test_trapezoids_have_their_ends_interpolated(begin_s, end_s, joules):
    assert integrate_power_j(TIMES, POWER, begin_s, end_s) == joules


@pytest.mark.parametrize(("times", "window"), [(TIMES, (-0.1, 1)), (TIMES, (1, 4.1)), ([], (0, 1))])
def test_samples_that_do_not_reach_over_the_window_give_no_number(times, window):
    with pytest.raises(UnmeteredError, match="do not reach"):
        integrate_power_j(times, POWER[: len(times)], *window)


def test_the_largest_gap_is_of_samples_that_the_window_touches():
    assert find_largest_gap_touching_window_s(TIMES, 0.5, 1.5) == 1.0
    assert find_largest_gap_touching_window_s(TIMES, 3.0, 3.5) == 2.0


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        *((None, [0, 1, 2]), ("2,0", [2, 0]), ("GPU-aab", [1]), ("GPU-ccc3,0", [2, 0])),
        *(("1,-1,2", [1]), ("0,7,1", [0]), ("GPU-aa", []), ("0,0", []), ("", [])),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(visible, indices):
    assert [gpu.index for gpu in select_visible_gpus(GPUS, visible)] == indices


def test_the_jobs_gpus_are_at_its_place_among_the_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert select_job_gpus(GPUS, None, (1,)) == [GPUS[1]]
    assert select_job_gpus(GPUS, None, None) == [GPUS[2], GPUS[1]]
    assert select_job_gpus(GPUS, ("0", "GPU-ccc3"), (1,)) == [GPUS[0], GPUS[2]]


@pytest.mark.parametrize(
    ("visible", "devices", "message"),
    [("", None, "no GPU"), ("MIG-1234", None, "MIG"), ("0", ("5",), "there are: 0, 1, 2")],
)
def test_no_gpu_to_add_up_is_a_reason(monkeypatch, visible, devices, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UnmeteredError, match=message):
        select_job_gpus(GPUS, devices, None)


def test_each_meter_has_a_config_with_its_defaults_and_touches_nothing_when_built():
    configs = {path.stem: path for path in (get_conf_dir() / "energy").glob("*.yaml")}
    assert set(configs) == set(meter)
    for name, path in configs.items():
        assert yaml.safe_load(path.read_text()) == {"meter": name, **meter[name].settings}
        built = build_meter({"meter": name})
        built.begin_window()
        assert (built.name, built.idle_power_w, built.end_window().energy_j) == (name, None, None)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"meter": "sundial"}, "sundial"),
        ({}, "None"),
        ({"meter": "none", "idle_s": 3}, "idle_s"),
        ({"meter": "paper", "period_s": 0}, "period_s"),
        ({"meter": "nvidia_smi", "period_s": 0}, "period_s"),
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
    one, two = (parse_energy_settings({"meter": "nvidia_smi", "period_s": p}) for p in (0.1, 0.2))
    assert one.get_run_id_name_or_settings() != two.get_run_id_name_or_settings()
    assert parse_energy_settings({"meter": "nvml", "devices": 1}).get_run_id_name_or_settings()[
        "devices"
    ] == ["1"]
    for name in ("none", "auto"):
        assert parse_energy_settings({"meter": name}).get_run_id_name_or_settings() == "none"


class Constant(EnergyMeter):
    name = "constant"

    def __init__(self, settings, ordinals=None):
        self.idle_power_w = settings.more["watts"]


def test_a_meter_of_another_package_has_settings_of_its_own():
    meter("constant", watts=40.0, idle_s=1.0)(Constant)
    try:
        assert build_meter({"meter": "constant", "watts": 50.0}).idle_power_w == 50.0
        told = parse_energy_settings({"meter": "constant"})
        assert told.get_run_id_name_or_settings() == {
            "meter": "constant",
            "watts": 40.0,
            "idle_s": 1.0,
        }
        with pytest.raises(ValueError, match=r"energy\.wats"):
            parse_energy_settings({"meter": "constant", "wats": 1})
    finally:
        meter.forget("constant")


def automatic(device):
    spec = SimpleNamespace(tensor_parallel=False, device_map=None)
    energy, pair = parse_energy_settings({"meter": "auto"}), SimpleNamespace(specs=(spec,))
    asked = SimpleNamespace(energy=energy)
    return EnergyMetering(SimpleNamespace(request=asked, device=device, pair=pair))


def test_the_first_meter_that_opens_is_taken_under_its_own_name(play_power, monkeypatch):
    play_power(Curve("steady", low_w=250.0))
    quick = {"nvml": {"idle_s": 0.0}, "nvidia_smi": {"idle_s": 0.0, "period_s": 0.01}}

    def made(told):
        return parse_energy_settings(
            told | quick[told["meter"]] if isinstance(told, dict) else told
        )

    monkeypatch.setattr(meters, "parse_energy_settings", made)
    with automatic("cuda") as metering:
        assert metering.meter.name == "nvidia_smi"  # NVML finds no GPU here
        metering.begin_window()
        metering.end_window()
    assert metering._reading.energy_j is not None


def test_a_gpu_without_a_meter_is_said_in_one_line_and_a_cpu_in_none(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="spec_bench"), automatic("cuda:0") as metering:
        assert metering.meter.name == "none"
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("no energy is measured: no meter (nvml: ")
    assert "nvidia_smi: no nvidia-smi on PATH" in line
    caplog.clear()
    with automatic("cpu") as metering:
        assert metering.meter.reason == "no meter"
    assert not caplog.records


QUICK = ("energy=nvidia_smi", "energy.idle_s=0.3", "energy.period_s=0.01", "prompts=2")


def test_a_steady_power_is_that_power_times_the_decode_window(
    run_job, play_power, tmp_path, monkeypatch
):
    join = Decoder.join
    monkeypatch.setattr(Decoder, "join", lambda *a, **b: time.sleep(0.5) or join(*a, **b))
    play_power(Curve("steady", low_w=500.0))
    run_job("cells=[sd:2]", *QUICK, "energy.update_period_s=60")
    for row in rows_of(tmp_path / "results"):
        decode_s, prefill_s = float(row["decode_s"]), float(row["prefill_s"])
        assert prefill_s > 0.9
        window_s = float(row["energy_j_per_token"]) * float(row["delivered_tokens"]) / 500.0
        # Not the prefill's seconds; some of a busy machine's between two clocks.
        assert 0.95 * decode_s < window_s < decode_s + prefill_s / 2
        assert row["energy_j_per_token_low"] == row["energy_j_per_token_high"] == ""  # two prompts
        assert row["energy_method"] == "nvidia_smi"
        assert float(row["energy_period_s"]) == 0.01
        assert float(row["idle_power_w"]) == pytest.approx(500.0, rel=0.01)
        assert "shorter than the meter's update period of 60 s" in row["reason"]


def test_without_the_program_the_column_is_empty_and_one_line_says_why(
    run_job, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="spec_bench"):
        run_job("cells=[sd:2]", "energy=paper", "prompts=2")
    lines = [record.message for record in caplog.records if "energy" in record.message]
    assert lines == ["no energy is measured: no nvidia-smi on PATH"]
    for row in rows_of(tmp_path / "results"):
        assert row["energy_j_per_token"] == row["idle_power_w"] == ""
        assert row["reason"].endswith("; energy_j_per_token: no nvidia-smi on PATH")


def test_a_meter_that_dies_in_a_run_is_said_once(run_job, play_power, tmp_path, caplog):
    end, window = tmp_path / "end", EnergyMetering.metered_batch
    play_power(Curve("steady"), dies_of=str(end))

    def dies(metering, *arguments):
        end.touch()
        assert until(lambda: not end.exists())
        EnergyMetering.metered_batch = window
        return window(metering, *arguments)

    EnergyMetering.metered_batch = dies
    try:
        with caplog.at_level(logging.INFO, logger="spec_bench"):
            run_job("cells=[sd:2]", *QUICK, "energy.idle_s=0")
    finally:
        EnergyMetering.metered_batch = window
    lines = [each.message for each in caplog.records if "without energy" in each.message]
    assert lines == ["rows without energy: nvidia-smi ended with status 3"]


def test_without_a_meter_nothing_is_handed_to_the_decoder(run_job, monkeypatch, tmp_path):
    monkeypatch.setattr(EnergyMetering, "begin", lambda *_: 1 / 0)
    (result, _) = run_job("cells=[sd:2]", "prompts=1")
    stored = CellStore(tmp_path / "results", result.run_id).load_first_repeat()
    assert [(g.energy_j, g.energy_note) for g in stored.values()] == [(None, "")]
    assert result.metrics["energy_method"] is None
    assert "energy_j_per_token: no meter" in result.reason


def test_rows_of_a_batch_share_its_energy_equally():
    rows = [Generation(name, (1,), "stop", (), 0.0, 1.0, 0.0, 0.0) for name in "ab"]
    both = add_equal_energy_shares(rows, EnergyReading(6.0, "short"))
    assert [(g.energy_j, g.energy_note) for g in both] == [(3, "short")] * 2
    none = add_equal_energy_shares(rows, EnergyReading(None, "no nvidia-smi on PATH"))
    assert [(g.energy_j, g.energy_note) for g in none] == [(None, "no nvidia-smi on PATH")] * 2
