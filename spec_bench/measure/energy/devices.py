"""Which GPUs are the job's own, so that a neighbour's watts are not counted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_bench.measure.energy.settings import EnergySettings
from spec_bench.measure.energy.window import UnmeteredError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine, as the driver numbers it.

    Attributes:
        index: in PCI bus order.
        uuid: ``GPU-...``.
    """

    index: int
    uuid: str


def job_gpus(
    gpus: Sequence[Gpu], settings: EnergySettings, ordinals: Sequence[int] | None
) -> list[Gpu]:
    """The GPUs whose energy is the job's.

    Those that ``energy.devices`` names; else those that CUDA_VISIBLE_DEVICES leaves visible, and of
    them the ones at ``ordinals``.

    Raises:
        UnmeteredError: no GPU is left, or what is visible has no power meter of its own.
    """
    if settings.devices is not None:
        return [_named(gpus, name) for name in settings.devices]
    visible = visible_gpus(gpus, os.environ.get(_VISIBLE))
    if ordinals is not None:
        visible = [visible[position] for position in ordinals if position < len(visible)]
    if not visible:
        raise UnmeteredError("the job sees no GPU")
    return visible


def nvml_handles(nvml: Any, settings: EnergySettings, ordinals: Sequence[int] | None) -> list[Any]:
    """NVML's handles of the GPUs whose energy is the job's (``job_gpus``).

    Raises:
        UnmeteredError: as ``job_gpus``.
        nvml.NVMLError: NVML does not tell.
    """
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        gpus.append(Gpu(index, uuid.decode() if isinstance(uuid, bytes) else str(uuid)))
    chosen = job_gpus(gpus, settings, ordinals)
    return [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in chosen]


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
