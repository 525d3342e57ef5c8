"""Which texts change with batch, threads and order of the prompts, by number format.

    python scripts/check/same_tokens.py                            # the embedded pair, some minutes
    python scripts/check/same_tokens.py pair=smollm2 --prompts 16 --dtypes float32 bfloat16

Plain decoding, a chain and a tree answer the same prompts in each way. A line has, of how many
texts, how many differ somewhere from those of another way; ``again`` is the same job in another
folder, and ``turned`` has the prompts in reverse order, so that other ones share a batch.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.jobs.app import build_unpinned_settings, run_stages
from spec_bench.jobs.config.compose import compose_config
from spec_bench.jobs.store.store import CellStore

CELLS = "cells=[sd:3,rsd_s:2x3]"
DTYPES = ("float32", "bfloat16", "float16")
WAYS = {  # batch, threads, whether the prompts are turned, and the way that it is held against
    "alone": (1, 1, False, ""),
    "alone, again": (1, 1, False, "alone"),
    "batches of 2": (2, 1, False, "alone"),
    "batches of 4": (4, 1, False, "alone"),
    "batches of 4, again": (4, 1, False, "batches of 4"),
    "batches of 4, turned": (4, 1, True, "batches of 4"),
    "batches of 8": (8, 1, False, "alone"),
    "alone, two threads": (1, 2, False, "alone"),
    "batches of 4, two threads": (4, 2, False, "batches of 4"),
}
Texts = dict[tuple[str, str], tuple[int, ...]]
"""Tokens by decoder and prompt."""


def decode(
    asked: argparse.Namespace, dtype: str, way: tuple[int, int, bool, str], folder: Path
) -> Texts:
    """The tokens of all cells, decoded in one way."""
    batch, threads, turned, _ = way
    words = [
        *("sink=quiet", CELLS, f"prompts={asked.prompts}", f"results={folder}", "warmup=0"),
        *(f"engine.dtype={dtype}", f"engine.batch_size={batch}", f"engine.threads={threads}"),
        *asked.overrides,
    ]
    job = build_unpinned_settings(compose_config(words)).pin_revisions_and_stop_rule()
    if turned:
        job = replace(job, examples=job.examples[::-1])
    texts: Texts = {}
    for row in run_stages(job):
        for prompt, generation in (
            CellStore(job.results_folder, row.run_id).load_first_repeat().items()
        ):
            texts[row.facts.decoder, prompt] = generation.tokens
    return texts


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table, in Markdown, line by line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("overrides", nargs="*", help="such as pair=smollm2 or task=humaneval")
    asked = parser.parse_args(arguments)
    print(f"| texts that differ | from | {' | '.join(asked.dtypes)} |")
    print(f"| --- | --- |{' ---: |' * len(asked.dtypes)}", flush=True)
    found: dict[tuple[str, str], Texts] = {}
    with tempfile.TemporaryDirectory() as made:
        for number, (name, way) in enumerate(WAYS.items()):
            counts = []
            for dtype in asked.dtypes:
                texts = found[name, dtype] = decode(asked, dtype, way, Path(made, str(number)))
                other = [key for key in texts if texts[key] != found[way[-1] or name, dtype][key]]
                counts.append(f"{len(other)} of {len(texts)}")
            if way[-1]:
                print(f"| {name} | {way[-1]} | {' | '.join(counts)} |", flush=True)


if __name__ == "__main__":
    main()
