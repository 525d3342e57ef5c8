"""Tree passes with weights laid out by columns against by rows: a part of ``make bench``.

One random model of OPT-125M's architecture in both layouts, the same passes of 1 to 32 tokens
behind 64 committed ones, interleaved; the ratio is rows over columns (above 1: columns are faster).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.engine import opt_pair
from spec_bench.engine.hugging_face import HuggingFaceModel

CONTEXT = 64


def seconds(model: HuggingFaceModel, cache: object, tokens: torch.Tensor) -> float:
    """Of one pass of a chain of tokens behind the context."""
    count = tokens.shape[1]
    positions = CONTEXT + torch.arange(count).unsqueeze(0)
    visible = torch.ones(1, count, CONTEXT + count, dtype=torch.bool).tril(CONTEXT)
    start_s = time.perf_counter()
    model.forward(cache, [CONTEXT], tokens, positions, visible)
    return time.perf_counter() - start_s


def main() -> None:
    """Prints one row per number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    models = [opt_pair(by_columns=flag)[0] for flag in (False, True)]
    caches = [model.allocate(1, CONTEXT + 32) for model in models]
    table = Table("tokens", "rows, ms", "columns, ms", "ratio", title="OPT-125M-sized, float32")
    for count in (1, 2, 3, 4, 6, 8, 12, 15, 16, 24, 32):
        tokens = torch.arange(4, 4 + count).unsqueeze(0)
        found: list[list[float]] = [[], []]
        for repeat in range(options.repeats + 2):
            for side in (0, 1) if repeat % 2 else (1, 0):
                taken_s = seconds(models[side], caches[side], tokens)
                if repeat >= 2:
                    found[side].append(taken_s)
        rows, columns = map(statistics.median, found)
        table.add_row(
            str(count), f"{1e3 * rows:.1f}", f"{1e3 * columns:.1f}", f"{rows / columns:.2f}"
        )
    Console(width=80).print(table)


if __name__ == "__main__":
    main()
