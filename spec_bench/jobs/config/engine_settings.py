"""The config group ``engine``: where and how models run; knows nothing about which."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Literal

from spec_bench.engine.model_spec import AUTO, DEVICE, cuda_fault, sees_cuda
from spec_bench.jobs.config.model_files import EMBEDDED
from spec_bench.settings.validation import Flag, Ge, Gt, Le, Pattern, Real, Says, Whole, settings

_warn = cache(partial(logging.getLogger(__name__).warning, "engine.device=auto is the CPU: %s"))
MOST_THREADS = 1024  # a system without room for more ends the process without a word


@settings
class EngineSettings:
    """The config group ``engine``; meanings stand in ``conf/engine/default.yaml``."""

    device: Annotated[
        str, Says("auto, cpu, cuda or cuda:0, or alike"), Pattern(f"({AUTO}|{DEVICE})")
    ]
    dtype: Literal["float32", "float64", "bfloat16", "float16"]
    batch_size: Annotated[Whole, Ge(1)] = 1
    batching: Literal["static", "continuous"] = "static"
    compile: Literal["none", "static", "static_inductor", "dynamo", "inductor"] = "none"
    threads: Annotated[Whole, Ge(1), Le(MOST_THREADS)] | None = None
    gpu_memory_gib: Annotated[Real, Gt(0)] | None = None
    tensor_parallel: Flag = False
    kind: Literal["here", "server"] = "here"

    @property
    def served(self) -> bool:
        """Whether a server decodes."""
        return self.kind == "server"

    @property
    def on_cuda(self) -> bool:
        """Whether jobs need GPUs."""
        return self.device.startswith("cuda")


def placed(engine: EngineSettings, target: str) -> EngineSettings:
    """The engine's settings with the device that ``auto`` comes to.

    The small models that ship are at home on a CPU. Any other target takes the GPU where torch can
    use one.
    """
    if engine.device != AUTO:
        return engine
    small = target.startswith(EMBEDDED)
    if small or not sees_cuda():
        if not small and (fault := cuda_fault()):
            _warn(fault)
        return replace(engine, device="cpu")
    return replace(engine, device="cuda")


def check_there(device: str) -> None:
    """Refuses an accelerator that torch does not see; CUDA is asked for with each model."""
    kind = device.partition(":")[0]
    if kind in ("cpu", "cuda"):
        return
    import torch

    there = torch.backends.mps if kind == "mps" else torch.get_device_module(kind)
    if not there.is_available():
        raise ValueError(f"engine.device {device!r} was asked for but torch sees no such device")
