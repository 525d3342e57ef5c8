"""A meter's settings, checked. Knows their names and ranges; builds and starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from spec_bench.validation import Ge, Number, Says, Text, check, did_you_mean, settings

PowerField = Literal["auto", "power.draw.instant", "power.draw"]
POWER_FIELDS = ("power.draw.instant", "power.draw")
_RAPL_ROOT = "/sys/class/powercap"

DEFAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "nvml": {
        "period_s": 0.05,
        "update_period_s": 0.1,
        "idle_s": 3.0,
        "phase_shift_s": 0.1,
        "devices": None,
    },
    "nvidia_smi": {
        "field": "auto",
        "period_s": 0.05,
        "update_period_s": 0.1,
        "idle_s": 3.0,
        "phase_shift_s": 0.1,
        "devices": None,
    },
    "paper": {"idle_s": 3.0, "devices": None},
    "rapl": {"root": _RAPL_ROOT, "update_period_s": 0.001, "idle_s": 3.0},
}
"""What each meter can be told, and what it does untold; the same as in ``conf/energy``."""


def _listed(value: Any) -> Any:
    """One GPU as a list of one, indices as texts."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    return [str(item) if type(item) is int else item for item in items]


def _gpus(names: tuple[str, ...]) -> tuple[str, ...]:
    assert names and all(name.isdigit() or name.startswith("GPU-") for name in names)
    if len(set(names)) < len(names):
        raise ValueError(f"energy.devices names a GPU twice: {', '.join(names)}")
    return names


Seconds = Annotated[Number, Says("seconds")]
Gpus = Annotated[
    tuple[Text, ...],
    BeforeValidator(_listed),
    AfterValidator(_gpus),
    Says("GPU indices or UUIDs (GPU-...)"),
]


@settings
class EnergySettings:
    """What a meter was told; a field that its meter does not have keeps its value here.

    Attributes:
        meter: which.
        period_s: seconds between samples of power.
        update_period_s: seconds between updates of the sensor or counter itself.
        idle_s: seconds of idle power measured before the run; 0: none.
        phase_shift_s: the sensor's cycle, over which the windows' starts are spread; 0: not.
        devices: indices or UUIDs of the GPUs to add up; None: the job's own.
        field: which power field is integrated; ``auto``: the instantaneous one where present.
        root: folder of the kernel's powercap interface.
    """

    meter: Literal["none", "nvml", "nvidia_smi", "paper", "rapl"] = "none"
    period_s: Annotated[Seconds, Ge(0.001)] = None  # type: ignore[assignment]
    update_period_s: Annotated[Seconds, Ge(0)] = 0.0
    idle_s: Annotated[Seconds, Ge(0)] = 0.0
    phase_shift_s: Annotated[Seconds, Ge(0)] = 0.0
    devices: Gpus | None = None
    field: PowerField = "auto"
    root: Text = _RAPL_ROOT

    def identity(self) -> str | dict[str, Any]:
        """What of it changes a number; the name alone where nothing is measured."""
        names = DEFAULTS[self.meter]
        if not names:
            return self.meter
        values = {name: getattr(self, name) for name in names}
        if values.get("devices") is not None:
            values["devices"] = list(values["devices"])
        return {"meter": self.meter, **values}


def energy_settings(config: EnergySettings | Mapping[str, Any]) -> EnergySettings:
    """Checks the config group ``energy``; what it leaves out has its meter's default.

    Raises:
        ValueError: an unknown meter or setting, or a value that cannot be right.
    """
    if isinstance(config, EnergySettings):
        return config
    if not isinstance(config, Mapping):
        return check(EnergySettings, config, "energy")
    name = config.get("meter")
    known = DEFAULTS.get(name) if isinstance(name, str) else None
    if known is None:
        raise ValueError(f"energy.meter must be one of {', '.join(DEFAULTS)}, got {name!r}")
    for key in config:
        if key not in known and key != "meter":
            near = did_you_mean(str(key), tuple(known), "energy.")
            has = ", ".join(known) or "no settings"
            raise ValueError(
                f"unknown setting energy.{key}{near or ';'} energy.meter={name} has {has}"
            )
    return check(EnergySettings, {**known, **config}, "energy")
