"""How many parameters drafted: from the ratio to a target of known size, or from the training file.

Knows where heads of the embedded family lie; nothing about how they were trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

import spec_bench
from spec_bench.report.papers.pairs import pair_configs

_EMBEDDED = "embedded:"


def drafter_size(row: Mapping[str, Any]) -> str | None:
    """``0.74B`` or ``1.87M``; None where it is not known.

    Args:
        row: a measured cell.
    """
    count = _parameters(row)
    return None if count is None else written(count)


def written(count: int) -> str:
    """A count of parameters as the papers write it; millions where these would be 0.0 billions."""
    if count == 0:
        return "0"
    return f"{count / 1e9:.2f}B" if count >= 1e8 else f"{count / 1e6:.2f}M"


def _parameters(row: Mapping[str, Any]) -> int | None:
    if row["decoder"] == "ar":
        return 0
    config, ratio = pair_configs().get(str(row["pair"])), row.get("parameter_ratio")
    if config is not None and config.target_parameters and ratio and not pd.isna(ratio):
        return round(float(ratio) * config.target_parameters)
    file = _folder(str(row.get("draft", ""))) / "training.json"
    if not file.is_file():
        return None
    return int(json.loads(file.read_text(encoding="utf-8"))["parameters"])


def _folder(draft: str) -> Path:
    if draft.startswith(_EMBEDDED):
        return Path(spec_bench.__file__).parent / "embedded" / draft.removeprefix(_EMBEDDED)
    return Path(draft)
