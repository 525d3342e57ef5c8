"""Checked settings for loading a model; imports torch only to look for CUDA."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from spec_bench.core import processes
from spec_bench.engine.architectures import PREFIX
from spec_bench.system.errors import UsageError

DTYPES = ("float32", "float64", "bfloat16", "float16")
COMPILE_MODES = ("none", "static", "static_inductor", "dynamo", "inductor")
DEVICE = r"(cpu|mps|(cuda|xpu)(:\d{1,4})?)"
AUTO = "auto"
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # devices of NVIDIA, WSL and AMD
_ASK = """import ctypes
driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
driver.cuDriverGetVersion(ctypes.byref(version))
print(version.value, driver.cuInit(0))"""
PLAIN = ("fp8", "mxfp4")  # kinds of quantisation that transformers can undo
RECORDS = (2, 11)  # first version of torch whose recordings are used
COMPILERS = ("c++", "g++", "clang++", "cl")


@dataclass(frozen=True)
class ModelSpec:
    """Which model to load, where and with which dtype. Raises UsageError if the dtype or
    ``compile`` is unknown, if the device or compiler is missing, for random weights with a device
    map, and for a split model with a device map, with random weights or without processes.
    """

    path: str  # local folder, hub id, or `random:...` for an architecture with random weights
    dtype: str = "float32"  # one of `DTYPES`
    device: str = "cpu"  # `cpu`, `cuda`, `cuda:1`,
    # passed through to transformers for models larger than one GPU (`auto` or a JSON-like mapping
    # as a sorted tuple of pairs); `device` is ignored for loading then
    device_map: str | tuple[tuple[str, int | str], ...] | None = None
    revision: str | None = None  # hub revision
    compile: str = "none"  # how the forward pass is captured, one of `COMPILE_MODES`
    seed: int = 0  # of random weights; otherwise unused
    # whether the model is split over the processes that `torchrun` started
    tensor_parallel: bool = False
    # tokens that the last layer keeps: a file of ids, or the number of lowest ids; None: all
    outputs: str | int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.compile not in COMPILE_MODES:
            raise UsageError(
                f"engine.compile must be one of {', '.join(COMPILE_MODES)}, got {self.compile!r}"
            )
        if self.compile.endswith("inductor") and not any(map(shutil.which, COMPILERS)):
            raise UsageError(
                f"engine.compile=inductor needs a C++ compiler on PATH ({', '.join(COMPILERS)}); "
                "static and dynamo need none"
            )
        if not re.fullmatch(DEVICE, self.device):
            raise UsageError(f"device must be like cpu, cuda or cuda:0, got {self.device!r}")
        if self.device.startswith("cuda") and not is_cuda_usable():
            reason = (
                explain_cuda_fault() or "torch sees no CUDA device (engine=default takes the CPU)"
            )
            raise UsageError(f"device {self.device!r} was asked for but {reason}")
        if self.device.startswith("cuda") and self.compile.startswith("static"):
            import torch

            if fault := explain_torch_cannot_record(torch.__version__):
                raise UsageError(f"engine.compile={self.compile} {fault}")
        has_map = self.device_map is not None
        random = self.path.startswith(PREFIX)
        if self.tensor_parallel and processes.count_torchrun_processes() < 2:
            raise UsageError(
                "engine.tensor_parallel: true needs several processes: start with "
                "torchrun --nproc-per-node N -m spec_bench ..."
            )
        if self.tensor_parallel and (has_map or random):
            raise UsageError(
                "engine.tensor_parallel: true splits a model with weights over processes; "
                f"{self.path!r} has {'a device map' if has_map else 'no weights'}"
            )
        if random and has_map:
            raise UsageError(
                f"{self.path!r} is made on one device: pair.target_device_map must be null, got "
                f"{self.device_map!r}"
            )


def resolve_compile_choice(choice: str, device: str) -> str:
    """Resolves ``auto``: ``static`` on a GPU if torch can record there, else ``none``; returns any
    other choice as it is.
    """
    if choice != AUTO:
        return choice
    if not device.startswith("cuda"):
        return "none"
    import torch

    return "none" if explain_torch_cannot_record(torch.__version__) else "static"


def refuse_unreadable_weights(path: str, config: Mapping[str, Any]) -> None:
    """Raises UsageError, with advice, if a model's weights are an adapter, or quantised in a way
    that cannot be undone here.
    """
    if (Path(path).expanduser() / "adapter_config.json").is_file():
        raise UsageError(
            f"model folder {path!r} holds adapter_config.json: an adapter (LoRA) is no model; "
            "merge the adapter into its base model with peft's merge_and_unload(), and name the "
            "folder of save_pretrained()"
        )
    packing = config.get("quantization_config")
    kind = packing.get("quant_method", packing) if isinstance(packing, Mapping) else packing
    kind = "MLX" if "quantization" in config else kind
    if kind and kind not in PLAIN:
        raise UsageError(
            f"cannot load model {path!r}: its config.json says quantization_config: {kind!r}; "
            f"weights are plain, or {' or '.join(PLAIN)} (read as plain ones), or a GGUF file's: "
            "name the model that it was made of, or a server that runs it (engine=server)"
        )


def is_cuda_usable() -> bool:
    """Returns whether there is a GPU that torch can use; asking does not start CUDA.

    What starts it later may still choose its GPUs. Imports torch only if the system has a GPU.
    """
    if sys.platform == "linux" and not any(map(os.path.exists, _DRIVERS)):
        return False
    import torch

    return torch.cuda.device_count() > 0 and not explain_cuda_fault()  # counted by NVML


@cache
def explain_cuda_fault() -> str:
    """Explains why NVIDIA's driver does not start CUDA, tested in another
    process; "" if unknown.
    """
    if not any(map(os.path.exists, _DRIVERS)):
        return ""
    process = subprocess.run([sys.executable, "-ISc", _ASK], capture_output=True, text=True)
    version, _, status = process.stdout.strip().partition(" ")
    fails = f"cuInit fails with error {status}" if status not in ("", "0") else ""
    return explain_old_driver(version) or fails


def explain_old_driver(version: str) -> str:
    """Explains that a driver's CUDA, such as 12040, is older than torch's; "" if it is not."""
    import torch

    torch_cuda = torch.version.cuda
    major = int(version or 0) // 1000
    if not torch_cuda or not version or major >= int(torch_cuda.split(".")[0]):
        return ""
    return (
        f"the NVIDIA driver is for CUDA {major}.{int(version) % 1000 // 10}, torch for "
        f"{torch_cuda}: update the driver, or make -B env TORCH_INDEX=URL of a wheel index "
        f"for CUDA {major}"
    )


def explain_torch_cannot_record(version: str) -> str:
    """Returns the end of a message that this version of torch, such as 2.9.1+cu126, is too old to
    record on a GPU; "" if it is not.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= RECORDS:
        return ""
    oldest = ".".join(map(str, RECORDS))
    return (
        f"records on a GPU with torch {oldest} or newer, this is {version}: "
        "engine.compile=none, or make -B env"
    )


INTERSECTION = "intersection"


def read_output_ids(outputs: str | int) -> tuple[int, ...]:
    """Reads the token ids that a draft keeps in its last layer, in order: those of a JSON file, for
    example the most frequent (FR-Spec, arXiv 2502.14856), or the N lowest, which a byte-pair
    vocabulary merged first. Raises UsageError if there is no such file, or no list of distinct ids
    >= 0.
    """
    if isinstance(outputs, int):
        if outputs < 1:
            raise UsageError(f"pair.draft_vocabulary must be at least 1, got {outputs}")
        return tuple(range(outputs))
    try:
        ids = json.loads(Path(outputs).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"pair.draft_vocabulary must be {INTERSECTION}, a number of tokens or a JSON file of "
            f"token ids, got {outputs!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    valid = isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)
    if not ids or not valid or len(set(ids)) < len(ids):
        raise UsageError(f"pair.draft_vocabulary: {outputs!r} holds no list of distinct ids >= 0")
    return tuple(sorted(ids))
