"""``spec-bench COMMAND ...``: which command is meant, and how it is run."""

import gc
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from spec_bench.system import signals
from spec_bench.system.errors import UsageError

_READERS = ("report", "table", "figure", "check", "page", "compare")


def main() -> None:
    """Runs the console script ``spec-bench``."""
    arguments = sys.argv[1:] or ["--help"]
    next_step = (
        "what was written is whole" if arguments[0] in _READERS else "the same command resumes"
    )
    line = "interrupted" if "plan=true" in arguments else f"interrupted; {next_step}"
    with signals.exits_in_one_line(line):
        command, rest = choose_command_or_exit(arguments)
        try:
            function, options = load_command(command, rest)
            with signals.signals_as_interrupts():
                sys.exit(int(function(options) or 0))
        except UsageError as error:
            sys.exit(_print_refusal(command, error))


def choose_command_or_exit(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Splits the arguments into a command and its own arguments. Prints help, or that there is no
    such command, and raises SystemExit.
    """
    from spec_bench.settings.arguments import (
        COMMANDS,
        format_command_list,
        make_parser,
        split_known_command,
    )

    wants_help = arguments[0] in ("help", "--help", "-h")
    words = arguments[wants_help:] or ["--help"]
    command, rest = split_known_command(["version"] if words[0] in ("--version", "-V") else words)
    if words == ["--help"]:
        print(format_command_list(), end="")
        sys.exit(0)
    if not command:
        print(f"spec_bench: {explain_unknown_command(words)}", file=sys.stderr)
        sys.exit(2)
    help_asked = wants_help or not {"--help", "-h"}.isdisjoint(rest)
    if "function" not in COMMANDS[command] and rest and not help_asked:
        print(f"spec_bench: {explain_unknown_subcommand(command, rest[0])}", file=sys.stderr)
        sys.exit(2)
    if help_asked or "function" not in COMMANDS[command]:
        make_parser(command).print_help()
        sys.exit(0)
    return command, rest


def load_command(
    command: str, arguments: Sequence[str]
) -> tuple[Callable[[Namespace], int | None], Namespace]:
    """Reads a command's options and imports it; returns the function that runs it, and its options.
    Raises UsageError: the request cannot be right.

    What is imported lives as long as the process. Collecting garbage meanwhile, and looking through
    all of it again during the run and at its end, would take a second and a half and find none.
    """
    from spec_bench.settings.arguments import COMMANDS

    gc.disable()
    try:
        options = parse_arguments(command, arguments)
        if hasattr(options, "words") and not find_spec("torch"):
            raise ModuleNotFoundError(name="torch")  # imported late, where Hydra would add lines
        module, _, name = COMMANDS[command]["function"].partition(":")
        function = getattr(import_module(f"spec_bench.{module}"), name)
        gc.freeze()
    finally:
        gc.enable()
    if command.startswith(_READERS):  # collecting garbage would be a sixth of their time, in vain
        gc.set_threshold(100_000, 50)
    return function, options


def _print_refusal(command: str, error: UsageError) -> int:
    """Prints in one line what is wrong with a request; returns the status, 2."""
    from spec_bench.settings.fields import print_wrapped_error

    print_wrapped_error(f"{'spec_bench' if command == 'run' else f'spec-bench {command}'}: {error}")
    return 2


def run_command(command: str, arguments: Sequence[str]) -> int:
    """Runs a command in this process; returns its status."""
    try:
        function, options = load_command(command, arguments)
        return int(function(options) or 0)
    except UsageError as error:
        return _print_refusal(command, error)


def parse_arguments(command: str, arguments: Sequence[str]) -> Namespace:
    """Parses a command's options; plain flags become overrides in its ``words``."""
    from spec_bench.jobs.config.flags import (
        FLAGS,
        parse_job_arguments,
        replace_escapes_in_model_texts,
    )
    from spec_bench.jobs.config.model_files import resolve_or_convert_model
    from spec_bench.settings.arguments import parse_options

    if command in FLAGS:
        options = parse_job_arguments(command, arguments)
        options.words = replace_escapes_in_model_texts(options.words)
        return options
    options = parse_options(command, arguments)
    if command == "check decoders":
        options.target, options.draft = (
            name and resolve_or_convert_model(name) for name in (options.target, options.draft)
        )
    return options


def explain_unknown_command(words: Sequence[str]) -> str:
    """Explains in one line that a word is no command, and suggests one."""
    from spec_bench.jobs.config.flags import explain_bare_word
    from spec_bench.settings.arguments import COMMANDS
    from spec_bench.settings.fields import format_suggestion

    unknown = next((word for word in words if word != "report"), words[0])
    names_by_alias = {
        alias: name
        for name, command in COMMANDS.items()
        for alias in command.get("tried", "").split()
    }
    suggestion = format_suggestion(unknown, [*COMMANDS, *names_by_alias])
    if unknown in names_by_alias:
        suggestion = f"; did you mean {names_by_alias[unknown]}?"
    spelt = explain_bare_word(unknown)
    return (
        f"there is no command {unknown!r}"
        f"{f': {spelt}' if spelt else suggestion or '; spec-bench --help'}"
    )


def explain_unknown_subcommand(command: str, word: str) -> str:
    """Explains in one line that a word is no command of a group such as ``check``."""
    from spec_bench.settings.arguments import COMMANDS

    things = [name.partition(" ")[2] for name in COMMANDS if name.startswith(f"{command} ")]
    return f"{command} takes one of {', '.join(things)}, got {word!r}"


if __name__ == "__main__":
    main()
