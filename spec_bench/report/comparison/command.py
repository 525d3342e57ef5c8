"""``spec-bench compare A B``: what changed from one results folder to another.

Exit status: 0 nothing got worse, 1 something did, 2 the request cannot be right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from spec_bench.report.comparison.build import ALPHA, MARGIN, compare, markdown, page
from spec_bench.settings.arguments import Parser, output_folder
from spec_bench.system.files import write_text


def main(arguments: Sequence[str]) -> int:
    """Compares, prints Markdown, writes files where asked to; the exit status."""
    options = _parser().parse_args(list(arguments))
    try:
        for name, least in (("alpha", 0.0), ("margin", -1e-12)):
            if not least < getattr(options, name) < 1:
                raise ValueError(f"--{name} is {getattr(options, name)}, not a share below 1")
        comparison = compare(options.before, options.after, options.alpha, options.margin)
    except ValueError as error:
        print(f"spec_bench compare: {error}", file=sys.stderr)
        return 2
    text = markdown(comparison)
    print(text, end="")
    if options.output is not None:
        for name, content in (("compare.md", text), ("compare.html", page(comparison))):
            write_text(options.output / name, content)
            print(options.output / name)
    return int(comparison.regressed)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="spec-bench compare",
        description=str(__doc__).replace("``", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, help="a results folder or a results.csv")
    parser.add_argument("after", type=Path, help="another one, of another day, commit or machine")
    parser.add_argument(
        "--margin",
        type=float,
        default=MARGIN,
        help="share by which a speed-up may change and still count as equal (default: %(default)s)",
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=ALPHA,
        help="chance of any false alarm (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=output_folder, metavar="FOLDER", help="for compare.md and compare.html"
    )
    return parser
