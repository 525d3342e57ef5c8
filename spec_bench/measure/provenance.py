"""Where a number came from: code revision, versions, machine, settings of torch.

Knows nothing about cells; the runner stores what this returns beside each of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import spec_bench
from spec_bench.measure.energy.meters import UnmeteredError
from spec_bench.measure.energy.nvidia_smi import query

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


def provenance() -> dict[str, Any]:
    """Everything that identifies code and machine, ready for JSON."""
    return {
        "spec_bench": spec_bench.__version__,
        "git": git_state(Path(spec_bench.__file__).resolve().parent),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "versions": versions(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "torch": torch_state(),
    }


def versions() -> dict[str, str]:
    """Installed versions of the packages that can change a number."""
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def git_state(folder: Path) -> dict[str, Any] | None:
    """Revision of the checkout that holds ``folder`` and whether it had changes; None outside.

    New results do not count as changes.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # Earlier results are in the tree, and change while a run adds to them.
        changed = git("status", "--porcelain", "--", ":/", ":(top,exclude)results")
        return {"revision": git("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def device_name(device: str) -> str:
    """``cpu``, or the GPU's name; for another device, torch's name of it."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def machine(device: str) -> str:
    """Count and model of the GPUs that this process sees, or of the processor's cores."""
    import torch

    if device.startswith("cuda"):
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(device)}"
    return f"{os.cpu_count()} x {cpu_model()}"


def gpu_uuid(ordinal: int) -> str:
    """The identity of a visible GPU, independent of its number, as NVML writes it."""
    import torch

    uuid = str(torch.cuda.get_device_properties(ordinal).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def driver_version(path: Path = Path("/sys/module/nvidia/version")) -> str | None:
    """The NVIDIA driver's version; None if the system does not tell."""
    try:
        return path.read_text().strip()
    except OSError:
        return None


# What the driver is asked about every GPU; megahertz and watts.
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
_NUMBERS = ("_mhz", "_w")


def gpu_states(uuids: Sequence[str]) -> list[dict[str, Any]]:
    """Clocks, power limits and modes of some GPUs as ``nvidia-smi`` tells them, in their order.

    A field that the driver does not know is None; without the program there is nothing.

    Args:
        uuids: of the GPUs; one that the driver does not list is left out.
    """
    try:
        rows = query(GPU_FIELDS.values())
    except UnmeteredError:
        return []
    states = [
        {name: _value(name, cell) for name, cell in zip(GPU_FIELDS, cells, strict=True)}
        for cells in rows
        if len(cells) == len(GPU_FIELDS)
    ]
    by_uuid = {state["uuid"]: state for state in states}
    return [by_uuid[uuid] for uuid in uuids if uuid in by_uuid]


def _value(name: str, cell: str) -> str | float | None:
    """A cell as a number or a text; None for ``[N/A]`` and ``[Not Supported]``."""
    if cell.startswith("["):
        return None
    if not name.endswith(_NUMBERS):
        return cell
    try:
        return float(cell)
    except ValueError:
        return None


def torch_state() -> dict[str, Any]:
    """Threads, devices and the switches of torch that move a number or a time."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    uuids = [gpu_uuid(index) for index in devices]
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": driver_version() if devices else None,
        "devices": [torch.cuda.get_device_name(index) for index in devices],
        "device_uuids": uuids,
        "gpus": gpu_states(uuids) if uuids else [],
        **kernel_switches(),
    }


def kernel_switches() -> dict[str, Any]:
    """torch's switches that say which kernels a GPU runs and how finely they add."""
    import torch

    matmul = torch.backends.cuda.matmul
    kernels = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory_efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    return {
        "attention_kernels": [name for name, on in kernels.items() if on],
        "tf32": bool(matmul.allow_tf32 or torch.backends.cudnn.allow_tf32),
        "bf16_reduced_precision_reduction": bool(matmul.allow_bf16_reduced_precision_reduction),
        "fp16_reduced_precision_reduction": bool(matmul.allow_fp16_reduced_precision_reduction),
    }
