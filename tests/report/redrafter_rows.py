"""Rows of ReDrafter's experiments, and trained heads, as files have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from tests.report.frames import frame, row

SHARES = {  # at t+1 to t+5
    "medusa": (0.6, 0.55, 0.5, 0.45, 0.4),
    "redrafter": (0.62, 0.6, 0.6, 0.6, 0.6),
    "redrafter_no_rnn": (0.61, 0.58, 0.55, 0.52, 0.5),
}


def head(kind: str, folder: str = "", last: float | None = None, **values: Any) -> dict[str, Any]:
    """A trained head; ``last`` is its accuracy at t+5."""
    shares = [*SHARES[kind][:4], SHARES[kind][4] if last is None else last]
    found: dict[str, Any] = {"head": kind, "blocks": 2, "learning_rate": 0.003, "steps": 100}
    found |= {"parameters": 1_000_000 if kind != "medusa" else 2_000_000}
    for number, share in enumerate(shares, 1):
        found |= {f"train t+{number}": share + 0.05, f"validation t+{number}": share}
    return {**found, "validation dialogues": 800, "seconds": 1.0, "folder": folder, **values}


def cell(experiment: str, decoder: str, spec: str = "-", **values: Any) -> dict[str, Any]:
    """An MT-bench cell at temperature 0; a metric is ``name=value`` or ``(value, low, high)``."""
    found = row(
        decoder,
        spec,
        task="mt_bench",
        temperature=0.0,
        experiment=experiment,
        lossless="approximate" if decoder.endswith("_typical") else "exact",
        token_rate_per_request=None,
        token_rate_per_request_low=None,
        token_rate_per_request_high=None,
    )
    for name, value in values.items():
        if isinstance(value, tuple):
            found[name], found[f"{name}_low"], found[f"{name}_high"] = value
        else:
            found[name] = value
    return found


def around(value: float, half: float) -> tuple[float, float, float]:
    """A value with an interval."""
    return value, value - half, value + half


def grid(folder: Path) -> pd.DataFrame:
    """Four heads with and four without the recurrence, decoded with; ``heads.csv`` beside."""
    heads, rows = [], []
    for kind, bonus in (("redrafter", 0.5), ("redrafter_no_rnn", 0.0)):
        for blocks in range(4):
            name, share = f"heads/{kind}-{blocks}", 0.40 + 0.05 * blocks + bonus / 10
            heads.append(head(kind, name, share, blocks=blocks))
            tau = around(2.0 + 0.2 * blocks + bonus, 0.01)
            rate = around(50.0 + 10.0 * blocks - 20 * bonus, 1.0)
            measured = {"block_efficiency": tau, "token_rate": rate, "draft": name}
            file = str(folder / "redrafter-grid" / "results.csv")
            rows.append(cell("redrafter-grid", "redrafter", "15x5", file=file, **measured))
    (folder / "redrafter-heads").mkdir(parents=True)
    pd.DataFrame([head("medusa", "m"), *heads]).to_csv(
        folder / "redrafter-heads" / "heads.csv", index=False
    )
    return frame(*rows)


def beams() -> pd.DataFrame:
    """Beams 1, 2 and 4 wide, answers of at most 8 and 32 tokens."""
    rows = []
    for limit in (8, 32):
        for width, nodes in ((1, (5, 5, 5)), (2, (6, 8, 9)), (4, (10, 12, 16))):
            values = dict(zip(("p01", "p50", "p99"), nodes, strict=True))
            rows.append(
                cell(
                    "redrafter-beams",
                    "redrafter",
                    f"{width}x5",
                    max_new_tokens=limit,
                    block_efficiency=around(2.0 + 0.1 * width, 0.01),
                    nodes_per_call=float(nodes[1]),
                    **{f"nodes_per_call_{name}": float(node) for name, node in values.items()},
                )
            )
    return frame(*rows)


def batches() -> pd.DataFrame:
    """AR and ReDrafter at batch 1 and 4, beams merged and as rows."""
    rows = []
    for size in (1, 4):
        for decoder, spec, attention, speed in (
            ("ar", "-", "true", 20.0),
            ("redrafter", "8x5", "true", 50.0),
            ("redrafter", "8x5", "false", 30.0),
        ):
            rows.append(
                cell(
                    "redrafter-batches",
                    decoder,
                    spec,
                    batch_size=size,
                    batching="continuous",
                    tree_attention=attention,
                    nodes_per_call=20.0 if attention == "true" else 40.0,
                    block_efficiency=around(3.0, 0.1),
                    token_rate=around(speed * size**0.5, 1.0),
                    token_rate_per_request=around(speed / size**0.5, 1.0),
                )
            )
    return frame(*rows)
