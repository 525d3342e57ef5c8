"""What a sweep would do and cost, before anything is loaded: cells, hours, memory.

Knows a job's settings, what its cells left on disk, and known rates; loads no model and changes
nothing on disk. Estimates are upper ends: every prompt decodes to its limit, every prompt is as
long as the longest, a character is a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from spec_bench.jobs.config.cells import Cell
from spec_bench.jobs.config.engine_settings import EngineSettings
from spec_bench.jobs.config.model_files import BYTES, ModelSize
from spec_bench.jobs.config.pair import PairSettings, pair_sizes
from spec_bench.jobs.config.positions import slots_of
from spec_bench.jobs.config.settings import JobSettings, run_id
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.devices import gpu_memory_gib
from spec_bench.jobs.sweep.launch import gpus_of_job
from spec_bench.jobs.sweep.rates import Rate, RateRow, Wanted, find_rate
from spec_bench.jobs.work.prompts import prompt_ids
from spec_bench.records.types import CellFacts
from spec_bench.system import files
from spec_bench.tasks import RandomPrompts

State = Literal["complete", "partial", "failed", "missing", "unknown"]
_GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """What a job's models need.

    Attributes:
        weights_bytes: of all models; None if a size is unknown.
        cache_bytes: keys and values of all models, at most; None if a shape is unknown.
        gpus: GPUs that the job gets; None if unknown.
        capacity_bytes: their memory together; None if unknown or if the job is on a CPU.
    """

    weights_bytes: int | None
    cache_bytes: int | None
    gpus: int | None
    capacity_bytes: int | None

    @property
    def fits(self) -> bool | None:
        """Whether weights and caches fit; None if unknown."""
        if self.weights_bytes is None or self.capacity_bytes is None:
            return None
        if self.weights_bytes > self.capacity_bytes:
            return False
        if self.cache_bytes is None:
            return None
        return self.weights_bytes + self.cache_bytes <= self.capacity_bytes


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a plan.

    Attributes:
        run_id: names its folder.
        facts: what it is.
        state: what is on disk; unknown without the data, whose texts are part of a run id.
        prompts: how many there are, each repeat counted.
        left: how many are not decoded yet.
        rate: tokens per second; None if unknown.
        device_hours: decoding what is left, at most, times the GPUs; None without a rate.
        memory: of the job.
        words: the job's settings on the command line, those swept included.
    """

    run_id: str
    facts: CellFacts
    state: State
    prompts: int
    left: int
    rate: Rate | None
    device_hours: float | None
    memory: Memory
    words: tuple[str, ...] = ()


def plan_job(
    settings: JobSettings,
    pair: PairSettings,
    engine: EngineSettings,
    measured: Sequence[RateRow],
) -> list[PlannedCell]:
    """The plan of one job's cells, the baseline first; the pair has the entries for planning that
    the settings do not carry.
    """
    prompts = sum(len(prompt_ids(settings.task, example)) for example in settings.examples)
    memory = (
        Memory(0, 0, 0, None)  # nothing is loaded where a server decodes
        if settings.served
        else job_memory(pair, engine, longest_sequence(settings), settings.engine.batch_size)
    )
    gpus = None if memory.gpus is None else max(1, memory.gpus)
    planned = []
    for cell in settings.cells:
        store = CellStore(settings.results, run_id(settings.cell_settings(cell)))
        state, left = _state(settings, store, prompts)
        rate = find_rate(_wanted(settings, cell), measured)
        hours = None if rate is None else left * settings.max_new_tokens / rate.tokens_per_s / 3600
        planned.append(
            PlannedCell(
                store.folder.name,
                settings.facts(cell),
                state,
                prompts * settings.asked.repeats,
                left,
                rate,
                0.0 if not left else None if hours is None or gpus is None else hours * gpus,
                memory,
            )
        )
    return planned


def _state(settings: JobSettings, store: CellStore, prompts: int) -> tuple[State, int]:
    """What a cell's folder holds, and the prompts it lacks, as far as they can be known."""
    if settings.unread:
        return "unknown", prompts * settings.asked.repeats
    return state_of(store, prompts, settings.asked.repeats)


def state_of(store: CellStore, prompts: int, repeats: int = 1) -> tuple[State, int]:
    """What a cell's folder holds, and the prompts it lacks in all repeats; reads only."""
    path = store.folder / files.GENERATIONS
    done = path.read_bytes().count(b"\n") if path.exists() else 0
    result = store.result()
    if store.complete(repeats):
        return "complete", 0
    left = max(0, prompts * repeats - done)
    if result is not None and result.status == "failed":
        return "failed", left
    return ("partial" if done or result is not None else "missing"), left


def job_memory(pair: PairSettings, engine: EngineSettings, slots: int | None, rows: int) -> Memory:
    """Memory of a job, from its models' sizes.

    Args:
        pair: which models.
        engine: where they run.
        slots: of the longest sequence; None: as many as the models have.
        rows: sequences that decode together.
    """
    sizes = pair_sizes(pair)
    bytes_each = BYTES[pair.dtype or engine.dtype]
    gib = (engine.gpu_memory_gib or gpu_memory_gib()) if engine.on_cuda else None
    try:
        gpus = gpus_of_job(pair, engine)
    except ValueError:  # says what must be stated to know it; a plan leaves that open
        gpus = None
    most = _slots(sizes, slots)
    caches = [None if most is None else size.cached_numbers for size in sizes]
    return Memory(
        _sum([size.parameters for size in sizes], bytes_each),
        _sum(caches, rows * (most or 0) * bytes_each),
        gpus,
        int(gib * _GIB * gpus) if gib and gpus else None,
    )


def longest_sequence(settings: JobSettings) -> int | None:
    """Slots that the longest prompt, its answer and the largest tree take, at most, if known."""
    task = settings.task
    if settings.unread:
        return None
    if isinstance(task, RandomPrompts):
        prompt = task.prompt_tokens
    else:
        prompt = max(sum(map(len, example.turns)) for example in settings.examples)
    new = settings.max_new_tokens
    return max(slots_of(cell.config, prompt, new) for cell in settings.cells)


def _slots(sizes: Sequence[ModelSize], slots: int | None) -> int | None:
    """At most what the models take: longer prompts are refused before decoding."""
    limits = [slots, *(size.positions for size in sizes)]
    return min((limit for limit in limits if limit is not None), default=None)


def _sum(counts: Sequence[int | None], bytes_each: int) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) * bytes_each if len(known) == len(counts) else None


def _wanted(settings: JobSettings, cell: Cell) -> Wanted:
    """What identifies a cell's rate."""
    facts = settings.facts(cell)
    return Wanted(
        facts.target,
        ",".join(facts.draft),
        facts.task,
        facts.decoder,
        facts.spec,
        settings.engine.batch_size,
        settings.device.partition(":")[0],
    )
