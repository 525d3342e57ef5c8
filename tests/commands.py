"""Commands as the command line runs them, in this process."""

from functools import partial

from spec_bench.__main__ import run_command
from spec_bench.settings.arguments import split_known_command

answers, audit, compare, convert, fit, ls, recommend, serve, verify, watch = (
    partial(run_command, name)
    for name in (
        *("answers", "check decoders", "compare", "convert", "fit", "ls", "recommend", "serve"),
        *("check results", "watch"),
    )
)


def report(arguments):
    """``spec-bench report THING ...``, or ``check claims``."""
    words = ["check", *arguments] if "claims" in arguments[:1] else ["report", *arguments]
    return run_command(*split_known_command(words))
