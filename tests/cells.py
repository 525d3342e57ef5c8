"""Cells made up for tests: facts with defaults, results without numbers."""

from __future__ import annotations

from typing import Any

from spec_bench.records.types import CellFacts, CellResult


def facts(**more: Any) -> CellFacts:
    """A chain on a made-up pair; ``more`` are other facts."""
    told = {"pair": "p", "target": "t", "draft": ("d",), "task": "xsum", "decoder": "sd"}
    return CellFacts(**{**told, "spec": "3", **more})


def result(run_id: str = "id", metrics: dict[str, Any] | None = None, **more: Any) -> CellResult:
    """A complete cell; ``more`` are other facts."""
    return CellResult(run_id, facts(**more), "complete", "exact", (), metrics or {}, "same job")
