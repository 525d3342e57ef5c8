"""What verification costs by rule and vocabulary: ``make bench-rules``.

Milliseconds of one walk over a drawn tree, sampling included and models not, beside recursive
rejection on a tree of the same shape; all walks of one tree in turn, the median of many; on a CPU
in seconds of this process, which other work on the machine does not lengthen. p and q are random
logits that resemble each other. Whole-path rules warp the target's logits at every node, node
rules only on the path that they take. A second table has the rules alone, one node of four
children, against K-SEQ.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spec_bench.core.draws import SeededSource
from spec_bench.core.tree import Tree
from spec_bench.core.warp import SamplingSettings, warped_log_probs
from spec_bench.decode.config import DecoderConfig, read_decoder
from spec_bench.engine.model import wait_for_device
from spec_bench.tree.base import GrownTree
from spec_bench.verify.base import TreeVerifier
from spec_bench.verify.optimal import optimal, top_and_sample
from spec_bench.verify.rules import k_seq, recursive_rejection
from spec_bench.verify.walk import ScoredTree

COLUMNS = ("tree", "vocabulary", "rule", "ms an iteration", "over the first")
WARM = SamplingSettings()
WIDTHS: dict[str, Any] = {"policy": "widths", "widths": [2, 2, 2]}
PATHS: dict[str, Any] = {"policy": "iid_paths", "paths": 4, "depth": 3}
BEAMS: dict[str, Any] = {"policy": "stochastic_beam", "width": 4, "depth": 3}
REJECTION = "recursive rejection"
TREES: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "chain 3": {
        REJECTION: ({"policy": "chain", "depth": 3}, {"rule": "recursive_rejection"}),
        "block": ({"policy": "chain", "depth": 3}, {"rule": "traversal"}),
    },
    "widths 2-2-2": {
        REJECTION: (WIDTHS | {"replacement": False}, {"rule": "recursive_rejection"}),
        "traversal": (WIDTHS | {"replacement": False}, {"rule": "traversal"}),
        "top and sample": (WIDTHS | {"policy": "top_and_sample"}, {"rule": "top_and_sample"}),
    },
    "paths 4x3": {
        REJECTION: (PATHS, {"rule": "recursive_rejection", "replacement": True}),
        "K-SEQ": (PATHS, {"rule": "k_seq"}),
        "optimal": (PATHS, {"rule": "optimal"}),
        "traversal": (PATHS, {"rule": "traversal"}),
    },
    "beams 4x3": {
        REJECTION: (BEAMS, {"rule": "recursive_rejection"}),
        "traversal": (BEAMS, {"rule": "traversal"}),
    },
}


def logits(*shape: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The target's and the draft's, which differ by noise of half their spread."""
    generator = torch.Generator(device=device).manual_seed(0)
    target = 2 * torch.randn(shape, generator=generator, device=device)
    return target, target + torch.randn(shape, generator=generator, device=device)


def walk_of(
    config: DecoderConfig, rows: int, vocab: int, device: torch.device
) -> Callable[[], Any]:
    """One verification of a tree that is drawn beforehand."""
    tree_policy, verifier = config.tree, config.verifier
    assert isinstance(tree_policy, GrownTree) and isinstance(verifier, TreeVerifier)
    shape = tree_policy.shape
    generators = [torch.Generator(device=device).manual_seed(row) for row in range(rows)]
    draws = SeededSource(generators)
    root = torch.zeros(rows, dtype=torch.long, device=device)
    tree = Tree(shape, root, tree_policy.siblings(WARM), tree_policy.parents)
    target, draft = logits(rows, shape.size, vocab, device=device)
    for level in range(shape.depth):
        scores = warped_log_probs(draft[:, shape.level(level)].unsqueeze(2), WARM)
        tree_policy.grow_level(tree, scores, draws)
    rule, merge = verifier.judge(shape.depth), tree_policy.walk_merges_copies
    return lambda: verifier.walk(ScoredTree(tree, target, WARM, draws, merge), rule)


def rule_alone(name: str, vocab: int, device: torch.device) -> Callable[[], Any]:
    """One node of four children."""
    target, draft = logits(1, vocab, device=device)
    p, q = target.softmax(dim=-1), draft.softmax(dim=-1)
    generator = torch.Generator(device=device).manual_seed(0)
    tokens = torch.multinomial(q, 4, replacement=True, generator=generator)
    if name == "top and sample":
        tokens[:, 1:] = q.topk(3, dim=-1).indices
    valid = torch.ones_like(tokens, dtype=torch.bool)
    rules: Mapping[str, Callable[..., Any]] = {
        "K-SEQ": k_seq,
        REJECTION: recursive_rejection,
        "optimal": optimal,
        "top and sample": top_and_sample,
    }
    return lambda: rules[name](p, q.unsqueeze(1), tokens, valid)


def medians(
    works: Mapping[str, Callable[[], Any]], device: torch.device, turns: int
) -> list[float]:
    """Milliseconds of each, all of them in turn."""
    now_s = time.process_time if device.type == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns + 1):
        for name, work in works.items():
            wait_for_device(device)
            start_s = now_s()
            work()
            wait_for_device(device)
            seconds[name].append(now_s() - start_s)
    return [1e3 * statistics.median(found[1:]) for found in seconds.values()]


def add(table: Table, label: str, vocab: int, names: list[str], found: list[float]) -> None:
    """A line a rule; the first is what the others are held against."""
    for name, milliseconds in zip(names, found, strict=True):
        ratio = f"{milliseconds / found[0]:.2f}"
        table.add_row(label, f"{vocab:,}", name, f"{milliseconds:.2f}", ratio)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, nargs="*", default=[2_000, 32_000, 128_000])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a page with both tables, Markdown")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    walks, alone = Table(*COLUMNS), Table(*COLUMNS)
    for vocab in options.vocab:
        for label, rules in TREES.items():
            works = {}
            for name, (tree, rule) in rules.items():
                blocks = {"drafter": {"kind": "language_model"}, "tree": tree, "verifier": rule}
                config = read_decoder({"name": name, **blocks})
                works[name] = walk_of(config, options.rows, vocab, device)
            add(walks, label, vocab, list(rules), medians(works, device, options.turns))
        names = ["K-SEQ", REJECTION, "optimal", "top and sample"]
        works = {name: rule_alone(name, vocab, device) for name in names}
        add(alone, "4 children", vocab, names, medians(works, device, 3 * options.turns))
    Console(width=100).print(walks, alone)
    if options.out:
        options.out.write_text(page(walks, alone), encoding="utf-8")


def page(walks: Table, alone: Table) -> str:
    """Both tables as Markdown."""
    said = " ".join((__doc__ or "").partition("\n\n")[2].split())
    parts = ["# What verification costs, by rule and vocabulary", f"`make bench-rules`. {said}"]
    for title, table in (("A whole walk", walks), ("The rules alone", alone)):
        cells = zip(*(column.cells for column in table.columns), strict=True)
        lines = [" | ".join(COLUMNS), "--- | ---: | --- | ---: | ---:"]
        lines += [" | ".join(map(str, row)) for row in cells]
        parts += [f"## {title}", "\n".join(f"| {line} |" for line in lines)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
