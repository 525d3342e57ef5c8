"""Energy from the GPU's own counters through NVML, and the selection of the GPUs that a job uses.

``pynvml`` is imported when the meter is opened; it is part of the extra ``gpu``.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spec_bench.measure.energy.meters import EnergyMeter, UnmeteredError, meter


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine, as the driver numbers it."""

    index: int  # in PCI bus order
    uuid: str  # GPU-...


def select_job_gpus(
    gpus: Sequence[Gpu],
    configured_gpus: Sequence[str] | None,
    visible_ordinals: Sequence[int] | None,
) -> list[Gpu]:
    """Selects the GPUs that the job uses, so that no other job's watts are counted.

    They are those in ``configured_gpus``, or, without it, those at ``visible_ordinals`` (None: all)
    of the GPUs that CUDA_VISIBLE_DEVICES shows. Raises ``UnmeteredError`` if there is none, or only
    a part of a GPU without a power sensor.
    """
    if configured_gpus is not None:
        return [_find_gpu(gpus, name) for name in configured_gpus]
    visible = select_visible_gpus(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if visible_ordinals is not None:
        visible = [visible[position] for position in visible_ordinals if position < len(visible)]
    if not visible:
        raise UnmeteredError("the job sees no GPU")
    return visible


def select_visible_gpus(gpus: Sequence[Gpu], cuda_visible_devices: str | None) -> list[Gpu]:
    """Parses CUDA_VISIBLE_DEVICES as CUDA does and returns these GPUs in its order.

    The variable lists indices or beginnings of UUIDs; entries after the first wrong one are not
    visible (CUDA C++ Programming Guide, "CUDA Environment Variables"). Indices are in PCI bus
    order, as in CUDA on machines with GPUs of one kind; on others CUDA needs
    CUDA_DEVICE_ORDER=PCI_BUS_ID. Raises ``UnmeteredError`` if the variable names a MIG instance.
    """
    if cuda_visible_devices is None:
        return list(gpus)
    shown_gpus: list[Gpu] = []
    for name in cuda_visible_devices.split(","):
        if name.strip().startswith("MIG-"):
            raise UnmeteredError("a MIG instance has no power sensor of its own")
        try:
            gpu = _find_gpu(gpus, name.strip())
        except UnmeteredError:
            break
        if gpu in shown_gpus:
            return []
        shown_gpus.append(gpu)
    return shown_gpus


def _find_gpu(gpus: Sequence[Gpu], index_or_uuid: str) -> Gpu:
    if index_or_uuid.isdigit():
        matches = [gpu for gpu in gpus if gpu.index == int(index_or_uuid)]
    else:
        matches = [
            gpu
            for gpu in gpus
            if index_or_uuid.startswith("GPU-") and gpu.uuid.startswith(index_or_uuid)
        ]
    if len(matches) != 1:
        indices = ", ".join(str(gpu.index) for gpu in gpus) or "none"
        raise UnmeteredError(f"there is no GPU {index_or_uuid!r}; there are: {indices}")
    return matches[0]


def get_job_nvml_handles(
    nvml: Any,
    devices: Sequence[str] | None,
    ordinals: Sequence[int] | None,
) -> list[Any]:
    """Returns NVML handles of the job's GPUs, see ``select_job_gpus``. Raises NVML's own errors."""
    gpus = []
    for index in range(nvml.nvmlDeviceGetCount()):
        uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
        gpus.append(Gpu(index, uuid.decode() if isinstance(uuid, bytes) else str(uuid)))
    gpus_of_job = select_job_gpus(gpus, devices, ordinals)
    return [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in gpus_of_job]


@meter("nvml", update_period_s=0.1, idle_s=3.0, devices=None)
class NvmlMeter(EnergyMeter[tuple[int, ...]]):
    """Reads each GPU's energy counter at both ends of a window and sums the differences."""

    name = "nvml"
    _nvml: Any = None
    _handles: Sequence[Any] = ()

    def start(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise UnmeteredError("pynvml is missing: pip install nvidia-ml-py") from None
        try:
            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = get_job_nvml_handles(pynvml, self.settings.devices, self.ordinals)
        except pynvml.NVMLError as error:
            raise UnmeteredError(f"NVML: {error}") from None
        self.mark()

    def mark(self) -> tuple[int, ...]:
        """Reads each counter, in millijoules."""
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
