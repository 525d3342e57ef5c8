"""Everything that a job needs before models are loaded, from its checked config; and run ids."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from spec_bench.core import processes
from spec_bench.jobs.config.cells import Cell, build_unique_cells
from spec_bench.jobs.config.config import RunSettings, check_before_torch
from spec_bench.jobs.config.fitting import FittedTrees, select_fitting_cells
from spec_bench.jobs.config.model_files import Digests, read_content_id
from spec_bench.jobs.config.pair import (
    EngineSettings,
    Pair,
    build_pair,
    pin_revisions,
    resolve_device_and_compile,
)
from spec_bench.jobs.config.served_cells import (
    SERVER,
    build_served_cells,
    refuse_request_unfit_for_server,
    refuse_unserved_sampling,
)
from spec_bench.jobs.config.simulation import simulate_cells
from spec_bench.metrics import digest_user_code, needs_references, refuse_shared_columns
from spec_bench.metrics.interval import FEWEST
from spec_bench.records.cell_folder import CODE_PARTS
from spec_bench.records.sampling import MAX_NEW_TOKENS, SamplingSettings, merge_sampling
from spec_bench.records.types import ENGINE, CellFacts, SqlReference, Stage
from spec_bench.server.settings import ServerSettings
from spec_bench.system.code_digests import read_package_code_digests
from spec_bench.system.errors import UsageError
from spec_bench.system.files import hash_json
from spec_bench.tasks import (
    Example,
    RandomPromptTask,
    Task,
    build_task,
    override_scores_with_metrics,
)
from spec_bench.tasks.references import describe_turns_without_reference
from spec_bench.tasks.spider import SCHEMA_LINE, compute_databases_digest
from spec_bench.vocabulary.columns import CLEAN
from spec_bench.vocabulary.numbers import format_count

log = logging.getLogger(__name__)

# Settings that the digest of the examples covers, or that do not change results.
_SHOTS = ("shots", "shots_from", "shots_split")
_SETTINGS_OUTSIDE_RUN_ID = (
    "generation",
    "databases",
    "instruction",
    "answered_only",
    "run_code",
    *_SHOTS,
)
# Settings that were added later: at these values (the behaviour before them) they are not part of a
# run id, so that earlier measurements keep their run ids.
_DEFAULTS_OUTSIDE_RUN_ID: dict[str, Any] = {
    "task": {
        "overlong": "fail",
        "sample": "first",
        "sample_seed": 0,
        "system": None,
        "tokenize": None,
        "score_until": [],
        "prompt_limit": None,
        "schema_line": SCHEMA_LINE,
    },
    "engine": {"batching": "static", "tensor_parallel": 0},
    "ends": "",
    "tree_revision": 0,
    "earlier": "",
    "protocol": CLEAN,
}
_PROMPT_SETTINGS = ("plain", "chat", "later_turns", "prompt_tokens", "seed")  # settings of prompts


@dataclass(frozen=True)
class JobSettings:
    """Everything that a job needs: its request, and the settings that follow from it."""

    request: RunSettings  # explained in ``conf/config.yaml`` and the groups that it names
    engine: EngineSettings  # the request's, with device and compilation resolved
    pair: Pair
    task: Task | RandomPromptTask
    examples: tuple[Example, ...]  # prompts to decode, in order
    sampling: SamplingSettings
    max_new_tokens: int
    cells: tuple[Cell, ...]
    # prompts for the second stage of a search
    confirmation_examples: tuple[Example, ...] = ()
    stage: Stage = ""  # of a search
    left_out_reasons: tuple[str, ...] = ()  # why requested cells are not among ``cells``
    # whether the examples are placeholders for data that are not here, in a plan
    is_data_unread: bool = False
    # the ends of an answer, see ``StopCriteria.unusual_rule_text``
    unusual_stop_rule: str = ""

    @property
    def results_folder(self) -> Path:
        """The folder of results."""
        return Path(self.request.results)

    @property
    def server_settings(self) -> ServerSettings | None:
        """Settings of the server that decodes; None: this program decodes."""
        return self.request.server if self.engine.is_served else None

    @property
    def device(self) -> str:
        """Device that the job decodes on, or ``server``."""
        return SERVER if self.engine.is_served else self.engine.device

    @property
    def text_depends_on_batch(self) -> bool:
        """Whether a text may depend on the other rows of its batch: in batches
        of 16-bit numbers.
        """
        is_16_bit = self.pair.specs[0].dtype.endswith("float16")
        return is_16_bit and self.engine.batch_size > 1 and not self.engine.is_served

    @property
    def is_repeatable(self) -> bool:
        """Whether the same seed always gives the same tokens: on a CPU, if no text depends on its
        batch.
        """
        return not (self.text_depends_on_batch or self.device.startswith(("cuda", SERVER)))

    def build_cell_settings(self, cell: Cell) -> dict[str, Any]:
        """Returns the resolved settings that change a cell's numbers; their hash is its run id."""
        engine = self.engine
        target = self.pair.specs[0]
        head_kind = cell.config.heads
        pair = self.pair.get_run_id_settings()
        if head_kind is not None:
            heads_source = {
                "source": self.pair.heads[head_kind],
                "revision": self.pair.find_heads_fingerprint_or_commit(head_kind),
            }
            pair["heads"] = {"kind": head_kind, **heads_source}
        task = override_scores_with_metrics(self.request.task)
        settings = {
            "pair": pair,
            "task": {
                key: value for key, value in task.items() if key not in _SETTINGS_OUTSIDE_RUN_ID
            },
            "examples": describe_examples(self.examples),
            "ends": self.unusual_stop_rule,
            "generation": {
                **self.sampling.get_run_id_settings(),
                "max_new_tokens": self.max_new_tokens,
            },
            "engine": {
                "device": self.device,
                "batch_size": engine.batch_size,
                "threads": engine.threads,
                "compile": target.compile,
                "batching": engine.batching,
                "tensor_parallel": processes.count_torchrun_processes()
                if target.tensor_parallel
                else 0,
            },
            "decoder": cell.settings,
            "tree_revision": cell.config.tree.revision,
            "earlier": cell.config.drafter.file_digest,
            "protocol": self.request.protocol,
            "energy": self.request.energy.get_run_id_name_or_settings(),
            "warmup": self.request.warmup,
            "seed": self.request.seed,
            "engine_number": ENGINE,
        }
        return drop_default_settings(settings, _DEFAULTS_OUTSIDE_RUN_ID)

    def read_model_and_code_digests(self, cell: Cell) -> dict[str, Digests]:
        """Reads the digests of a cell's models, see ``Pair.read_model_digests``, and of the code of
        its parts that other packages registered, by part and file.
        """
        config = cell.config
        rule = type(config.verifier)
        definitions = (
            getattr(rule, "function", rule),
            type(config.tree),
            type(config.drafter),
            config.drafter.heads,
        )
        code = {
            part: read_package_code_digests(definition)  # type: ignore[arg-type]
            for part, definition in zip(CODE_PARTS, definitions, strict=True)
            if definition is not None
        }
        models = self.pair.read_model_digests(config.drafts, config.heads)
        return models | {part: digests for part, digests in code.items() if digests}

    def compute_run_id(self, cell: Cell) -> str:
        """Hashes a cell's settings to its run id; output folder, sinks and names are not part of
        it.
        """
        return hash_json(self.build_cell_settings(cell))

    @cached_property
    def score_code_digest(self) -> str:
        """Digest of the user's own code for scores; if it changes, answers are scored again."""
        return digest_user_code(self.task.scores)

    @cached_property
    def categories_by_prompt(self) -> dict[str, str]:
        """The task's categories by prompt id, as its file says now."""
        return {
            prompt_id: example.category
            for example in self.examples
            for prompt_id in example.prompt_ids
        }

    def describe_missing_references(self, score: str, may_be_empty: bool) -> str:
        """Describes the turns that lack a reference for a score; "" if there are none. Raises
        UsageError if no turn has a reference, see ``tasks.references``.
        """
        if not isinstance(self.task, Task):
            return ""
        return describe_turns_without_reference(
            self.task, score, (*self.examples, *self.confirmation_examples), may_be_empty
        )

    def pin_revisions_and_stop_rule(self, fetch: bool = True) -> JobSettings:
        """Returns the settings with the hub's models at their current commits, see
        ``pair.pin_revisions``, and with the stop rule of the target's tokenizer.
        """
        heads = {kind for cell in self.cells if (kind := cell.config.heads)}
        pair = pin_revisions(self.pair, heads, fetch)
        ends = ""
        target = pair.specs[0]
        mark = read_content_id(pair.target, pair.revisions[0], with_weights=False)
        if mark is not None and isinstance(self.task, Task):
            from spec_bench.engine.loading import load_tokenizer_once

            with suppress(ValueError):  # loading it later raises the error
                tokenizer = load_tokenizer_once(target.path, target.revision, mark)
                ends = self.task.make_stop_criteria(tokenizer).unusual_rule_text
        return replace(self, pair=pair, unusual_stop_rule=ends)

    def build_facts(self, cell: Cell) -> CellFacts:
        """Builds the facts of a cell that follow from the settings; a backend's
        ``collect_runtime_facts`` adds those of the loaded models.
        """
        pair = self.pair
        task = self.task
        config = cell.config
        rate = self.server_settings.rate if self.server_settings else None
        has_turns = any(len(example.turns) > 1 for example in self.examples)
        drafts = pair.drafts[: config.drafts]
        revisions = pair.revisions[1 : 1 + config.drafts]
        if config.heads is not None:
            drafts = (pair.heads[config.heads],)
            revisions = (pair.find_heads_fingerprint_or_commit(config.heads),)
        acceptance = getattr(config.verifier, "acceptance", ())  # of a verifier that states it
        lacks_package_version = config.library in ("", SERVER)  # a server's version is read later
        return CellFacts(
            pair=pair.name,
            target=pair.target,
            draft=drafts,
            task=task.name,
            decoder=cell.name,
            spec=config.spec,
            sampling=self.sampling,
            seed=self.request.seed,
            batch_size=self.engine.batch_size,
            batching=self.engine.batching if rate is None else f"open loop, {rate:g}/s",
            max_new_tokens=self.max_new_tokens,
            tree_attention=config.tree_attention,
            simulated_acceptance=acceptance if isinstance(acceptance, tuple) else (acceptance,),
            later_turns=task.later_turns if has_turns else None,
            stage=self.stage,
            tokenize=task.tokenize or "",
            protocol="" if self.request.protocol == CLEAN else self.request.protocol,
            data_source=task.source.kind,
            data_file=task.data_label,
            data_revision=task.data_revision,
            prompts_digest=self.prompts_digest,
            target_revision=pair.revisions[0] or "",
            draft_revision=tuple(revision or "-" for revision in revisions),
            tree_revision=str(config.tree.revision or ""),
            weights=pair.describe_gguf_weights(config.drafts),
            compile="" if self.server_settings else pair.specs[0].compile,
            engine=ENGINE,
            library=config.library
            if lacks_package_version
            else f"{config.library} {version(config.library)}",
        )

    @cached_property
    def prompts_digest(self) -> str:
        """The digest of prompts and references, without tokenizer and chat template."""
        prompt_settings = {key: self.request.task.get(key) for key in _PROMPT_SETTINGS}
        if arguments := self.pair.template_arguments:
            prompt_settings["chat_template_kwargs"] = dict(arguments)
        return hash_json([digest_examples(self.examples), prompt_settings], 8)


def drop_default_settings(settings: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns nested settings without those at their ``defaults``."""
    return {
        key: drop_default_settings(value, defaults[key])
        if isinstance(defaults.get(key), dict)
        else value
        for key, value in settings.items()
        if key not in defaults or value != defaults[key]
    }


def build_settings(
    request: RunSettings, folders: Sequence[Path], skip_data: bool = False
) -> JobSettings:
    """Builds a job's settings; reads the task's examples and looks for the models. With
    ``skip_data``, as in a plan, examples are placeholders of the requested number. Raises
    UsageError if settings do not fit together, or name something missing.
    """
    refuse_request_unfit_for_server(request)
    task = build_task(request.task)
    for score in task.scores:
        needs_references(score)  # raises if there is no such score
    refuse_shared_columns(task.scores)
    engine = resolve_device_and_compile(request.engine, request.pair.target)
    cell_requests = check_before_torch(request, folders)
    request = request if skip_data else reserve_confirmation_prompts(request, task)
    # The user's files are read before cells, which import torch; the hub's data, which may be
    # large, after them.
    reads_files = not skip_data and not reads_rows_from_hub(task)
    local_examples = task.read_examples(request.prompts) if reads_files else None
    sampling = merge_sampling(task.generation, request.generation)
    generation = task.generation | request.generation
    max_new_tokens = generation.get("max_new_tokens", MAX_NEW_TOKENS)
    pair = build_pair(request.pair, engine)
    left_out_reasons = tuple[str, ...]()
    if engine.is_served:
        # Keeps the pair's name, without drafts: the server has the target, and nothing is loaded.
        target_alone = replace(pair, specs=pair.specs[:1], revisions=pair.revisions[:1])
        pair = replace(target_alone, drafts=(), heads={})
        refuse_unserved_sampling(request.server, sampling)
        cells = build_served_cells(request)
    else:
        sampling_items = (i for i in request.generation.items() if i[0] != "max_new_tokens")
        words = tuple(f"generation.{name}={value}" for name, value in sampling_items)
        trees = FittedTrees(pair, task.name, sampling, Path(request.results), words)
        cells, left_out_reasons = select_fitting_cells(
            build_unique_cells(cell_requests, sampling), trees, engine
        )
        cells, unsimulated_reasons = simulate_cells(cells, request, sampling)
        left_out_reasons += unsimulated_reasons
    examples, fresh = _read_examples_of_stages(request, task, local_examples, skip_data)
    return JobSettings(
        request,
        engine,
        pair,
        task,
        tuple(examples),
        sampling,
        max_new_tokens,
        cells,
        tuple(fresh),
        "screen" if request.confirm else "",
        left_out_reasons,
        skip_data,
    )


def _read_examples_of_stages(
    request: RunSettings,
    task: Task | RandomPromptTask,
    local_examples: Sequence[Example] | None,
    skip_data: bool,
) -> tuple[Sequence[Example], Sequence[Example]]:
    """Reads the examples of the job and of its second stage, if it has one. ``local_examples`` are
    the job's if they have been read; with ``skip_data`` all are placeholders.
    """
    fresh_start = request.prompts or 0
    fresh_count = request.confirm.prompts if request.confirm else 0
    if skip_data:
        placeholders = [Example(str(n), ("",), ((),)) for n in range(fresh_start + fresh_count)]
        return placeholders[:fresh_start], placeholders[fresh_start:]
    examples = task.read_examples(request.prompts) if local_examples is None else local_examples
    return examples, task.read_examples(fresh_count, fresh_start) if fresh_count else []


def reserve_confirmation_prompts(
    request: RunSettings, task: Task | RandomPromptTask
) -> RunSettings:
    """Reserves prompts for a search's second stage: returns the request, with fewer ``prompts``
    (logged) if ``confirm.share`` is set and the task is too short to leave enough for an interval.
    Raises UsageError if no prompt is left for the second stage.
    """
    confirm = request.confirm
    first_count = request.prompts
    if confirm is None or first_count is None:
        return request
    count = len(task.read_examples(first_count + confirm.prompts))
    if confirm.share and count > 1 and count - first_count < min(confirm.prompts, FEWEST):
        first_count = min(
            first_count, max(1, round(count * first_count / (first_count + confirm.prompts)))
        )
        log.warning(
            "%s has %d prompts: %d for the first look, %d fresh ones to measure on",
            task.name,
            count,
            first_count,
            count - first_count,
        )
    if count <= first_count:
        raise UsageError(
            f"task {task.name} has {format_count(count, 'prompt')}, and prompts={first_count} "
            "leaves none fresh for confirm; give more, or fewer prompts=NUMBER"
        )
    return replace(request, prompts=first_count)


def reads_rows_from_hub(task: Task | RandomPromptTask) -> bool:
    """Returns whether a task's rows come from the hub."""
    return isinstance(task, Task) and task.source.kind == "hub"


def describe_examples(examples: tuple[Example, ...]) -> dict[str, Any]:
    """Describes the examples for a run id: count, digest, and digest of databases they query."""
    description: dict[str, Any] = {"count": len(examples), "digest": digest_examples(examples)}
    references = (
        gold for example in examples for of_turn in example.references for gold in of_turn
    )
    if files := {gold.database for gold in references if isinstance(gold, SqlReference)}:
        description["databases"] = compute_databases_digest(files)
    return description


def digest_examples(examples: tuple[Example, ...]) -> str:
    """Computes the digest of prompts and references, so that a data set that changes under the same
    name gives other run ids.
    """
    return hash_json(
        [
            # Answers that later turns continue; present only if a file of them was given.
            [
                example.id,
                example.turns,
                example.references,
                *([example.answers] if example.answers else []),
                *([{"system": example.system}] if example.system else []),
                *([{"shots": example.shots}] if example.shots else []),
            ]
            for example in examples
        ]
    )
