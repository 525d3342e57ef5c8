"""The meter that a GPU has, opened first; none if there is none."""

from __future__ import annotations

from collections.abc import Sequence

from spec_bench.measure.energy.reading import EnergyMeter, EnergyReading, NoMeter, meter
from spec_bench.measure.energy.settings import EnergySettings, energy_settings

TRIED = ("nvml", "nvidia_smi")
"""The meters of GPUs, the better one first."""


@meter("auto")
class AutoMeter:
    """The first of ``TRIED`` that opens, under its own name; else none, with the reason of each.

    For jobs on a GPU: a processor's counters are for root only, and of whole packages.
    """

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        self.name = "auto"
        self.phase_shift_s = 0.0
        self._ordinals = ordinals
        self._meter: EnergyMeter = NoMeter()

    @property
    def reason(self) -> str:
        """Why there is no number; "" if there is one."""
        return self._meter.reason

    @property
    def period_s(self) -> float | None:
        """Of the meter that opened."""
        return self._meter.period_s

    @property
    def idle_power_w(self) -> float | None:
        """Of the meter that opened."""
        return self._meter.idle_power_w

    def open(self) -> None:
        """Opens the first meter that works."""
        why = []
        for name in TRIED:
            settings = energy_settings({"meter": name})
            opened = meter[name].build(settings, self._ordinals)
            opened.open()
            if not opened.reason:
                self._meter, self.name = opened, name
                self.phase_shift_s = settings.phase_shift_s
                return
            opened.close()
            why.append(f"{name}: {opened.reason}")
        self._meter = NoMeter()
        self._meter.reason = f"no meter ({', '.join(why)})"
        self.name = "none"

    def begin(self) -> None:
        """Opens a window."""
        self._meter.begin()

    def end(self) -> EnergyReading:
        """Closes the window."""
        return self._meter.end()

    def close(self) -> None:
        """Stops whatever was opened."""
        self._meter.close()
