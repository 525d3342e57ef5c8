"""Cells made up for tests: facts with defaults, results without numbers."""

from spec_bench.records.types import CellFacts, CellResult


def facts(**more):
    """A chain on a made-up pair; ``more`` are other facts."""
    told = {"pair": "p", "target": "t", "draft": ("d",), "task": "xsum", "decoder": "sd"}
    return CellFacts(**{**told, "spec": "3", **more})


def result(run_id="id", metrics=None, **more):
    """A complete cell; ``more`` are other facts."""
    return CellResult(run_id, facts(**more), "complete", "exact", (), metrics or {}, "same job")
