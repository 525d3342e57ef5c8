"""``python -m spec_bench serve ENGINE``: an engine's servers started, asked by a job, and ended.

A plain server and one that speculates run beside each other and take turns prompt by prompt; then
the next method. Their rows go where those of our decoders for the same prompts go. However this
command ends, its servers end; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from spec_bench.jobs.config.cells import BASELINE
from spec_bench.jobs.config.compose import one_line, recipe_arguments, register
from spec_bench.jobs.config.model_files import model_path
from spec_bench.jobs.sweep.devices import VISIBLE, Claim, visible_devices
from spec_bench.serve import keeper
from spec_bench.serve.engines import PLAIN, ServingEngine, read_engine
from spec_bench.server.masking import fit
from spec_bench.settings.arguments import Parser
from spec_bench.settings.configs import conf_dirs

_POLL_S = 0.5


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Attributes:
        url: where.
        model: its name there.
    """

    url: str
    model: str


def main(arguments: Sequence[str]) -> int:
    """The command's status: 2 if it cannot be right, 1 if a server or a job failed."""
    parser = _parser()
    options, overrides = parser.parse_known_args(list(arguments))
    if wrong := [each for each in overrides if each.startswith("-") and each != "-m"]:
        parser.error(f"no option {wrong[0]}")
    try:
        engine = read_engine(options.engine)
        methods = [each for each in options.methods.split(",") if each and each != PLAIN]
        plan = _Plan(engine, options, overrides)
        for method in (PLAIN, *methods):
            plan.command(method, "PORT")
        return plan.run(methods)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        print(f"spec_bench serve: {one_line(error)}", file=sys.stderr)
        return 2
    except _FailedError as error:
        print(f"spec_bench serve: {error}", file=sys.stderr)
        return 1


class _FailedError(Exception):
    """A server does not come up."""


class _Plan:
    """What is started and asked."""

    def __init__(
        self, engine: ServingEngine, options: argparse.Namespace, overrides: Sequence[str]
    ) -> None:
        self.engine, self.options, self.overrides = engine, options, list(overrides)
        self.requests = _numbers(options.requests)
        pair = _pair(overrides)
        self.model: str = options.model or pair["target"]
        self.draft = options.draft or pair["draft"]
        if engine.kind == "llama_cpp" and not self.model.endswith(".gguf"):
            raise ValueError(f"llama.cpp serves a GGUF file, got {self.model}: --model FILE.gguf")
        self.logs = Path(options.logs or tempfile.mkdtemp(prefix="spec_bench-serve-"))
        self.logs.mkdir(parents=True, exist_ok=True)

    def command(self, method: str, port: int | str) -> list[str]:
        """What starts a server."""
        most = max(self.requests)
        places = {
            "model": self.model, "port": str(port), "requests": str(most),
            "slots": str(most * self.options.context),
        }  # fmt: skip
        if self.draft:
            places["draft"] = self.draft
        command = self.engine.command(method, places, self.options.program)
        return [*command, *shlex.split(self.options.arguments)]

    def run(self, methods: Sequence[str]) -> int:
        """All jobs, one after the other.

        Raises:
            _FailedError: a server does not come up.
        """
        status, gpus = 0, visible_devices()
        together = len(gpus) != 1  # on one GPU two servers would share what they measure
        with ExitStack() as up:
            plain = up.enter_context(self.server(PLAIN)) if together or not methods else None
            if not methods and plain is not None:
                return self.job(PLAIN, plain, None)
            if not together:
                with self.server(PLAIN) as alone:
                    status = self.job(PLAIN, alone, None)
            for method in methods:
                with self.server(method) as found:
                    status = max(status, self.job(method, found, plain))
        return status

    @contextmanager
    def server(self, method: str) -> Iterator[Running]:
        """A server, up within the block.

        Raises:
            _FailedError: it ends, or is silent for too long.
        """
        port, gpus = _free_port(), visible_devices()
        command, log = self.command(method, port), self.logs / f"{method}.log"
        environment, claim = dict(os.environ), Claim()
        if gpus:
            environment[VISIBLE] = ",".join(claim.take(gpus, self.options.gpus, wait=True))
        print(f"{self.engine.title}, {method}: {' '.join(command)} (log: {log})", flush=True)
        with log.open("wb") as file:
            keeping = subprocess.Popen(
                [sys.executable, keeper.__file__, *command],
                stdin=subprocess.PIPE, stdout=file, stderr=file, env=environment,
                start_new_session=True,
            )  # fmt: skip
        try:
            began = time.monotonic()
            while not _healthy(port):
                if keeping.poll() is not None:
                    raise _FailedError(
                        f"{method} ended with status {keeping.returncode}: {_last(log)}"
                    )
                if time.monotonic() - began > self.options.patience:
                    raise _FailedError(
                        f"{method} is silent after {self.options.patience:g} s: {log}"
                    )
                time.sleep(_POLL_S)
            print(
                f"{self.engine.title}, {method}: up after {time.monotonic() - began:.0f} s",
                flush=True,
            )
            yield Running(f"http://127.0.0.1:{port}/v1", self.engine.served or self.model)
        finally:
            assert keeping.stdin is not None
            keeping.stdin.close()  # which ends the server
            keeping.wait()
            claim.release()

    def job(self, method: str, server: Running, plain: Running | None) -> int:
        """One job, or one for each number of requests under way; its status."""
        engine, name = self.engine, f"{self.options.engine}_{method}"
        asked = {
            "url": server.url, "model": server.model, "started": self._started(method),
            "decoder": BASELINE if method == PLAIN else name, "kind": engine.kind,
            "tokens": engine.tokens,
        }  # fmt: skip
        if plain is not None:
            asked |= {"baseline_url": plain.url, "baseline_model": plain.model}
            asked |= {"baseline_started": self._started(PLAIN)}
        several = len(self.requests) > 1 and "-m" not in self.overrides
        requests = ",".join(map(str, self.requests))
        command = [
            *(sys.executable, "-m", "spec_bench", *(["-m"] if several else []), "engine=server"),
            *(f"server.{key}={_quoted(value)}" for key, value in asked.items()),
            f"engine.batch_size={requests}",
            *(["engine.batching=continuous"] if max(self.requests) > 1 else []),
            *self.overrides,
        ]
        return subprocess.run(command, check=False).returncode

    def _started(self, method: str) -> str:
        """How a server is started, wherever it is: what its rows are known by."""
        return " ".join(self.command(method, "PORT"))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m spec_bench serve",
        description=str(__doc__).replace("``", ""),
        epilog="All else is a job's: pair=smollm2 task=humaneval task.metrics=[] name=smollm2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("engine", metavar="ENGINE", help="a file of conf/server: llama_cpp, vllm, sglang")
    add("--with", dest="methods", default="", help="ways of speculation, such as ngram,draft_model")
    add("--program", help="the engine's command, if it is not on the PATH")
    add("--model", help="what it loads; default: the pair's target")
    add("--draft", help="what it drafts with; default: the pair's draft")
    add("--arguments", default="", help="more of the engine's own: --arguments='-t 8'")
    add("--requests", default="1", help="under way together; 1,4,16: a job each, with one server")
    add("--context", type=int, default=4096, help="tokens of a prompt and its answer, at most")
    add("--gpus", type=int, default=1, help="of each server, where this machine has any")
    add("--patience", type=float, default=1200.0, help="seconds until a server must answer")
    add("--logs", help="folder of the servers' output")
    return parser


def _pair(overrides: Sequence[str]) -> dict[str, Any]:
    """Target and draft as paths or hub ids."""
    register()
    arguments = [each for each in recipe_arguments(list(overrides)) if each != "-m"]
    with initialize_config_dir(str(conf_dirs()[0]), version_base="1.3"):
        pair = compose("config", overrides=arguments).pair
    named = {"target": pair.target, "draft": pair.draft if isinstance(pair.draft, str) else None}
    return {
        role: name if name is None or name.endswith(".gguf") else model_path(name)
        for role, name in named.items()
    }


def _numbers(given: str) -> list[int]:
    """Whole numbers from 1, with commas.

    Raises:
        ValueError: they are not.
    """
    if not all(each.isdecimal() and int(each) for each in given.split(",")):
        raise ValueError(f"--requests takes whole numbers from 1, such as 1,4,16, got {given!r}")
    return [int(each) for each in given.split(",")]


def _quoted(value: str) -> str:
    """A text that Hydra reads as it is."""
    return "'" + value.replace("'", "\\'") + "'"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def _last(log: Path) -> str:
    """The last line that a server said."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"{fit(lines[-1], longest=200)} ({log})" if lines else str(log)
