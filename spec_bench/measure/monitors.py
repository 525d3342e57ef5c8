"""Reads a machine's load and clocks while cells decode, in well under a millisecond, and the peak
memory of its accelerator.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

from spec_bench.measure.energy.counters import get_job_nvml_handles
from spec_bench.measure.energy.meters import UnmeteredError
from spec_bench.records.types import BUSY

log = logging.getLogger(__name__)

_CPU_INFO = Path("/proc/cpuinfo")
_READ_BYTES = 16 * 1024  # some ten processors; on large machines the whole file takes milliseconds
_CLOCK_LINE_START = b"cpu MHz"


class LoadAndClockMonitor:
    """Reads load, clock and waits for cores of a job's machine.

    As a context manager it holds NVML open for a job on GPUs: those at ``ordinals`` among the
    visible ones, or all if ``ordinals`` is None.
    """

    def __init__(self, device: str, ordinals: Sequence[int] | None = None) -> None:
        self._cuda = device.startswith("cuda")
        self._ordinals = ordinals
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._excess_wait_s = 0.0  # waits for a core above the share ``BUSY``, in s

    def __enter__(self) -> LoadAndClockMonitor:
        """Opens NVML; without it the clock of a GPU stays unknown."""
        if self._cuda:
            with suppress(ImportError):
                import pynvml

                with suppress(pynvml.NVMLError, UnmeteredError):
                    pynvml.nvmlInit()
                    self._nvml = pynvml
                    self._handles = get_job_nvml_handles(pynvml, None, self._ordinals)
        return self

    def __exit__(self, *_: object) -> None:
        """Closes NVML."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
            self._handles = []

    def begin_window(self) -> None:
        """Starts a window. To be called outside of the timed code."""
        self._thread_waits_s = read_thread_waits_s()
        self._window_start_s = time.perf_counter()

    def end_window(self) -> dict[str, float | None]:
        """Ends the window and returns fields of ``Generation``. To be called outside of the timed
        code.

        The fields are the load average of the last minute, the clock in MHz (of GPUs the mean of
        their multiprocessors' clocks), the share of the window for which a thread waited for a core
        (0 if unknown) and the Unix time; load and clock are None if unknown. Warns once if other
        programs use the cores.
        """
        load = None
        mhz = None
        window_s = time.perf_counter() - self._window_start_s
        waits = read_thread_waits_s()
        waited_s = max(
            (waits[path] - self._thread_waits_s.get(path, 0.0) for path in waits), default=0.0
        )
        self._excess_wait_s += waited_s - BUSY * window_s
        if self._excess_wait_s > 1:
            log_busy_cores_warning_once()
        with suppress(AttributeError, OSError):
            load = os.getloadavg()[0]
        if not self._cuda:
            mhz = read_cpu_mhz()
        elif self._handles:
            kind = self._nvml.NVML_CLOCK_SM
            with suppress(self._nvml.NVMLError):
                clocks = [self._nvml.nvmlDeviceGetClockInfo(gpu, kind) for gpu in self._handles]
                mhz = float(sum(clocks)) / len(clocks)
        return {
            "load_average": load,
            "clock_mhz": mhz,
            "core_wait": waited_s / window_s,
            "ended_at": time.time(),
        }


@cache
def log_busy_cores_warning_once() -> None:
    """Logs, once per process, a warning that other programs disturb the times."""
    log.warning(
        "other programs or jobs use this machine's cores, which disturbs times: rates measured so "
        "are marked and decide nothing"
    )


def read_thread_waits_s() -> dict[str, float]:
    """Reads from Linux's scheduler the seconds that each thread of this process has waited for a
    core since it began; empty on other systems.

    Threads wait only for other processes, or if this process has more threads than cores. A load
    average would count all work of the host, even while cores are free.
    """
    with suppress(OSError):  # a thread may have ended
        text_by_path = {
            path: Path(path).read_text() for path in glob("/proc/self/task/*/schedstat")
        }
        return {path: int(text.split()[1]) * 1e-9 for path, text in text_by_path.items()}
    return {}


def read_cpu_mhz(path: Path = _CPU_INFO) -> float | None:
    """Reads the mean clock in MHz of ``/proc/cpuinfo``'s first processors; None if unknown."""
    try:
        with path.open("rb", buffering=0) as stream:
            text = stream.read(_READ_BYTES) or b""
    except OSError:
        return None
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    clocks = [
        float(line.partition(b":")[2]) for line in lines if line.startswith(_CLOCK_LINE_START)
    ]
    return sum(clocks) / len(clocks) if clocks else None


class PeakMemoryMonitor:
    """Peak memory of one cell's tensors on CUDA, over all of its windows.

    On a CPU ``peak_bytes`` stays None: the allocator records no peak, and all cells share the
    process.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self.peak_bytes: int | None = None

    def begin_window(self) -> None:
        """Starts a window: resets torch's peaks, which may be those of other cells."""
        if self._cuda:
            import torch

            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def end_window(self) -> None:
        """Ends the window; keeps its peak, summed over devices, if it is the largest so far."""
        if self._cuda:
            import torch

            devices = range(torch.cuda.device_count())
            peak_bytes = sum(torch.cuda.max_memory_allocated(index) for index in devices)
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
