"""Where a number came from: code revision, versions, machine, settings of torch.

Knows nothing about cells; the runner stores what this returns beside each of them.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import spec_bench

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
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """Revision of the checkout that holds ``folder`` and whether it had changes; None outside.

    New results are no change.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # What was measured before lies in the tree, and changes while a run adds to it.
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
    """``cpu``, or the GPU's name; of another device what torch calls it."""
    import torch

    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def machine(device: str) -> str:
    """Count and model of the GPUs that this process sees, or of the processor's cores."""
    import torch

    if device.startswith("cuda"):
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(device)}"
    return f"{os.cpu_count()} x {cpu_model()}"


def torch_state() -> dict[str, Any]:
    """Threads, devices and the switches of torch that move a number or a time."""
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in devices],
    }
