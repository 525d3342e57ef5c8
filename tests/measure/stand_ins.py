"""Known power over time, played by stand-ins for ``pynvml`` and for the program ``nvidia-smi``.

The program runs as a subprocess: what it plays stands in the environment variable ``SMI_STAND_IN``
as JSON:

* ``curves``: one mapping of ``Curve``'s fields a GPU;
* ``unknown``: fields that this driver does not know; ``unsupported``: fields it gives as [N/A];
* ``dies_of``: a loop ends with status 3 when this file is there, and takes it away;
* ``deaf``: it goes on when nobody reads what it prints, and leaves its process id in this file;
* ``broken``: every call fails as without a driver.

Standard library only, so that it starts quickly.
"""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

VARIABLE = "SMI_STAND_IN"


@dataclass(frozen=True)
class Curve:
    """Watts over seconds since an origin."""

    kind: str  # steady: low; ramp: low plus the slope; square: low, then high, each half a period
    low_w: float = 100.0
    high_w: float = 300.0
    slope_w_per_s: float = 20.0
    period_s: float = 1.0
    origin_s: float = 0.0

    def power_w(self, moment_s):
        since_s = moment_s - self.origin_s
        if self.kind == "ramp":
            return self.low_w + self.slope_w_per_s * since_s
        high = self.kind == "square" and since_s % self.period_s >= self.period_s / 2
        return self.high_w if high else self.low_w

    def energy_j(self, begin_s, end_s):
        return self._until_j(end_s - self.origin_s) - self._until_j(begin_s - self.origin_s)

    def _until_j(self, since_s):
        """The energy from the origin on."""
        if self.kind == "ramp":
            return since_s * (self.low_w + self.slope_w_per_s * since_s / 2)
        if self.kind == "steady":
            return since_s * self.low_w
        half_s = self.period_s / 2
        periods, rest_s = divmod(since_s, self.period_s)
        high_s = periods * half_s + max(0.0, rest_s - half_s)
        return since_s * self.low_w + high_s * (self.high_w - self.low_w)


class NVMLError(Exception):
    """As the library's."""


class StandInNvml:
    """The part of ``pynvml`` that meters use; GPUs play curves, one each."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1

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

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        assert kind == self.NVML_CLOCK_SM
        return 1000 + handle


def install(folder):
    """Puts the program into a folder, which a test puts on PATH, under the name of the real one."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S -E '{__file__}' \"$@\"\n")
    program.chmod(0o755)


def main():
    plan = json.loads(os.environ[VARIABLE])
    options = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
    if plan.get("broken"):
        print("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        return 9
    assert options["--format"] == "csv,noheader,nounits"
    fields = options["--query-gpu"].split(",")
    known = {"timestamp", "index", "uuid", "power.draw", "power.draw.instant"}
    for field in fields:
        if field not in known - set(plan.get("unknown", ())):
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    gpus = range(len(plan["curves"]))
    chosen = [int(index) for index in options["--id"].split(",")] if "--id" in options else gpus
    if "deaf" in plan and "--loop-ms" in options:
        Path(plan["deaf"]).write_text(str(os.getpid()))
    while True:
        for gpu in chosen:
            with suppress(OSError if "deaf" in plan else ()):
                print(", ".join(cell(plan, field, gpu) for field in fields), flush=True)
        if "--loop-ms" not in options:
            return 0
        time.sleep(int(options["--loop-ms"]) / 1000)
        if "dies_of" in plan and os.path.exists(plan["dies_of"]):
            os.unlink(plan["dies_of"])
            return 3


def cell(plan, field, gpu):
    """One value as the program prints it."""
    now = datetime.now()
    stamp = f"{now:%Y/%m/%d %H:%M:%S}.{now.microsecond // 1000:03d}"
    power = f"{Curve(**plan['curves'][gpu]).power_w(now.timestamp()):.2f}"
    values = {"timestamp": stamp, "index": str(gpu), "uuid": f"GPU-{gpu}0000000-stand-in"}
    return "[N/A]" if field in plan.get("unsupported", ()) else values.get(field, power)


if __name__ == "__main__":
    sys.exit(main())
