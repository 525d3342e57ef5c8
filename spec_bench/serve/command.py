"""``spec-bench serve ENGINE``: starts an engine's servers, runs jobs on them, and ends them.

For each method, a plain server and a speculating server take turns prompt by prompt; on a single
GPU they run one after the other. Their rows join those of our decoders for the same prompts.
However this command ends, its servers end; the same command resumes it.
"""

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import field
from pathlib import Path
from signal import strsignal
from typing import Any, Literal, NamedTuple

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.compose import compose_config
from spec_bench.jobs.config.model_files import resolve_or_convert_model
from spec_bench.jobs.sweep.launch import VISIBLE_VARIABLE, GpuReservation, list_visible_gpus
from spec_bench.serve import supervisor
from spec_bench.server.endpoint import ServerClient, ServerError, format_last_line_and_path
from spec_bench.settings.arguments import parse_positive_ints
from spec_bench.settings.configs import find_configs, read_yaml
from spec_bench.settings.fields import format_suggestion, print_wrapped_error
from spec_bench.settings.override_values import quote_value
from spec_bench.settings.validation import read_settings, settings
from spec_bench.system.errors import UsageError
from spec_bench.system.files import open_regular_to_write
from spec_bench.system.redaction import SERVER_KEY_VARIABLE, redact

FOLDER = "server"  # config group of other packages' engines
PLAIN = "plain"
_POLL_S = 0.5


class RunningServer(NamedTuple):
    """A server that is up."""

    job_settings: dict[str, str]  # settings under ``server`` in a job's config
    keeping_descriptor: int  # the server runs as long as a process holds it open


@settings
class ServingEngine:
    """An engine's description: a file of ``engines``, or a user's own."""

    title: str  # in rows
    kind: Literal["openai", "llama_cpp"]
    program: str  # a command or a path
    # arguments of all its servers, with {model}, {port}, {requests}, {slots} and {name}, which is
    # the model's name in the server; without {name} it is the model's path
    arguments: tuple[str, ...]
    speculation: dict[str, tuple[str, ...]]  # further arguments by method, with {draft}
    speculating: tuple[str, ...] = ()  # further arguments of all methods
    environment: dict[str, str] = field(default_factory=dict)  # variables to set if they are unset
    tokens: Literal["ids", "text"] = "ids"

    def build_command(
        self, method: str, placeholders: Mapping[str, str], program: str | None
    ) -> list[str]:
        """Builds a server's command line, with ``program`` if it is given. Raises UsageError if the
        method is unknown or lacks its draft.
        """
        if method != PLAIN and method not in self.speculation:
            raise UsageError(
                f"--with takes {', '.join(self.speculation)} for {self.title}, got {method!r}"
            )
        method_arguments = () if method == PLAIN else (*self.speculating, *self.speculation[method])
        command = [program or self.program]
        for argument in (*self.arguments, *method_arguments):
            for name, value in placeholders.items():
                argument = argument.replace(f"{{{name}}}", value)
            if "{draft}" in argument:
                raise UsageError(f"{self.title} with {method} needs a draft: --draft PATH")
            command.append(argument)
        return command


def read_serving_engine(name_or_path: str) -> ServingEngine:
    """Reads an engine by its name, or from a user's file. Raises UsageError if there is no such
    engine or it is invalid.
    """
    files = find_configs(FOLDER) | find_configs("engines", [Path(__file__).parent])
    path = files.get(name_or_path, Path(name_or_path))
    if not path.is_file():
        suggestion = format_suggestion(name_or_path, list(files))
        names = ", ".join(files)
        raise UsageError(
            f"an engine is one of {names}, or a YAML file; got {name_or_path!r}{suggestion}"
        )
    return read_settings(ServingEngine, read_yaml(path), source=str(path))


def main(options: Namespace) -> int:
    """Runs the command; returns 1 if a server or a job failed. Raises UsageError if the options are
    wrong.
    """
    engine = read_serving_engine(options.engine)
    methods = [method for method in options.methods.split(",") if method and method != PLAIN]
    plan = ServerGroup(engine, options)
    for method in (PLAIN, *methods):
        plan.build_command(method)
    try:
        return plan.run_jobs(methods)
    except ServerError as error:
        print_wrapped_error(f"spec-bench serve: {error}")
        return 1


class ServerGroup:
    """An engine's servers of one model, and the jobs on them."""

    def __init__(self, engine: ServingEngine, options: Namespace) -> None:
        self.engine = engine
        self.options = options
        self.requests = parse_positive_ints("--requests", options.requests)
        pair = compose_config(options.words).pair
        self.model: str = options.model or _resolve_model(pair.target)
        self.draft = (
            options.draft or (isinstance(pair.draft, str) and _resolve_model(pair.draft)) or None
        )
        if engine.kind == "llama_cpp":
            self.model = _prefer_gguf_beside_folder(self.model)
            self.draft = self.draft and _prefer_gguf_beside_folder(self.draft)
            if not self.model.endswith(".gguf"):
                raise UsageError(
                    f"llama.cpp serves a GGUF file, got {self.model}: --model FILE.gguf (make "
                    "smollm2 and make qwen_coder leave those of their pairs)"
                )
        if "--api-key" in options.arguments and not os.environ.get(SERVER_KEY_VARIABLE):
            raise UsageError(
                f"--arguments has an --api-key: requests need it in {SERVER_KEY_VARIABLE}"
            )
        # Distinguishes our server from another program's server on the same port.
        self.name = f"target-{secrets.token_hex(8)}"
        self.logs = Path(options.logs or tempfile.mkdtemp(prefix="spec_bench-serve-"))
        self.logs.mkdir(parents=True, exist_ok=True)

    def build_command(self, method: str, port: int | str = "PORT", name: str = "NAME") -> list[str]:
        """Builds a server's command line."""
        max_requests = max(self.requests)
        placeholders = {
            "model": self.model, "port": str(port), "name": name, "requests": str(max_requests),
            "slots": str(max_requests * self.options.context),
        }  # fmt: skip
        if self.draft:
            placeholders["draft"] = self.draft
        command = self.engine.build_command(method, placeholders, self.options.program)
        return [*command, *shlex.split(self.options.arguments)]

    def run_jobs(self, methods: Sequence[str]) -> int:
        """Runs all jobs, one after the other, and returns the highest status. Raises UsageError if
        the program is missing, ServerError if a server does not come up.
        """
        program = self.options.program or self.engine.program
        if shutil.which(program) is None:
            title = self.engine.title
            raise UsageError(f"{title}'s program {program!r} is not there: --program FILE")
        supervisor.adopt_orphans()
        status = 0
        gpus = list_visible_gpus()
        run_together = len(gpus) != 1  # on one GPU two servers would disturb each other
        with ExitStack() as servers:
            plain_server = servers.enter_context(self.running_server(PLAIN))
            if not (methods and run_together):
                status = self.run_job(PLAIN, plain_server, None)
            if not run_together:
                servers.close()
            kept_plain_server = plain_server if run_together else None
            for method in methods:
                with self.running_server(method) as method_server:
                    status = max(status, self.run_job(method, method_server, kept_plain_server))
        return status

    @contextmanager
    def running_server(self, method: str) -> Iterator[RunningServer]:
        """Runs a server within the block. Raises ServerError if it ends, or does not answer in
        time.
        """
        port = _find_free_port()
        gpus = list_visible_gpus()
        command = self.build_command(method, port, self.name)
        log = self.logs / f"{method}.log"
        patience = self.options.patience
        has_name = "{name}" in self.engine.arguments
        url = f"http://127.0.0.1:{port}/v1"
        model = self.name if has_name else self.model
        environment = {**self.engine.environment, **os.environ}
        key = os.environ.get(SERVER_KEY_VARIABLE, "").strip()
        with (
            ExitStack() as stack,
            closing(ServerClient(url, model, key, answer_timeout_s=5)) as client,
        ):
            if gpus:
                stack.callback((reservation := GpuReservation()).release)
                environment[VISIBLE_VARIABLE] = ",".join(
                    reservation.claim(gpus, self.options.gpus, wait=True)
                )
            title = f"{self.engine.title}, {method}"
            began = time.monotonic()
            print(f"{title}: {redact(' '.join(command), key)} (log: {log})", flush=True)
            with running_process(command, log, env=environment) as process:
                while process.poll() is None and not _is_up(client, has_name):
                    if time.monotonic() - began > patience:
                        raise ServerError(f"{method} is silent after {patience:g} s: {log}")
                    time.sleep(_POLL_S)
                if (status := process.poll()) is not None:  # another program answered
                    signal_name = f" ({strsignal(status - 128)})" if 128 < status < 160 else ""
                    raise ServerError(
                        f"{method} ended with status {status}{signal_name}: "
                        f"{format_last_line_and_path(log)}"
                    )
                print(f"{title}: up after {time.monotonic() - began:.0f} s", flush=True)
                assert process.stdin is not None
                # without the port
                start_command = redact(" ".join(self.build_command(method)), key)
                server_settings = {
                    "url": url,
                    "model": model,
                    "started": start_command,
                    "log": str(log),
                }
                yield RunningServer(server_settings, process.stdin.fileno())

    def run_job(
        self, method: str, server: RunningServer, plain_server: RunningServer | None
    ) -> int:
        """Runs a job, or a sweep over the numbers of concurrent requests;
        returns its exit status.
        """
        engine = self.engine
        name = f"{Path(self.options.engine).stem}_{method}"
        decoder = BASELINE if method == PLAIN else name
        server_settings = {
            "decoder": decoder,
            "kind": engine.kind,
            "tokens": engine.tokens,
            **server.job_settings,
        }
        if plain_server is not None:
            plain_settings = plain_server.job_settings
            server_settings |= {f"baseline_{key}": value for key, value in plain_settings.items()}
        is_multirun = len(self.requests) > 1 or self.options.sweeps
        requests = ",".join(map(str, self.requests))
        command = [
            sys.executable,
            "-m",
            "spec_bench",
            *(["-m"] if is_multirun else []),
            "engine=server",
            *(f"server.{key}={quote_value(value)}" for key, value in server_settings.items()),
            f"engine.batch_size={requests}",
            *(["engine.batching=continuous"] if max(self.requests) > 1 else []),
            *self.options.words,
        ]
        # The job's supervisor holds the servers open too, so that none ends before its job.
        servers = filter(None, (server, plain_server))
        held_descriptors = [server.keeping_descriptor for server in servers]
        with running_process(command, held_descriptors=held_descriptors) as process:
            return abs(process.wait())  # below 0: a signal


def _resolve_model(model: str) -> str:
    return model if model.endswith(".gguf") else resolve_or_convert_model(model)


def _prefer_gguf_beside_folder(model: str) -> str:
    """Returns the GGUF file next to a model's folder, or the folder if there is none."""
    return f"{model}.gguf" if Path(f"{model}.gguf").is_file() else model


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _is_up(server: ServerClient, has_name: bool) -> bool:
    """Returns whether a server answers and, if it was started with a random name, has that name."""
    return server.fetch_text("health") is not None and (
        not has_name or server.model in (server.fetch_text("v1/models") or "")
    )


@contextmanager
def running_process(
    command: Sequence[str],
    log: Path | None = None,
    held_descriptors: Sequence[int] = (),
    **options: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process that ends with the block, with this process or with its supervisor.

    It writes to ``log``, else to our output. Its supervisor holds ``held_descriptors`` open while
    it runs.
    """
    earlier_children = supervisor.find_child_pids()
    with open_regular_to_write(log, "wb") if log else nullcontext() as file:
        process = subprocess.Popen(
            [sys.executable, supervisor.__file__, str(log or ""), *command], stdin=subprocess.PIPE,
            stdout=file, stderr=file, start_new_session=True, pass_fds=held_descriptors, **options,
        )  # fmt: skip
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
        supervisor.kill_children(earlier_children)  # left by a killed supervisor
