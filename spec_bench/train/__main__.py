"""``python -m spec_bench.train``: trains draft heads; see ``conf/train.yaml``."""

from __future__ import annotations

import sys

from spec_bench.system.signals import orderly


def main() -> None:
    """Help at once, else the application, which imports torch."""
    with orderly("interrupted; the same command goes on"):
        from spec_bench.jobs.config.help import help_text

        if {"--help", "-h"} & set(sys.argv[1:]):
            print(help_text("train"), end="")
            return
        from spec_bench.train.app import main as train

        train()


if __name__ == "__main__":
    main()
