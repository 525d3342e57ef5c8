"""One job's settings as plain dataclasses, checked before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from spec_bench.columns import COLUMNS
from spec_bench.core.sampling import SamplingSettings
from spec_bench.engine import processes
from spec_bench.files import RUNS, digest, training_of
from spec_bench.judge.settings import JudgeSettings
from spec_bench.measure.energy import EnergySettings, energy_settings
from spec_bench.records import ENGINE, CellFacts, SqlReference, Stage
from spec_bench.run.cells import Cell, DecoderLoader, build_cells
from spec_bench.run.model_files import EMBEDDED, model_path
from spec_bench.run.pair import (
    EngineSettings,
    Pair,
    PairSettings,
    build_pair,
    pinned,
    placed,
    with_own_name,
)
from spec_bench.run.simulation import check_simulate, simulate_cells, simulated_acceptance
from spec_bench.sinks.settings import SinkSettings, sink_settings
from spec_bench.tasks import Example, RandomPrompts, Task, build_task, with_metrics
from spec_bench.tasks.generation import Generation
from spec_bench.tasks.schema import databases_digest
from spec_bench.validation import Flag, Ge, Le, Says, Text, Whole, check, settings

_SAMPLING = [each.name for each in fields(SamplingSettings)]
_DEFAULTS = SamplingSettings()
_NOT_IDENTITY = ("generation", "databases")  # told by what they come to
_USUAL = {"overlong": "fail", "sample": "first", "sample_seed": 0}  # as before there was a choice
_MAX_NEW_TOKENS = 128
_AROUND = ("plain", "chat", "later_turns", "prompt_tokens", "seed")  # a prompt, beside its texts
_LONGEST_NAME = 200  # bytes; file systems allow 255

Cells = Annotated[tuple[Text | dict[str, Any], ...], Says("a list such as [sd:3,rsd_s:4x3]")]


def _folder_name(name: str) -> str:
    assert name not in {".", ".."} and not set(name) & set("/\\\0\n")
    assert len(name.encode()) <= _LONGEST_NAME
    if name == RUNS:
        raise ValueError(f"name {RUNS!r} is taken: results/{RUNS} holds what the cells measured")
    return name


def _checked_task(config: Any) -> Any:
    """A task's mapping as it is, which the run id hashes, once it makes a task."""
    build_task(config)
    return config


def _ranking(name: str) -> str:
    """A column by which cells are told apart: more, or less, of it is better."""
    known = [each.name for each in COLUMNS if each.better and each.interval]
    if name not in known:
        raise ValueError(f"confirm.by must be one of {', '.join(known)}, got {name!r}")
    return name


@settings
class ConfirmSettings:
    """The second stage of a search: the best cells of each decoder again, on other prompts."""

    prompts: Annotated[Whole, Ge(1)]
    best: Annotated[Whole, Ge(1)] = 5
    by: Annotated[Text, AfterValidator(_ranking)] = "speedup"


@settings
class RunSettings:
    """What ``conf/config.yaml`` composes to, checked; meanings stand there.

    A decoder's own mapping and the cells are checked where they become cells (``run.cells``).
    """

    name: Annotated[Text, AfterValidator(_folder_name), Says("the name of a folder below results")]
    results: Text
    seed: Annotated[Whole, Ge(0), Le(2**63 - 1)]
    prompts: Annotated[Whole, Ge(1)] | None
    warmup: Annotated[Whole, Ge(0)]
    spec: Annotated[Whole | Text | None, Says("a tree in shorthand such as 3, 4x3, 2-2-1, or null")]
    cells: Cells
    plan: Flag
    pair: PairSettings
    task: Annotated[dict[str, Any], BeforeValidator(_checked_task)]
    decoder: Annotated[dict[str, Any], Says("a decoder's drafter, tree and verifier")]
    generation: Generation
    engine: EngineSettings
    energy: Annotated[EnergySettings, PlainValidator(energy_settings)]
    sink: Annotated[SinkSettings, PlainValidator(sink_settings)]
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    simulate: Annotated[Any, PlainValidator(check_simulate)] = None
    trees: dict[Text, Cells] = field(default_factory=dict)
    repeats: Annotated[Whole, Ge(1)] = 1
    confirm: ConfirmSettings | None = None


@dataclass(frozen=True)
class JobSettings:
    """Everything one job needs.

    The plain fields' meanings stand in ``conf/config.yaml`` and the groups it names.

    Attributes:
        task_config: the task as its YAML has it.
        examples: what is asked, in order.
        judge: who grades the answers of a judged task; no part of a cell's settings.
        repeats: how often every prompt is decoded; likewise no part of a cell's settings.
        confirm: what happens to the best cells of a search.
        fresh: the examples that they are decoded on then.
        stage: which stage of a search this is.
        left_out: why cells that were asked for are not among ``cells``.
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
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    repeats: int = 1
    confirm: ConfirmSettings | None = None
    fresh: tuple[Example, ...] = ()
    stage: Stage = ""
    left_out: tuple[str, ...] = ()

    @property
    def repeatable(self) -> bool:
        """Whether the same seed gives the same tokens every time: on a CPU."""
        return not self.device.startswith("cuda")

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
            "examples": asked(self.examples),
            "generation": {**asdict(self.sampling), "max_new_tokens": self.max_new_tokens},
            "engine": {
                "device": self.device,
                "batch_size": self.batch_size,
                "threads": self.threads,
                "compile": self.pair.specs[0].compile,
                **({} if self.batching == "static" else {"batching": self.batching}),
                **({"tensor_parallel": processes.count()} if self._split else {}),
            },
            "decoder": cell.decoder,
            "energy": self.energy.identity(),
            "warmup": self.warmup,
            "seed": self.seed,
            "engine_number": ENGINE,
        }

    def pinned(self, fetch: bool = True) -> JobSettings:
        """The same with the hub's models at the commits that they have now; see ``pair.pinned``."""
        heads = {cell.heads for cell in self.cells if cell.heads is not None}
        return replace(self, pair=pinned(self.pair, heads, fetch))

    @property
    def _split(self) -> bool:
        """Whether the target is split over processes."""
        return self.pair.specs[0].tensor_parallel

    def facts(self, cell: Cell) -> CellFacts:
        """What identifies a cell in the results table, as far as the settings tell.

        What only the loaded models tell is added where they are (``run.models.ran_with``).
        """
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
            batching=self.batching,
            max_new_tokens=self.max_new_tokens,
            tree_attention=bool(cell.decoder.get("tree_attention", True)),
            simulated_acceptance=simulated_acceptance(cell.decoder),
            later_turns=self._later_turns(),
            stage=self.stage,
            data_source=self.task.source.kind,
            data_file=self.task.data_file,
            data_revision=self.task.data_revision,
            prompts_digest=self.prompts_digest,
            target_revision=self.pair.revisions[0] or "",
            draft_revision=self._drafting_revisions(cell),
            compile=self.pair.specs[0].compile,
            engine=ENGINE,
        )

    @cached_property
    def prompts_digest(self) -> str:
        """Of what is asked and expected, before the tokenizer and its chat template see it."""
        around = {key: self.task_config.get(key) for key in _AROUND}
        return digest([examples_digest(self.examples), around], 8)

    def _later_turns(self) -> str | None:
        """What later turns continue; None where no example has several turns."""
        several = any(len(example.turns) > 1 for example in self.examples)
        return self.task.later_turns if several and isinstance(self.task, Task) else None

    def _drafting(self, cell: Cell) -> tuple[str, ...]:
        """Who drafts: draft models, or the target's heads."""
        kind = cell.heads
        return self.pair.drafts[: cell.drafts] if kind is None else (self.pair.heads[kind],)

    def _drafting_revisions(self, cell: Cell) -> tuple[str, ...]:
        """Their revisions, in the same order; ``-`` for one that is not known."""
        kind = cell.heads
        drafting = self.pair.revisions[1 : 1 + cell.drafts]
        found = drafting if kind is None else (self.pair.heads_revision(kind),)
        return tuple(revision or "-" for revision in found)


def check_settings(config: Any) -> RunSettings:
    """Checks a job's config; reads no file and imports no torch.

    Args:
        config: the composed config as plain dictionaries and lists, interpolations resolved.

    Raises:
        ValueError: one line that names the first wrong key, its value and what is allowed.
    """
    asked = check(RunSettings, config)
    lists = [asked.cells, *asked.trees.values()]
    asked = replace(asked, cells=tuple(cell for cells in lists for cell in cells))
    if asked.cells and asked.spec is not None:
        raise ValueError(
            f"spec={asked.spec} goes with decoder=..., not with cells=[...], budget or length"
        )
    if asked.confirm and asked.prompts is None:
        raise ValueError("confirm wants prompts that the search has not seen: set prompts=NUMBER")
    check_folder("results", Path(asked.results))
    return asked


def build_settings(
    asked: RunSettings, load: DecoderLoader, folders: Sequence[Path] = ()
) -> JobSettings:
    """What a job needs to run; reads the task's examples and looks for the models.

    Args:
        asked: checked settings.
        load: gives a decoder's config by name.
        folders: the config folders, in which a pair's name is looked up.

    Raises:
        ValueError: settings that do not go together, or name what is not there.
    """
    task, engine = build_task(asked.task), placed(asked.engine, asked.pair.target)
    sampling = sampling_of(asked.generation, task.generation)
    limits = asked.generation.max_new_tokens, task.generation.max_new_tokens, _MAX_NEW_TOKENS
    cells = build_cells(asked.decoder, asked.spec, asked.cells, load, sampling)
    cells = simulate_cells(cells, asked.simulate, sampling)
    pair = build_pair(with_own_name(asked.pair, folders), engine)
    cells, left_out = fitting(cells, pair)
    return JobSettings(
        name=asked.name,
        results=Path(asked.results),
        seed=asked.seed,
        warmup=asked.warmup,
        batch_size=engine.batch_size,
        batching=engine.batching,
        threads=engine.threads,
        device=engine.device,
        pair=pair,
        task=task,
        task_config=with_metrics(asked.task),
        examples=tuple(task.examples(asked.prompts)),
        sampling=sampling,
        max_new_tokens=next(limit for limit in limits if limit is not None),
        energy=asked.energy,
        sink=asked.sink,
        cells=cells,
        judge=asked.judge,
        repeats=asked.repeats,
        confirm=asked.confirm,
        fresh=fresh_examples(asked, task),
        stage="screen" if asked.confirm else "",
        left_out=left_out,
    )


def fresh_examples(asked: RunSettings, task: Task | RandomPrompts) -> tuple[Example, ...]:
    """The examples of a search's second stage: those behind the first one's.

    Raises:
        ValueError: there are none.
    """
    if asked.confirm is None:
        return ()
    assert asked.prompts is not None
    return tuple(task.examples(asked.confirm.prompts, asked.prompts))


def check_folder(key: str, folder: Path) -> None:
    """Whether a folder is there or can be made.

    Raises:
        ValueError: a file is in its place or above it.
    """
    for place in (folder, *folder.parents):
        if place.is_dir():
            return
        if place.exists():
            raise ValueError(f"{key} must be a folder, got {str(folder)!r}: {place} is a file")


def fitting(cells: Sequence[Cell], pair: Pair) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """The cells whose drafts and heads the pair has, and why each of the others is left out.

    Raises:
        ValueError: none but the baseline is left.
    """
    fit, why = [], []
    for cell in cells:
        try:
            check_fit(cell, pair)
            fit.append(cell)
        except ValueError as error:
            why.append(str(error))
    if why and len(fit) <= 1:
        raise ValueError(why[0])
    return tuple(fit), tuple(why)


def check_fit(cell: Cell, pair: Pair) -> None:
    """Whether a pair has the drafts and heads that a cell uses.

    Raises:
        ValueError: naming what is missing.
    """
    if cell.drafts > len(pair.drafts):
        raise ValueError(
            f"{cell.title} uses {cell.drafts} drafts, pair.draft names {len(pair.drafts)}"
        )
    kind = cell.heads
    if kind is None:
        return
    if kind not in pair.heads:
        raise ValueError(
            f"{cell.title} uses {kind} heads, pair {pair.name!r} names "
            f"{', '.join(pair.heads) or 'none'}: set pair.heads.{kind} to a folder or hub id"
        )
    name = training_of(Path(pair.heads[kind]))
    if name is not None and not Path(pair.heads[kind]).is_dir():
        raise ValueError(
            f"{cell.title} uses {kind} heads, which nobody published for {pair.name}; train them: "
            f"{training_command(kind, pair.name, name)}"
        )
    if pair.heads[kind].startswith(EMBEDDED) and not pair.target.startswith(EMBEDDED):
        raise ValueError(
            f"{cell.title} uses {kind} heads; {pair.heads[kind]!r} were trained on the embedded "
            f"target, not on {pair.target!r}: set pair.heads.{kind} to a folder or hub id"
        )
    model_path(pair.heads[kind])


def training_command(kind: str, pair: str, name: str) -> str:
    """What trains a pair's heads to where the pair looks for them."""
    where = f"head={kind} pair={pair} name={name} data.path=sharegpt.json"
    return f"python -m spec_bench.train {where}"


def asked(examples: tuple[Example, ...]) -> dict[str, Any]:
    """The examples as a cell's settings state them; with databases that are asked, their digest."""
    stated: dict[str, Any] = {"count": len(examples), "digest": examples_digest(examples)}
    if files := {
        gold.database
        for example in examples
        for golds in example.references
        for gold in golds
        if isinstance(gold, SqlReference)
    }:
        stated["databases"] = databases_digest(files)
    return stated


def examples_digest(examples: tuple[Example, ...]) -> str:
    """What was asked and expected: a data set that changes under its name is another cell."""
    return digest(
        [
            # Answers that later turns continue; only there where a file of them was given.
            [each.id, each.turns, each.references, *([each.answers] if each.answers else [])]
            for each in examples
        ]
    )


def sampling_of(run: Generation, task: Generation) -> SamplingSettings:
    """The sampling settings: the run's, where they are null the task's, else the defaults."""
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
