"""The embedded pair's token rates on a GPU: ``python3 scripts/gpu/rates.py``.

Needs torch, transformers and pydantic only. Prompts are interleaved across decoders; the CSV says
how iterations ran, and what a canary refused.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import (
    SPECS,
    decoder,
    embedded_pair,
    embedded_requests,
    how_it_ran,
    prepare,
)
from spec_bench.core.warp import SamplingSettings
from spec_bench.engine.cache import CachePool
from spec_bench.records.types import Generation, Request
from spec_bench.system.files import write_csv

ROOT = Path(__file__).resolve().parents[2]


def rates(device: str, dtype: str, how: str, asked: list[Request]) -> list[dict[str, object]]:
    """Block efficiency, token rate and speedup per decoder at temperature 0.3."""
    models, sampling = embedded_pair(how, device, dtype), SamplingSettings(temperature=0.3)
    pool = CachePool()
    built = {name: decoder(name, models, sampling, pool) for name in SPECS}
    prepare(built.values(), asked)
    done: dict[str, list[Generation]] = {name: [] for name in built}
    for request in asked:
        for name, each in built.items():
            done[name] += each.generate([request], 0)
    rows: list[dict[str, object]] = []
    for name, generations in done.items():
        steps = [step for g in generations for step in g.steps]
        seconds = sum(g.decode_s for g in generations)
        overhead = 1 - sum(g.draft_s + g.target_s for g in generations) / seconds
        rate = sum(len(g.tokens) for g in generations) / seconds
        tau = sum(s.accepted + 1 for s in steps) / len(steps)
        is_recorded = built[name].iteration_counts.recorded
        rows.append(
            {
                "device": device,
                "dtype": dtype,
                "compile": how,
                "decoder": name,
                "spec": SPECS[name],
                "block_efficiency": round(tau, 3),
                "token_rate": round(rate, 1),
                "speedup": round(rate / float(str(rows[0]["token_rate"])), 3) if rows else 1.0,
                # recorded, an iteration is one graph
                "host_overhead": "" if is_recorded else round(overhead, 3),
                **how_it_ran(built[name]),
            }
        )
        print(*rows[-1].values())
    return rows


def main() -> None:
    """Writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--compile", nargs="+", default=["none"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "benchmarks")
    options = parser.parse_args()
    asked = embedded_requests(options.prompts, options.new_tokens)
    table = [
        row
        for how in options.compile
        for dtype in options.dtypes
        for row in rates(options.device, dtype, how, asked)
    ]
    path = options.output / f"embedded-{options.device.replace(':', '')}.csv"
    write_csv(path, table, list(table[0]))
    print(path)


if __name__ == "__main__":
    main()
