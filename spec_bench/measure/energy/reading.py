"""What a meter offers and reports about one window; and the meter that measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spec_bench.settings.registry import Registry


@dataclass(frozen=True)
class EnergyReading:
    """One window.

    Attributes:
        energy_j: joules in the window, None if nothing meters them.
        reason: why there is no number; "" if there is one.
        flag: what to mind about the number, such as a window shorter than the meter's update
            period; "" if there is nothing.
        method: the meter's name.
        period_s: seconds between samples of power, or between updates of a counter.
        idle_power_w: watts before the run, None where unknown.
        window_s: seconds between ``begin`` and ``end``.
        check_j: the same window measured in a second way: ``nvml`` integrates the power as well,
            ``nvidia_smi`` the other of its two power fields; None if there is no second way.
    """

    energy_j: float | None
    reason: str = ""
    flag: str = ""
    method: str = "none"
    period_s: float | None = None
    idle_power_w: float | None = None
    window_s: float = 0.0
    check_j: float | None = None


class EnergyMeter(Protocol):
    """What a meter offers.

    Attributes:
        name: its key in ``conf/energy``.
        reason: why it gives no number; "" if it gives one.
        period_s: seconds between samples of power, or between updates of a counter.
        idle_power_w: watts before the run, None before ``open`` and if unknown.
    """

    name: str
    reason: str
    period_s: float | None
    idle_power_w: float | None

    def open(self) -> None:
        """Starts measuring and measures the idle power; if that fails it sets ``reason``."""
        ...

    def begin(self) -> None:
        """Opens a window; one that was never closed is forgotten."""
        ...

    def end(self) -> EnergyReading:
        """Closes the window."""
        ...

    def close(self) -> None:
        """Stops whatever ``open`` started."""
        ...


@dataclass(frozen=True)
class MeterKind:
    """A registered meter.

    Attributes:
        build: from ``EnergySettings`` and the job's GPUs as torch numbers them (None: all visible
            ones) to the meter, not yet opened.
        settings: its settings with their defaults; the same as in ``conf/energy``.
    """

    build: Callable[[Any, Sequence[int] | None], EnergyMeter]
    settings: Mapping[str, Any]


def _declare(
    name: str, build: Callable[[Any, Sequence[int] | None], EnergyMeter], **settings: Any
) -> MeterKind:
    return MeterKind(build, settings)


meter: Registry[MeterKind] = Registry(
    "meter", "spec_bench.meters", _declare, within="spec_bench.measure.energy"
)
"""The meters by name; also the decorator that registers one, with the settings that it takes."""


@meter("none")
class NoMeter:
    """Measures nothing and says so."""

    name = "none"
    reason = "no meter"
    period_s: float | None = None
    idle_power_w: float | None = None

    def __init__(self, settings: object = None, ordinals: object = None) -> None:
        """There is nothing to set."""

    def open(self) -> None:
        """Nothing to start."""

    def begin(self) -> None:
        """Opens a window."""

    def end(self) -> EnergyReading:
        """No number, with the reason."""
        return EnergyReading(None, self.reason)

    def close(self) -> None:
        """Nothing to stop."""
