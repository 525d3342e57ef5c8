"""Power by ``nvidia-smi``, sampled in a process of its own and integrated over time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from spec_bench.measure.energy.devices import job_gpus
from spec_bench.measure.energy.reading import meter
from spec_bench.measure.energy.samples import integral_j, largest_gap_s, summed_j
from spec_bench.measure.energy.settings import EnergySettings, PowerField
from spec_bench.measure.energy.smi import SmiSampler, find_fields, find_gpus
from spec_bench.measure.energy.window import Measured, UnmeteredError, WindowMeter

_WIDE_PERIODS = 5
_PAPER_FIELD: PowerField = "power.draw"


@meter(
    "nvidia_smi",
    field="auto",
    period_s=0.05,
    update_period_s=0.1,
    idle_s=3.0,
    phase_shift_s=0.1,
    devices=None,
)
class SmiMeter(WindowMeter[float]):
    """The trapezoid rule over the samples' own time stamps, GPUs added up.

    ``power.draw`` is an average over the last second on GPUs since Ampere (GA100 excepted), which
    smears a window's ends; ``power.draw.instant`` is not, so it is used if the driver has it, and
    the other field is the check. After each window the meter waits for the next sample; that wait
    is in no clock reading.
    """

    name = "nvidia_smi"

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        super().__init__(settings)
        self._ordinals = ordinals
        self._sampler: SmiSampler | None = None
        self.field = ""

    def start(self) -> None:
        gpus = job_gpus(find_gpus(), self.settings, self._ordinals)
        fields = self._fields(find_fields(gpus))
        self.field = fields[0]
        assert self.period_s is not None
        self._sampler = SmiSampler(gpus, fields, self.period_s)
        self._sampler.start()

    def mark(self) -> float:
        """Seconds since the epoch, by the clock of the samples' stamps."""
        return time.time()

    def joules(self, begin: float, end: float) -> Measured:
        sampler = self._sampled(begin, end)
        traces = sampler.traces(self.field)
        gap_s = max(largest_gap_s(times, begin, end) for times, _ in traces)
        wide = gap_s > _WIDE_PERIODS * sampler.period_s
        checks = [
            self._integral_j(sampler, field, begin, end)
            for field in sampler.fields
            if field != self.field
        ]
        return Measured(
            self._integral_j(sampler, self.field, begin, end),
            checks[0] if checks else None,
            f"samples more than {_WIDE_PERIODS} periods apart" if wide else "",
        )

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None

    def _fields(self, known: Sequence[str]) -> tuple[str, ...]:
        """The field to integrate, then the one to check it by."""
        wanted = self.settings.field
        if wanted == "auto":
            return tuple(known)
        if wanted not in known:
            raise UnmeteredError(f"nvidia-smi has no {wanted} here")
        return (wanted, *(field for field in known if field != wanted))

    def _sampled(self, begin: float, end: float) -> SmiSampler:
        """The sampler with samples on both sides of the window."""
        if self._sampler is None:
            raise UnmeteredError("the meter is not open")
        self._sampler.wait_until(end)
        self._sampler.forget(begin)
        return self._sampler

    @staticmethod
    def _integral_j(sampler: SmiSampler, field: str, begin: float, end: float) -> float:
        return sum(integral_j(*trace, begin, end) for trace in sampler.traces(field))


@meter("paper", idle_s=3.0, devices=None)
class PaperMeter(SmiMeter):
    """Watts summed, one sample per second: the protocol of the DSBD authors, to show its error.

    The samples of power.draw in a window are added up as if each stood for one second
    (arXiv:2409.16560, Section 5). A window has as many samples as seconds happened to begin in it,
    so one of 1.5 s counts as one second or as two; the time between two samples, a little more than
    the second asked for, is ignored.
    """

    name = "paper"

    def __init__(self, settings: EnergySettings, ordinals: Sequence[int] | None = None) -> None:
        super().__init__(replace(settings, field=_PAPER_FIELD, period_s=1.0), ordinals)

    def joules(self, begin: float, end: float) -> Measured:
        sampler = self._sampled(begin, end)
        return Measured(sum(summed_j(*trace, begin, end) for trace in sampler.traces(_PAPER_FIELD)))

    def idle_w(self, begin: float, end: float, seconds: float) -> float:
        # Idle power is not part of the protocol: a sum of one or two samples is not in watts.
        return super().joules(begin, end).energy_j / seconds

    def _fields(self, known: Sequence[str]) -> tuple[str, ...]:
        return super()._fields(known)[:1]
