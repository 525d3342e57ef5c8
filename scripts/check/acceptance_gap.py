"""Acceptance by level beside the most that any rule could accept, on the embedded pair.

    python scripts/check/acceptance_gap.py --prompts 8 --nodes 40 --temperature 1

Each decoder decodes the same prompts; of the first nodes that its walk comes to on each level the
bound is worked out afterwards. Only trees whose nodes have a fixed number of children are looked
at, so no stochastic beams, and of independent paths none below the root.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import ROOT, embedded_pair, embedded_requests
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.blocks import resolve_spec
from spec_bench.decode.config import read_decoder
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.gap import gaps, law_of, watch

SPECS = {
    "sd": "3",
    "specinfer": "4-2-1",
    "mcns": "4-2-1",
    "rsd_c": "4-2-1",
    "top_and_sample": "4-2-1",
}
# The root of K independent paths has K children like any other node.
ROOTS = {"spectr": "4x1", "optimal": "4x1"}


def main() -> None:
    """Prints a line a decoder and level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=40, help="of each level")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=1.0)
    options = parser.parse_args()
    sampling = SamplingSettings(temperature=options.temperature)
    target, draft = embedded_pair()
    requests = embedded_requests(options.prompts, options.new_tokens)
    table = Table("decoder", "tree", "depth", "nodes", "accepted", "bound", "gap")
    for name, spec in {**SPECS, **ROOTS}.items():
        block = yaml.safe_load((ROOT / "conf" / "decoder" / f"{name}.yaml").read_text())
        config = read_decoder(resolve_spec(block, spec), sampling)
        built = config.build(target, [draft], sampling)
        assert isinstance(built, Decoder)
        visits = watch(built, options.nodes)
        built.generate(requests, seed=0)
        for gap in gaps(visits, law_of(config, sampling)):
            numbers = (gap.accepted, gap.bound, gap.bound - gap.accepted)
            shown = [f"{number:.3f}" for number in numbers]
            table.add_row(name, spec, str(gap.level + 1), str(gap.nodes), *shown)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
