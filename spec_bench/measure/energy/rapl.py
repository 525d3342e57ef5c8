"""Energy from the processor's counters (RAPL), through the kernel.

The counters count whole packages, other processes' work included, and memory if the processor
meters it. Since Linux 5.10 only root may read them.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from spec_bench.measure.energy.meters import RAPL_ROOT, EnergyMeter, UnmeteredError, meter

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
