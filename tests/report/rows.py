"""Measured rows made of literals: what a results file holds, without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

DEFAULTS: dict[str, Any] = {
    "pair": "llama2_7b",
    "target": "meta-llama/Llama-2-7b-hf",
    "draft": "JackFram/llama-160m",
    "task": "xsum",
    "decoder": "sd",
    "spec": "2",
    "temperature": 0.3,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 0,
    "batch_size": 1,
    "tree_attention": True,
    "lossless": "exact",
    "status": "complete",
    "reason": "",
    "run_id": "",
    "baseline": "same job",
    "prompts": 30,
}


def row(decoder: str, spec: str, **values: Any) -> dict[str, Any]:
    """One cell; a metric is ``name=value`` or ``name=(value, low, high)``."""
    made = {**DEFAULTS, "decoder": decoder, "spec": spec}
    if decoder == "ar":
        made["draft"] = ""
    for name, value in values.items():
        if isinstance(value, tuple):
            made[name], made[f"{name}_low"], made[f"{name}_high"] = value
        else:
            made[name] = value
    return made


def write(folder: Path, name: str, *rows: dict[str, Any]) -> Path:
    """``<folder>/<name>/results.csv``; returns the folder."""
    path = folder / name / "results.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = {f"{m}{end}": None for m in _METRICS for end in ("", "_low", "_high")}
    pd.DataFrame([{**metrics, **each} for each in rows]).to_csv(path, index=False)
    return folder


_METRICS = (
    "block_efficiency",
    "mbsu",
    "acceptance_rate",
    "token_rate",
    "speedup",
    "rouge2",
    "bleu",
)
