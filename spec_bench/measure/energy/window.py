"""What all real meters share: windows, the idle power, and reasons in place of exceptions.

A meter must never end a run that took hours: whatever fails in it becomes the reason of an empty
cell. Knows nothing about where joules come from.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spec_bench.measure.energy.reading import EnergyReading
from spec_bench.measure.energy.settings import EnergySettings

Mark = TypeVar("Mark")


class UnmeteredError(Exception):
    """There is no number; the message says why, in the same words for every such window."""


@dataclass(frozen=True)
class Measured:
    """What a meter measured between two marks; fields as in ``EnergyReading``."""

    energy_j: float
    check_j: float | None = None
    flag: str = ""


class WindowMeter(ABC, Generic[Mark]):
    """A meter from four parts: ``start``, ``mark``, ``joules`` and ``stop``."""

    name = ""

    def __init__(self, settings: EnergySettings) -> None:
        self.settings = settings
        self.reason = ""
        self.period_s: float | None = settings.period_s
        self.idle_power_w: float | None = None
        self._began_s = 0.0
        self._mark: Mark | UnmeteredError = UnmeteredError("no window was opened")

    @abstractmethod
    def start(self) -> None:
        """Finds the devices and starts measuring.

        Raises:
            UnmeteredError: nothing can be measured.
        """

    @abstractmethod
    def mark(self) -> Mark:
        """What is known at either end of a window: a time, or counters."""

    @abstractmethod
    def joules(self, begin: Mark, end: Mark) -> Measured:
        """The energy between two marks.

        Raises:
            UnmeteredError: there is no number.
        """

    def stop(self) -> None:
        """Stops what ``start`` started, also after it failed halfway."""

    @property
    def update_period_s(self) -> float:
        """A window shorter than this holds less than one update of what is measured."""
        return max(self.settings.update_period_s, self.settings.period_s or 0.0)

    def idle_w(self, begin: Mark, end: Mark, seconds: float) -> float:
        """Mean watts between two marks."""
        return self.joules(begin, end).energy_j / seconds

    def open(self) -> None:
        """Starts measuring and measures the idle power; if that fails it sets ``reason``."""
        try:
            self.start()
            if self.settings.idle_s > 0:
                begin, began_s = self.mark(), time.perf_counter()
                time.sleep(self.settings.idle_s)
                end, ended_s = self.mark(), time.perf_counter()
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
            measured = self.joules(begin, end)  # type: ignore[arg-type]
        except UnmeteredError as error:
            return EnergyReading(None, str(error), **self._about(window_s))
        flags = [measured.flag] if measured.flag else []
        if window_s < self.update_period_s:
            flags.append(
                f"window shorter than the meter's update period of {self.update_period_s:g} s"
            )
        return EnergyReading(
            measured.energy_j,
            flag="; ".join(flags),
            check_j=measured.check_j,
            **self._about(window_s),
        )

    def close(self) -> None:
        """Stops whatever ``open`` started."""
        self.stop()

    def _try_mark(self) -> Mark | UnmeteredError:
        if self.reason:
            return UnmeteredError(self.reason)
        try:
            return self.mark()
        except UnmeteredError as error:
            return error

    def _about(self, window_s: float) -> dict[str, Any]:
        return {
            "method": self.name,
            "period_s": self.period_s,
            "idle_power_w": self.idle_power_w,
            "window_s": window_s,
        }


def phase_delay_s(window: int, spread_s: float) -> float:
    """How many seconds to wait before a window, so that any number of windows are evenly spread.

    The van der Corput sequence in base 2: 0, 1/2, 1/4, 3/4, 1/8, ... of the sensor's cycle. An A100
    or H100 samples its power for 25 of every 100 ms (Yang, Adamek and Armour, "Part-time Power
    Measurements: nvidia-smi's Lack of Attention", arXiv:2312.02741, Section 4): a load that keeps
    step with that is always seen in the same 25 ms. A cell has many windows, which see all of the
    cycle between them, so none is decoded twice for this.
    """
    fraction, step = 0.0, 0.5
    while window:
        window, bit = divmod(window, 2)
        fraction += bit * step
        step /= 2
    return fraction * spread_s
