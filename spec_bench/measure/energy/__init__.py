"""Energy meters: what measures joules, how, and why a number is missing.

A meter is opened once per job; its window opens with ``begin`` and closes with ``end``, and the
caller synchronises the device before either. Knows nothing about tokens, decoders or cells.

``nvml`` reads the GPU's energy counter, ``nvidia_smi`` integrates sampled power over time,
``paper`` sums one sample per second, ``rapl`` reads the processor's counters, ``auto`` takes what a
GPU has, ``none`` is no meter.
Another package registers its own by ``@meter`` and names the module in ``spec_bench.meters``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_bench.measure.energy.reading import EnergyMeter, EnergyReading, meter
from spec_bench.measure.energy.settings import EnergySettings, energy_settings
from spec_bench.measure.energy.window import phase_delay_s

__all__ = [
    "EnergyMeter",
    "EnergyReading",
    "EnergySettings",
    "build_meter",
    "energy_settings",
    "meter",
    "phase_delay_s",
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
