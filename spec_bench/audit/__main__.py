"""``python -m spec_bench.audit``; what it does is in ``command_line``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spec_bench.audit.arguments import read_arguments
from spec_bench.system import signals


def load() -> Callable[[], int]:
    """Reads the arguments, and only then imports the command, which takes seconds."""
    options, prompts = read_arguments()
    from spec_bench.audit.command_line import run

    return partial(run, options, prompts)


if __name__ == "__main__":
    signals.run(load, "interrupted; nothing is proven")
