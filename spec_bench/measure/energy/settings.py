"""A meter's settings, checked. Knows their names and ranges; builds and starts nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from spec_bench.measure.energy.reading import meter
from spec_bench.settings.fields import Range, did_you_mean, read, shown

PowerField = Literal["auto", "power.draw.instant", "power.draw"]
POWER_FIELDS = ("power.draw.instant", "power.draw")
RAPL_ROOT = "/sys/class/powercap"

Seconds = Annotated[float, Range(0)]


@dataclasses.dataclass(frozen=True)
class EnergySettings:
    """A meter's settings; a field that its meter does not have keeps its value here.

    Attributes:
        meter: which, by its registered name.
        period_s: seconds between samples of power.
        update_period_s: seconds between updates of the sensor or counter itself.
        idle_s: seconds of idle power measured before the run; 0: none.
        phase_shift_s: the sensor's cycle, over which the windows' starts are spread; 0: not.
        devices: indices or UUIDs of the GPUs to add up; None: the job's own.
        field: which power field is integrated; ``auto``: the instantaneous one where present.
        root: folder of the kernel's powercap interface.
        more: the settings that only another package's meter has, as they were written.
    """

    meter: str = "none"
    period_s: Annotated[float, Range(0.001)] = None  # type: ignore[assignment]
    update_period_s: Seconds = 0.0
    idle_s: Seconds = 0.0
    phase_shift_s: Seconds = 0.0
    devices: tuple[str, ...] | None = None
    field: PowerField = "auto"
    root: str = RAPL_ROOT
    more: dict[str, Any] = dataclasses.field(default_factory=dict, metadata={"setting": False})

    def __post_init__(self) -> None:
        """Refuses, by a ValueError, malformed GPUs or ones named twice, and an empty folder."""
        if not self.root:
            raise ValueError(f"root must be a folder, got {shown(self.root)}")
        if self.devices is None:
            return
        if not all(name.isdigit() or name.startswith("GPU-") for name in self.devices):
            raise ValueError(
                f"devices must be GPU indices or UUIDs (GPU-...), got {shown(list(self.devices))}"
            )
        if len(set(self.devices)) < len(self.devices):
            raise ValueError(f"devices names a GPU twice: {', '.join(self.devices)}")

    def identity(self) -> str | dict[str, Any]:
        """What of it changes a number; only the name if nothing is measured."""
        names = meter[self.meter].settings
        if not names:
            # What a device has is no setting: a cell is the same where there is a meter.
            return "none" if self.meter == "auto" else self.meter
        values = {k: self.more[k] if k in self.more else getattr(self, k) for k in names}
        if values.get("devices") is not None:
            values["devices"] = list(values["devices"])
        return {"meter": self.meter, **values}


def energy_settings(config: EnergySettings | Mapping[str, Any]) -> EnergySettings:
    """Checks the config group ``energy``; what it leaves out gets its meter's default.

    Raises:
        ValueError: an unknown meter or setting, or a value that cannot be right.
    """
    if isinstance(config, EnergySettings):
        return config
    if not isinstance(config, Mapping):
        raise ValueError(f"energy must be a mapping of settings, got {shown(config)}")
    name = config.get("meter")
    known = meter.find(name, "energy.meter").settings
    for key in config:
        if key not in known and key != "meter":
            near = did_you_mean(str(key), tuple(known), "energy.")
            has = ", ".join(known) or "no settings"
            raise ValueError(
                f"unknown setting energy.{key}{near or ';'} energy.meter={name} has {has}"
            )
    given = {**known, **config}
    ours = {each.name for each in dataclasses.fields(EnergySettings)}
    checked_here = {key: value for key, value in given.items() if key in ours}
    more = {key: value for key, value in given.items() if key not in ours}
    if checked_here.get("devices") is not None:
        checked_here["devices"] = _listed(checked_here["devices"])
    checked = read(EnergySettings, checked_here, "energy", f"energy.meter={name}")
    return dataclasses.replace(checked, more=more)


def _listed(value: Any) -> Any:
    """One GPU as a list of one, indices as texts."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    return [str(item) if type(item) is int else item for item in items]
