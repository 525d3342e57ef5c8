"""Collects where numbers come from: code revision, versions, machine, torch's settings, load,
clocks.

Knows nothing about cells; the runner stores the collected values with each cell.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

import spec_bench
from spec_bench.measure.energy.counters import get_job_nvml_handles
from spec_bench.measure.energy.meters import UnmeteredError
from spec_bench.measure.energy.nvidia_smi import query_gpus
from spec_bench.records.types import BUSY
from spec_bench.system.processor import read_cpu_model

log = logging.getLogger(__name__)
_PACKAGES = (
    "torch",
    "transformers",
    "datasets",
    "evaluate",
    "sacrebleu",
    "rouge-score",
    "hydra-core",
    "wandb",
    "pandas",
    "numpy",
    "tokenizers",
)


def collect_provenance() -> dict[str, Any]:
    """Collects the values that identify code and machine, ready for JSON."""
    return {
        "spec_bench": spec_bench.__version__,
        "git": read_git_state(Path(spec_bench.__file__).resolve().parent),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": read_package_versions(),
        "platform": platform.platform(),
        "cpu": read_cpu_model(),
        "cpu_count": os.cpu_count(),
        "torch": collect_torch_state(),
    }


def read_package_versions() -> dict[str, str]:
    """Returns the installed versions of the packages that can change a number."""
    version_by_package = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            version_by_package[package] = importlib.metadata.version(package)
    return version_by_package


def read_git_state(folder: Path) -> dict[str, Any] | None:
    """Returns the revision of the checkout that holds ``folder`` and whether it has changes outside
    of ``results``; None outside of a checkout.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # The tree may contain results, which change while a run adds to them.
        changes = git("status", "--porcelain", "--", ":/", ":(top,exclude)results")
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(changes)}
    except (OSError, subprocess.CalledProcessError):
        return None


def get_gpu_name_or_device(device: str) -> str:
    """Returns the GPU's name; for another device torch's name of it, such as ``cpu``."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def format_device_count_and_model(device: str) -> str:
    """Returns count and model of the visible GPUs or of the processor's cores, for reports."""
    import torch

    if device.startswith("cuda"):
        return f"{torch.cuda.device_count()} x {get_gpu_name_or_device(device)}"
    return f"{os.cpu_count()} x {read_cpu_model()}"


def read_nvidia_driver_version(path: Path = Path("/sys/module/nvidia/version")) -> str | None:
    """Reads the NVIDIA driver's version; None if it is unknown."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


# Fields of ``nvidia-smi --query-gpu`` by their names in the provenance (MHz and watts).
GPU_FIELDS = {
    "name": "name",
    "uuid": "uuid",
    "driver": "driver_version",
    "sm_clock_mhz": "clocks.current.sm",
    "most_sm_clock_mhz": "clocks.max.sm",
    "memory_clock_mhz": "clocks.current.memory",
    "most_memory_clock_mhz": "clocks.max.memory",
    "power_limit_w": "power.limit",
    "default_power_limit_w": "power.default_limit",
    "persistence_mode": "persistence_mode",
    "mig_mode": "mig.mode.current",
}


def read_gpu_states(uuids: Sequence[str]) -> list[dict[str, Any]]:
    """Reads clocks, power limits and modes of the GPUs with these UUIDs from ``nvidia-smi``, in
    this order; GPUs that the driver does not list are left out.

    A field that the driver does not know is None. The list is empty if there is no ``nvidia-smi``.
    """

    def parse_cell(name: str, cell: str) -> str | float | None:
        if cell.startswith("["):  # [N/A] or [Not Supported]
            return None
        with suppress(ValueError):
            return float(cell) if name.endswith(("_mhz", "_w")) else cell
        return None

    try:
        rows = query_gpus(GPU_FIELDS.values())
    except UnmeteredError:
        return []
    states = [
        {name: parse_cell(name, cell) for name, cell in zip(GPU_FIELDS, cells, strict=True)}
        for cells in rows
        if len(cells) == len(GPU_FIELDS)
    ]
    by_uuid = {state["uuid"]: state for state in states}
    return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]


def collect_torch_state() -> dict[str, Any]:
    """Collects torch's threads and devices, and the settings that change a number or a time:
    attention kernels and the precision of sums.
    """
    import torch

    cuda = torch.cuda
    devices = range(cuda.device_count() if cuda.is_available() else 0)
    # In NVML's notation. A UUID does not depend on the GPU's number.
    uuids = [str(cuda.get_device_properties(index).uuid) for index in devices]
    uuids = [uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}" for uuid in uuids]
    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
    kernels = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "cudnn": cudnn.version(),
        "driver": read_nvidia_driver_version() if devices else None,
        "devices": [cuda.get_device_name(index) for index in devices],
        "device_uuids": uuids,
        "gpus": read_gpu_states(uuids) if uuids else [],
        "attention_kernels": [name for name, is_enabled in kernels.items() if is_enabled],
        "tf32": bool(matmul.allow_tf32 or cudnn.allow_tf32),
        "bf16_reduced_precision_reduction": bool(matmul.allow_bf16_reduced_precision_reduction),
        "fp16_reduced_precision_reduction": bool(matmul.allow_fp16_reduced_precision_reduction),
    }


# The machine's load and clocks, read in well under a millisecond, and the peak memory of the
# accelerator.

_CPUS = Path("/proc/cpuinfo")
_READ_BYTES = 16 * 1024  # some ten processors; on large machines the whole file takes milliseconds
_CLOCK = b"cpu MHz"


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
            warn_once_of_busy_cores()
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
def warn_once_of_busy_cores() -> None:
    """Warns, once per process, that other programs disturb the times."""
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


def read_cpu_mhz(path: Path = _CPUS) -> float | None:
    """Reads the mean clock in MHz of ``/proc/cpuinfo``'s first processors; None if unknown."""
    try:
        with path.open("rb", buffering=0) as stream:
            text = stream.read(_READ_BYTES) or b""
    except OSError:
        return None
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    clocks = [float(line.partition(b":")[2]) for line in lines if line.startswith(_CLOCK)]
    return sum(clocks) / len(clocks) if clocks else None


class PeakMemoryMonitor:
    """Peak memory of one cell's tensors on CUDA, over all of its windows.

    On a CPU ``peak_bytes`` stays None: the allocator records no peak, and all cells share the
    process.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self.peak_bytes: int | None = None

    def begin(self) -> None:
        """Starts a window: resets torch's peaks, which may be those of other cells."""
        if self._cuda:
            import torch

            for index in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(index)

    def end(self) -> None:
        """Ends the window; keeps its peak, summed over devices, if it is the largest so far."""
        if self._cuda:
            import torch

            devices = range(torch.cuda.device_count())
            peak_bytes = sum(torch.cuda.max_memory_allocated(index) for index in devices)
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)


def print_versions(options: object = None) -> None:
    """Prints the version, the commit of a checkout, and each package that can change numbers."""
    state = read_git_state(Path(spec_bench.__file__).parent)
    commit = f" {state['revision'][:12]}{', changed' * state['dirty']}" if state else ""
    lines = [f"spec-bench {spec_bench.__version__}{commit}", f"python {platform.python_version()}"]
    print("\n".join([*lines, *map(" ".join, read_package_versions().items())]))
