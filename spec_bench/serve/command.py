"""``spec-bench serve ENGINE``: an engine's servers started, asked by a job, and ended.

A plain server and one that speculates run beside each other and take turns prompt by prompt; then
the next method. Their rows go where those of our decoders for the same prompts go. However this
command ends, its servers end; the same command goes on where it was stopped.
"""

import argparse
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from signal import strsignal
from typing import Any, Literal

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.compose import compose_config, one_line
from spec_bench.jobs.config.model_files import model_path
from spec_bench.jobs.sweep.launch import VISIBLE, GpuReservation, visible_devices
from spec_bench.serve import keeper
from spec_bench.server.endpoint import Server, ServerError, last_line
from spec_bench.settings.arguments import Parser, whole_numbers
from spec_bench.settings.configs import find_configs, read_yaml
from spec_bench.settings.fields import print_error, suggest
from spec_bench.settings.validation import check, settings
from spec_bench.settings.words import quote_value
from spec_bench.system import signals
from spec_bench.system.errors import UsageError
from spec_bench.system.files import open_own
from spec_bench.system.redaction import KEY, redact

FOLDER = "server"
PLAIN = "plain"
_POLL_S = 0.5
# What a job is told of a server that answers, and the descriptor that holds it.
Running = tuple[dict[str, str], int]


@settings
class ServingEngine:
    """One file of ``conf/server``."""

    title: str  # of its rows
    kind: Literal["openai", "llama_cpp"]
    program: str  # its command, or a path
    # Of all its servers; {model}, {port}, {requests}, {slots} and {name} are filled in; the last is
    # the model's name there, else it is its path.
    arguments: tuple[str, ...]
    speculation: dict[str, tuple[str, ...]]  # more arguments by method; {draft} is filled in
    speculating: tuple[str, ...] = ()  # more of those that speculate, whatever the method
    tokens: Literal["ids", "text"] = "ids"  # what it streams

    def command(self, method: str, places: Mapping[str, str], program: str | None) -> list[str]:
        """What starts one server, perhaps another program than its own. Raises ValueError: a method
        that it does not have, or one that needs what is not given.
        """
        if method != PLAIN and method not in self.speculation:
            raise UsageError(
                f"--with takes {', '.join(self.speculation)} for {self.title}, got {method!r}"
            )
        more = () if method == PLAIN else (*self.speculating, *self.speculation[method])
        filled = [program or self.program]
        for each in (*self.arguments, *more):
            for name, value in places.items():
                each = each.replace(f"{{{name}}}", value)
            if "{draft}" in each:
                raise UsageError(f"{self.title} with {method} needs a draft: --draft PATH")
            filled.append(each)
        return filled


def read_engine(name: str) -> ServingEngine:
    """An engine by its file's name. Raises ValueError: there is none, or its file is wrong."""
    files = find_configs(FOLDER)
    if name not in files:
        near = suggest(name, list(files))
        raise UsageError(f"an engine is one of {', '.join(files)}, got {name!r}{near}")
    return check(ServingEngine, read_yaml(files[name]), str(files[name]))


def main(arguments: Sequence[str]) -> int:
    """Returns the command's status: 2 if it cannot be right, 1 if a server or a job failed."""
    parser = Parser(prog="spec-bench serve")
    add = parser.add_argument
    add("engine", metavar="ENGINE", help="a file of conf/server: llama_cpp, vllm, sglang")
    add("--with", dest="methods", default="", help="ways of speculation, such as ngram,draft_model")
    add("--program", help="the engine's command, if it is not on the PATH")
    add("--model", "--target", help="what it loads; default: the pair's target")
    add("--draft", help="what it drafts with; default: the pair's draft")
    add("--arguments", default="", help="more of the engine's own: --arguments='-t 8'")
    add("--requests", default="1", help="under way together; 1,4,16: a job each, with one server")
    add("--context", type=int, default=4096, help="tokens of a prompt and its answer, at most")
    add("--gpus", type=int, default=1, help="of each server, where this machine has any")
    add("--patience", type=float, default=1200.0, help="seconds until a server must answer")
    add("--logs", help="folder of the servers' output")
    options, overrides = parser.parse_known_args(list(arguments))
    if wrong := [each for each in overrides if each.startswith("-") and each != "-m"]:
        parser.error(f"no option {redact(wrong[0])}")
    try:
        engine = read_engine(options.engine)
        methods = [each for each in options.methods.split(",") if each and each != PLAIN]
        plan = ServerGroup(engine, options, overrides)
        for method in (PLAIN, *methods):
            plan.command(method)
        with signals.raise_on_signals():
            return plan.run(methods)
    except UsageError as error:
        print_error(f"spec-bench serve: {one_line(error)}")
        return 2
    except ServerError as error:
        print_error(f"spec-bench serve: {error}")
        return 1


class ServerGroup:
    """An engine's servers of one model: what is started and asked."""

    def __init__(
        self, engine: ServingEngine, options: argparse.Namespace, overrides: Sequence[str]
    ) -> None:
        self.engine, self.options, self.overrides = engine, options, list(overrides)
        self.requests = whole_numbers("--requests", options.requests)
        pair = compose_config([each for each in overrides if each != "-m"]).pair
        self.model: str = options.model or _path(pair.target)
        self.draft = options.draft or (isinstance(pair.draft, str) and _path(pair.draft)) or None
        if engine.kind == "llama_cpp":
            self.model = _gguf_beside(self.model)
            self.draft = self.draft and _gguf_beside(self.draft)
            if not self.model.endswith(".gguf"):
                raise UsageError(
                    f"llama.cpp serves a GGUF file, got {self.model}: --model FILE.gguf (make "
                    "smollm2 and make qwen_coder leave those of their pairs)"
                )
        if "--api-key" in options.arguments and not os.environ.get(KEY):
            raise UsageError(f"--arguments has an --api-key: requests need it in {KEY}")
        # A stranger on a port of ours does not answer to it.
        self.name = f"target-{secrets.token_hex(8)}"
        self.logs = Path(options.logs or tempfile.mkdtemp(prefix="spec_bench-serve-"))
        self.logs.mkdir(parents=True, exist_ok=True)

    def command(self, method: str, port: int | str = "PORT", name: str = "NAME") -> list[str]:
        """Returns what starts a server."""
        most = max(self.requests)
        places = {
            "model": self.model, "port": str(port), "name": name, "requests": str(most),
            "slots": str(most * self.options.context),
        }  # fmt: skip
        if self.draft:
            places["draft"] = self.draft
        command = self.engine.command(method, places, self.options.program)
        return [*command, *shlex.split(self.options.arguments)]

    def run(self, methods: Sequence[str]) -> int:
        """All jobs, one after the other. Raises ValueError: its program is not there; ServerError:
        a server does not come up.
        """
        program = self.options.program or self.engine.program
        if shutil.which(program) is None:
            title = self.engine.title
            raise UsageError(f"{title}'s program {program!r} is not there: --program FILE")
        keeper.adopt()
        status = 0
        gpus = visible_devices()
        together = len(gpus) != 1  # on one GPU two servers would share what they measure
        with ExitStack() as up:
            first = up.enter_context(self.server(PLAIN))
            if not (methods and together):
                status = self.job(PLAIN, first, None)
            if not together:
                up.close()
            plain = first if together else None
            for method in methods:
                with self.server(method) as found:
                    status = max(status, self.job(method, found, plain))
        return status

    @contextmanager
    def server(self, method: str) -> Iterator[Running]:
        """A server, up within the block. Raises ServerError: it ends, or is silent for too long."""
        port = _free_port()
        gpus = visible_devices()
        command = self.command(method, port, self.name)
        log = self.logs / f"{method}.log"
        patience = self.options.patience
        named = "{name}" in self.engine.arguments
        url = f"http://127.0.0.1:{port}/v1"
        model = self.name if named else self.model
        environment = dict(os.environ)
        key = os.environ.get(KEY, "").strip()
        with ExitStack() as held, closing(Server(url, model, key, answer_s=5)) as asked:
            if gpus:
                held.callback((claim := GpuReservation()).release)
                environment[VISIBLE] = ",".join(claim.take(gpus, self.options.gpus, wait=True))
            shown = f"{self.engine.title}, {method}"
            began = time.monotonic()
            print(f"{shown}: {redact(' '.join(command), key)} (log: {log})", flush=True)
            with keep_running(command, log, env=environment) as keeping:
                while keeping.poll() is None and not _wait_until_up(asked, named):
                    if time.monotonic() - began > patience:
                        raise ServerError(f"{method} is silent after {patience:g} s: {log}")
                    time.sleep(_POLL_S)
                if (status := keeping.poll()) is not None:  # who answered then is a stranger
                    why = f" ({strsignal(status - 128)})" if 128 < status < 160 else ""
                    raise ServerError(f"{method} ended with status {status}{why}: {last_line(log)}")
                print(f"{shown}: up after {time.monotonic() - began:.0f} s", flush=True)
                assert keeping.stdin is not None
                started = redact(" ".join(self.command(method)), key)  # of any port
                told = {"url": url, "model": model, "started": started, "log": str(log)}
                yield told, keeping.stdin.fileno()

    def job(self, method: str, server: Running, plain: Running | None) -> int:
        """Returns one job, or one for each number of requests under way; its status."""
        engine = self.engine
        name = f"{self.options.engine}_{method}"
        decoder = BASELINE if method == PLAIN else name
        asked = {"decoder": decoder, "kind": engine.kind, "tokens": engine.tokens, **server[0]}
        if plain is not None:
            asked |= {f"baseline_{key}": value for key, value in plain[0].items()}
        several = len(self.requests) > 1 and "-m" not in self.overrides
        requests = ",".join(map(str, self.requests))
        command = [
            *(sys.executable, "-m", "spec_bench", *(["-m"] if several else []), "engine=server"),
            *(f"server.{key}={quote_value(value)}" for key, value in asked.items()),
            f"engine.batch_size={requests}",
            *(["engine.batching=continuous"] if max(self.requests) > 1 else []),
            *self.overrides,
        ]
        # The servers are held by the job's keeper, too: none ends before the job that asks it.
        with keep_running(command, held=[each[1] for each in (server, plain) if each]) as keeping:
            return abs(keeping.wait())  # below 0: a signal


def _path(model: str) -> str:
    return model if model.endswith(".gguf") else model_path(model)


def _gguf_beside(model: str) -> str:
    """Returns the GGUF file that a model's folder was made of, where it lies beside the folder."""
    return f"{model}.gguf" if Path(f"{model}.gguf").is_file() else model


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_until_up(server: Server, named: bool) -> bool:
    """Returns whether a server answers, and to the name drawn for it where it has one."""
    return server.read("health") is not None and (
        not named or server.model in (server.read("v1/models") or "")
    )


@contextmanager
def keep_running(
    command: Sequence[str], log: Path | None = None, held: Sequence[int] = (), **more: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, with this process or with its keeper.

    It writes to a log, else to our output; descriptors are held open until it has ended.
    """
    spared = keeper.children()
    with open_own(log, "wb") if log else nullcontext() as file:
        keeping = subprocess.Popen(
            [sys.executable, keeper.__file__, str(log or ""), *command], stdin=subprocess.PIPE,
            stdout=file, stderr=file, start_new_session=True, pass_fds=held, **more,
        )  # fmt: skip
    try:
        yield keeping
    finally:
        assert keeping.stdin is not None
        keeping.stdin.close()
        keeping.wait()
        keeper.sweep(spared)  # what a killed keeper left
