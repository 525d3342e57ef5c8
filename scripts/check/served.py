"""The table of ``servers.sh``: rows of ``spec-bench serve`` beside ours, whose answers too.

    python scripts/check/served.py RESULTS [--page servers-smollm2.md]

The first job is ours, whose plain answers are what the others' are held against.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.check.server_rows import markdown, records, with_ends
from spec_bench.report.data.rows import Row, read_rows, to_rows
from spec_bench.system.files import write_text

TITLES = (
    *("job", "decoder", "prompts", "tokens per call", "tokens/s", "speed-up over its own plain"),
    *("its median by prompt", "answers equal to ours", "tokens before they part, fewest", "load"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, help="a folder with a job of each engine's, by name")
    parser.add_argument("--first", default="ours", help="the job of our own decoders")
    parser.add_argument("--page", type=Path, help="a Markdown file, whose table is written anew")
    options = parser.parse_args()
    jobs = sorted(options.results.glob("*/results.csv"))
    jobs.sort(key=lambda path: path.parent.name != options.first)
    rows = [row for path in jobs for row in to_rows(read_rows([path]))]
    table = markdown(TITLES, [cells(options.results, row, rows[0]) for row in rows])
    print(table)
    if options.page:
        prose = options.page.read_text("utf-8").partition(f"\n| {TITLES[0]} | {TITLES[1]}")[0]
        write_text(options.page, f"{prose}\n{table}\n")
    return 0


def cells(results: Path, row: Row, ours: Row) -> list[str]:
    """A line of the table."""
    right, found = (records(results, str(each["run_id"])) for each in (ours, row))
    together = [same(right[name].tokens, each.tokens) for name, each in found.items()]
    parted = [tokens for tokens in together if tokens is not None]
    decoder = f"{row['decoder']} {row['spec'].strip('-')}".strip()
    return [
        *(row["experiment"], decoder, str(row["prompts"])),
        *(
            with_ends(row, name)
            for name in ("block_efficiency", "token_rate", "speedup", "speedup_median")
        ),
        *(f"{len(together) - len(parted)} of {len(together)}", str(min(parted, default=""))),
        f"{row['load_average']:.1f}",
    ]


def same(right: tuple[int, ...], found: tuple[int, ...]) -> int | None:
    """Tokens before two answers part; None where they are equal."""
    apart = (n for n, (a, b) in enumerate(zip(right, found, strict=False)) if a != b)
    return None if right == found else next(apart, min(len(right), len(found)))


if __name__ == "__main__":
    sys.exit(main())
