"""The meter that a device has is on without a word; where there is none one line says so."""

import logging
from types import SimpleNamespace

from spec_bench.jobs.work.metering import Metering
from spec_bench.measure.energy import build_meter, energy_settings, meters
from spec_bench.settings.configs import experiments_dir
from tests.measure.energy_curves import Curve


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
    meter = build_meter({"meter": "auto"})
    meter.begin()
    assert meter.end().energy_j is None


def test_every_recipe_says_how_its_runs_are_logged_and_metered():
    recipes = [path.read_text() for path in experiments_dir().glob("*/*.yaml")]
    recipes = [text for text in recipes if text.startswith("# @package _global_")]
    assert len(recipes) >= 13
    assert all("sink=wandb" in text and "energy=none" in text for text in recipes)
