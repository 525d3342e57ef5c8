"""``spec-bench COMMAND ...``: what each command is, and where it is written."""

import gc
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from typing import Any

from spec_bench.system.errors import UsageError
from spec_bench.system.signals import exit_cleanly, run

RESUMES = "interrupted; the same command resumes"
_MODULES = {
    "answers": "exchange.write",
    "compare": "report.compare",
    "convert": "engine.gguf_conversion",
    "fit_tree": "recommend.fit_tree",
    "recommend": "recommend.recommend",
    "serve": "serve.command",
    "spider": "tasks.spider",
    "verify": "jobs.store.verify",
    "watch": "jobs.sweep.watch",
}
_OF_THE_REPORT = ("table", "figure", "checks", "page")
_READERS = ("report", *_OF_THE_REPORT, "compare", "verify")


def main() -> None:
    """The console script ``spec-bench``."""
    command, *rest = sys.argv[1:] or ["--help"]
    line = RESUMES if "plan=true" not in sys.argv else "interrupted"
    if command in _READERS:  # collecting garbage would be a sixth of their time, in vain
        gc.set_threshold(100_000, 50)
    with exit_cleanly(line):
        from spec_bench.jobs.config.help import COMMANDS, command_help, overview, print_listing

    about = rest[0] if command == "help" and rest else command
    if about not in (*COMMANDS, "help") and "=" not in about and not about.startswith("-"):
        print(f"spec_bench: {unknown_command_message(about)}", file=sys.stderr)
        sys.exit(2)
    if command in ("help", "--help", "-h") or {"--help", "-h"} & set(rest):
        known = about if about in COMMANDS else "run" if "=" in about else ""
        with exit_cleanly(RESUMES):
            print(command_help(known) if known else overview(), end="")
    elif command in ("version", "--version", "-V"):
        with exit_cleanly(RESUMES):
            print(format_versions())
    elif command == "ls" and rest[:1] != ["tables"]:
        with exit_cleanly(RESUMES):
            sys.exit(print_listing(rest))
    elif command in ("ls", "report", *_OF_THE_REPORT):
        given = ["list", *rest[1:]] if command == "ls" else [command, *rest]
        run_report(given[command == "report" :])
    elif command == "audit":
        from spec_bench.audit.__main__ import load as audit
        from spec_bench.jobs.config.model_files import model_path

        run(lambda: audit(rest, model_path), "interrupted; what no table shows was not audited")
    elif command == "train":
        from spec_bench.train.__main__ import main as train

        train(rest)
    elif command in _MODULES:
        with exit_cleanly(line):
            sys.exit(
                import_module(f"spec_bench.{_MODULES[command]}").main(expand_flags(command, rest))
            )
    else:
        with exit_cleanly(line):
            words = rest if command == "run" else [command, *rest]
            application, read_request = import_application()
            sys.exit(application(read_request(expand_flags("run", words))))


def run_report(arguments: Sequence[str]) -> None:
    """Runs ``spec-bench report`` and exits with its status."""
    """Runs ``spec-bench report`` and exits with its status."""

    def load() -> Callable[[], int]:
        from spec_bench.report.cli.command_line import main as report

        return lambda: report(arguments)

    run(load, "interrupted; what was written is whole")


def expand_flags(command: str, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with plain flags as overrides; leaves with a line if they are wrong."""
    from spec_bench.jobs.config.flags import FLAGS, flags_to_overrides, read_escapes

    try:
        known = command in FLAGS
        return read_escapes(flags_to_overrides(command, arguments)) if known else list(arguments)
    except UsageError as error:
        print(f"spec_bench: {error}", file=sys.stderr)
        sys.exit(2)


def unknown_command_message(word: str) -> str:
    """Returns the line on a word that is no command, with the one that was probably meant."""
    from spec_bench.jobs.config.flags import COMMAND_WORDS, suggest_spelling
    from spec_bench.jobs.config.help import COMMANDS
    from spec_bench.settings.fields import suggest

    near = suggest(word.replace("-", "_"), [*COMMANDS, *COMMAND_WORDS])
    if word in COMMAND_WORDS:
        near = f"; did you mean {COMMAND_WORDS[word]}?"
    meant = suggest_spelling(word)
    return f"there is no command {word!r}{f': {meant}' if meant else near or '; spec-bench --help'}"


def format_versions() -> str:
    """Returns the version, the commit of a checkout, and a line a package that changes numbers."""
    from spec_bench import __version__
    from spec_bench.measure import provenance

    state = provenance.git_state(Path(__file__).parent)
    commit = f" {state['revision'][:12]}{', changed' * state['dirty']}" if state else ""
    lines = [f"spec-bench {__version__}{commit}", f"python {python_version()}"]
    return "\n".join([*lines, *map(" ".join, provenance.versions().items())])


def import_application() -> tuple[Callable[..., int], Callable[[Sequence[str]], Any]]:
    """Imports the application.

    What is imported lives as long as the process. Collecting garbage meanwhile, and looking through
    all of it again during the run and at its end, would take a second and a half and find none.
    """
    gc.disable()
    try:
        if not find_spec("torch"):  # imported late, where Hydra would add lines
            raise ModuleNotFoundError(name="torch")
        from spec_bench.jobs.app import main as run
        from spec_bench.jobs.config.application import read_request

        gc.freeze()
    finally:
        gc.enable()
    return run, read_request


if __name__ == "__main__":
    main()
