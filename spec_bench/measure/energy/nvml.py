"""The GPU's own energy counter through NVML, with the integral of its power as a check.

``pynvml`` is imported when the meter is opened; it is part of the extra ``gpu``.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_bench.measure.energy.devices import nvml_handles
from spec_bench.measure.energy.reading import meter
from spec_bench.measure.energy.samples import integral_j
from spec_bench.measure.energy.settings import EnergySettings
from spec_bench.measure.energy.window import Measured, UnmeteredError, WindowMeter

_JOULES = _WATTS = 1e-3  # NVML counts in millijoules and milliwatts


@dataclass(frozen=True)
class Counters:
    """One end of a window.

    Attributes:
        moment_s: when, on the monotonic clock.
        energy_mj: each GPU's counter.
    """

    moment_s: float
    energy_mj: tuple[int, ...]


@meter("nvml", period_s=0.05, update_period_s=0.1, idle_s=3.0, phase_shift_s=0.1, devices=None)
class NvmlMeter(WindowMeter[Counters]):
    """Differences of the counters, GPUs added up."""

    name = "nvml"

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        super().__init__(settings)
        self.period_s = settings.update_period_s
        self._ordinals = ordinals
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._power: PowerThread | None = None

    def start(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise UnmeteredError(
                "pynvml is not installed (pip install 'spec-bench[gpu]')"
            ) from None
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = nvml_handles(pynvml, self.settings, self._ordinals)
        except pynvml.NVMLError as error:
            raise UnmeteredError(f"NVML: {error}") from None
        self.mark()
        assert self.settings.period_s is not None
        self._power = PowerThread(pynvml, self._handles, self.settings.period_s)
        self._power.start()

    def mark(self) -> Counters:
        """The counters now."""
        try:
            energy_mj = tuple(map(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handles))
        except self._nvml.NVMLError as error:
            raise UnmeteredError(f"NVML: {error}") from None
        return Counters(time.monotonic(), energy_mj)

    def joules(self, begin: Counters, end: Counters) -> Measured:
        spent = [b - a for a, b in zip(begin.energy_mj, end.energy_mj, strict=True)]
        if min(spent) < 0:
            raise UnmeteredError("NVML's energy counter went back: the driver was loaded anew")
        assert self._power is not None
        return Measured(sum(spent) * _JOULES, self._power.energy_j(begin.moment_s, end.moment_s))

    def stop(self) -> None:
        if self._power is not None:
            self._power.stop()
            self._power = None
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


class PowerThread(threading.Thread):
    """Samples the power of some GPUs, added up."""

    def __init__(self, nvml: Any, handles: Sequence[Any], period_s: float) -> None:
        super().__init__(daemon=True)
        self._nvml, self._handles, self._period_s = nvml, handles, period_s
        self._samples: list[tuple[float, float]] = []
        self._news = threading.Condition()
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            moment_s = time.monotonic()
            try:
                power_w = sum(_power_mw(self._nvml, handle) for handle in self._handles) * _WATTS
            except self._nvml.NVMLError:
                break
            with self._news:
                self._samples.append((moment_s, power_w))
                self._news.notify_all()
                self._news.wait_for(lambda: self._stopped, self._period_s)
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def energy_j(self, begin_s: float, end_s: float) -> float | None:
        """The integral over a window on the monotonic clock; None if samples are missing."""
        with self._news:
            self._news.wait_for(
                lambda: self._stopped or (self._samples and self._samples[-1][0] >= end_s),
                2 * self._period_s + 1.0,
            )
            times, power = [t for t, _ in self._samples], [p for _, p in self._samples]
            del self._samples[: max(0, bisect_right(times, begin_s) - 1)]
        try:
            return integral_j(times, power, begin_s, end_s)
        except UnmeteredError:
            return None

    def stop(self) -> None:
        """Ends the thread."""
        with self._news:
            self._stopped = True
            self._news.notify_all()
        if self.is_alive():
            self.join()


def _power_mw(nvml: Any, handle: Any) -> int:
    """The instantaneous power if the driver has it, else what it calls the power usage."""
    instant = getattr(nvml, "NVML_FI_DEV_POWER_INSTANT", None)
    if instant is not None:
        value = nvml.nvmlDeviceGetFieldValues(handle, [instant])[0]
        if value.nvmlReturn == nvml.NVML_SUCCESS:
            return int(value.value.uiVal)
    return int(nvml.nvmlDeviceGetPowerUsage(handle))
