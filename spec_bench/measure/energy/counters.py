"""Energy counters: the GPU's own through NVML, and the processor's (RAPL) through the kernel.

``pynvml`` is imported when the meter is opened; it is part of the extra ``gpu``. Also selects the
job's own GPUs.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec_bench.measure.energy.meters import RAPL_ROOT, EnergyMeter, UnmeteredError, meter


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


# The processor's counters count whole packages, other processes' work included, and memory if the
# processor meters it. Since Linux 5.10 only root may read them.

# Upper bound of a package's power: a counter of 65.5 kJ wraps after 65 s at the earliest.
_MAX_PACKAGE_W = 1000.0


@meter("rapl", root=RAPL_ROOT, update_period_s=0.001, idle_s=3.0)
class RaplMeter(EnergyMeter[tuple[int, ...]]):
    """Sums the increases of the processor's energy counters.

    A counter wraps to 0 after its largest value and does not count the wraps. Therefore a thread
    reads all counters four times within the shortest possible time between wraps.
    """

    name = "rapl"
    _max_uj: Mapping[Path, int]  # each counter's folder -> the largest value before it wraps to 0
    _lock = threading.Lock()

    def start(self) -> None:
        """Finds the counters of packages, and of memory outside of packages.

        Leaves out counters of cores (part of a package), of the platform, and in
        ``intel-rapl-mmio`` (the same packages).
        """
        self._stop_event = threading.Event()
        root = Path(self.settings.root)
        zones = {
            folder: _read_text(folder / "name") for folder in sorted(root.glob("intel-rapl:*"))
        }
        self._max_uj = {
            folder: _read_integer(folder / "max_energy_range_uj")
            for folder, name in zones.items()
            if name.startswith("package") or name == "dram"
        }
        if not self._max_uj:
            raise UnmeteredError(f"no intel-rapl package in {root}")
        self._counted_uj = dict.fromkeys(self._max_uj, 0)
        self.mark()
        threading.Thread(target=self._keep_reading, daemon=True).start()

    def _keep_reading(self) -> None:
        while not self._stop_event.wait(min(self._max_uj.values()) * 1e-6 / _MAX_PACKAGE_W / 4):
            with suppress(UnmeteredError):  # the next window raises it again
                self.mark()

    def mark(self) -> tuple[int, ...]:
        """Returns the microjoules that each counter has counted since ``start``."""
        with self._lock:
            for folder, largest_value in self._max_uj.items():
                rise = _read_integer(folder / "energy_uj") - self._counted_uj[folder]
                self._counted_uj[folder] += rise % (largest_value + 1)
            return tuple(self._counted_uj.values())

    def joules(self, begin: tuple[int, ...], end: tuple[int, ...]) -> tuple[float, str]:
        return (sum(end) - sum(begin)) * 1e-6, ""

    def stop(self) -> None:
        self._stop_event.set()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UnmeteredError(f"cannot read {path}: {error.strerror}") from None


def _read_integer(path: Path) -> int:
    text = _read_text(path)
    if not text.isdigit():
        raise UnmeteredError(f"{path} holds no number: {text[:40]!r}")
    return int(text)
