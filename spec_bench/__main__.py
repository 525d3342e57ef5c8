"""``spec-bench``: runs a job or a sweep of jobs; see ``conf/config.yaml``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from spec_bench.system.signals import orderly

COMMANDS = {
    "answers": "exchange.write",
    "compare": "report.comparison",
    "convert": "engine.loading",
    "fit_tree": "recommend.fit_tree",
    "recommend": "recommend.recommend",
    "serve": "serve.command",
    "spider": "tasks.spider",
    "watch": "jobs.sweep.watch",
}


def main() -> None:
    """The console script ``spec-bench``."""
    with orderly("interrupted; the same command resumes"):
        from spec_bench.jobs.config.help import command_help, help_text

        command, rest = next(iter(sys.argv[1:]), ""), sys.argv[2:]
        if command != "spider" and {"--help", "-h"} & set(sys.argv[1:]):
            print(command_help(sys.argv[1:]) or help_text(), end="")
        elif module := COMMANDS.get(command):
            sys.exit(import_module(f"spec_bench.{module}").main(rest))
        else:
            application()()


def application() -> Callable[[], None]:
    """Imports the application.

    What is imported lives as long as the process. Collecting garbage meanwhile, and looking through
    all of it again during the run and at its end, would take a second and a half and find none.
    """
    gc.disable()
    try:
        if not find_spec("torch"):  # imported late, where Hydra would add lines
            raise ModuleNotFoundError(name="torch")
        from spec_bench.jobs.app import main as run

        gc.freeze()
    finally:
        gc.enable()
    return run


if __name__ == "__main__":
    main()
