"""Energy meters: what measures joules, how, and why a number is missing.

``nvml`` reads the GPU's energy counter, ``nvidia_smi`` integrates sampled power over time,
``paper`` sums one sample per second, ``rapl`` reads the processor's counters, ``auto`` takes what a
GPU has, ``none`` is no meter.
Another package registers its own by ``@meter`` and names the module in ``spec_bench.meters``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_bench.measure.energy.meters import (
    EnergyMeter,
    EnergyReading,
    EnergySettings,
    energy_settings,
    meter,
)

__all__ = [
    "EnergyMeter",
    "EnergyReading",
    "EnergySettings",
    "build_meter",
    "energy_settings",
    "meter",
]


def build_meter(
    config: EnergySettings | Mapping[str, Any], ordinals: Sequence[int] | None = None
) -> EnergyMeter:
    """The meter that the settings name, for the job's GPUs as torch numbers them (None: all visible
    ones); not yet opened: nothing has been touched.

    Raises:
        ValueError: an unknown meter or setting, or a value that cannot be right.
    """
    settings = energy_settings(config)
    return meter[settings.meter].build(settings, ordinals)
