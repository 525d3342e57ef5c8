"""``spec-bench train``: trains draft heads; see ``conf/train.yaml``."""

import sys
from collections.abc import Sequence

from spec_bench.settings.fields import complain
from spec_bench.system.signals import orderly


def main(arguments: Sequence[str] | None = None) -> None:
    """Help at once, else the application, which imports torch."""
    with orderly("interrupted; the same command goes on"):
        from spec_bench.jobs.config.flags import overrides_of
        from spec_bench.jobs.config.help import command_help

        given = sys.argv[1:] if arguments is None else arguments
        if {"--help", "-h"} & set(given):
            print(command_help("train"), end="")
            return
        try:
            sys.argv = [sys.argv[0], *overrides_of("train", given)]
        except ValueError as error:
            complain(f"spec_bench.train: {error}")
            sys.exit(2)
        from spec_bench.train.app import main as train

        train()


if __name__ == "__main__":
    main()
