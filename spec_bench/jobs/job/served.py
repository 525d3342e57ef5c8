"""One job that a server decodes: asked in turn with a plain one, on disk as answers come.

Only the target's tokenizer is loaded. Prompts, seeds, turns, records and results are those of any
other job, and a killed one continues after the last answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.served_cells import SERVER, client
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.job import describe, judge, open_cells, with_baseline
from spec_bench.jobs.job.turns import batches, decode_in_turn
from spec_bench.jobs.rows.collect import collect
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.metering import Metering
from spec_bench.jobs.work.models import tokenizer_of
from spec_bench.jobs.work.pairing import timings_of
from spec_bench.jobs.work.prompts import Prompts
from spec_bench.measure.machine import Machine
from spec_bench.records.types import CellResult, Request
from spec_bench.server.decoder import Asking, ServedDecoder
from spec_bench.server.endpoint import Server

log = logging.getLogger(__name__)
_WARMUP_TOKENS = 4


def run_served(settings: JobSettings) -> list[CellResult]:
    """Asks for what is not yet complete and collects all of the job's cells.

    Args:
        settings: checked settings.

    Returns:
        One result per cell, the baseline first if there is one.

    Raises:
        ValueError: no tokenizer or no prompts, before anything is asked.
    """
    settings = settings.pinned()
    with ExitStack() as locks:
        runs = open_cells(settings, locks)
        pending = [run for run in runs if not run.store.complete(settings.repeats)]
        if pending:
            metering = locks.enter_context(Metering(settings))
            machine = locks.enter_context(Machine(settings.device))
            tokenizer, tokens = tokenizer_of(settings.pair)
            prompts = Prompts.build(settings, tokenizer)
            baseline = runs[0] if runs[0].cell.name == BASELINE else None
            for run in runs:
                run.done = run.store.mend_tokens(tokens)
            against = timings_of(baseline) if baseline else {}
            active = with_baseline(settings, baseline, pending, against, prompts.requests)
            describe(settings, pending)
            asking = _asking(settings, tokenizer, tokens)
            servers = _prepare(settings, active, prompts.requests, asking)
            for server in servers:
                locks.callback(server.close)
            decode_in_turn(settings, active, baseline, against, prompts, metering, machine)
            collect(settings, runs, pending, against, prompts, metering, _ran(settings, servers))
        judge(settings, runs)
        results = [run.store.result() for run in runs]
    return [result for result in results if result is not None]


def _asking(settings: JobSettings, tokenizer: Any, tokens: int) -> Asking:
    """What every request says."""
    sampling = settings.sampling
    asking = Asking(sampling.temperature, sampling.top_k, sampling.top_p, tokens)
    if settings.served is None or settings.served.tokens == "ids":
        return asking
    return replace(
        asking, tokenise=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    )


def _prepare(
    settings: JobSettings, runs: Sequence[CellRun], requests: Sequence[Request], asking: Asking
) -> list[Server]:
    """Each cell's decoder over its server, warmed up; a cell whose server is silent has failed."""
    assert settings.served is not None
    servers = []
    for run in runs:
        server = client(settings.served, run.cell)
        decoder: Any = ServedDecoder(server, asking, settings.batch_size)  # of no models
        run.decoder = decoder
        servers.append(server)
        decoder.preflight(requests)
        if any(run.lacking(requests, repeat) for repeat in range(settings.repeats)):
            try:
                _warm_up(settings, decoder, requests)
            except Exception as error:
                run.fail(error)
    return servers


def _warm_up(settings: JobSettings, decoder: ServedDecoder, requests: Sequence[Request]) -> None:
    """A few tokens that nothing records."""
    for batch in list(batches(requests, settings.batch_size))[: settings.warmup]:
        short = [
            replace(each, max_new_tokens=min(each.max_new_tokens, _WARMUP_TOKENS)) for each in batch
        ]
        decoder.generate(short, settings.seed)


def _ran(settings: JobSettings, servers: Sequence[Server]) -> dict[str, Any]:
    """What the server says of itself; fields of ``CellFacts``."""
    tokenizer, _ = tokenizer_of(settings.pair)
    named = {library_of(server) for server in servers}
    return {
        "device": SERVER,
        "stop_rule": settings.task.stop_rule(tokenizer),
        "library": named.pop() if len(named) == 1 else SERVER,
    }


def library_of(server: Server) -> str:
    """A server's name and version as far as it tells them; vLLM says both."""
    said = server.read("version")
    try:
        version = json.loads(said or "{}").get("version")
    except (ValueError, AttributeError):
        version = None
    if not isinstance(version, str) or not version:
        return SERVER
    known = "vllm:" in (server.read("metrics") or "")
    return f"{'vllm' if known else SERVER} {' '.join(version.split())[:40]}"
