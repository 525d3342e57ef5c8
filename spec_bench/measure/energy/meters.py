"""What a meter is: its settings, its windows, and reasons in place of exceptions.

A meter must never end a run that took hours: whatever fails in it becomes the reason of an empty
cell. Knows nothing about where joules come from, nor about tokens, decoders or cells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from spec_bench.settings.fields import Range, format_value, read, suggest
from spec_bench.settings.registry import Registry
from spec_bench.system.errors import UsageError

RAPL_ROOT = "/sys/class/powercap"
Seconds = Annotated[float, Range(0)]
Mark = TypeVar("Mark")


class UnmeteredError(Exception):
    """There is no number; the message says why, in the same words for every such window."""


@dataclass(frozen=True)
class EnergyReading:
    """One window."""

    energy_j: float | None  # joules in the window, None if nothing meters them
    note: str = ""  # why there is no number, or what to mind about it
    window_s: float = 0.0  # between ``begin`` and ``end``


class MeterKind(NamedTuple):
    """A registered meter."""

    build: Callable[[Any, Sequence[int] | None], Any]  # by settings and GPUs as torch counts
    settings: Mapping[str, Any]  # with their defaults; the same as in ``conf/energy``


meter: Registry[MeterKind] = Registry(
    "meter",
    "spec_bench.meters",
    lambda _, build, **settings: MeterKind(build, settings),
    within="spec_bench.measure.energy",
)
"""The meters by name; also the decorator that registers one, with the settings that it takes."""


@dataclass(frozen=True)
class EnergySettings:
    """A meter's settings; a field that its meter does not have keeps its value here."""

    meter: str = "none"
    period_s: Annotated[float, Range(0.001)] = None  # type: ignore[assignment] # between samples
    update_period_s: Seconds = 0.0  # between updates of the sensor or counter itself
    idle_s: Seconds = 0.0  # idle power is measured so long before the run; 0: not
    devices: tuple[str, ...] | None = None  # indices or UUIDs of GPUs to add up; None: the job's
    root: str = RAPL_ROOT  # the kernel's powercap interface
    more: dict[str, Any] = field(  # settings of another package's meter, as written
        default_factory=dict, metadata={"setting": False}
    )

    def __post_init__(self) -> None:
        """Refuses, by a ValueError, malformed GPUs or ones named twice, and an empty folder."""
        if not self.root:
            raise UsageError(f"root must be a folder, got {format_value(self.root)}")
        if self.devices is None:
            return
        if not all(name.isdigit() or name.startswith("GPU-") for name in self.devices):
            got = format_value(list(self.devices))
            raise UsageError(f"devices must be GPU indices or UUIDs (GPU-...), got {got}")
        if len(set(self.devices)) < len(self.devices):
            raise UsageError(f"devices names a GPU twice: {', '.join(self.devices)}")

    def identity(self) -> str | dict[str, Any]:
        """Returns what of it changes a number; only the name if nothing is measured."""
        names = meter[self.meter].settings
        if not names:
            # What a device has is no setting: a cell is the same where there is a meter.
            return "none" if self.meter == "auto" else self.meter
        values = {k: self.more[k] if k in self.more else getattr(self, k) for k in names}
        if values.get("devices") is not None:
            values["devices"] = list(values["devices"])
        return {"meter": self.meter, **values}


def energy_settings(config: EnergySettings | Mapping[str, Any]) -> EnergySettings:
    """Checks the config group ``energy``; what it leaves out gets its meter's default. A ValueError
    names an unknown meter or setting, or a value that cannot be right.
    """
    if isinstance(config, EnergySettings):
        return config
    if not isinstance(config, Mapping):
        raise UsageError(f"energy must be a mapping of settings, got {format_value(config)}")
    name = config.get("meter")
    known = meter.find(name, "energy.meter").settings
    for key in config:
        if key not in known and key != "meter":
            near = suggest(str(key), tuple(known), "energy.")
            has = ", ".join(known) or "no settings"
            raise UsageError(
                f"unknown setting energy.{key}{near or ';'} energy.meter={name} has {has}"
            )
    given = {**known, **config}
    ours = {each.name for each in fields(EnergySettings)}
    checked_here = {key: value for key, value in given.items() if key in ours}
    if (devices := checked_here.get("devices")) is not None:
        named = list(devices) if isinstance(devices, list | tuple) else [devices]
        checked_here["devices"] = [str(each) if type(each) is int else each for each in named]
    checked = read(EnergySettings, checked_here, "energy", f"energy.meter={name}")
    more = {key: value for key, value in given.items() if key not in ours}
    return replace(checked, more=more)


def build_meter(
    config: EnergySettings | Mapping[str, Any], ordinals: Sequence[int] | None = None
) -> EnergyMeter[Any]:
    """Makes the meter that the settings name, for the job's GPUs as torch numbers them (None: all
    visible ones), not yet open; a ValueError as ``energy_settings``'s.
    """
    settings = energy_settings(config)
    made: EnergyMeter[Any] = meter[settings.meter].build(settings, ordinals)
    return made


@meter("none")
class EnergyMeter(Generic[Mark]):
    """Opened once per job; the caller synchronises the device before ``begin`` and ``end``.

    This one measures nothing and says so. Others override ``start``, ``mark``, ``joules`` and
    ``stop``.
    """

    name = "none"  # its key in ``conf/energy``
    # whether a window is all that a cell does for a batch, its prefill in, on all of the machine's
    # GPUs; and of such a meter the seconds that the cell took up to the last window, that included
    whole = False
    clock_s = 0.0

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        self.settings = settings
        self.ordinals = ordinals
        self.reason = "the meter is not open"  # why it gives no number; "" if it gives one
        # Seconds between samples of power, or between updates of a counter.
        self.period_s: float | None = settings.period_s or settings.update_period_s or None
        self.idle_power_w: float | None = None  # None before ``open`` and if unknown
        self._began_s = 0.0
        self._mark: Mark | UnmeteredError = UnmeteredError("no window was opened")

    def start(self) -> None:
        """Finds the devices and starts measuring; an ``UnmeteredError`` if nothing can be."""
        raise UnmeteredError("no meter")

    def mark(self) -> Mark:
        """Returns what is known at either end of a window: a time, or counters."""
        raise NotImplementedError

    def joules(self, begin: Mark, end: Mark) -> tuple[float, str]:
        """The energy between two marks, and what to mind about it; or an ``UnmeteredError``."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stops what ``open`` or ``start`` started, also after it failed halfway."""

    def idle_w(self, begin: Mark, end: Mark, seconds: float) -> float:
        """Mean watts between two marks."""
        return self.joules(begin, end)[0] / seconds

    def open(self) -> None:
        """Starts measuring and measures the idle power; if that fails it sets ``reason``."""
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

    def begin(self) -> None:
        """Opens a window; one that was never closed is forgotten."""
        self._began_s = time.perf_counter()
        self._mark = self._try_mark()

    def end(self) -> EnergyReading:
        """Closes the window."""
        end = self._try_mark()
        window_s = time.perf_counter() - self._began_s
        begin, self._mark = self._mark, UnmeteredError("no window was opened")
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
class AutoMeter:
    """The first meter of a GPU that opens, under its own name; else none, with each one's reason.

    For jobs on a GPU: a processor's counters are for root only, and of whole packages.
    """

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        self._ordinals = ordinals
        self._meter: EnergyMeter[Any] = EnergyMeter(settings)
        self.name = "auto"

    def __getattr__(self, name: str) -> Any:
        """Everything else is the meter's that opened."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._meter, name)

    def open(self) -> None:
        """Opens the first meter that works, the better one first."""
        why = []
        for name in ("nvml", "nvidia_smi"):
            opened = meter[name].build(energy_settings({"meter": name}), self._ordinals)
            opened.open()
            if not opened.reason:
                self._meter = opened
                self.name = name
                return
            opened.stop()
            why.append(f"{name}: {opened.reason}")
        self.name = "none"
        self._meter.reason = f"no meter ({', '.join(why)})"
