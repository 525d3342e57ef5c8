"""Collects where numbers come from: code revision, versions, machine, GPUs and torch's settings.

Knows nothing about cells; the runner stores the collected values with each cell.
"""

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import spec_bench
from spec_bench.measure.energy.meters import UnmeteredError
from spec_bench.measure.energy.power_sampler import query_gpus
from spec_bench.system.processor import read_cpu_model

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


def print_versions(options: object = None) -> None:
    """Prints the version, the commit of a checkout, and each package that can change numbers."""
    state = read_git_state(Path(spec_bench.__file__).parent)
    commit = f" {state['revision'][:12]}{', changed' * state['dirty']}" if state else ""
    lines = [f"spec-bench {spec_bench.__version__}{commit}", f"python {platform.python_version()}"]
    print("\n".join([*lines, *map(" ".join, read_package_versions().items())]))
