"""Checks the arguments of ``spec-bench check decoders``, which ``command_line`` runs."""

import argparse
import sys
from typing import Any

from spec_bench.audit import DEFAULT_DECODERS
from spec_bench.system import signals
from spec_bench.system.errors import UsageError

KINDS = ("openai", "llama_cpp")
_SERVER_DEFAULTS = {
    "served_model": "target",
    "server_kind": KINDS[0],
    "temperature": 1.0,
    "answers": 8,
}


def run_audit_command(options: argparse.Namespace) -> int:
    """Checks the options and reads the prompts before it imports the command, which takes seconds;
    returns the exit status.
    """
    task = complete_options_and_read_task(options)
    from spec_bench.audit.command_line import run_audit

    return run_audit(options, task)


def complete_options_and_read_task(options: argparse.Namespace) -> Any:
    """Fills in the options' defaults and returns the task that reads ``--prompts``, or [] without
    that option. Raises UsageError if options do not go together or are out of range, or if the file
    cannot be read.
    """
    for name, default in _SERVER_DEFAULTS.items():
        if not options.server and getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} goes with --server")
        if getattr(options, name) is None:
            setattr(options, name, default)
    if options.seed < 0 or options.samples < 1:
        raise UsageError(
            "--seed must be 0 or more, --samples 1 or more, "
            f"got {options.seed} and {options.samples}"
        )
    if options.server and (options.draft or not options.target):
        raise UsageError("--server goes with --target, without --draft")
    if not options.server and bool(options.target) != bool(options.draft):
        raise UsageError("--target and --draft go together")
    if options.decoders and not options.target:
        raise UsageError(
            "--decoders goes with --target; --only PATTERN names parts of the whole audit"
        )
    options.decoders = options.decoders or DEFAULT_DECODERS
    if options.draft and not options.prompts:
        raise UsageError("--prompts FILE is needed with --target and --draft")
    if options.temperature <= 0 or min(options.answers, options.max_new_tokens) < 1:
        raise UsageError("--temperature, --answers and --max-new-tokens must be above 0")
    if not options.prompts:
        return []
    from spec_bench.settings.fields import format_value
    from spec_bench.tasks import build_task_from_files

    try:
        task = build_task_from_files(options.prompts)
        examples = task.read_examples()
    except UsageError as error:
        raise UsageError(f"--prompts: {error}") from error
    first_prompt = format_value(examples[0].turns[0])
    print(f"data: {task.describe_data(examples)}; the first: {first_prompt}")
    return task


if __name__ == "__main__":
    with signals.exits_in_one_line("interrupted; what no table shows was not audited"):
        from spec_bench.settings.arguments import parse_options

        options = parse_options("check decoders", sys.argv[1:])
        with signals.signals_as_interrupts():
            sys.exit(run_audit_command(options))
