"""A job's session: decodes its cells in turn, prompt by prompt, with every batch on disk at once.

A prompt that a cell cannot decode is left out of that cell; all other prompts go on, also those of
the same batch. A cell fails only for reasons that do not depend on a prompt.

Every cell decodes a batch of prompts before the next batch starts, and the order of the cells
rotates, so that drift of the machine affects all cells equally and no decoder always goes first.
With repeats the job goes over all prompts again, so that a prompt's repeats are apart in time.

A session is one process that works on a job; records name it. Timings of different sessions, hours
apart or with other work on the machine, are never compared: a speed-up is relative to a baseline
that the same session timed. If a session decodes a prompt for a cell and the baseline has it from
an earlier session (cells were added to a finished job), the baseline is timed again in turn with
the cell, and must deliver the same tokens. The same holds if another job is decoding the baseline
at that moment: this session's timings go to a file of their own, and it does not wait.
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
from spec_bench.measure.monitors import LoadAndClockMonitor, PeakMemoryMonitor
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
GIVEN_UP = 3  # consecutive errors that name no prompt, after which a cell has failed
_QUEUE = 4  # prompts in the queue of a continuous batch, in batch sizes
Timings = dict[tuple[str, int, str], Generation]
"""A baseline's generations by session, repeat and prompt id, with those timed again."""


def summarise_error(error: Exception) -> str:
    """Formats an error's type and first line."""
    return f"{type(error).__name__}: {get_first_line(error)[:_MESSAGE_LENGTH]}"


class ChangedBaselineTokensError(UsageError):
    """Error: the baseline delivers other tokens than its records hold."""


@dataclass(eq=False)
class CellRun:
    """One cell while its job runs."""

    cell: Cell
    store: CellStore
    memory: PeakMemoryMonitor  # of its windows
    # recorded and eager iterations of its windows
    iteration_counts: IterationCounts = field(default_factory=IterationCounts)
    # digests of its models; empty for a cell that was begun before digests were stored
    model_digests: ModelDigests = field(default_factory=dict)
    # generations by repeat and prompt id, also from an earlier, killed job
    generations_by_repeat: Repeats = field(default_factory=lambda: defaultdict(dict))
    decoder: AnyDecoder | None = None  # None until it is built, and after a failure
    failure: Reason | None = None  # why the cell failed; None if it did not
    # errors of prompts that could not be decoded, by prompt id
    prompt_errors: dict[str, Exception] = field(default_factory=dict)
    # the last requests that were decoded, and their answers
    last_batch: tuple[Sequence[Request], Sequence[Generation]] = ((), ())
    consecutive_errors: int = 0  # latest consecutive errors that name no prompt
    # whether another job holds the folder (only of a baseline) and will write its result
    is_held_by_other_job: bool = False

    @property
    def run_id(self) -> str:
        """The hash of the settings that change its numbers."""
        return self.store.folder.name

    def list_requests_to_decode(self, requests: Sequence[Request], repeat: int) -> list[Request]:
        """Lists the requests that the cell will still decode in a repeat; none
        after it has failed.
        """
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
        """Lists the requests without a generation in a repeat, failed requests too."""
        return [
            request
            for request in requests
            if request.prompt_id not in self.generations_by_repeat[repeat]
        ]

    def fail(self, error: Exception) -> None:
        """Marks the cell failed and saves the traceback. Raises instead if the GPU is lost or the
        cell's own folder cannot be written.
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
        """Leaves out a prompt that the cell cannot decode; after ``GIVEN_UP`` consecutive errors
        that name no prompt the cell has failed.
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
    """A running job in one process: the state that its steps share."""

    settings: JobSettings
    runs: Sequence[CellRun]  # all its cells, the baseline (if any) first
    pending: Sequence[CellRun]  # cells without a complete result
    prompts: JobPrompts
    metering: EnergyMetering  # its energy meter, open
    machine: LoadAndClockMonitor
    baseline_timings: Timings = field(default_factory=dict)  # every timing of the baseline
    # measures a pass's seconds relative to those when the threads were chosen
    measure_slowdown: Callable[[], float] = lambda: 1.0
    name: str = field(default_factory=lambda: uuid4().hex[:12])

    @property
    def baseline(self) -> CellRun | None:
        """The run of plain decoding; None if a server has none."""
        return self.runs[0] if self.runs[0].cell.name == BASELINE else None

    def lacks_generations(self, cell_run: CellRun) -> bool:
        """Returns whether a cell lacks a prompt's generation in any repeat, even if it failed."""
        repeats = range(self.settings.request.repeats)
        return any(
            cell_run.list_requests_without_record(self.prompts.requests, repeat)
            for repeat in repeats
        )

    def drop_untimed_and_select_runs(self) -> list[CellRun]:
        """Drops records without a baseline timed in their session; returns the cells to work on."""
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
        is_any_incomplete = any(map(self.lacks_generations, cells))
        is_baseline_pending = baseline in self.pending and not baseline.is_held_by_other_job
        return [baseline, *cells] if is_any_incomplete or is_baseline_pending else cells

    def select_decoding_runs(self, runs: Sequence[CellRun]) -> list[CellRun]:
        """Selects the cells that will decode; if any does, the baseline is timed with them."""
        built_runs = [cell_run for cell_run in runs if cell_run.decoder is not None]
        incomplete_runs = [cell_run for cell_run in built_runs if self.lacks_generations(cell_run)]
        return [
            cell_run
            for cell_run in built_runs
            if cell_run in incomplete_runs or (incomplete_runs and cell_run is self.baseline)
        ]

    def select_requests_to_decode(
        self, cell_run: CellRun, runs: Iterable[CellRun], batch: Sequence[Request], repeat: int
    ) -> list[Request]:
        """Selects the requests of a batch that a cell still has to decode; for the baseline, all
        that any cell of this job still has to decode.
        """
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
        """Yields (repeat, requests) of each batch; a repeat ends before the next begins."""
        server = self.settings.server_settings
        size = self.settings.engine.batch_size
        if server is not None and server.rate is not None:
            size = len(self.settings.examples)  # all requests of the open loop
        elif self.settings.engine.batching == "continuous":
            size *= _QUEUE
        all_batches = [
            batch
            for wave in self.prompts.split_into_waves()
            for batch in split_into_batches(wave, size)
        ]
        return ((repeat, b) for repeat in range(self.settings.request.repeats) for b in all_batches)


def index_timings(generations: Iterable[Generation]) -> Timings:
    """Indexes generations by session, repeat and prompt id, the key that pairs a cell with its
    baseline.
    """
    return {
        (generation.session, generation.repeat, generation.prompt_id): generation
        for generation in generations
    }


def find_untimed_keys(repeats: Repeats, baseline_timings: Timings) -> set[tuple[int, str]]:
    """Finds the (repeat, prompt id) of a cell's generations without a baseline timed in their
    session.
    """
    timings = index_timings(
        generation for repeat in repeats.values() for generation in repeat.values()
    )
    return {key[1:] for key in timings.keys() - baseline_timings.keys()}


def select_paired_timings(
    repeats: Sequence[Sequence[Generation]], baseline_timings: Timings
) -> list[list[Generation]] | None:
    """Selects the baseline's generations that pair with a cell's, in order;
    None if one is missing.
    """
    keys = [list(index_timings(repeat)) for repeat in repeats]
    if any(key not in baseline_timings for repeat_keys in keys for key in repeat_keys):
        return None
    return [[baseline_timings[key] for key in repeat_keys] for repeat_keys in keys]


def decode_interleaved(session: Session, runs: Sequence[CellRun]) -> None:
    """Decodes with the cells in turn, batch by batch; if a cell fails the others go on."""
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
    except ChangedBaselineTokensError as error:
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
    """Decodes one batch of one cell; its answers are on disk when this returns."""
    settings = session.settings
    answers = cell_run.generations_by_repeat[repeat]
    decoder = cell_run.decoder
    new_generations = list[Generation]()
    assert decoder is not None
    progress.start_batch(cell_run.cell.title, (cell_run.run_id, repeat), answers.values())
    requests = _resolve_later_turns(session, cell_run, batch, answers)
    try:
        ids = [request.prompt_id for request in session.prompts.requests]
        # The decoder remembers the answers to these prompts, in this order.
        earlier_ids = ids[: ids.index(batch[0].prompt_id)]
        decoder.remember_for_drafting(
            [answers[prompt_id].tokens for prompt_id in earlier_ids if prompt_id in answers]
        )
        cell_run.memory.begin_window()
        session.machine.begin_window()
        decoder.iteration_counts = cell_run.iteration_counts
        generations = _decode_or_skip(session, cell_run, decoder, requests, progress)
        cell_run.last_batch = requests, generations
        cell_run.memory.end_window()
        if any(min(generation.prefill_s, generation.decode_s) < 0 for generation in generations):
            raise UsageError("the clock ran backwards")
        generations = _add_session_and_prompt_fields(session, repeat, generations, requests)
        if repeat and settings.is_repeatable:
            require_equal_repeats(generations, cell_run.generations_by_repeat[0])
        new_generations = _store_batch_and_select_new(session, cell_run, repeat, generations)
    except ChangedBaselineTokensError:
        raise
    except Exception as error:
        cell_run.fail(error)
    else:
        answers.update({generation.prompt_id: generation for generation in new_generations})
    progress.finish_batch(len(batch), new_generations)


def _resolve_later_turns(
    session: Session, cell_run: CellRun, batch: Sequence[Request], answers: Mapping[str, Generation]
) -> list[Request]:
    """Fills the cell's own answers into later turns of a batch; skips requests for which that
    fails.
    """
    requests = list[Request]()
    for request in batch:
        try:
            requests += session.prompts.fill_in_own_answers([request], answers)
        except Exception as error:  # such as a chat template's
            cell_run.skip_prompt(request.prompt_id, error)
    return requests


def _decode_or_skip(
    session: Session,
    cell_run: CellRun,
    decoder: AnyDecoder,
    requests: Sequence[Request],
    progress: ProgressBar,
) -> list[Generation]:
    """Decodes a batch and skips the prompts that fail. Raises MemoryError if the batch does not fit
    into memory.
    """
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
            half = len(requests) // 2  # to find the prompt that fails
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
    """Returns whether a device or the machine ran out of memory; torch has no
    type for the latter.
    """
    kinds = MemoryError, torch.OutOfMemoryError
    return isinstance(error, kinds) or "allocate memory" in str(error)


def _add_session_and_prompt_fields(
    session: Session, repeat: int, generations: Sequence[Generation], requests: Sequence[Request]
) -> list[Generation]:
    """Adds the fields that only the job knows: session, repeat, machine's state, category, prompt
    length.
    """
    lengths = {request.prompt_id: len(request.prompt_ids) for request in requests}
    state: dict[str, Any] = {
        **session.machine.end_window(),
        "repeat": repeat,
        "session": session.name,
    }
    category_by_id = session.prompts.categories
    return [
        replace(
            generation,
            category=category_by_id.get(generation.prompt_id, ""),
            prompt_tokens=lengths[generation.prompt_id],
            **state,
        )
        for generation in generations
    ]


def _store_batch_and_select_new(
    session: Session, cell_run: CellRun, repeat: int, generations: list[Generation]
) -> list[Generation]:
    """Writes a batch to disk; returns its new generations, without repeated timings of the
    baseline.
    """
    answers = cell_run.generations_by_repeat[repeat]
    if cell_run is not session.baseline:
        cell_run.store.append_generations(generations)
        return generations
    retimed_generations = [
        generation
        for generation in generations
        if cell_run.is_held_by_other_job or generation.prompt_id in answers
    ]
    new_generations = (
        []
        if cell_run.is_held_by_other_job
        else [generation for generation in generations if generation.prompt_id not in answers]
    )
    for generation in retimed_generations:
        if (
            generation.prompt_id in answers
            and generation.tokens != answers[generation.prompt_id].tokens
        ):
            difference_text = (
                f"prompt {generation.prompt_id!r}: the baseline delivers other tokens than its "
                f"records in runs/{cell_run.run_id} hold"
            )
            if session.settings.is_repeatable:
                raise ChangedBaselineTokensError(
                    f"{difference_text}; remove that folder to decode it anew"
                )
            log.warning("%s, as this device may", difference_text)
    cell_run.store.append_generations(new_generations)
    if retimed_generations:
        cell_run.store.append_generations(retimed_generations, session.name)
    session.baseline_timings.update(index_timings(generations))
    return generations if cell_run.is_held_by_other_job else new_generations


def require_equal_repeats(
    generations: Sequence[Generation], first_answers: Mapping[str, Generation]
) -> None:
    """Raises UsageError unless repeated prompts have the same target calls and tokens as the first
    time.
    """
    for generation in generations:
        if not generation.has_same_steps_and_tokens(first_answers[generation.prompt_id]):
            raise UsageError(
                f"prompt {generation.prompt_id!r}: repeat {generation.repeat + 1} delivered other "
                "tokens than the first with the same seed, so decoding is not deterministic"
            )


def split_into_batches(requests: Sequence[Request], size: int) -> Iterator[Sequence[Request]]:
    """Splits requests into batches of ``size``; the last may be smaller."""
    return (requests[start : start + size] for start in range(0, len(requests), size))
