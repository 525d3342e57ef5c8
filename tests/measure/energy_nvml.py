"""A module with the part of ``pynvml`` that the meter uses, on known power curves."""

import time


class NVMLError(Exception):
    """As the library's."""


class StandInNvml:
    """GPUs that play curves.

    Args:
        curves: one a GPU.
    """

    NVMLError = NVMLError

    def __init__(self, curves):
        self.curves = curves
        self.started = 0
        self.lost_mj = 0
        self.failing = False

    def nvmlInit(self):  # noqa: N802
        if not self.curves:
            raise NVMLError("Driver Not Loaded")
        self.started += 1

    def nvmlShutdown(self):  # noqa: N802
        self.started -= 1

    def nvmlDeviceGetCount(self):  # noqa: N802
        return len(self.curves)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):  # noqa: N802
        if self.failing:
            raise NVMLError("GPU is lost")
        curve = self.curves[handle]
        return round(1e3 * curve.energy_j(curve.origin_s, time.time())) - self.lost_mj

    NVML_CLOCK_SM = 1

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return 1000 + handle
