"""How busy the machine is and how fast it runs, read in well under a tenth of a millisecond.

Also the peak memory of the accelerator.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from spec_bench.measure.energy.counters import nvml_handles
from spec_bench.measure.energy.meters import UnmeteredError

_CPUS = Path("/proc/cpuinfo")
_READ_BYTES = 16 * 1024  # some ten processors: a large machine's whole file takes milliseconds
_CLOCK = b"cpu MHz"


class MachineState(NamedTuple):
    """One reading; None is what the system does not tell."""

    # Processes that ran or waited to, this one included, mean over the last minute (os.getloadavg).
    load_average: float | None
    clock_mhz: float | None  # the device's


class Machine:
    """Reads a job's machine; as a context manager it holds NVML open if the job is on GPUs.

    Args:
        device: ``cpu``, ``cuda``, ``cuda:1``.
        ordinals: the job's GPUs among the visible ones; None: all of them.
    """

    def __init__(self, device: str, ordinals: Sequence[int] | None = None) -> None:
        self._cuda = device.startswith("cuda")
        self._ordinals = ordinals
        self._nvml: Any = None
        self._handles: list[Any] = []

    def __enter__(self) -> Machine:
        """Opens NVML; without it the clock of a GPU stays unknown."""
        if self._cuda:
            with suppress(ImportError):
                import pynvml

                with suppress(pynvml.NVMLError, UnmeteredError):
                    pynvml.nvmlInit()
                    self._nvml = pynvml
                    self._handles = nvml_handles(pynvml, None, self._ordinals)
        return self

    def __exit__(self, *_: object) -> None:
        """Closes NVML."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, []

    def read(self) -> MachineState:
        """The state now; at the end of a window, outside what is timed."""
        try:
            load: float | None = os.getloadavg()[0]
        except (AttributeError, OSError):
            load = None
        return MachineState(load, self._gpu_mhz() if self._cuda else cpu_mhz())

    def _gpu_mhz(self) -> float | None:
        """Mean clock of the job's GPUs' multiprocessors."""
        if not self._handles:
            return None
        kind = self._nvml.NVML_CLOCK_SM
        try:
            clocks = [self._nvml.nvmlDeviceGetClockInfo(each, kind) for each in self._handles]
        except self._nvml.NVMLError:
            return None
        return float(sum(clocks)) / len(clocks)


def cpu_mhz(path: Path = _CPUS) -> float | None:
    """Mean clock of the first processors that the system lists; None if it does not tell."""
    try:
        with path.open("rb", buffering=0) as stream:
            text = stream.read(_READ_BYTES) or b""
    except OSError:
        return None
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    clocks = [float(line.partition(b":")[2]) for line in lines if line.startswith(_CLOCK)]
    return sum(clocks) / len(clocks) if clocks else None


class PeakMemory:
    """The most memory that one cell's tensors took on CUDA, over all windows it was given.

    On a CPU the allocator keeps no peak and the process is shared by all cells: the value stays
    None rather than being some other cell's.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self.peak_bytes: int | None = None

    def begin(self) -> None:
        """Opens a window: forgets peaks of other cells."""
        if self._cuda:
            import torch

            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def end(self) -> None:
        """Closes the window and keeps its peak, summed over devices, if it is the largest."""
        if self._cuda:
            import torch

            devices = range(torch.cuda.device_count())
            peak_bytes = sum(torch.cuda.max_memory_allocated(index) for index in devices)
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
