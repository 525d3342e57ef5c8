"""Plans a sweep before anything is loaded: cells, hours, memory.

Knows a job's settings, its cells' folders, and rates measured here; loads no model and changes
nothing on disk. Estimates are upper bounds if the rates are right: every prompt decodes to its
limit, every prompt is as long as the longest, and a character counts as a token.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.config import RunSettings
from spec_bench.jobs.config.confirmation import build_confirmation_job
from spec_bench.jobs.config.model_files import BYTES
from spec_bench.jobs.config.pair import (
    EngineSettings,
    PairSettings,
    read_pair_sizes,
    resolve_device_and_compile,
    resolve_dtype,
)
from spec_bench.jobs.config.served_cells import SERVER
from spec_bench.jobs.config.settings import JobSettings, build_settings
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.sweep.launch import count_gpus_of_job, find_smallest_gpu_gib
from spec_bench.jobs.work.prompts import estimate_cache_slots, list_asked_prompt_ids
from spec_bench.metrics.plain import iter_published_baseline_comparisons
from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import CellFacts, explain_timing_doubt
from spec_bench.sinks.rows import read_results_rows
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.system.printable import redact_escape_and_cut
from spec_bench.tasks import RandomPromptTask
from spec_bench.tasks.source import HubDataError
from spec_bench.vocabulary.published import find_pair_spellings, read_all_published_numbers

State = Literal["complete", "decoded", "partial", "failed", "missing", "unknown"]
_GIB = 2**30
_FACT_COLUMNS = ("pair", "task", "decoder", "spec", "seed")
_LABELS = (*_FACT_COLUMNS, "swept", "state")
_MEMORY = "GiB (weights + caches + graphs)"
_TITLES = (*_LABELS, "left", "tok/s", "rate", "device h", _MEMORY, "GPUs", "fits")
_TITLES_OF_ONE_CELL = ("decoder", "spec", "tok/s", "device h")
_MAX_LINES = 60  # lines
_WIDTH = 170
_UNKNOWN = "unknown"


class ExpectedRate(NamedTuple):
    """A cell's expected rate and its source."""

    tokens_per_s: float  # delivered tokens per second of decoding
    source: str


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory that a job's models need."""

    weights_bytes: int | None  # of all models; None if a size is unknown
    cache_bytes: int | None  # maximum keys and values of all models; None if a shape is unknown
    gpus: int | None  # GPUs that the job gets; None if unknown
    capacity_bytes: int | None  # their memory together; None if unknown or on a CPU
    graph_bytes: int = 0  # maximum of recorded iterations, without memory that they share

    @property
    def fits(self) -> bool | None:
        """Whether weights, caches and graphs fit; None if unknown."""
        if self.weights_bytes is None or self.capacity_bytes is None:
            return None
        if self.weights_bytes > self.capacity_bytes:
            return False
        if self.cache_bytes is None:
            return None
        return self.weights_bytes + self.cache_bytes + self.graph_bytes <= self.capacity_bytes


@dataclass(frozen=True)
class PlannedCell:
    """One cell of a plan."""

    run_id: str  # its folder's name
    facts: CellFacts
    state: State  # on disk; `unknown` without the data, because a run id depends on its texts
    prompts: int  # number of prompts, each repeat counted
    prompts_left: int  # number of prompts that are not decoded yet
    rate: ExpectedRate | None  # None if unknown
    device_hours: float | None  # maximum for the prompts left, times the GPUs; None if unknown
    memory: MemoryEstimate  # of the job
    words: tuple[str, ...] = ()  # the job's command-line settings, with swept ones
    # lines that compare plain decoding's measured rows with papers' numbers
    printed_comparisons: tuple[str, ...] = ()


class Planner:
    """Plans a sweep's jobs. Jobs that differ only in their seed share their settings' data."""

    def __init__(self, config_folders: Sequence[Path]) -> None:
        self._config_folders = config_folders
        self._settings_by_request: dict[str, JobSettings] = {}
        self._unreadable_sources = set[
            str
        ]()  # sources that a job could not read; later jobs do not try

    def plan_all_stages(self, request: RunSettings) -> list[PlannedCell]:
        """Plans a job's cells, then those of a search's second stage; loads and decodes nothing."""
        # The machine that plans a sweep may lack the device that the sweep needs.
        engine = resolve_device_and_compile(request.engine, request.pair.target)
        shared_request = replace(request, seed=0, engine=replace(engine, device="cpu"))
        if (key := repr(shared_request)) not in self._settings_by_request:
            self._settings_by_request[key] = self._build_settings_or_skip_data(
                shared_request
            ).pin_revisions_and_stop_rule(fetch=False)
        shared_settings = self._settings_by_request[key]
        settings = replace(
            shared_settings,
            request=replace(shared_settings.request, seed=request.seed),
            engine=engine,
        )
        cells = plan_stage(settings)
        if {cell.state for cell in cells} - {"complete", "failed"}:
            return [*cells, *_plan_confirmation(settings, cells)]
        results = [CellStore(settings.results_folder, cell.run_id).load_result() for cell in cells]
        second = build_confirmation_job(
            settings, [result for result in results if result is not None]
        )
        return [*cells, *(plan_stage(second) if second else [])]

    def _build_settings_or_skip_data(self, request: RunSettings) -> JobSettings:
        """Builds the job's settings; without the hub's data if it cannot be read here."""
        source = repr(request.task.get("source"))
        try:
            if source not in self._unreadable_sources:
                return build_settings(request, self._config_folders)
        except HubDataError as error:
            if request.prompts is None:
                raise UsageError(f"{error}; prompts=N plans without the data") from error
            self._unreadable_sources.add(source)
        return build_settings(request, self._config_folders, skip_data=True)


def plan_stage(settings: JobSettings) -> list[PlannedCell]:
    """Plans the cells of one job, which is one stage of a search."""
    engine = settings.engine
    repeats = settings.request.repeats
    pair = settings.request.pair
    prompts = sum(
        len(list_asked_prompt_ids(settings.task, example)) for example in settings.examples
    )
    memory = MemoryEstimate(0, 0, 0, None)  # a job with a server loads nothing
    if not settings.server_settings:
        longest_sequence = _estimate_longest_sequence(settings)
        memory = estimate_job_memory(pair, engine, longest_sequence, engine.batch_size)
        if engine.uses_cuda and engine.compile.startswith("static"):
            memory = replace(
                memory, graph_bytes=_estimate_total_graph_bytes(settings, pair, longest_sequence)
            )
    cells = []
    lines = _list_published_baseline_comparisons(settings.results_folder, settings.pair.name)
    for cell in settings.cells:
        store = CellStore(
            settings.results_folder, settings.compute_run_id(cell), settings.score_code_digest
        )
        count = remaining_count = prompts * repeats
        state: State = "unknown"
        if not settings.is_data_unread:
            state, remaining_count = read_cell_state(store, prompts, repeats)
            if state != "missing" and not store.has_no_other_models(
                settings.read_model_and_code_digests(cell)
            ):
                state = "missing"
                remaining_count = count
        facts = settings.build_facts(cell)
        device = settings.device.partition(":")[0]
        rate = estimate_rate_from_measured_rows(
            facts, device, _read_rows_with_rates(settings.results_folder)
        )
        rate = rate or (_find_published_rate(facts) if device == "cuda" else None)
        hours = _estimate_hours(remaining_count, settings.max_new_tokens, rate, memory)
        cells.append(
            PlannedCell(
                store.folder.name,
                facts,
                state,
                count,
                remaining_count,
                rate,
                hours,
                memory,
                printed_comparisons=lines,
            )
        )
    return cells


def _estimate_hours(
    answer_count: int, tokens_per_answer: int, rate: ExpectedRate | None, memory: MemoryEstimate
) -> float | None:
    """Estimates the device hours of ``answer_count`` answers of ``tokens_per_answer`` each; None if
    unknown.
    """
    if not answer_count:
        return 0.0
    if rate is None or memory.gpus is None:
        return None
    return answer_count * tokens_per_answer / rate.tokens_per_s / 3600 * max(1, memory.gpus)


def _plan_confirmation(
    settings: JobSettings, screened_cells: Sequence[PlannedCell]
) -> list[PlannedCell]:
    """Plans a search's second job with the slowest possible cells, while its cells are still
    unknown.
    """
    confirm = settings.request.confirm
    if confirm is None:
        return []
    count = len(settings.confirmation_examples) * settings.request.repeats
    tokens = settings.max_new_tokens
    confirmed_cells = []
    groups = group_by_key((cell.facts.decoder, cell) for cell in screened_cells)
    for decoder, cells in groups.items():
        candidates = [
            replace(
                cell,
                state="unknown" if cell.state == "unknown" else "missing",
                prompts=count,
                prompts_left=count,
                device_hours=_estimate_hours(count, tokens, cell.rate, cell.memory),
            )
            for cell in cells
        ]
        candidates.sort(key=lambda cell: cell.device_hours or 0.0, reverse=True)
        for place, cell in enumerate(candidates[: confirm.best], start=1):
            rank_text = f"best {place} of {len(candidates)} by {confirm.by}"
            spec = cell.facts.spec if decoder == BASELINE else rank_text
            facts = replace(cell.facts, spec=spec, stage="confirm")
            confirmed_cells.append(replace(cell, run_id=f"{cell.run_id} confirm", facts=facts))
    return confirmed_cells


def read_cell_state(store: CellStore, prompts: int, repeats: int = 1) -> tuple[State, int]:
    """Reads a cell's state and the number of missing prompts over all repeats. In the state
    ``decoded`` all answers exist, but the row does not.
    """
    path = store.folder / files.GENERATIONS
    answer_count = path.read_bytes().count(b"\n") if path.exists() else 0
    result = store.load_result()
    if store.is_complete(repeats):
        return "complete", 0
    missing_count = max(0, prompts * repeats - answer_count)
    if result is not None and result.status == "failed":
        return "failed", missing_count
    if not missing_count:
        return "decoded", 0
    return ("partial" if answer_count or result is not None else "missing"), missing_count


def estimate_job_memory(
    pair: PairSettings, engine: EngineSettings, slots_per_row: int | None, rows: int
) -> MemoryEstimate:
    """Estimates the memory of ``rows`` rows with ``slots_per_row`` cache slots each (None: the
    models' limit).
    """
    sizes = read_pair_sizes(pair)
    bytes_each = BYTES[resolve_dtype(engine, pair)]
    gib = (engine.gpu_memory_gib or find_smallest_gpu_gib()) if engine.uses_cuda else None
    try:
        gpus = count_gpus_of_job(pair, engine)
    except UsageError:  # a setting is missing; a plan can do without
        gpus = None
    # At most the models' limits, because longer prompts are refused before decoding.
    limits = [
        limit for limit in (slots_per_row, *(size.positions for size in sizes)) if limit is not None
    ]
    caches = [size.cached_numbers if limits else None for size in sizes]
    return MemoryEstimate(
        _sum_bytes([size.parameters for size in sizes], bytes_each),
        _sum_bytes(caches, rows * min(limits, default=0) * bytes_each),
        gpus,
        int(gib * _GIB * gpus) if gib and gpus else None,
    )


def _estimate_total_graph_bytes(
    settings: JobSettings, pair: PairSettings, slots_per_row: int | None
) -> int:
    """Estimates the total bytes of all cells' graphs, which are recorded before a job decodes."""
    from spec_bench.tree.base import GrownTree

    size = read_pair_sizes(pair)[0]
    trees = [cell.config.tree for cell in settings.cells]
    tokens = slots_per_row or size.positions or 1
    shape = size.vocab or 0, settings.engine.batch_size, tokens
    grown_trees = [tree for tree in trees if isinstance(tree, GrownTree)]
    return sum(
        estimate_decoder_graph_bytes(tree, settings.sampling, *shape) for tree in grown_trees
    )


def estimate_decoder_graph_bytes(
    tree: Any, sampling: SamplingSettings, vocab: int, rows: int, max_prefix_tokens: int
) -> int:
    """Estimates the GPU memory, in bytes, of a decoder's graphs for prefixes of up to
    ``max_prefix_tokens``: the rows' random numbers and each graph's inputs and outputs, without the
    memory that graphs share.
    """
    from spec_bench.decode.recording import length_buckets, row_buckets

    shape = tree.shape
    host_numbers = 8 + 4 * shape.depth + 2 * shape.size
    random_numbers = shape.size + sum(shape.children) + 1
    if tree.siblings(sampling) == "without_replacement":  # by noise over the vocabulary
        random_numbers += (1 + sum(shape.levels[:-1])) * vocab
    row_counts = row_buckets(rows)
    return 8 * (
        max(row_counts) * random_numbers
        + sum(row_counts) * len(length_buckets(1, max_prefix_tokens)) * host_numbers
    )


def _sum_bytes(counts: Sequence[int | None], bytes_each: int) -> int | None:
    known_counts = [count for count in counts if count is not None]
    return sum(known_counts) * bytes_each if len(known_counts) == len(counts) else None


def _estimate_longest_sequence(settings: JobSettings) -> int | None:
    """Estimates the maximum cache slots of a prompt, its answer and the largest tree; None if
    unknown.
    """
    task = settings.task
    if settings.is_data_unread:
        return None
    if isinstance(task, RandomPromptTask):
        prompt = task.prompt_tokens
    else:
        prompt = max(sum(map(len, example.turns)) for example in settings.examples)
    return max(
        estimate_cache_slots(cell.config, prompt, settings.max_new_tokens)
        for cell in settings.cells
    )


def estimate_rate_from_measured_rows(
    facts: CellFacts, device: str, measured_rows: Sequence[Mapping[str, Any]]
) -> ExpectedRate | None:
    """Estimates a cell's rate on ``cpu``, ``cuda`` or ``server`` from measured rows; None if no row
    applies.

    Takes rows of the same decoder and tree, or else baseline rows of any decoder: an unknown
    decoder is then assumed to be no faster. If there are rows of the same task, only these are
    used. The rate is their median.
    """
    wanted_place = (facts.target, facts.batch_size, device)
    drafts = ("", ",".join(facts.draft))
    candidates = [
        row
        for row in measured_rows
        if (row["target"], int(row["batch_size"] or 1), row["device"]) == wanted_place
        and row["draft"] in drafts
    ]
    tree = (facts.decoder, facts.spec)
    same_rows = [row for row in candidates if (row["decoder"], row["spec"]) == tree]
    baseline = [row for row in candidates if row["decoder"] == BASELINE]
    for rows, source in ((same_rows, "measured"), (baseline, "measured, as ar")):
        if rows:
            return _compute_median_rate(rows, "token_rate", facts.task, source)
    return None


def _compute_median_rate(
    rows: Sequence[Mapping[str, Any]], column: str, task: str, source: str
) -> ExpectedRate:
    task_rows = [row for row in rows if row["task"] == task]
    if not task_rows:
        source += f" on {', '.join(sorted({row['task'] for row in rows}))}"
    rows_by_doubt = group_by_key(
        (explain_timing_doubt(str(row.get("reason"))).partition(":")[0], row)
        for row in task_rows or rows
    )
    doubt = min(rows_by_doubt)  # "", the kind of rows without doubts, comes first
    source += f", of {doubt} rows" * bool(doubt)
    return ExpectedRate(median(float(row[column]) for row in rows_by_doubt[doubt]), source)


def _find_published_rate(facts: CellFacts) -> ExpectedRate | None:
    """Finds a paper's rate for a cell of this pair: on its task, else the median of other tasks."""
    pairs = find_pair_spellings(facts.pair)
    for paper, numbers in read_all_published_numbers().items() if pairs else ():
        rows = [
            row
            for row in numbers
            if row["metric"] == "token_rate" and row["value"]
            if (row["target"], row["draft"]) in pairs
            if (row["decoder"], row["spec"]) == (facts.decoder, facts.spec)
        ]
        if rows:
            return _compute_median_rate(rows, "value", facts.task, f"printed by {paper}")
    return None


@cache
def _list_published_baseline_comparisons(results: Path, pair_name: str) -> tuple[str, ...]:
    """Lists a line for each of a pair's measured rows of plain decoding that compares it with a
    paper's numbers; cached for all jobs of a sweep.
    """
    rows = (row for row in _read_rows_with_rates(results) if row["pair"] == pair_name)
    return tuple(line for row in rows for line in iter_published_baseline_comparisons(row))


@cache
def _read_rows_with_rates(results: Path) -> list[dict[str, Any]]:
    """Reads the rows with a rate and a device from all CSVs in a results folder; cached for all
    jobs of a sweep.
    """
    return [
        row | {"device": row["device"] if row["device"] in ("cpu", SERVER) else "cuda"}
        for path in files.list_results_files(results)
        for row in read_results_rows(path)
        # Rows without a device cannot be used.
        if row.get("token_rate") and row.get("device") and not row["simulated_acceptance"]
    ]


def print_plan(cells: Sequence[PlannedCell]) -> None:
    """Prints the values that all cells share, then a line per distinct cell, and the totals. If
    there are many cells, a line counts the cells of a job and state.
    """
    console = Console(markup=False, highlight=False)
    distinct_cells = _merge_repeated_cells(cells)
    rows = [[*map(redact_escape_and_cut, _format_row(cell))] for cell in distinct_cells]
    columns = dict(zip(_TITLES, zip(*rows, strict=True), strict=True))
    common_texts = {
        title: texts[0]
        for title, texts in columns.items()
        if len({*texts}) == 1 < len(distinct_cells)
    }
    common = (f"{title} {text}" for title, text in common_texts.items() if text not in "-")
    left_out = {*common_texts, *(_TITLES_OF_ONE_CELL if len(rows) > _MAX_LINES else ())}
    texts_by_title = {
        title: texts
        for title, texts in columns.items()
        if title not in left_out and {*texts} - {"", "-"}
    }
    cell_texts = zip(*texts_by_title.values(), strict=True)
    lines = group_by_key(zip(cell_texts, columns["decoder"], strict=True))
    console.print(", ".join(common))
    console.width = max(console.width, _WIDTH)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in texts_by_title:
        table.add_column(title, justify="left" if title in _LABELS else "right", no_wrap=True)
    table.add_column()
    for line_texts, decoders in lines.items():
        cell_count_text = f"{decoders[0]}, 1 cell" * (len(rows) > _MAX_LINES)
        count = f"{len(decoders)} cells" if decoders[1:] else cell_count_text
        table.add_row(*line_texts, count, style="red" * ("NO" in line_texts))
    console.print(table)
    for line in format_totals(distinct_cells):
        console.print(line)


def _merge_repeated_cells(cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Merges equal cells of several jobs; keeps the words that its jobs share
    and some cells lack.
    """
    everywhere = set.intersection(*(set(cell.words) for cell in cells))
    cell_by_id: dict[str, PlannedCell] = {}
    for cell in cells:
        words_before = cell_by_id.get(cell.run_id, cell).words
        words = tuple(w for w in words_before if w in cell.words and w not in everywhere)
        cell_by_id[cell.run_id] = replace(cell, words=words)
    return list(cell_by_id.values())


def format_totals(cells: Sequence[PlannedCell]) -> list[str]:
    """Formats the plan's sums; each cell counts once."""
    states = Counter(cell.state for cell in cells)
    state_counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    known_hours = [cell.device_hours for cell in cells if cell.device_hours is not None]
    hours = f"{_format_hours_without_unit(sum(known_hours))} at these rates"
    unknown_count = len(cells) - len(known_hours)
    if unknown_count and any(known_hours):
        hours += f" and those of {unknown_count} cells of unknown rate"
    elif unknown_count:
        hours = f"unknown until one of the {unknown_count} cells is measured"
    lines = [f"{len(cells)} cells: {state_counts}", f"device hours: {hours}"]
    if unread := list(dict.fromkeys(c.facts.task for c in cells if c.state == "unknown")):
        lines.append(
            f"the data of {', '.join(unread)} cannot be read here: the plan cannot say which cells "
            "are complete, and counts one turn a prompt and caches as long as the models' context"
        )
    lines += dict.fromkeys(line for cell in cells for line in cell.printed_comparisons)
    if texts := [*dict.fromkeys(filter(None, (_describe_simulation(c.facts) for c in cells)))]:
        acceptances = "; ".join(texts)
        lines.append(f"simulated: acceptance is given, so that texts mean nothing: {acceptances}")
    for pair, memory in {cell.facts.pair: cell.memory for cell in cells}.items():
        if memory.weights_bytes is None:
            lines.append(f"{pair}: a size is unknown; a model that is not here is asked of the hub")
        if memory.fits is False:
            lines.append(
                f"does not fit: {pair}: {_format_memory_without_unit(memory)} GiB on {memory.gpus} "
                f"GPUs of together {(memory.capacity_bytes or 0) / _GIB:.0f} GiB; "
                "pair.target_device_map=auto spreads the target"
            )
    return lines


def _describe_simulation(facts: CellFacts) -> str:
    """Describes a cell's stated acceptance; "" if its models decide."""
    rates = ",".join(f"{rate:.3g}" for rate in facts.simulated_acceptance)
    return f"{facts.decoder} {facts.spec} {rates}" if rates else ""


def format_longest_job_minutes(jobs: Sequence[Sequence[PlannedCell]]) -> str:
    """Formats the minutes that the longest job decodes on its GPUs."""
    minutes = [
        sum(60 * (cell.device_hours or 0) / max(1, cell.memory.gpus or 1) for cell in job)
        for job in jobs
    ]
    is_known = all(cell.device_hours is not None for job in jobs for cell in job)
    return f"{max(minutes):.1f} minutes at these rates" if is_known else "minutes unknown"


def _format_row(cell: PlannedCell) -> list[str]:
    fits = {
        True: "yes",
        False: "NO",
        None: _UNKNOWN if cell.memory.gpus != 0 else "-",
    }
    return [
        *(str(getattr(cell.facts, name)) for name in _FACT_COLUMNS),
        " ".join(
            word.replace("'", "")
            for word in cell.words
            if word.partition("=")[0] not in _FACT_COLUMNS
        ),
        cell.state,
        f"{cell.prompts_left} of {cell.prompts}",
        _UNKNOWN if cell.rate is None else f"{cell.rate.tokens_per_s:.1f}",
        "" if cell.rate is None else cell.rate.source,
        _UNKNOWN if cell.device_hours is None else _format_hours_without_unit(cell.device_hours),
        _format_memory_without_unit(cell.memory),
        _UNKNOWN if cell.memory.gpus is None else str(cell.memory.gpus or "-"),
        fits[cell.memory.fits],
    ]


def _format_hours_without_unit(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 0.005 or hours == 0 else "<0.01"


def _format_memory_without_unit(memory: MemoryEstimate) -> str:
    """Formats GiB as ``weights + caches + graphs``; the word ``caches`` if
    their size is unknown.
    """
    if memory.weights_bytes is None:
        return _UNKNOWN
    caches = (
        "caches" if memory.cache_bytes is None else _format_gib_without_unit(memory.cache_bytes)
    )
    graphs = f" + {_format_gib_without_unit(memory.graph_bytes)}" if memory.graph_bytes else ""
    return f"{_format_gib_without_unit(memory.weights_bytes)} + {caches}{graphs}"


def _format_gib_without_unit(byte_count: int) -> str:
    gib = byte_count / _GIB
    return f"{gib:.1f}" if gib >= 1 else f"{gib:.3f}"
