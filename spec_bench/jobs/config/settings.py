"""Everything one job needs, from its checked config, before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spec_bench.core import processes
from spec_bench.core.sampling import SamplingSettings
from spec_bench.jobs.config.cells import Cell, DecoderLoader, WrittenCell, build_cells
from spec_bench.jobs.config.config import ConfirmSettings, RunSettings
from spec_bench.jobs.config.early import check_early
from spec_bench.jobs.config.engine_settings import EngineSettings, placed
from spec_bench.jobs.config.examples import examples_of, fresh_examples, on_hub, shared, stand_ins
from spec_bench.jobs.config.fit import Batch, fitting
from spec_bench.jobs.config.fitted_trees import FittedTrees
from spec_bench.jobs.config.identity import examples_digest, stated
from spec_bench.jobs.config.pair import Pair, build_pair, pinned, with_own_name
from spec_bench.jobs.config.served_cells import SERVER, alone, check_served, served_cells
from spec_bench.jobs.config.simulation import simulate_cells, simulated_acceptance
from spec_bench.measure.energy import EnergySettings
from spec_bench.records.types import ENGINE, CellFacts, Stage
from spec_bench.server.settings import ServerSettings
from spec_bench.sinks.settings import SinkSettings
from spec_bench.system.files import digest
from spec_bench.tasks import Example, RandomPrompts, Task, build_task, with_metrics
from spec_bench.tasks.generation import Generation

_SAMPLING = [each.name for each in fields(SamplingSettings)]
_DEFAULTS = SamplingSettings()
_NOT_IDENTITY = ("generation", "databases", "instruction", "answered_only", "run_code")
_USUAL = {"overlong": "fail", "sample": "first", "sample_seed": 0}  # as before there was a choice
_MAX_NEW_TOKENS = 128
_AROUND = ("plain", "chat", "later_turns", "prompt_tokens", "seed")  # a prompt, beside its texts


@dataclass(frozen=True)
class JobSettings:
    """Everything one job needs.

    The plain fields are explained in ``conf/config.yaml`` and the groups it names.

    Attributes:
        task_config: the task as its YAML has it.
        examples: what is asked, in order.
        repeats: how often every prompt is decoded; not part of a cell's settings.
        confirm: what happens to the best cells of a search.
        fresh: the examples that they are decoded on then.
        stage: which stage of a search this is.
        left_out: why cells that were asked for are not among ``cells``.
        served: how the server is asked that decodes; None: this program decodes.
        unread: whether the examples only stand for data that are not here, in a plan.
    """

    name: str
    results: Path
    seed: int
    warmup: int
    batch_size: int
    batching: str
    threads: int | None
    device: str
    pair: Pair
    task: Task | RandomPrompts
    task_config: Mapping[str, Any]
    examples: tuple[Example, ...]
    sampling: SamplingSettings
    max_new_tokens: int
    energy: EnergySettings
    sink: SinkSettings
    cells: tuple[Cell, ...]
    repeats: int = 1
    confirm: ConfirmSettings | None = None
    fresh: tuple[Example, ...] = ()
    stage: Stage = ""
    left_out: tuple[str, ...] = ()
    served: ServerSettings | None = None
    unread: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether the same seed gives the same tokens every time: on a CPU."""
        return not self.device.startswith(("cuda", SERVER))

    def cell_settings(self, cell: Cell) -> dict[str, Any]:
        """The resolved settings that change a cell's numbers; their hash is its run id."""
        kind = cell.heads
        heads = {} if kind is None else {"heads": self.pair.heads_settings(kind)}
        return {
            "pair": {**self.pair.settings(), **heads},
            "task": {
                k: v
                for k, v in self.task_config.items()
                if k not in _NOT_IDENTITY and (k not in _USUAL or v != _USUAL[k])
            },
            "examples": stated(self.examples),
            "generation": {**asdict(self.sampling), "max_new_tokens": self.max_new_tokens},
            "engine": {
                "device": self.device,
                "batch_size": self.batch_size,
                "threads": self.threads,
                "compile": self.pair.specs[0].compile,
                **({} if self.batching == "static" else {"batching": self.batching}),
                **({"tensor_parallel": processes.count()} if self._split else {}),
            },
            "decoder": cell.settings,
            **({"tree_revision": revision} if (revision := cell.config.tree.revision) else {}),
            "energy": self.energy.identity(),
            "warmup": self.warmup,
            "seed": self.seed,
            "engine_number": ENGINE,
        }

    def pinned(self, fetch: bool = True) -> JobSettings:
        """The same with the hub's models at their current commits; see ``pair.pinned``."""
        heads = {cell.heads for cell in self.cells if cell.heads is not None}
        return replace(self, pair=pinned(self.pair, heads, fetch))

    @property
    def _split(self) -> bool:
        """Whether the target is split over processes."""
        return self.pair.specs[0].tensor_parallel

    def facts(self, cell: Cell) -> CellFacts:
        """What identifies a cell in the results table, as far as the settings tell.

        What only the loaded models tell is added later (``run.models.ran_with``).
        """
        rate = self.served.rate if self.served else None
        return CellFacts(
            pair=self.pair.name,
            target=self.pair.target,
            draft=self._drafting(cell),
            task=self.task.name,
            decoder=cell.name,
            spec=cell.spec,
            temperature=self.sampling.temperature,
            top_k=self.sampling.top_k,
            top_p=self.sampling.top_p,
            seed=self.seed,
            batch_size=self.batch_size,
            batching=self.batching if rate is None else f"open loop, {rate:g}/s",
            max_new_tokens=self.max_new_tokens,
            draft_temperature=self._draft_temperature(),
            tree_attention=cell.config.tree_attention,
            simulated_acceptance=simulated_acceptance(cell),
            later_turns=self._later_turns(),
            stage=self.stage,
            data_source=self.task.source.kind,
            data_file=self.task.data_file,
            data_revision=self.task.data_revision,
            prompts_digest=self.prompts_digest,
            target_revision=self.pair.revisions[0] or "",
            draft_revision=self._drafting_revisions(cell),
            tree_revision=str(cell.config.tree.revision or ""),
            compile="" if self.served else self.pair.specs[0].compile,
            engine=ENGINE,
            library=_library(cell),
        )

    @cached_property
    def prompts_digest(self) -> str:
        """The digest of what is asked and expected, before tokenizer and chat template see it."""
        around = {key: self.task_config.get(key) for key in _AROUND}
        return digest([examples_digest(self.examples), around], 8)

    def _draft_temperature(self) -> float | None:
        """The draft's own temperature; None where it is the target's."""
        temperature = self.sampling.draft_temperature
        return None if temperature in (None, self.sampling.temperature) else temperature

    def _later_turns(self) -> str | None:
        """What later turns continue; None if no example has several turns."""
        several = any(len(example.turns) > 1 for example in self.examples)
        return self.task.later_turns if several and isinstance(self.task, Task) else None

    def _drafting(self, cell: Cell) -> tuple[str, ...]:
        """Who drafts: draft models, or the target's heads."""
        kind = cell.heads
        return self.pair.drafts[: cell.drafts] if kind is None else (self.pair.heads[kind],)

    def _drafting_revisions(self, cell: Cell) -> tuple[str, ...]:
        """Their revisions, in the same order; ``-`` if unknown."""
        kind = cell.heads
        drafting = self.pair.revisions[1 : 1 + cell.drafts]
        revisions = drafting if kind is None else (self.pair.heads_revision(kind),)
        return tuple(revision or "-" for revision in revisions)


def _library(cell: Cell) -> str:
    """Whose code decodes, with its version; a server's is known once it has been asked."""
    library = cell.library
    return library if library in ("", SERVER) else f"{library} {version(library)}"


def build_settings(
    asked: RunSettings, load: DecoderLoader, folders: Sequence[Path] = (), unread: bool = False
) -> JobSettings:
    """What a job needs to run; reads the task's examples and looks for the models. A plan may leave
    the data ``unread``: examples are then only as many as are asked for.

    Raises:
        ValueError: settings that do not fit together, or name something missing.
    """
    check_served(asked)
    task, engine = build_task(asked.task), placed(asked.engine, asked.pair.target)
    written = check_early(asked, load)
    asked = asked if unread else shared(asked, task)
    # The user's files before cells, which import torch; the hub's data, which may be large, after.
    here = None if unread or on_hub(task) else examples_of(task, asked)
    sampling = sampling_of(asked.generation, task.generation)
    limits = asked.generation.max_new_tokens, task.generation.max_new_tokens, _MAX_NEW_TOKENS
    max_new_tokens = next(limit for limit in limits if limit is not None)
    batch = Batch(engine.batch_size, engine.batching, sampling)
    pair, cells, left_out = _pair_and_cells(asked, engine, task.name, batch, written, folders)
    return JobSettings(
        name=asked.name,
        results=Path(asked.results),
        seed=asked.seed,
        warmup=asked.warmup,
        batch_size=engine.batch_size,
        batching=engine.batching,
        threads=engine.threads,
        device=device_of(engine),
        pair=pair,
        task=task,
        task_config=with_metrics(asked.task),
        examples=stand_ins(asked.prompts) if unread else here or examples_of(task, asked),
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        energy=asked.energy,
        sink=asked.sink,
        cells=cells,
        repeats=asked.repeats,
        confirm=asked.confirm,
        fresh=fresh_examples(asked, None if unread else task),
        stage="screen" if asked.confirm else "",
        left_out=left_out,
        served=asked.server if engine.served else None,
        unread=unread,
    )


def _pair_and_cells(
    asked: RunSettings,
    engine: EngineSettings,
    task: str,
    batch: Batch,
    written: Sequence[WrittenCell],
    folders: Sequence[Path],
) -> tuple[Pair, tuple[Cell, ...], tuple[str, ...]]:
    """The job's models; its cells, fitted trees filled in; why each of the others is left out."""
    pair = build_pair(with_own_name(asked.pair, folders), engine)
    if engine.served:
        return alone(pair), served_cells(asked), ()
    cells = build_cells(written, batch.sampling)
    sampling = {f"generation.{name}": getattr(asked.generation, name) for name in _SAMPLING}
    generation = tuple(f"{key}={value}" for key, value in sampling.items() if value is not None)
    trees = FittedTrees(pair, task, batch.sampling, Path(asked.results), generation)
    cells, unfitted = trees.filled(cells)
    cells = simulate_cells(cells, asked.simulate, batch.sampling)
    return pair, *fitting(cells, pair, batch, unfitted)


def device_of(engine: EngineSettings) -> str:
    """Where a job decodes."""
    return SERVER if engine.served else engine.device


def sampling_of(run: Generation, task: Generation) -> SamplingSettings:
    """The sampling settings: the run's, if null the task's, else the defaults."""
    values: dict[str, Any] = {
        name: next(
            value
            for value in (getattr(run, name), getattr(task, name), getattr(_DEFAULTS, name))
            if value is not None or name == "draft_temperature"
        )
        for name in _SAMPLING
    }
    values["temperature"] = float(values["temperature"])
    return SamplingSettings(**values)
