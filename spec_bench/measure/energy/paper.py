"""The protocol of the DSBD authors, kept to reproduce their figures and to show its error.

``nvidia-smi``'s power.draw once a second, the samples of a window added up as if each stood for one
second (arXiv:2409.16560, Section 5). A window has as many samples as seconds happened to begin in
it, so a window of 1.5 s counts as one second or as two; the time between two samples, a little more
than the second asked for, is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spec_bench.measure.energy.nvidia_smi import SmiMeter
from spec_bench.measure.energy.reading import meter
from spec_bench.measure.energy.samples import summed_j
from spec_bench.measure.energy.settings import EnergySettings, PowerField
from spec_bench.measure.energy.window import Measured

_FIELD: PowerField = "power.draw"
_PERIOD_S = 1.0


@meter("paper", idle_s=3.0, devices=None)
class PaperMeter(SmiMeter):
    """Watts summed, one sample per second.

    Args:
        settings: checked ones.
        ordinals: the job's GPUs among the visible ones; None: all of them.
    """

    name = "paper"

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        super().__init__(replace(settings, field=_FIELD, period_s=_PERIOD_S), ordinals)

    def joules(self, begin: float, end: float) -> Measured:
        sampler = self._sampled(begin, end)
        return Measured(sum(summed_j(*trace, begin, end) for trace in sampler.traces(_FIELD)))

    def idle_w(self, begin: float, end: float, seconds: float) -> float:
        # Idle power is not part of the protocol: a sum of one or two samples is not in watts.
        return super().joules(begin, end).energy_j / seconds

    def _fields(self, known: Sequence[str]) -> tuple[str, ...]:
        return super()._fields(known)[:1]
