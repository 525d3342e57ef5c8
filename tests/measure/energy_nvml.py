"""A module with the part of ``pynvml`` that the meter uses, on known power curves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace

from tests.measure.energy_curves import Curve


class NVMLError(Exception):
    """As the library's."""


class StandInNvml:
    """GPUs that play curves.

    Args:
        curves: one a GPU.
        instant: whether the driver has the instantaneous power; ``nvmlDeviceGetPowerUsage`` is
            three times too high, to be seen apart.
    """

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_FI_DEV_POWER_INSTANT = 186

    def __init__(self, curves: Sequence[Curve], instant: bool = True) -> None:
        self.curves, self.instant = curves, instant
        self.started = 0
        self.lost_mj = 0
        self.failing = False

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.curves:
            raise NVMLError("Driver Not Loaded")
        self.started += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.curves)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if self.failing:
            raise NVMLError("GPU is lost")
        curve = self.curves[handle]
        return round(1e3 * curve.energy_j(curve.origin_s, time.time())) - self.lost_mj

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return round(3e3 * self.curves[handle].power_w(time.time()))

    NVML_CLOCK_SM = 1

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return 1000 + handle

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[SimpleNamespace]:  # noqa: N802
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        power_mw = round(1e3 * self.curves[handle].power_w(time.time()))
        value = SimpleNamespace(uiVal=power_mw)
        return [SimpleNamespace(nvmlReturn=0 if self.instant else 3, value=value)]
