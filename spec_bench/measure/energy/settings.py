"""A meter's settings, checked. Knows their names and ranges; builds and starts nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

POWER_FIELDS = ("power.draw.instant", "power.draw")
_FIELD_CHOICES = ("auto", *POWER_FIELDS)
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


@dataclass(frozen=True)
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

    meter: str = "none"
    period_s: float | None = None
    update_period_s: float = 0.0
    idle_s: float = 0.0
    phase_shift_s: float = 0.0
    devices: tuple[str, ...] | None = None
    field: str = "auto"
    root: str = _RAPL_ROOT

    def identity(self) -> str | dict[str, Any]:
        """What of it changes a number; the name alone where nothing is measured."""
        names = DEFAULTS[self.meter]
        if not names:
            return self.meter
        values = {name: getattr(self, name) for name in names}
        if values.get("devices") is not None:
            values["devices"] = list(values["devices"])
        return {"meter": self.meter, **values}


def energy_settings(config: Mapping[str, Any]) -> EnergySettings:
    """Checks the config group ``energy``; what it leaves out has its meter's default.

    Raises:
        ValueError: an unknown meter or setting, or a value that cannot be right.
    """
    name = config.get("meter")
    if not isinstance(name, str) or name not in DEFAULTS:
        raise ValueError(f"unknown energy.meter {name!r}; known: {', '.join(DEFAULTS)}")
    given = {key: value for key, value in config.items() if key != "meter"}
    for key in given:
        if key not in DEFAULTS[name]:
            known = ", ".join(DEFAULTS[name]) or "none"
            raise ValueError(f"energy.meter={name} has no setting {key!r}; known: {known}")
    values = {**DEFAULTS[name], **given}
    checked = {key: _checked(f"energy.{key}", key, value) for key, value in values.items()}
    return EnergySettings(meter=name, **checked)


def _checked(title: str, key: str, value: Any) -> Any:
    if key == "devices":
        return _devices(title, value)
    if key == "field":
        if value not in _FIELD_CHOICES:
            raise ValueError(f"{title} must be one of {', '.join(_FIELD_CHOICES)}, got {value!r}")
        return value
    if key == "root":
        if not isinstance(value, str) or not value:
            raise ValueError(f"{title} must be a folder, got {value!r}")
        return value
    return _seconds(title, value, least=0.001 if key == "period_s" else 0.0)


def _seconds(title: str, value: Any, least: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < least:
        raise ValueError(f"{title} must be seconds >= {least:g}, got {value!r}")
    return float(value)


def _devices(title: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = value if isinstance(value, list | tuple) else [value]
    whole = all(isinstance(item, int | str) and not isinstance(item, bool) for item in items)
    names = [str(item) for item in items]
    if not items or not whole or not all(n.isdigit() or n.startswith("GPU-") for n in names):
        raise ValueError(f"{title} must be GPU indices or UUIDs (GPU-...), or null, got {value!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"{title} names a GPU twice: {value!r}")
    return tuple(names)
