"""From the config group ``energy`` to a meter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_bench.measure.energy.reading import EnergyMeter, meter
from spec_bench.measure.energy.settings import EnergySettings, energy_settings


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
