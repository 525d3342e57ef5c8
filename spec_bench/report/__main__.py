"""``spec-bench report``; what it does is in ``command_line``."""

from collections.abc import Callable

from spec_bench.system import signals


def load() -> Callable[[], int]:
    """Imports the command."""
    from spec_bench.report.cli.command_line import main

    return main


if __name__ == "__main__":
    signals.run(load, "interrupted; what was written is whole")
