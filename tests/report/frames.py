"""Small literal results frames, as ``read_results`` gives them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.records import Generation, StepRecord

_SAME: dict[str, Any] = {
    "pair": "embedded",
    "target": "embedded:target",
    "draft": "embedded:draft_distilled",
    "task": "xsum",
    "temperature": 0.3,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 0,
    "batch_size": 1,
    "tree_attention": True,
    "lossless": "exact",
    "status": "complete",
    "reason": "",
    "prompts": 8,
}


def row(decoder: str, spec: str = "-", **values: Any) -> dict[str, Any]:
    """One cell; metrics get an interval of 0.1 either side unless they bring their own."""
    found = {**_SAME, "decoder": decoder, "spec": spec, "run_id": f"{decoder}-{spec}", **values}
    for name in ("block_efficiency", "mbsu", "speedup", "token_rate", "acceptance_rate", "rouge2"):
        value = found.setdefault(name, None)
        found.setdefault(f"{name}_low", None if value is None else value - 0.1)
        found.setdefault(f"{name}_high", None if value is None else value + 0.1)
    return found


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    """The cells as a frame."""
    return pd.DataFrame(list(rows))


def record(
    results: Path,
    run_id: str,
    accepted: Sequence[Sequence[int]],
    *,
    depth: int = 3,
    rate: float = 1,
) -> None:
    """Writes a cell's raw records beside a results file.

    Args:
        results: ``<folder>/<name>/results.csv``.
        run_id: the cell's.
        accepted: for each prompt the accepted tokens of each target call.
        depth: levels of the tree.
        rate: tokens per second.
    """
    path = results.parent.parent / "runs" / run_id / "generations.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        for prompt, counts in enumerate(accepted):
            steps = tuple(StepRecord(depth, depth, count, count + 1) for count in counts)
            tokens = tuple(range(sum(count + 1 for count in counts)))
            seconds = len(tokens) / rate
            generation = Generation(str(prompt), tokens, "length", steps, 0.0, seconds, 0.0, 0.0)
            stream.write(json.dumps(generation.to_json()) + "\n")
