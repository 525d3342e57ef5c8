"""``spec-bench``: runs a job or a sweep of jobs; see ``conf/config.yaml``."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib.util import find_spec

from spec_bench.system.signals import orderly


def main() -> None:
    """The console script ``spec-bench``."""
    with orderly("interrupted; the same command resumes"):
        from spec_bench.jobs.config.help import command_help, help_text, wants_help

        if sys.argv[1:2] == ["spider"]:
            from spec_bench.tasks.spider import main as spider

            sys.exit(spider(sys.argv[2:]))
        elif wants_help(sys.argv[1:]):
            print(command_help(sys.argv[1:]) or help_text(), end="")
        elif sys.argv[1:2] == ["recommend"]:
            from spec_bench.recommend.command import main as recommend

            sys.exit(recommend(sys.argv[2:]))
        elif sys.argv[1:2] == ["watch"]:
            from spec_bench.jobs.sweep.watch import main as watch

            sys.exit(watch(sys.argv[2:]))
        elif sys.argv[1:2] == ["serve"]:
            from spec_bench.serve.command import main as serve

            sys.exit(serve(sys.argv[2:]))
        elif sys.argv[1:2] == ["fit_tree"]:
            from spec_bench.recommend.fit_tree import main as fit_tree

            sys.exit(fit_tree(sys.argv[2:]))
        elif sys.argv[1:2] == ["convert"]:
            from spec_bench.engine.checkpoint import main as convert

            sys.exit(convert(sys.argv[2:]))
        elif sys.argv[1:2] == ["answers"]:
            from spec_bench.exchange.write import main as answers

            sys.exit(answers(sys.argv[2:]))
        elif sys.argv[1:2] == ["compare"]:
            from spec_bench.report.comparison.command import main as compare

            sys.exit(compare(sys.argv[2:]))
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
