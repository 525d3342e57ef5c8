"""A job's session: its cells in turn, prompt by prompt, on disk as they come.

A prompt that a cell cannot decode is left out of that cell, and the others go on, those of its
batch too. Only what does not hang on a prompt gives a cell up.

For each batch of prompts every cell decodes it before the next batch starts, and the order of the
cells rotates, so that drift of the machine hits all alike and no decoder always goes first. With
repeats the job goes over all prompts again, so that a prompt's repeats are apart in time.

A session is one process that works on a job; records name it. What two of them decoded,
hours apart or with other work on the machine, is never compared: a speed-up is against a baseline
that the same session timed. If a session decodes a prompt for a cell and the baseline has it from
an earlier one (cells were added to a finished job), the baseline is timed again beside it. Its
tokens must be the same. So it is beside another job that decodes the baseline at that moment: what
this session times goes to a file of its own, and nobody waits.
"""

import logging
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from spec_bench.core import processes
from spec_bench.decode.config import AnyDecoder
from spec_bench.decode.loop import IterationCounts
from spec_bench.jobs.config.cells import BASELINE, Cell
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.store.store import CellStore, ModelDigests, Repeats
from spec_bench.jobs.work.metering import EnergyMetering
from spec_bench.jobs.work.prompts import JobPrompts
from spec_bench.measure.provenance import LoadAndClockMonitor, PeakMemoryMonitor
from spec_bench.records import cell_folder
from spec_bench.records.types import Generation, PromptError, Reason, Request
from spec_bench.server.decoder import UnansweredError
from spec_bench.server.endpoint import RequestRefusedError
from spec_bench.settings.fields import get_first_line
from spec_bench.sinks.console import ProgressBar
from spec_bench.system import files, signals
from spec_bench.system.errors import UsageError, raise_if_device_lost
from spec_bench.system.redaction import redact

log = logging.getLogger(__name__)
_MESSAGE_LENGTH = 300
GIVEN_UP = 3  # errors that name no prompt, one after the other
_QUEUE = 4  # batches' worth of prompts in the queue of a continuous batch
Timings = dict[tuple[str, int, str], Generation]
"""A baseline's generations by session, repeat and prompt id, those timed again included."""


def summarise_error(error: Exception) -> str:
    """Returns an error's type and first line."""
    return f"{type(error).__name__}: {get_first_line(error)[:_MESSAGE_LENGTH]}"


class ChangedBaselineError(UsageError):
    """The baseline delivers other tokens than its records hold."""


@dataclass(eq=False)
class CellRun:
    """One cell while its job runs."""

    cell: Cell  # which decoder
    store: CellStore  # where its records go
    memory: PeakMemoryMonitor  # of its windows
    # how iterations of its windows ran
    iteration_counts: IterationCounts = field(default_factory=IterationCounts)
    # of its models; empty for a cell that was begun before they were stored
    model_digests: ModelDigests = field(default_factory=dict)
    # generations by repeat and prompt id, those of an earlier, killed job included
    generations_by_repeat: Repeats = field(default_factory=lambda: defaultdict(dict))
    decoder: AnyDecoder | None = None  # None until it is built, and once the cell was given up
    failure: Reason | None = None  # why the cell was given up; None while it goes on
    # why prompts could not be decoded, by prompt id
    prompt_errors: dict[str, Exception] = field(default_factory=dict)
    # what was decoded last, and the answers
    last_batch: tuple[Sequence[Request], Sequence[Generation]] = ((), ())
    consecutive_errors: int = 0  # the latest of these that name no prompt
    # whether another job holds its folder: of a baseline, whose result is that job's
    is_held_by_other_job: bool = False

    @property
    def run_id(self) -> str:
        """The hash of the settings that change its numbers."""
        return self.store.folder.name

    def list_requests_to_decode(self, requests: Sequence[Request], repeat: int) -> list[Request]:
        """Lists the requests that it will decode in a repeat; none once it has failed."""
        unrecorded_requests = (
            [] if self.decoder is None else self.list_requests_without_record(requests, repeat)
        )
        return [
            request
            for request in unrecorded_requests
            if request.prompt_id not in self.prompt_errors
        ]

    def list_requests_without_record(
        self, requests: Sequence[Request], repeat: int
    ) -> list[Request]:
        """Lists the requests without a generation in a repeat, failed ones too."""
        return [
            request
            for request in requests
            if request.prompt_id not in self.generations_by_repeat[repeat]
        ]

    def fail(self, error: Exception) -> None:
        """Marks the cell failed and saves the traceback; re-raises an error of the cell's disk, or
        one that has taken the GPU from all cells.
        """
        raise_if_device_lost(error)
        os_explanation = isinstance(error, OSError) and files.explain_write_error(error)
        filename = getattr(error, "filename", None) if os_explanation else None
        if filename is not None and Path(filename).is_relative_to(self.store.folder):
            raise error
        self.failure = Reason("", summarise_error(error), self._write_trace(error))
        self.decoder = None
        log.error("%s failed: %s", self.cell.title, self.failure)

    def skip_prompt(self, prompt_id: str, error: Exception) -> None:
        """Leaves a prompt out that it cannot decode; after ``GIVEN_UP`` errors in turn that name no
        prompt the cell has failed.
        """
        self.prompt_errors[prompt_id] = error
        log.error("%s leaves %r out: %s", self.cell.title, prompt_id, summarise_error(error))
        if not isinstance(error, PromptError | RequestRefusedError):
            self._write_trace(error)
            self.consecutive_errors += 1
            if self.consecutive_errors == GIVEN_UP:
                self.fail(error)

    def _write_trace(self, error: Exception) -> str:
        path = self.store.folder / files.TRACE
        files.write_text(path, redact("".join(traceback.format_exception(error))))
        return str(path)


@dataclass
class Session:
    """One job while it works, in one process: everything that its steps share."""

    settings: JobSettings
    runs: Sequence[CellRun]  # all its cells, the baseline first where there is one
    pending: Sequence[CellRun]  # those without a complete result
    prompts: JobPrompts
    metering: EnergyMetering  # its energy meter, open
    machine: LoadAndClockMonitor  # what it runs on
    baseline_timings: Timings = field(default_factory=dict)  # every timing of the baseline
    # a pass's seconds now over those when the threads were chosen
    measure_slowdown: Callable[[], float] = lambda: 1.0
    name: str = field(default_factory=lambda: uuid4().hex[:12])

    @property
    def baseline(self) -> CellRun | None:
        """The run of plain decoding; None if a server has none."""
        return self.runs[0] if self.runs[0].cell.name == BASELINE else None

    def has_work_left(self, cell_run: CellRun) -> bool:
        """Returns whether a cell has anything left to decode, in any repeat."""
        repeats = range(self.settings.request.repeats)
        return any(
            cell_run.list_requests_without_record(self.prompts.requests, repeat)
            for repeat in repeats
        )

    def drop_untimed_and_select_runs(self) -> list[CellRun]:
        """Drops records without a baseline timed beside them; returns the cells to work on."""
        baseline = self.baseline
        if baseline is None:
            return list(self.pending)
        stored_generations = [
            generation
            for repeat in baseline.generations_by_repeat.values()
            for generation in repeat.values()
        ]
        self.baseline_timings = index_timings([*baseline.store.load_retimed(), *stored_generations])
        cells = [cell_run for cell_run in self.pending if cell_run is not baseline]
        for cell_run in cells:
            if unpaired_keys := find_untimed_keys(
                cell_run.generations_by_repeat, self.baseline_timings
            ):
                for repeat, prompt_id in unpaired_keys:
                    del cell_run.generations_by_repeat[repeat][prompt_id]
                if processes.process_rank() == 0:
                    cell_folder.rewrite_generations(
                        cell_run.store.folder / files.GENERATIONS,
                        [
                            generation
                            for repeat in cell_run.generations_by_repeat.values()
                            for generation in repeat.values()
                        ],
                    )
        decoding = any(map(self.has_work_left, cells))
        alone = baseline in self.pending and not baseline.is_held_by_other_job
        return [baseline, *cells] if decoding or alone else cells

    def select_decoding_runs(self, runs: Sequence[CellRun]) -> list[CellRun]:
        """Returns the cells that will decode; the baseline is timed beside whatever does."""
        built_runs = [cell_run for cell_run in runs if cell_run.decoder is not None]
        incomplete_runs = [cell_run for cell_run in built_runs if self.has_work_left(cell_run)]
        return [
            cell_run
            for cell_run in built_runs
            if cell_run in incomplete_runs or (incomplete_runs and cell_run is self.baseline)
        ]

    def select_requests_to_decode(
        self, cell_run: CellRun, runs: Iterable[CellRun], batch: Sequence[Request], repeat: int
    ) -> list[Request]:
        """Selects what a cell decodes of a batch: what it lacks; the baseline what any does."""
        if cell_run is not self.baseline:
            return cell_run.list_requests_to_decode(batch, repeat)
        if cell_run.decoder is None:
            return []
        own_runs = [other_run for other_run in runs if not other_run.is_held_by_other_job]
        prompt_ids = {
            request.prompt_id
            for other_run in own_runs
            for request in other_run.list_requests_to_decode(batch, repeat)
        }
        return [request for request in batch if request.prompt_id in prompt_ids]

    def iter_batches(self) -> Iterator[tuple[int, Sequence[Request]]]:
        """Yields the repeat and the requests of each batch, all of a repeat before the next."""
        server = self.settings.server_settings
        size = self.settings.engine.batch_size
        if server is not None and server.rate is not None:
            size = len(self.settings.examples)  # all of those that arrive
        elif self.settings.engine.batching == "continuous":
            size *= _QUEUE
        all_batches = [
            batch
            for wave in self.prompts.split_into_waves()
            for batch in split_into_batches(wave, size)
        ]
        return ((repeat, b) for repeat in range(self.settings.request.repeats) for b in all_batches)


def index_timings(generations: Iterable[Generation]) -> Timings:
    """Indexes generations by session, repeat and prompt id, which pair baseline and cell."""
    return {
        (generation.session, generation.repeat, generation.prompt_id): generation
        for generation in generations
    }


def find_untimed_keys(repeats: Repeats, baseline_timings: Timings) -> set[tuple[int, str]]:
    """Finds (repeat, prompt id) of a cell's generations that no baseline was timed beside."""
    timings = index_timings(
        generation for repeat in repeats.values() for generation in repeat.values()
    )
    return {key[1:] for key in timings.keys() - baseline_timings.keys()}


def select_paired_timings(
    repeats: Sequence[Sequence[Generation]], baseline_timings: Timings
) -> list[list[Generation]] | None:
    """Selects a baseline's generations timed with a cell's, in order; None if one is missing."""
    keys = [list(index_timings(repeat)) for repeat in repeats]
    if any(key not in baseline_timings for repeat_keys in keys for key in repeat_keys):
        return None
    return [[baseline_timings[key] for key in repeat_keys] for repeat_keys in keys]


def decode_interleaved(session: Session, runs: Sequence[CellRun]) -> None:
    """Decodes with the cells in turn, batch by batch; if one fails the others go on."""
    requests = session.prompts.requests
    repeats = range(session.settings.request.repeats)
    missing_count = sum(
        len(session.select_requests_to_decode(cell_run, runs, requests, repeat))
        for repeat in repeats
        for cell_run in runs
    )
    shows_progress = session.settings.request.sink.progress and processes.process_rank() == 0
    answer_count = sum(
        len(answers) for cell_run in runs for answers in cell_run.generations_by_repeat.values()
    )
    if answer_count:
        log.info(
            "%d of %d answers are there; it goes on", answer_count, answer_count + missing_count
        )
    progress = ProgressBar(missing_count, enabled=shows_progress)
    try:
        for number, (repeat, batch) in enumerate(session.iter_batches()):
            offset = number % len(runs)
            turns = {
                cell_run.run_id: session.select_requests_to_decode(cell_run, runs, batch, repeat)
                for cell_run in runs
            }
            for cell_run in (*runs[offset:], *runs[:offset]):
                signals.raise_if_interrupted()
                if (todo := turns[cell_run.run_id]) and cell_run.decoder is not None:
                    _decode_and_store_batch(session, cell_run, todo, repeat, progress)
    except ChangedBaselineError as error:
        for cell_run in runs:
            cell_run.fail(error)
    finally:
        progress.close()
    for cell_run in runs:
        recordings = getattr(cell_run.decoder, "recordings", None)
        if recordings is not None and cell_run.last_batch[1]:
            recordings.log_replay_difference(*cell_run.last_batch, session.settings.request.seed)


def _decode_and_store_batch(
    session: Session,
    cell_run: CellRun,
    batch: Sequence[Request],
    repeat: int,
    progress: ProgressBar,
) -> None:
    """Decodes one batch of one cell; it is on disk when this returns."""
    settings = session.settings
    answers = cell_run.generations_by_repeat[repeat]
    decoder = cell_run.decoder
    new = list[Generation]()
    assert decoder is not None
    progress.start_batch(cell_run.cell.title, (cell_run.run_id, repeat), answers.values())
    requests = _resolve_later_turns(session, cell_run, batch, answers)
    try:
        ids = [request.prompt_id for request in session.prompts.requests]
        # Whose answers, in this order, it remembers.
        earlier_ids = ids[: ids.index(batch[0].prompt_id)]
        decoder.remember_for_drafting(
            [answers[prompt_id].tokens for prompt_id in earlier_ids if prompt_id in answers]
        )
        cell_run.memory.begin()
        session.machine.begin_window()
        decoder.iteration_counts = cell_run.iteration_counts
        generations = _decode_or_skip(session, cell_run, decoder, requests, progress)
        cell_run.last_batch = requests, generations
        cell_run.memory.end()
        if any(min(generation.prefill_s, generation.decode_s) < 0 for generation in generations):
            raise UsageError("the clock ran backwards")
        generations = _add_session_fields(session, repeat, generations, requests)
        if repeat and settings.is_repeatable:
            require_equal_repeats(generations, cell_run.generations_by_repeat[0])
        new = _store_batch(session, cell_run, repeat, generations)
    except ChangedBaselineError:
        raise
    except Exception as error:
        cell_run.fail(error)
    else:
        answers.update({generation.prompt_id: generation for generation in new})
    progress.finish_batch(len(batch), new)


def _resolve_later_turns(
    session: Session, cell_run: CellRun, batch: Sequence[Request], answers: Mapping[str, Generation]
) -> list[Request]:
    """Returns the requests of a batch with the cell's own answers filled into later turns; skips
    those for which that fails.
    """
    requests = list[Request]()
    for request in batch:
        try:
            requests += session.prompts.fill_in_own_answers([request], answers)
        except Exception as error:  # as of a chat template
            cell_run.skip_prompt(request.prompt_id, error)
    return requests


def _decode_or_skip(
    session: Session,
    cell_run: CellRun,
    decoder: AnyDecoder,
    requests: Sequence[Request],
    progress: ProgressBar,
) -> list[Generation]:
    """Decodes a batch; skips the prompts that fail. Raises MemoryError: the batch has no room."""
    failures: Mapping[str, Exception] = {}
    answers: Sequence[Generation] = ()
    if not requests or cell_run.decoder is None:
        return []
    try:
        seed = session.settings.request.seed
        with session.metering.metered_batch(decoder, cell_run.generations_by_repeat) as meter:
            generations = decoder.generate(requests, seed, progress.add_counts, meter)
        cell_run.consecutive_errors = 0
        return session.metering.add_energy_shares(generations)
    except UnansweredError as error:
        failures = error.errors
        answers = error.generations
    except PromptError as error:
        failures = {error.prompt_id: error}
    except Exception as error:
        raise_if_device_lost(error)
        if session.settings.device.startswith("cuda"):
            torch.cuda.empty_cache()  # before the next cell allocates
        if len(requests) > 1:
            if is_out_of_memory(error):
                raise MemoryError(f"a batch of {len(requests)}: {get_first_line(error)}") from error
            half = len(requests) // 2  # whose error it is, its halves tell
            parts = requests[:half], requests[half:]
            return [
                g
                for part in parts
                for g in _decode_or_skip(session, cell_run, decoder, part, progress)
            ]
        failures = {requests[0].prompt_id: error}
    for prompt_id, failure in failures.items():
        cell_run.skip_prompt(prompt_id, failure)
    settled_ids = {*failures, *(answer.prompt_id for answer in answers)}
    remaining_requests = [request for request in requests if request.prompt_id not in settled_ids]
    return [*answers, *_decode_or_skip(session, cell_run, decoder, remaining_requests, progress)]


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether a device or the machine had no memory; torch has no type for the latter."""
    kinds = MemoryError, torch.OutOfMemoryError
    return isinstance(error, kinds) or "allocate memory" in str(error)


def _add_session_fields(
    session: Session, repeat: int, generations: Sequence[Generation], requests: Sequence[Request]
) -> list[Generation]:
    """Adds what only the job knows: session, repeat, machine's state, category, prompt length."""
    lengths = {request.prompt_id: len(request.prompt_ids) for request in requests}
    state: dict[str, Any] = {
        **session.machine.end_window(),
        "repeat": repeat,
        "session": session.name,
    }
    kinds = session.prompts.categories
    return [
        replace(
            generation,
            category=kinds.get(generation.prompt_id, ""),
            prompt_tokens=lengths[generation.prompt_id],
            **state,
        )
        for generation in generations
    ]


def _store_batch(
    session: Session, cell_run: CellRun, repeat: int, generations: list[Generation]
) -> list[Generation]:
    """Writes a batch to disk; returns its generations but for new timings of the baseline."""
    answers = cell_run.generations_by_repeat[repeat]
    if cell_run is not session.baseline:
        cell_run.store.append_generations(generations)
        return generations
    retimed_generations = [
        generation
        for generation in generations
        if cell_run.is_held_by_other_job or generation.prompt_id in answers
    ]
    new = (
        []
        if cell_run.is_held_by_other_job
        else [generation for generation in generations if generation.prompt_id not in answers]
    )
    for generation in retimed_generations:
        if (
            generation.prompt_id in answers
            and generation.tokens != answers[generation.prompt_id].tokens
        ):
            text = (
                f"prompt {generation.prompt_id!r}: the baseline delivers other tokens than its "
                f"records in runs/{cell_run.run_id} hold"
            )
            if session.settings.is_repeatable:
                raise ChangedBaselineError(f"{text}; remove that folder to decode it anew")
            log.warning("%s, as this device may", text)
    cell_run.store.append_generations(new)
    if retimed_generations:
        cell_run.store.append_generations(retimed_generations, session.name)
    session.baseline_timings.update(index_timings(generations))
    return generations if cell_run.is_held_by_other_job else new


def require_equal_repeats(
    generations: Sequence[Generation], first_answers: Mapping[str, Generation]
) -> None:
    """Raises UsageError unless prompts decoded again have the target calls and tokens of the first
    time.
    """
    for generation in generations:
        if not generation.has_same_steps_and_tokens(first_answers[generation.prompt_id]):
            raise UsageError(
                f"prompt {generation.prompt_id!r}: repeat {generation.repeat + 1} delivered other "
                "tokens than the first with the same seed, so decoding is not deterministic"
            )


def split_into_batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    """Splits requests into batches of ``size``, the last one perhaps smaller."""
    return (requests[start : start + size] for start in range(0, len(requests), size))
