"""Command lines: the commands and options of ``commands.yaml``, and their parser. A wrong command
line is answered with a one-line error. Knows words and files only.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml

from spec_bench.settings.configs import LOADER, read_yaml
from spec_bench.settings.fields import warn_once
from spec_bench.system.errors import UsageError
from spec_bench.system.files import require_writable

COMMANDS: dict[str, dict[str, Any]] = read_yaml(Path(__file__).with_name("commands.yaml"))
_SHARED_OPTION_LINES: dict[str, str] = COMMANDS.pop("shared")
PRESENT_OPTION_BY_FORMER = {"--output": "--out"}
"""Options of earlier versions, and their names now."""
PRESENT_COMMAND_BY_FORMER = {
    "verify": "check results",
    "checks": "check claims",
    "audit": "check decoders",
    "spider": "check spider",
    "fit_tree": "fit",
}
"""Commands of earlier versions, and their names now."""
_OVERVIEW = """\
Which speculative decoder is fastest for your models, by how much? Lossless?

usage: spec-bench COMMAND ...          spec-bench COMMAND --help

{}

  spec-bench run --task xsum --decoders sd:3,rsd_s:4x3 --prompts 5
"""


class OneLineErrorParser(argparse.ArgumentParser):
    """Argument parser that prints errors in one line, without argparse's usage of several lines."""

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: Any = None,
    ) -> tuple[Any, list[str]]:
        """Parses options, also under their earlier names, with a warning."""
        arguments = map(_replace_former_option, sys.argv[1:] if args is None else args)
        return super().parse_known_args([*arguments], namespace)

    def error(self, message: str) -> NoReturn:
        """Prints the message in one line and exits with status 2."""
        self.exit(2, f"{self.prog}: {message}; --help tells more\n")


def _replace_former_option(argument: str) -> str:
    """Replaces an option's earlier name by its present one, with a warning."""
    name, equals, value = argument.partition("=")
    if name not in PRESENT_OPTION_BY_FORMER:
        return argument
    warn_once(f"{name} is {PRESENT_OPTION_BY_FORMER[name]} now")
    return f"{PRESENT_OPTION_BY_FORMER[name]}{equals}{value}"


@cache
def get_option_arguments(command: str) -> dict[str, dict[str, Any]]:
    """Returns argparse's keyword arguments for each option of a command: option's names ->
    keywords.
    """
    return _parse_option_lines(COMMANDS[command].get("options", ""))


def _parse_option_lines(lines: str) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    for line in lines.splitlines():
        if line.startswith("@"):
            options |= _parse_option_lines(_SHARED_OPTION_LINES[line[1:]])
            continue
        names, facts, about = map(str.strip, line.split("|"))
        options[names] = yaml.load(f"{{{facts}}}", LOADER) | {"help": about}
    return options


def make_parser(command: str) -> OneLineErrorParser:
    """Makes the parser of a command's options."""
    command_facts = COMMANDS[command]
    parser = OneLineErrorParser(
        prog=f"spec-bench {command}",
        usage=f"spec-bench {command} {command_facts['usage']}",
        description=command_facts["text"],
        epilog=f"  spec-bench {command_facts['example']}",
        formatter_class=_make_help_formatter,
        allow_abbrev=False,
    )
    for names, facts in get_option_arguments(command).items():
        keywords = {key: value for key, value in facts.items() if key not in ("means", "path")}
        keywords |= {"type": TYPES[facts["type"]]} if "type" in facts else {}
        parser.add_argument(*names.split(", "), **keywords)
    return parser


def parse_options(command: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses a command's options."""
    options: argparse.Namespace = make_parser(command).parse_args([*arguments])
    return options


def _make_help_formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=27, width=100)


def format_command_list() -> str:
    """Formats the overview that ``spec-bench`` prints without a command."""
    lines = (
        f"  {name:<11} {facts['about']}" for name, facts in COMMANDS.items() if "about" in facts
    )
    return _OVERVIEW.format("\n".join(lines))


def split_known_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """Splits words into the command and its arguments; the command is "" if there is no such
    command. A job's settings alone mean ``run``; a command's earlier name is accepted with a
    warning.
    """
    command, *arguments = words
    if command == "report" and arguments and not arguments[0].startswith("-"):
        if arguments[0].endswith(".csv") or Path(arguments[0]).is_file():
            return "report results", arguments
        if f"report {arguments[0]}" not in COMMANDS:
            command, *arguments = arguments
    if now := PRESENT_COMMAND_BY_FORMER.get(command.replace("-", "_")):
        warn_once(f"spec-bench {command} is spec-bench {now} now")
        command = now
    if arguments and f"{command} {arguments[0]}" in COMMANDS:
        return f"{command} {arguments[0]}", arguments[1:]
    if "=" in command or command.startswith("-"):
        return "run", [*words]
    return command if command in COMMANDS else "", arguments


def parse_positive_ints(option: str, text: str) -> list[int]:
    """Parses whole numbers >= 1, ``14,30`` or ``[14,30]``. Raises UsageError, which names the
    ``option``, if the text is anything else.
    """
    parts = text.strip("[]").split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(f"{option} must be whole numbers >= 1 such as 14,30, got {text!r}")
    return list(map(int, parts))


def parse_output_folder(text: str) -> Path:
    """Checks that files can be written into a folder and returns its path; the ``type`` of an
    option. Raises ArgumentTypeError if they cannot.
    """
    try:
        require_writable(Path(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def parse_output_file(text: str) -> Path:
    """Checks that a file can be written and returns its path; the ``type`` of an option. Raises
    ArgumentTypeError if it cannot.
    """
    if os.path.exists(text) and not os.path.isfile(text):
        kind = "a folder" if os.path.isdir(text) else "a device or a pipe"
        raise argparse.ArgumentTypeError(f"must be a file, {text!r} is {kind}")
    parse_output_folder(os.path.dirname(text) if os.path.lexists(text) else text)
    return Path(text)


TYPES = {
    "int": int,
    "float": float,
    "path": Path,
    "out_file": parse_output_file,
    "out_folder": parse_output_folder,
}
