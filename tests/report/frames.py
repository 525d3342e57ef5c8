"""Small literal results frames, as ``read_results`` gives them."""

from __future__ import annotations

from typing import Any

import pandas as pd

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
