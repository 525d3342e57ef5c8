"""Sequoia's tree for a pair: acceptance by rank, measured, and the tree that follows from it.

    python scripts/best_tree.py --pair embedded --task dolly --nodes 15

Decodes with W children below the root, drawn without replacement, and counts which of them the
target accepted. That share by rank is taken for every depth (Sequoia, arXiv 2402.12374, section
3.1); printed are the shares and, for each number of nodes, the best tree's expected block
efficiency and the cell that decodes with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import yaml
from torch import Tensor

from spec_bench import load_pair
from spec_bench.configs import conf_dir, conf_dirs
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder
from spec_bench.decode.decoder import Decoder
from spec_bench.records import Request
from spec_bench.run.cells import load_decoder, read_cell
from spec_bench.tasks import build_task
from spec_bench.tree.best_list import best_list, pooled
from spec_bench.verify.walk import WalkResult


def acceptance_by_rank(
    decoder: Decoder, requests: Sequence[Request], width: int
) -> tuple[list[float], int]:
    """Shares of iterations whose accepted child had rank 0, 1, ...

    Args:
        decoder: of one level of ``width`` children.
        requests: what to decode.
        width: W.

    Returns:
        The shares, and the number of iterations.
    """
    counts, walk = torch.zeros(width + 1), decoder.walk

    def counting(*args: object, **keywords: object) -> WalkResult:
        result: WalkResult = walk(*args, **keywords)  # type: ignore[arg-type]
        rank: Tensor = torch.where(result.accepted > 0, result.path[:, 1] - 1, width)
        counts.index_add_(0, rank.cpu(), torch.ones(len(rank)))
        return result

    decoder.walk = counting  # type: ignore[method-assign]
    decoder.generate(requests, seed=0)
    total = int(counts.sum())
    return [float(count) / total for count in counts[:-1]], total


def _task(name: str, embedded: bool) -> Any:
    """A task of ``conf/task``, its sample where the pair is embedded."""
    settings = yaml.safe_load((conf_dir() / "task" / f"{name}.yaml").read_text(encoding="utf-8"))
    if embedded:
        settings["source"] = {**settings["source"], "kind": "embedded"}
    return build_task(settings)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pair", default="embedded", help="a file of conf/pair")
    parser.add_argument("--task", default="dolly", help="a file of conf/task")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64, help="limit of an answer")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--width", type=int, default=8, help="W, the ranks looked at")
    parser.add_argument("--depth", type=int, default=6, help="the deepest tree tried")
    parser.add_argument("--nodes", type=int, nargs="+", default=[6, 10, 15, 30])
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    pair = load_pair(asked.pair, device=asked.device)
    settings = SamplingSettings(asked.temperature)
    cell = read_cell(f"rsd_c:{asked.width}", partial(load_decoder, conf_dirs()), settings)
    target, drafts = pair.models[0], pair.models[1:2]
    decoder = read_decoder(cell.decoder, settings).build(target, drafts, settings)
    assert isinstance(decoder, Decoder)
    task = _task(asked.task, embedded=asked.pair.startswith("embedded"))
    requests = [
        Request(example.id, tuple(task.encode(example, pair.tokenizer)), asked.tokens)
        for example in task.examples(asked.prompts)
    ]
    shares, iterations = acceptance_by_rank(decoder, requests, asked.width)
    print(
        f"{asked.pair}, {asked.task}, temperature {asked.temperature:g}: accepted in {iterations} "
        f"iterations, by rank: {' '.join(f'{share:.3f}' for share in shares)}"
    )
    for nodes in asked.nodes:
        tree = best_list(pooled([shares] * asked.depth), nodes)
        listed = str([list(node) for node in tree.nodes]).replace(" ", "")
        print(f"{nodes} nodes: block efficiency {1 + tree.accepted:.3f} expected")
        print(f"  'cells=[{{decoder: sequoia, tree: {{nodes: {listed}}}}}]'")


if __name__ == "__main__":
    main()
