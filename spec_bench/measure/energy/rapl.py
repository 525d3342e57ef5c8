"""The processor's energy counters, as Linux shows them below ``/sys/class/powercap``.

They count whole processor packages, other processes' work included, and memory where the processor
meters it. Since Linux 5.10 only root may read them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from spec_bench.measure.energy.meters import RAPL_ROOT, UnmeteredError, WindowMeter, meter


class Zone(NamedTuple):
    """One counter."""

    folder: Path  # holds ``energy_uj``
    range_uj: int  # ``max_energy_range_uj``, the counter's largest value; after it comes 0

    def spent_uj(self, begin_uj: int, end_uj: int) -> int:
        """What was counted between two values, at most one wrap-around between them."""
        if end_uj >= begin_uj:
            return end_uj - begin_uj
        return self.range_uj - begin_uj + end_uj + 1


def find_zones(root: Path) -> list[Zone]:
    """Packages, and memory outside them; not cores (part of a package) nor the whole platform.

    ``intel-rapl-mmio`` counts the same packages in another way and is left out.

    Raises:
        UnmeteredError: there is none, or its files cannot be read.
    """
    zones = []
    for folder in sorted(root.glob("intel-rapl:*")):
        name = _text(folder / "name")
        if name.startswith("package") or name == "dram":
            zones.append(Zone(folder, _number(folder / "max_energy_range_uj")))
    if not zones:
        raise UnmeteredError(f"no intel-rapl package in {root}")
    return zones


@meter("rapl", root=RAPL_ROOT, update_period_s=0.001, idle_s=3.0)
class RaplMeter(WindowMeter[tuple[int, ...]]):
    """Differences of the counters, added up."""

    name = "rapl"

    def start(self) -> None:
        self._zones = find_zones(Path(self.settings.root))
        self.mark()

    def mark(self) -> tuple[int, ...]:
        """Each counter's value, in microjoules."""
        return tuple(_number(zone.folder / "energy_uj") for zone in self._zones)

    def joules(self, begin: tuple[int, ...], end: tuple[int, ...]) -> tuple[float, str]:
        ends = zip(self._zones, begin, end, strict=True)
        return sum(zone.spent_uj(first, last) for zone, first, last in ends) * 1e-6, ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UnmeteredError(f"cannot read {path}: {error.strerror}") from None


def _number(path: Path) -> int:
    text = _text(path)
    if not text.isdigit():
        raise UnmeteredError(f"{path} holds no number: {text[:40]!r}")
    return int(text)
