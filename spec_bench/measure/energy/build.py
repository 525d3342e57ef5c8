"""From the config group ``energy`` to a meter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_bench.measure.energy.nvidia_smi import SmiMeter
from spec_bench.measure.energy.nvml import NvmlMeter
from spec_bench.measure.energy.paper import PaperMeter
from spec_bench.measure.energy.rapl import RaplMeter
from spec_bench.measure.energy.reading import EnergyMeter, NoMeter
from spec_bench.measure.energy.settings import EnergySettings, energy_settings

_GPU_METERS: dict[str, type[NvmlMeter] | type[SmiMeter]] = {
    "nvml": NvmlMeter,
    "nvidia_smi": SmiMeter,
    "paper": PaperMeter,
}


def build_meter(
    config: EnergySettings | Mapping[str, Any], ordinals: Sequence[int] | None = None
) -> EnergyMeter:
    """The meter that the settings name, not yet opened: it has touched nothing so far.

    Args:
        config: checked settings, or the config group.
        ordinals: the job's GPUs as torch numbers them (``cuda:1`` is 1); None: all visible ones.

    Raises:
        ValueError: an unknown meter or setting, or a value that cannot be right.
    """
    settings = energy_settings(config)
    if settings.meter == "none":
        return NoMeter()
    if settings.meter == "rapl":
        return RaplMeter(settings)
    return _GPU_METERS[settings.meter](settings, ordinals)
