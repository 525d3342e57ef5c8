"""Cells that a server decodes: checks of the job, and the server's client."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from spec_bench.jobs.config.cells import BASELINE, Cell
from spec_bench.jobs.config.config import RunSettings
from spec_bench.measure.energy import meter
from spec_bench.records.sampling import SamplingSettings
from spec_bench.server.endpoint import ServerClient
from spec_bench.server.settings import ServerSettings
from spec_bench.system.errors import UsageError
from spec_bench.system.redaction import SERVER_KEY_VARIABLE

SERVER = "server"
"""Stands for the device, and for the library until its version is known."""


def refuse_request_unfit_for_server(request: RunSettings) -> None:
    """Raises UsageError if a job does not fit its server, or names a server
    that it does not use.
    """
    if not request.engine.is_served:
        if request.server.url is not None:
            raise UsageError(f"server.url={request.server.url} goes with engine=server")
        return
    for problem in _iter_server_conflicts(request):
        raise UsageError(problem)
    for cell in build_served_cells(request):
        build_server_client(request.server, cell).close()


def _iter_server_conflicts(request: RunSettings) -> Iterator[str]:
    server = request.server
    reason = "a server decodes as it was started and cannot be told"
    if server.url is None:
        yield "server.url must be a base address such as http://127.0.0.1:8000/v1, got null"
    if (request.decoder.get("verifier") or {}).get("rule") != SERVER:
        decoder_name = request.decoder.get("name")
        yield (
            f"{reason} decoder={decoder_name}; engine=server takes decoder=served, named by "
            "server.decoder"
        )
    for key in ("cells", "spec", "simulate"):
        if value := getattr(request, key):
            choice = list(value) if isinstance(value, tuple) else value
            yield f"{reason} {key}={choice}; what it decodes by is named by server.decoder"
    if request.confirm is not None:
        yield "confirm goes with several decoders; engine=server has one"
    if server.rate is not None and request.engine.batching != "continuous":
        yield f"server.rate={server.rate:g} goes with engine.batching=continuous"
    if server.kind == "llama_cpp" and server.tokens == "text":
        yield "server.tokens=text does not go with server.kind=llama_cpp, which sends token ids"
    if server.has_baseline and server.decoder == BASELINE:
        yield f"server.decoder must not be {BASELINE!r} beside a baseline's own row"
    if request.energy.devices is None and "devices" in meter[request.energy.meter].settings:
        yield (
            f"energy={request.energy.meter} of a server is that of its GPUs: name them, "
            "energy.devices=[0]"
        )


def refuse_unserved_sampling(server: ServerSettings, sampling: SamplingSettings) -> None:
    """Raises UsageError if a server lacks a setting, or may truncate in another order than
    ``core/warp.py`` (vLLM applies min-p before top-p).
    """
    sampling.get_portable_options()
    if sampling.draft_temperature is not None:
        raise UsageError(
            "a server decodes as it was started and cannot be told "
            f"generation.draft_temperature={sampling.draft_temperature:g}"
        )
    if sampling.min_p and sampling.top_p < 1 and server.kind != "llama_cpp":
        raise UsageError(
            f"generation.min_p={sampling.min_p:g} with generation.top_p={sampling.top_p:g}: "
            "servers differ in which comes first; take generation.min_p=0 or generation.top_p=1"
        )


def build_served_cells(request: RunSettings) -> tuple[Cell, ...]:
    """Builds the plain server's cell, if there is such a server, and the server's cell."""
    server = request.server
    return tuple(
        _build_served_cell(request, is_baseline)
        for is_baseline in (True, False)
        if server.has_baseline or not is_baseline
    )


def _build_served_cell(request: RunSettings, is_baseline: bool) -> Cell:
    """Builds a server's cell; its run id depends on the command that started it, or else on its
    address.
    """
    server = request.server.baseline_settings if is_baseline else request.server
    server_identity: dict[str, Any] = {
        "started": server.started,
        "model": request.pair.target,
    }
    if server.started is None:  # a server that ``serve`` started has a random name
        server_identity = {"url": server.url, "model": server.model or request.pair.target}
    if server.rate is not None:
        server_identity["rate"] = server.rate
    if server.tokens != "ids":
        server_identity["tokens"] = server.tokens
    if server.kind != "openai":
        server_identity["kind"] = server.kind
    decoder = {**request.decoder, "name": BASELINE if is_baseline else server.decoder}
    return replace(Cell.from_mapping(decoder), settings={**decoder, "server": server_identity})


def build_server_client(settings: ServerSettings, cell: Cell) -> ServerClient:
    """Builds the client of a cell's server, with the key from the environment."""
    if settings.has_baseline and cell.name == BASELINE:
        settings = settings.baseline_settings
    return ServerClient(
        settings.url or "",
        settings.model or cell.settings["server"]["model"],
        os.environ.get(SERVER_KEY_VARIABLE, "").strip(),
        expects_ids=settings.tokens == "ids",
        kind=settings.kind,
        timeout_s=settings.timeout_s,
        answer_timeout_s=settings.answer_s,
        attempts=settings.attempts,
        retry_wait_s=settings.wait_s,
        log=settings.log,
    )
