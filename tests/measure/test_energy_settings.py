"""What a meter can be told: the same in the configs and in the code, and nothing else."""

import pytest
import yaml

from spec_bench.measure.energy import build_meter, energy_settings, meter
from spec_bench.measure.energy.meters import EnergyMeter
from spec_bench.settings.configs import conf_dir

CONFIGS = sorted((conf_dir() / "energy").glob("*.yaml"))


def test_each_meter_has_a_config_with_its_defaults():
    assert {path.stem for path in CONFIGS} == set(meter)
    for path in CONFIGS:
        assert yaml.safe_load(path.read_text()) == {"meter": path.stem, **meter[path.stem].settings}


@pytest.mark.parametrize("name", list(meter))
def test_a_meter_is_built_by_its_name_and_touches_nothing(name):
    built = build_meter({"meter": name})
    assert built.name == name
    assert built.idle_power_w is None


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


def test_cells_without_a_meter_keep_the_run_id_they_had():
    assert energy_settings({"meter": "none"}).identity() == "none"
    assert energy_settings({"meter": "auto"}).identity() == "none"


def test_settings_that_move_a_joule_are_part_of_the_run_id():
    one, two = (energy_settings({"meter": "nvidia_smi", "period_s": p}) for p in (0.1, 0.2))
    assert one.identity() != two.identity()
    devices = energy_settings({"meter": "nvml", "devices": 1}).identity()
    assert isinstance(devices, dict)
    assert devices["devices"] == ["1"]


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
