"""A machine whose clock is ours: a meter's windows of a minute take no time.

What ``nvidia-smi`` prints and what NVML counts follow from curves of power; decoders only let the
seconds of their prefill and decoding pass.
"""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil, floor
from types import SimpleNamespace
from unittest.mock import patch

from spec_bench.jobs.work.metering import EnergyMetering
from spec_bench.measure.energy import meters, nvidia_smi, parse_energy_settings, power_sampler
from spec_bench.records.types import Generation
from tests.measure import stand_ins

BEGIN_S = 1000.37  # no whole second, nor a tenth of one
ARRIVES_S = 0.002  # a line, after the time that it states


class Clock:
    """The part of the module ``time`` that meters use."""

    def __init__(self):
        self.now_s = BEGIN_S

    def time(self):
        return self.now_s

    monotonic = perf_counter = time

    def sleep(self, seconds):
        self.now_s += seconds


@dataclass
class Samples:
    """``PowerSampler`` over what the program would have printed by then."""

    clock: Clock
    curves: list
    gpus: list
    field: str
    period_s: float

    def start(self):
        """It has always run."""

    stop = start

    def wait_for_samples_dropping_earlier(self, begin_s, end_s):
        places = range(floor(begin_s / self.period_s) - 1, ceil(end_s / self.period_s) + 2)
        times = [place * self.period_s for place in places]
        self.clock.now_s = max(self.clock.now_s, times[-2] + ARRIVES_S)  # it waits for one after
        played = (self.curves[gpu.index] for gpu in self.gpus)
        return [(times, [curve.power_w(moment) for moment in times]) for curve in played]


@contextmanager
def machine(*curves):
    """Yields the clock of a machine with a GPU for each curve, which begins with the clock."""
    clock = Clock()
    played = [replace(curve, origin_s=BEGIN_S) for curve in curves]

    def query(fields):
        said = {"uuid": "GPU-{}", "index": "{}"}
        return [[said.get(name, "1").format(gpu) for name in fields] for gpu in range(len(played))]

    with ExitStack() as held:
        for module in (nvidia_smi, meters, stand_ins):
            held.enter_context(patch.object(module, "time", clock))
        for module in (nvidia_smi, power_sampler):
            held.enter_context(patch.object(module, "query_gpus", query))
        sampler = lambda *told: Samples(clock, played, *told)  # noqa: E731
        held.enter_context(patch.object(nvidia_smi, "PowerSampler", sampler))
        nvml = stand_ins.StandInNvml(played)
        held.enter_context(patch.dict("sys.modules", pynvml=nvml))
        clock.curves = played
        yield clock


@dataclass(eq=False)
class Decoder:
    """Lets time pass; has what the curves say of it."""

    clock: Clock
    prefill_s: float
    decode_s: float
    true_j: float = 0.0  # of all GPUs, prefill in

    def generate(self, batch, seed, progress, meter=None):
        began_s = self.clock.now_s
        self.clock.sleep(self.prefill_s)
        if meter:
            meter.begin_window()
        self.clock.sleep(self.decode_s)
        self.true_j += sum(c.energy_j(began_s, self.clock.now_s) for c in self.clock.curves)
        if meter:
            meter.end_window()
        told = (name for name in batch)
        return [
            Generation(each, (1,), "stop", (), self.prefill_s, self.decode_s, 0.0, 0.0)
            for each in told
        ]


@contextmanager
def metered(name, **settings):
    """An open meter as a job on a GPU has it."""
    energy = parse_energy_settings({"meter": name, "idle_s": 0.0, **settings})
    spec = SimpleNamespace(tensor_parallel=False, device_map=None)
    asked, pair = SimpleNamespace(energy=energy), SimpleNamespace(specs=(spec,))
    with EnergyMetering(SimpleNamespace(request=asked, device="cuda", pair=pair)) as metering:
        yield metering


def decode(metering, decoder, windows, done=()):
    """Decodes one prompt after the other, another decoder between any two; all generations."""
    other = Decoder(decoder.clock, 0.0, 0.43)
    known = list(done)
    for _ in range(windows):
        stored = {0: {each.prompt_id: each for each in known}}
        for each, name, earlier in ((decoder, str(len(known)), stored), (other, "other", {})):
            with metering.metered_batch(each, earlier) as meter:
                answers = each.generate([name], 0, None, meter)
            known += metering.add_energy_shares(answers) if each is decoder else []
    return known
