"""A server decodes a job's cells: asked in turn with a plain one, on disk as answers come.

Of the models only the target's tokenizer is loaded. Prompts, seeds, turns, records and results are
those of any other job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spec_bench.jobs.config.served_cells import SERVER, client
from spec_bench.jobs.config.settings import JobSettings
from spec_bench.jobs.job.backend import Backend
from spec_bench.jobs.job.turns import batches
from spec_bench.jobs.work.cell_run import CellRun
from spec_bench.jobs.work.session import Session
from spec_bench.records.types import Request
from spec_bench.server.decoder import Asking, ServedDecoder
from spec_bench.server.endpoint import Server, fit

_WARMUP_TOKENS = 4


class ServerBackend(Backend):
    """Servers that run already, one a cell."""

    def __init__(self, settings: JobSettings, tokenizer: Any, tokens: int) -> None:
        self.vocabulary = tokens
        self._tokenizer = tokenizer
        self._servers: list[Server] = []
        self._asking = _asking(settings, tokenizer, tokens)

    def prepare(self, session: Session, runs: Sequence[CellRun]) -> None:
        """Each cell's decoder over its server, warmed up; one whose server is silent has failed."""
        settings, requests = session.settings, session.requests
        assert settings.served is not None
        for run in runs:
            server = client(settings.served, run.cell)
            self._servers.append(server)
            decoder: Any = ServedDecoder(  # of no models
                server, self._asking, settings.engine.batch_size, settings.served.rate
            )
            run.decoder = decoder
            decoder.preflight(requests)
            if any(run.lacking(requests, repeat) for repeat in range(settings.asked.repeats)):
                try:
                    _warm_up(settings, decoder, requests)
                except Exception as error:
                    run.fail(error)

    def ran_with(self, session: Session) -> dict[str, Any]:
        """What the server says of itself."""
        named = {library_of(server) for server in self._servers}
        return {
            "device": SERVER,
            "stop_rule": session.settings.task.stop_rule(self._tokenizer),
            "library": named.pop() if len(named) == 1 else SERVER,
        }

    def close(self) -> None:
        """Closes the connections."""
        for server in self._servers:
            server.close()


def _asking(settings: JobSettings, tokenizer: Any, tokens: int) -> Asking:
    """What every request says."""
    sampling = settings.sampling
    asking = Asking(sampling.temperature, sampling.top_k, sampling.top_p, tokens)
    if settings.served is None or settings.served.tokens == "ids":
        return asking
    return replace(
        asking, tokenise=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    )


def _warm_up(settings: JobSettings, decoder: ServedDecoder, requests: Sequence[Request]) -> None:
    """A few tokens that nothing records."""
    for batch in list(batches(requests, settings.engine.batch_size))[: settings.asked.warmup]:
        short = [
            replace(each, max_new_tokens=min(each.max_new_tokens, _WARMUP_TOKENS)) for each in batch
        ]
        decoder.generate(short, settings.asked.seed)


def library_of(server: Server) -> str:
    """A server's name and version as far as it tells them; vLLM says both."""
    if server.kind == "llama_cpp":
        return f"llama.cpp {_said(server.read('props'), 'build_info')}".strip()
    version = _said(server.read("version"), "version")
    if not version:
        return SERVER
    known = "vllm:" in (server.read("metrics") or "")
    return f"{'vllm' if known else SERVER} {version}"


def _said(answer: str | None, name: str) -> str:
    """A text in a server's JSON, in one line; "" where there is none."""
    try:
        value = json.loads(answer or "{}").get(name)
    except (ValueError, AttributeError):
        value = None
    return fit(value, longest=40) if isinstance(value, str) else ""
