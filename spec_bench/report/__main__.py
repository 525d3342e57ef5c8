"""Tables, figures and pages from results files.

* ``python -m spec_bench.report results/NAME/results.csv``: table, figure and checks beside it
* ``... table rsd/7``: a paper's table, its numbers and ours side by side
* ``... list [rsd]``: every table and figure, what is measured, what would run the rest
* ``... figure rsd/4``, ``... checks rsd``, ``... page rsd-exp1``
* ``... all``: every page, table and figure that the measured rows apply to
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spec_bench.report import subcommands

_PAPER = ("table", "list", "figure", "checks", "page", "all")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; 2 and one line where the request cannot be right."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    known = given and (given[0] in _PAPER or given[0] in ("-h", "--help"))
    options = _parser().parse_args(given if known else ["results", *given])
    try:
        return int(options.run(options))
    except ValueError as error:
        print(f"spec_bench.report: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spec_bench.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    plain = commands.add_parser("results", help="a results file's table, figure and checks")
    plain.add_argument("file", type=Path, help="a results.csv")
    plain.add_argument("--output", type=Path, help="folder to write to; default: beside it")
    plain.set_defaults(run=subcommands.run_plain)

    table = commands.add_parser("table", help="a paper's table, e.g. rsd/7")
    table.add_argument("name", help="PAPER/NUMBER")
    table.add_argument("--format", choices=sorted(subcommands.FORMATS), default="markdown")
    table.add_argument("--output", type=Path, help="file to write; default: print")
    table.set_defaults(run=subcommands.run_table)

    listing = commands.add_parser("list", help="tables and figures, measured and missing")
    listing.add_argument("paper", nargs="?", help="one paper; default: all")
    listing.set_defaults(run=subcommands.run_list)

    figure = commands.add_parser("figure", help="a paper's figure, e.g. rsd/4")
    figure.add_argument("name", help="PAPER/NUMBER")
    figure.add_argument("--output", type=Path, help="folder to write to; default: RESULTS/figures")
    figure.set_defaults(run=subcommands.run_figure)

    checks = commands.add_parser("checks", help="what a paper claims, on the measured rows")
    checks.add_argument("paper", help="name of a paper")
    checks.set_defaults(run=subcommands.run_checks)

    page = commands.add_parser("page", help="one HTML page of an experiment, e.g. rsd-exp1")
    page.add_argument("name", help="experiment below the results folder, or a results.csv")
    page.add_argument("--output", type=Path, help="file to write; default: beside the results")
    page.set_defaults(run=subcommands.run_page)

    everything = commands.add_parser("all", help="every page, table and figure there are rows for")
    everything.add_argument("names", nargs="*", metavar="name", help="experiments; default: all")
    everything.set_defaults(run=subcommands.run_all)

    for command in (table, listing, figure, checks, page, everything):
        command.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")
    for command in (table, listing, figure, page):
        command.add_argument("--pair", help="show this pair; default: the paper's own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
