"""The GPU's own energy counter through NVML, and which GPUs are the job's own.

``pynvml`` is imported when the meter is opened; it is part of the extra ``gpu``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_bench.measure.energy.meters import EnergySettings, UnmeteredError, WindowMeter, meter


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine, as the driver numbers it."""

    index: int  # in PCI bus order
    uuid: str  # GPU-...


def job_gpus(
    gpus: Sequence[Gpu], devices: Sequence[str] | None, ordinals: Sequence[int] | None
) -> list[Gpu]:
    """The GPUs whose energy is the job's, so that a neighbour's watts are not counted.

    Those that ``devices`` names; else those that CUDA_VISIBLE_DEVICES leaves visible, and of them
    the ones at ``ordinals``.

    Raises:
        UnmeteredError: no GPU is left, or what is visible has no power meter of its own.
    """
    if devices is not None:
        return [_named(gpus, name) for name in devices]
    visible = visible_gpus(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if ordinals is not None:
        visible = [visible[position] for position in ordinals if position < len(visible)]
    if not visible:
        raise UnmeteredError("the job sees no GPU")
    return visible


def visible_gpus(gpus: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """The GPUs that CUDA shows, in its order.

    As CUDA reads the variable (CUDA C++ Programming Guide, "CUDA Environment Variables"): indices
    or beginnings of UUIDs, and whatever follows the first wrong one is not visible. Indices are
    taken in PCI bus order, which is CUDA's own on machines with GPUs of one kind, and elsewhere
    with CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Raises:
        UnmeteredError: it names a MIG instance, which has no power sensor of its own.
    """
    if visible is None:
        return list(gpus)
    chosen: list[Gpu] = []
    for name in visible.split(","):
        if name.strip().startswith("MIG-"):
            raise UnmeteredError("a MIG instance has no power sensor of its own")
        try:
            gpu = _named(gpus, name.strip())
        except UnmeteredError:
            break
        if gpu in chosen:
            return []
        chosen.append(gpu)
    return chosen


def _named(gpus: Sequence[Gpu], name: str) -> Gpu:
    """The GPU of that index or beginning of a UUID."""
    if name.isdigit():
        matching = [gpu for gpu in gpus if gpu.index == int(name)]
    else:
        matching = [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)]
    if len(matching) != 1:
        known = ", ".join(str(gpu.index) for gpu in gpus) or "none"
        raise UnmeteredError(f"there is no GPU {name!r}; there are: {known}")
    return matching[0]


def nvml_handles(
    nvml: Any, devices: Sequence[str] | None, ordinals: Sequence[int] | None
) -> list[Any]:
    """NVML's handles of the job's GPUs (``job_gpus``).

    Raises:
        UnmeteredError: as ``job_gpus``.
        nvml.NVMLError: NVML does not tell.
    """
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        gpus.append(Gpu(index, uuid.decode() if isinstance(uuid, bytes) else str(uuid)))
    chosen = job_gpus(gpus, devices, ordinals)
    return [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in chosen]


@meter("nvml", update_period_s=0.1, idle_s=3.0, devices=None)
class NvmlMeter(WindowMeter[tuple[int, ...]]):
    """Differences of the counters, GPUs added up."""

    name = "nvml"

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        super().__init__(settings, ordinals)
        self._nvml: Any = None
        self._handles: list[Any] = []

    def start(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise UnmeteredError(
                "pynvml is not installed (pip install 'spec-bench[gpu]')"
            ) from None
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = nvml_handles(pynvml, self.settings.devices, self.ordinals)
        except pynvml.NVMLError as error:
            raise UnmeteredError(f"NVML: {error}") from None
        self.mark()

    def mark(self) -> tuple[int, ...]:
        """Each counter's value, in millijoules."""
        try:
            return tuple(map(self._nvml.nvmlDeviceGetTotalEnergyConsumption, self._handles))
        except self._nvml.NVMLError as error:
            raise UnmeteredError(f"NVML: {error}") from None

    def joules(self, begin: tuple[int, ...], end: tuple[int, ...]) -> tuple[float, str]:
        spent_mj = [b - a for a, b in zip(begin, end, strict=True)]
        if min(spent_mj) < 0:
            raise UnmeteredError("NVML's energy counter went back: the driver was loaded anew")
        return sum(spent_mj) * 1e-3, ""

    def stop(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
