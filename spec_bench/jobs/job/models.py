"""A pair's models decode a job's cells, here and in the processes that share a split target."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.pool import CachePool
from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.backend import Backend
from spec_bench.jobs.job.turns import batches
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.models import heads_of, models_of, ran_with, warn_of_misreading
from spec_bench.jobs.work.session import Session
from spec_bench.jobs.work.threads import use_threads
from spec_bench.records.types import Request

log = logging.getLogger(__name__)
_WARMUP_TOKENS = 4  # an iteration or a few
_CAPTURE_TOKENS = 16  # enough for every kind of forward pass to have been captured


class ModelBackend(Backend):
    """Loaded models; all cells share them and one pool of caches."""

    def __init__(self, settings: JobSettings, tokenizer: Any, tokens: int) -> None:
        self._tokenizer = tokenizer
        self.models = models_of(settings.pair, tokens)
        self.vocabulary = self.models[0].vocab_size
        self._preparing = self._prepared = 0.0
        use_threads(settings, self.models[0])

    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Builds each cell's decoder, checks that every prompt fits, allocates, warms up."""
        start, settings, requests = perf_counter(), session.settings, session.requests
        target, drafts, pool = self.models[0], self.models[1:], CachePool()
        for run in runs:
            try:
                run.decoder = run.cell.config.build(
                    target,
                    drafts[: run.cell.drafts],
                    settings.sampling,
                    settings.engine.batch_size,
                    pool,
                    heads_of(settings.pair, run.cell.heads, target),
                )
                if requests:
                    warn_of_misreading(run.decoder, requests[0].prompt_ids)
            except Exception as error:
                run.fail(error)
                continue
            run.decoder.preflight(requests)
        # All make room before any warms up: what is made to run over a cache is lost when it grows.
        for step in (_make_room, _warm_up):
            for run in _needed(session, runs):
                if run.decoder:
                    try:
                        step(settings, run.decoder, requests)
                    except Exception as error:
                        run.fail(error)
        lengths = [len(request.prompt_ids) for request in requests]
        pool.prepare(settings.engine.batch_size, min(lengths, default=1))
        self._prepared = perf_counter()
        self._preparing = self._prepared - start

    def finish(self, session: Session) -> None:
        """Says what capturing cost."""
        decoding = perf_counter() - self._prepared
        how = session.settings.pair.specs[0].compile
        if how != "none" and self._preparing > decoding:
            log.warning(
                "engine.compile=%s took %.0f s before the first prompt, the prompts %.0f s: "
                "a job of this size is done sooner with engine.compile=none",
                *(how, self._preparing, decoding),
            )

    def ran_with(self, session: Session) -> dict[str, Any]:
        """What the loaded models tell."""
        return ran_with(session.settings, self.models[0], self._tokenizer)


def _needed(session: Session, runs: Sequence[CellRun]) -> list[CellRun]:
    """The cells that will decode; the baseline is timed beside whatever does."""
    repeats = range(session.settings.asked.repeats)
    missing = [run for run in runs if any(run.missing(session.requests, each) for each in repeats)]
    return [run for run in runs if run in missing or (missing and run.cell.name == BASELINE)]


def _make_room(settings: JobSettings, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Allocates for the longest request."""
    decoder.reserve(
        max(decoder.slots_needed(len(r.prompt_ids), r.max_new_tokens) for r in requests)
    )


def _warm_up(settings: JobSettings, decoder: AnyDecoder, requests: Sequence[Request]) -> None:
    """Decodes a few tokens that nothing records."""
    captured = settings.pair.specs[0].compile != "none"
    most = _CAPTURE_TOKENS if captured else _WARMUP_TOKENS
    for batch in list(batches(requests, settings.engine.batch_size))[: settings.asked.warmup]:
        short = [replace(r, max_new_tokens=min(r.max_new_tokens, most)) for r in batch]
        decoder.generate(short, settings.asked.seed)
