"""The meter that a GPU has, found on opening; none if there is none."""

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
        self._found: EnergyMeter = NoMeter()

    @property
    def reason(self) -> str:
        """Why there is no number; "" if there is one."""
        return self._found.reason

    @property
    def period_s(self) -> float | None:
        """Of the meter that was found."""
        return self._found.period_s

    @property
    def idle_power_w(self) -> float | None:
        """Of the meter that was found."""
        return self._found.idle_power_w

    def open(self) -> None:
        """Opens the first meter that works."""
        why = []
        for name in TRIED:
            settings = energy_settings({"meter": name})
            found = meter[name].build(settings, self._ordinals)
            found.open()
            if not found.reason:
                self._found, self.name = found, name
                self.phase_shift_s = settings.phase_shift_s
                return
            found.close()
            why.append(f"{name}: {found.reason}")
        self._found = NoMeter()
        self._found.reason = f"no meter ({', '.join(why)})"
        self.name = "none"

    def begin(self) -> None:
        """Opens a window."""
        self._found.begin()

    def end(self) -> EnergyReading:
        """Closes the window."""
        return self._found.end()

    def close(self) -> None:
        """Stops whatever was opened."""
        self._found.close()
