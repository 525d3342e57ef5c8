"""Energy meters: settings, measured windows, and reasons in place of exceptions.

A meter must never end a run that took hours: an error in it becomes the reason of an empty cell.
Knows nothing about the source of joules, nor about tokens, decoders or cells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

from annotated_types import Interval, MinLen

from spec_bench.settings.fields import format_suggestion, format_value
from spec_bench.settings.former import FormerMembers
from spec_bench.settings.registry import Registry
from spec_bench.settings.validation import read_settings
from spec_bench.system.errors import UsageError

RAPL_ROOT = "/sys/class/powercap"
Seconds = Annotated[float, Interval(ge=0)]
Mark = TypeVar("Mark")


class UnmeteredError(Exception):
    """Energy could not be measured. The message is the reason; it does not name a window."""


@dataclass(frozen=True)
class EnergyReading:
    """Energy of one window."""

    energy_j: float | None  # joules in the window; None if not measured
    note: str = ""  # reason of a missing number, or a caveat
    window_s: float = 0.0  # seconds between ``begin_window`` and ``end_window``


class MeterKind(NamedTuple):
    """A registered meter."""

    build: Callable[[Any, Sequence[int] | None], Any]  # from settings and torch's GPU ordinals
    settings: Mapping[str, Any]  # names and defaults, the same as in ``conf/energy``


meter: Registry[MeterKind] = Registry(
    "meter",
    "spec_bench.meters",
    lambda _, build, **settings: MeterKind(build, settings),
    within="spec_bench.measure.energy",
)
"""The meters by name; also the decorator that registers a meter with its settings."""


@dataclass(frozen=True)
class EnergySettings:
    """A meter's settings; fields that the meter does not use keep their defaults."""

    meter: str = "none"
    period_s: Annotated[float, Interval(ge=0.001)] = None  # type: ignore[assignment] # between samples
    update_period_s: Seconds = 0.0  # between updates of the sensor or counter itself
    idle_s: Seconds = 0.0  # seconds of measuring idle power before the run; 0: not measured
    # indices or UUIDs of the GPUs to add up; None: the job's GPUs
    devices: Annotated[tuple[str, ...], MinLen(1)] | None = None
    root: str = RAPL_ROOT  # the kernel's powercap interface
    more: dict[str, Any] = field(  # settings of another package's meter, as written
        default_factory=dict, metadata={"setting": False}
    )

    def __post_init__(self) -> None:
        """Raises ``UsageError`` for malformed or repeated GPUs, and for an empty folder."""
        if not self.root:
            raise UsageError(f"root must be a folder, got {format_value(self.root)}")
        if self.devices is None:
            return
        if not all(name.isdigit() or name.startswith("GPU-") for name in self.devices):
            got = format_value(list(self.devices))
            raise UsageError(f"devices must be GPU indices or UUIDs (GPU-...), got {got}")
        if len(set(self.devices)) < len(self.devices):
            raise UsageError(f"devices names a GPU twice: {', '.join(self.devices)}")

    def get_run_id_name_or_settings(self) -> str | dict[str, Any]:
        """Returns the meter's name, with its settings that change a number if it has any."""
        names = meter[self.meter].settings
        if not names:
            # Whether ``auto`` finds a meter is no setting: the cell's run id stays the same.
            return "none" if self.meter == "auto" else self.meter
        values = {
            name: self.more[name] if name in self.more else getattr(self, name) for name in names
        }
        if values.get("devices") is not None:
            values["devices"] = list(values["devices"])
        return {"meter": self.meter, **values}


def parse_energy_settings(config: EnergySettings | Mapping[str, Any]) -> EnergySettings:
    """Parses the config group ``energy`` and fills in the meter's defaults.

    Raises ``UsageError`` for an unknown meter or setting, or a wrong value.
    """
    if isinstance(config, EnergySettings):
        return config
    if not isinstance(config, Mapping):
        raise UsageError(f"energy must be a mapping of settings, got {format_value(config)}")
    name = config.get("meter")
    meter_settings = meter.find(name, "energy.meter").settings
    for key in config:
        if key not in meter_settings and key != "meter":
            suggestion = format_suggestion(str(key), tuple(meter_settings), "energy.")
            names = ", ".join(meter_settings) or "no settings"
            raise UsageError(
                f"unknown setting energy.{key}{suggestion or ';'} energy.meter={name} has {names}"
            )
    settings = {**meter_settings, **config}
    field_names = {field.name for field in fields(EnergySettings)}
    field_values = {key: value for key, value in settings.items() if key in field_names}
    if (devices := field_values.get("devices")) is not None:
        gpus = list(devices) if isinstance(devices, list | tuple) else [devices]
        field_values["devices"] = [str(gpu) if type(gpu) is int else gpu for gpu in gpus]
    energy = read_settings(EnergySettings, field_values, "energy", owner=f"energy.meter={name}")
    more = {key: value for key, value in settings.items() if key not in field_names}
    return replace(energy, more=more)


def build_meter(
    config: EnergySettings | Mapping[str, Any], ordinals: Sequence[int] | None = None
) -> EnergyMeter[Any]:
    """Builds the configured meter, not yet open, for the GPUs at torch's ``ordinals`` (None: all
    visible GPUs). Raises UsageError like ``parse_energy_settings``.
    """
    settings = parse_energy_settings(config)
    energy_meter: EnergyMeter[Any] = meter[settings.meter].build(settings, ordinals)
    return energy_meter


@meter("none")
class EnergyMeter(FormerMembers, Generic[Mark]):
    """Base class of meters; the base class measures nothing, for the reason "no meter".

    A job opens a meter once, and synchronises the device before ``begin_window`` and
    ``end_window``. Subclasses override ``start``, ``mark``, ``joules`` and ``stop``.
    """

    former_members: ClassVar = {"begin": "begin_window", "end": "end_window"}
    name = "none"  # its key in ``conf/energy``
    # whether a window spans all work of a cell for a batch, prefill included, on all GPUs of the
    # machine
    whole = False
    clock_s = 0.0  # seconds of all such windows of the cell so far

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        self.settings = settings
        self.ordinals = ordinals
        self.reason = "the meter is not open"  # reason of missing numbers; "" if there are numbers
        # Seconds between samples of power, or between updates of a counter.
        self.period_s: float | None = settings.period_s or settings.update_period_s or None
        self.idle_power_w: float | None = None  # None before ``open`` and if unknown
        self._began_s = 0.0
        self._mark: Mark | UnmeteredError = UnmeteredError("no window was opened")

    def start(self) -> None:
        """Finds the devices and starts measuring. Raises ``UnmeteredError`` if that fails."""
        raise UnmeteredError("no meter")

    def mark(self) -> Mark:
        """Reads a time or counters at the begin or end of a window."""
        raise NotImplementedError

    def joules(self, begin: Mark, end: Mark) -> tuple[float, str]:
        """Returns the joules between two marks, and a caveat or "". Raises ``UnmeteredError``."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stops measuring; also called after ``open`` or ``start`` has failed."""

    def idle_w(self, begin: Mark, end: Mark, seconds: float) -> float:
        """Returns the mean watts between two marks, ``seconds`` apart."""
        return self.joules(begin, end)[0] / seconds

    def open(self) -> None:
        """Starts the meter and measures the idle power; sets ``reason`` if that fails."""
        self.reason = ""
        try:
            self.start()
            if self.settings.idle_s > 0:
                begin = self.mark()
                began_s = time.perf_counter()
                time.sleep(self.settings.idle_s)
                end = self.mark()
                ended_s = time.perf_counter()
                self.idle_power_w = self.idle_w(begin, end, ended_s - began_s)
        except UnmeteredError as error:
            self.reason = str(error)
            self.stop()

    def begin_window(self) -> None:
        """Opens a window; discards an earlier window that was not closed."""
        self._began_s = time.perf_counter()
        self._mark = self._try_mark()

    def end_window(self) -> EnergyReading:
        """Closes the window and returns all of its energy, the idle machine's included."""
        end = self._try_mark()
        window_s = time.perf_counter() - self._began_s
        begin = self._mark
        self._mark = UnmeteredError("no window was opened")
        try:
            for mark in (begin, end):
                if isinstance(mark, UnmeteredError):
                    raise mark
            energy_j, note = self.joules(begin, end)  # type: ignore[arg-type]
            if not 0 <= energy_j < math.inf:
                raise UnmeteredError(f"{self.name} gives {energy_j:g} J")
        except UnmeteredError as error:
            return EnergyReading(None, str(error), window_s)
        least_s = max(self.settings.update_period_s, self.settings.period_s or 0.0)
        if window_s < least_s and not self.whole:
            short = f"window shorter than the meter's update period of {least_s:g} s"
            note = f"{note}; {short}" if note else short
        return EnergyReading(energy_j, note, window_s)

    def _try_mark(self) -> Mark | UnmeteredError:
        if self.reason:
            return UnmeteredError(self.reason)
        try:
            return self.mark()
        except UnmeteredError as error:
            return error


@meter("auto")
class FirstWorkingGpuMeter:
    """Uses the first GPU meter that opens, under its name; if none opens, gives the reasons of all.

    The processor's counters are not tried: only root reads them, and they count whole packages.
    """

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        self._ordinals = ordinals
        self._meter: EnergyMeter[Any] = EnergyMeter(settings)
        self.name = "auto"

    def __getattr__(self, name: str) -> Any:
        """Delegates to the meter that opened."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._meter, name)

    def open(self) -> None:
        """Opens the first meter that works; tries the more exact meter first."""
        reasons = []
        for name in ("nvml", "nvidia_smi"):
            candidate = meter[name].build(parse_energy_settings({"meter": name}), self._ordinals)
            candidate.open()
            if not candidate.reason:
                self._meter = candidate
                self.name = name
                return
            candidate.stop()
            reasons.append(f"{name}: {candidate.reason}")
        self.name = "none"
        self._meter.reason = f"no meter ({', '.join(reasons)})"
