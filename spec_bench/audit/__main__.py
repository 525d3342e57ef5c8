"""Arguments of ``spec-bench audit``; ``command_line`` runs it."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spec_bench.audit import USUAL
from spec_bench.settings.arguments import Parser
from spec_bench.settings.fields import format_value
from spec_bench.system import signals
from spec_bench.system.errors import UsageError

KINDS = ("openai", "llama_cpp")
_SERVER_DEFAULTS = {
    "served_model": "target",
    "server_kind": KINDS[0],
    "temperature": 1.0,
    "answers": 8,
}


def read_arguments(
    arguments: Sequence[str] | None = None, path_of: Callable[[str], str] = str
) -> tuple[argparse.Namespace, Any]:
    """Parses the options, and reads the prompts into a task; exits with status 2 and one line if
    they are wrong. ``path_of`` finds a model's folder; its UsageError means that there is none.
    """
    parser = Parser(prog="spec-bench audit")
    parser.add_argument("--target", help="folder or hub id of a target to check greedily")
    parser.add_argument("--draft", help="folder or hub id of its draft")
    parser.add_argument("--prompts", "--data", nargs="+", help="files of your own")
    parser.add_argument("--decoders", help="of the pair, such as sd:3,rsd_s:4x3; all: every tree")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--samples", type=int, default=10_000, help="continuations per chi-square")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="parts by name, such as 'rule: *' or '*k_seq*'")
    parser.add_argument("--server", help="a running one, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--served-model", help="the target's name there; default: target")
    parser.add_argument("--server-kind", choices=KINDS, help=f"default: {KINDS[0]}")
    parser.add_argument("--temperature", type=float, help="of its sampled answers; default: 1")
    parser.add_argument("--answers", type=int, help="sampled answers per prompt; default: 8")
    options = parser.parse_args(arguments)
    for name, default in _SERVER_DEFAULTS.items():
        if not options.server and getattr(options, name) is not None:
            parser.error(f"--{name.replace('_', '-')} goes with --server")
        if getattr(options, name) is None:
            setattr(options, name, default)
    if options.seed < 0 or options.samples < 1:
        values = f"got {options.seed} and {options.samples}"
        parser.error(f"--seed must be 0 or more, --samples 1 or more, {values}")
    if options.server and (options.draft or not options.target):
        parser.error("--server goes with --target, without --draft")
    if not options.server and bool(options.target) != bool(options.draft):
        parser.error("--target and --draft go together")
    if options.decoders and not options.target:
        parser.error("--decoders goes with --target; --only PATTERN names parts of the whole audit")
    options.decoders = options.decoders or USUAL
    if options.draft and not options.prompts:
        parser.error("--prompts FILE is needed with --target and --draft")
    if options.temperature <= 0 or min(options.answers, options.max_new_tokens) < 1:
        parser.error("--temperature, --answers and --max-new-tokens must be above 0")
    try:
        options.target, options.draft = (
            name and path_of(name) for name in (options.target, options.draft)
        )
    except UsageError as error:
        parser.error(str(error))
    if not options.prompts:
        return options, []
    from spec_bench.tasks import read_own

    try:
        task = read_own(options.prompts)
        examples = task.examples()
        first_prompt = format_value(examples[0].turns[0])
        print(f"data: {task.describe_data(examples)}; the first: {first_prompt}")
    except UsageError as error:
        parser.error(f"--prompts: {error}")
    return options, task


def load(
    arguments: Sequence[str] | None = None, path_of: Callable[[str], str] = str
) -> Callable[[], int]:
    """Reads the arguments before it imports the command, which takes seconds."""
    options, prompts = read_arguments(arguments, path_of)
    from spec_bench.audit.command_line import run

    return partial(run, options, prompts)


if __name__ == "__main__":
    signals.run(load, "interrupted; what no table shows was not audited")
