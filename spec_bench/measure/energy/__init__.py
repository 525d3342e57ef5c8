"""Energy meters: they measure joules, or give the reason why a number is missing.

``nvml`` reads the GPU's energy counter, ``nvidia_smi`` integrates sampled power over time,
``paper`` sums one sample per second, ``rapl`` reads the processor's counters, ``auto`` takes the
first GPU meter that works, ``none`` is no meter. Another package registers its own meter with
``@meter`` and declares the module as an entry point of ``spec_bench.meters``.
"""

from spec_bench.measure.energy.meters import EnergyMeter as EnergyMeter
from spec_bench.measure.energy.meters import EnergyReading as EnergyReading
from spec_bench.measure.energy.meters import EnergySettings as EnergySettings
from spec_bench.measure.energy.meters import build_meter as build_meter
from spec_bench.measure.energy.meters import meter as meter
from spec_bench.measure.energy.meters import parse_energy_settings as parse_energy_settings
