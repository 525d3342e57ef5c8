"""Energy meters: what measures joules, how, and why there is no number where nothing does.

A meter's window opens with ``begin`` and closes with ``end``; the caller synchronises the device
before either. Knows nothing about tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class EnergyReading:
    """One window.

    Attributes:
        energy_j: joules in the window, None where nothing meters them.
        reason: why there is no number; "" where there is one.
    """

    energy_j: float | None
    reason: str = ""


class EnergyMeter(Protocol):
    """What a meter offers.

    Attributes:
        name: its key in ``conf/energy``.
        reason: why it gives no number; "" where it gives one.
    """

    name: str
    reason: str

    def begin(self) -> None:
        """Opens a window."""
        ...

    def end(self) -> EnergyReading:
        """Closes the window."""
        ...


class NoMeter:
    """Measures nothing and says so."""

    name = "none"
    reason = "no meter"

    def begin(self) -> None:
        """Opens a window."""

    def end(self) -> EnergyReading:
        """No number, with the reason."""
        return EnergyReading(None, self.reason)


_METERS: dict[str, type[NoMeter]] = {"none": NoMeter}


def build_meter(name: str) -> EnergyMeter:
    """The meter of that name.

    Raises:
        ValueError: there is no such meter.
    """
    if name not in _METERS:
        raise ValueError(f"unknown energy.meter {name!r}; known: {', '.join(_METERS)}")
    return _METERS[name]()
