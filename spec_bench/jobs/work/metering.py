"""A job's energy meter around the decode windows of its cells.

Adds a window's joules to the records, and explains missing joules in a row. Knows nothing about how
joules are measured.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from spec_bench.core import processes
from spec_bench.decode.config import AnyDecoder
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.store.store import Repeats
from spec_bench.measure.energy import EnergyReading, EnergySettings, build_meter
from spec_bench.records.types import Generation, Meter, Reason

log = logging.getLogger(__name__)
NO_SAMPLE = "all windows together are shorter than the time between two of the meter's samples"


class EnergyMetering:
    """A job's energy meter, open inside its context."""

    def __init__(self, settings: JobSettings) -> None:
        sees_no_gpu = settings.request.energy.meter == "auto" and not settings.device.startswith(
            "cuda"
        )
        energy = EnergySettings() if sees_no_gpu else settings.request.energy
        self.meter = build_meter(energy, find_torch_gpu_indices(settings))
        self._is_requested = energy.meter != "none"
        self._last_reading = EnergyReading(0.0)
        self._seconds_by_decoder = dict[int, float]()  # decoder's id -> seconds of its cell

    def __enter__(self) -> EnergyMetering:
        """Opens the meter before the models load, so that the idle power is the bare machine's."""
        self.meter.open()
        if self._is_requested and self.meter.reason:
            log.warning("no energy is measured: %s", self.meter.reason)
        elif self.meter.idle_power_w is not None:
            log.info("idle power by %s: %.1f W", self.meter.name, self.meter.idle_power_w)
        return self

    def __exit__(self, *_: object) -> None:
        self.meter.stop()

    def begin_window(self) -> None:
        """Opens the decode window; a decoder calls it after its prefill."""
        self.meter.begin_window()

    def end_window(self) -> None:
        """Closes the decode window; logs a warning when the meter begins to fail."""
        previous = self._last_reading
        self._last_reading = self.meter.end_window()
        if (
            self._last_reading.energy_j is None
            and previous.energy_j is not None
            and not self.meter.reason
        ):
            log.warning("rows without energy: %s", self._last_reading.note)

    @contextmanager
    def metered_batch(
        self, decoder: AnyDecoder, earlier_generations: Repeats
    ) -> Iterator[Meter | None]:
        """Meters a batch that a decoder decodes within the block; yields the meter for the decoder
        to begin and end itself, or None. ``earlier_generations`` are the cell's, from earlier
        sessions too.
        """
        meter = self.meter
        if meter.name == "none" or not meter.whole:
            yield None if meter.name == "none" else self
            return
        before_s = sum(
            generation.prefill_s + generation.decode_s
            for repeat in earlier_generations.values()
            for generation in repeat.values()
        )
        meter.clock_s = self._seconds_by_decoder.setdefault(id(decoder), before_s)
        self.begin_window()
        yield None
        self.end_window()
        self._seconds_by_decoder[id(decoder)] = meter.clock_s

    def add_energy_shares(self, generations: Sequence[Generation]) -> list[Generation]:
        """Adds to each row of the batch its share of the last window's energy."""
        if self.meter.name == "none":
            return list(generations)
        return add_equal_energy_shares(generations, self._last_reading)


def add_equal_energy_shares(
    generations: Sequence[Generation], energy: EnergyReading
) -> list[Generation]:
    """Adds an equal share of a window's energy to each of the batch's rows."""
    share_j = None if energy.energy_j is None else energy.energy_j / len(generations)
    return [replace(row, energy_j=share_j, energy_note=energy.note) for row in generations]


def explain_missing_energy(default_note: str, generations: Sequence[Generation]) -> list[Reason]:
    """Explains why the energy of generations is missing or doubtful, with the number of prompts
    concerned; ``default_note`` is the reason if a generation has no note.
    """
    total = len(generations)
    notes = Counter(
        generation.energy_note or ("" if generation.energy_j is not None else default_note)
        for generation in generations
    )
    return [
        Reason(
            "energy_j_per_token", note + (f" ({count} of {total} prompts)" if count < total else "")
        )
        for note, count in notes.items()
        if note
    ]


def find_torch_gpu_indices(settings: JobSettings) -> tuple[int, ...] | None:
    """Finds the job's GPUs as torch numbers them; None: all visible ones, or the job uses none."""
    kind, _, index = settings.device.partition(":")
    if kind != "cuda":
        return None
    if settings.pair.specs[0].tensor_parallel:  # one process per GPU; one process meters
        return tuple(range(processes.count_local_torchrun_processes()))
    device = int(index or 0)
    maps = [spec.device_map for spec in settings.pair.specs]
    places = [
        place for device_map in maps if isinstance(device_map, tuple) for _, place in device_map
    ]
    if any(isinstance(device_map, str) for device_map in maps) or any(
        str(n).startswith("cuda") for n in places
    ):
        return None
    mapped_gpus = {place for place in places if isinstance(place, int)}
    # A model without a map is on the job's device.
    return tuple(sorted(mapped_gpus | ({device} if None in maps else set())))
