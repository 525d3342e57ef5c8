"""Energy meters that compute joules from sampled power, which ``power_sampler`` reads from
``nvidia-smi``.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from spec_bench.measure.energy.counters import Gpu, select_job_gpus
from spec_bench.measure.energy.meters import EnergyMeter, UnmeteredError, meter
from spec_bench.measure.energy.power_sampler import (
    PROGRAM,
    PowerSampler,
    find_power_field,
    query_gpus,
)

_WIDE_PERIODS = 5  # samples further apart are flagged
_DRIFT = 1e-3  # largest relative error of the speed of a clock that is kept synchronised


EpochSeconds = float
"""Seconds since the epoch, by the clock of the samples' stamps."""


@meter(
    "nvidia_smi",
    period_s=0.05,
    update_period_s=0.1,
    idle_s=3.0,
    devices=None,
)
class NvidiaSmiMeter(EnergyMeter[EpochSeconds]):
    """Integrates power over the samples' time stamps by the trapezoid rule and sums the GPUs.

    On GPUs since Ampere (except GA100) ``power.draw`` is an average over the last second, which
    blurs a window's ends; ``power.draw.instant`` is not, so it is used if the driver has it. After
    each window the meter waits for the next sample; no clock reading includes that wait.
    """

    name = "nvidia_smi"
    fields: Sequence[str] = ("power.draw.instant", "power.draw")  # the first that is known
    _sampler: PowerSampler | None = None
    _clocks = (0.0, 0.0)  # at the last mark: ``time.time`` and ``time.monotonic``

    def start(self) -> None:
        try:
            gpus = [Gpu(int(index), uuid) for index, uuid in query_gpus(("index", "uuid"))]
        except ValueError:
            raise UnmeteredError(f"{PROGRAM} gives no list of GPUs") from None
        devices = self.settings.devices
        if not self.whole or devices is not None:  # else all GPUs of the machine are metered
            gpus = select_job_gpus(gpus, devices, self.ordinals)
        period_s = self.settings.period_s / (20 if self.whole else 1)  # dense, to interpolate
        self._sampler = PowerSampler(gpus, find_power_field(gpus, self.fields), period_s)
        self._sampler.start()
        self._clocks = time.time(), time.monotonic()

    def mark(self) -> EpochSeconds:
        """Returns seconds since the epoch by the clock of the samples' stamps.

        Raises ``UnmeteredError`` if that clock was set since the last mark.
        """
        last_clocks = self._clocks
        self._clocks = (time.time(), time.monotonic())
        by_stamps_s, passed_s = np.subtract(self._clocks, last_clocks)
        if abs(by_stamps_s - passed_s) > self.settings.period_s + passed_s * _DRIFT:
            raise UnmeteredError("the machine's clock was set meanwhile")
        return self._clocks[0]

    def joules(self, begin: float, end: float) -> tuple[float, str]:
        assert self._sampler is not None
        traces = self._sampler.wait_for_samples_dropping_earlier(begin, end)
        gap_s = max(find_largest_gap_touching_window_s(times, begin, end) for times, _ in traces)
        has_wide_gap = gap_s > _WIDE_PERIODS * self.settings.period_s
        flag = f"samples more than {_WIDE_PERIODS} periods apart" if has_wide_gap else ""
        return sum(integrate_power_j(*trace, begin, end) for trace in traces), flag

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


@meter("paper", period_s=1.0, idle_s=3.0, devices=None)
class DsbdSummedSamplesMeter(NvidiaSmiMeter):
    """Sums one sample of power per second over all work of a cell, as the DSBD authors do.

    Their loop over the prompts is one window, from the first prefill on (arXiv:2409.16560, Appendix
    B; ``evaluation.py`` and ``gpu_power_monitor.py`` of their code). Every second they add up the
    power.draw of all GPUs that nvidia-smi lists, as if each sample stood for one second; the first
    sample is left out. Here cells take turns, so the seconds are those of the cell's own clock,
    which stops while other cells decode. A sample belongs to the window in which its second ends,
    and only the sum over all windows is meaningful. Two differences remain: their samples are
    further apart, by the time that nvidia-smi takes to start, which their sum ignores; and their
    window includes a pass that scores each answer, whereas the decoding here knows the likelihoods.
    """

    name = "paper"
    fields = ("power.draw",)
    whole = True

    def joules(self, begin: float, end: float) -> tuple[float, str]:
        assert self._sampler is not None
        period_s = self.settings.period_s
        before_s = self.clock_s
        self.clock_s = self.clock_s + end - begin
        seconds = np.arange(before_s // period_s, self.clock_s // period_s) + 1
        moments = seconds * period_s - before_s + begin
        traces = self._sampler.wait_for_samples_dropping_earlier(begin, end)
        watts = sum(float(np.interp(moments, *trace).sum()) for trace in traces)
        note = f"one sum, a sample each {period_s:g} s, prefill in, GPUs: {len(traces)}"
        return watts * period_s, note

    def idle_w(self, begin: float, end: float, seconds: float) -> float:
        # Idle power is not part of the protocol, whose sum of one or two samples is no mean power.
        return super().joules(begin, end)[0] / seconds


def integrate_power_j(
    times_s: Sequence[float],
    power_w: Sequence[float],
    begin_s: float,
    end_s: float,
) -> float:
    """Integrates power over a window by the trapezoid rule, interpolated at the ends; joules. The
    samples' times are ascending, on the same clock as the window's.

    Raises ``UnmeteredError`` if the samples do not cover the window.
    """
    if not times_s or times_s[0] > begin_s or times_s[-1] < end_s:
        raise UnmeteredError("the samples of power do not reach over the window")
    times_inside = times_s[bisect_right(times_s, begin_s) : bisect_left(times_s, end_s)]
    moments = [begin_s, *times_inside, end_s]
    power = np.interp(moments, times_s, power_w)
    return float(np.diff(moments) @ (power[1:] + power[:-1]) / 2)


def find_largest_gap_touching_window_s(
    times_s: Sequence[float], begin_s: float, end_s: float
) -> float:
    """Returns the longest gap between samples in or next to a window, in seconds."""
    begin_index = bisect_right(times_s, begin_s) - 1
    end_index = bisect_left(times_s, end_s)
    times_touched = times_s[max(begin_index, 0) : end_index + 1]
    return max((b - a for a, b in pairwise(times_touched)), default=0.0)
