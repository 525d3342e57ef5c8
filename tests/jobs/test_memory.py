"""What a drafter remembers of earlier answers hangs on the order of the prompts alone."""

from __future__ import annotations

from pathlib import Path

from spec_bench.records.types import CellResult
from tests.jobs.tiny import RunJob

CELL = (
    "decoder=suffix_decoding",
    "decoder.drafter.least=0",
    "generation=greedy",
    "generation.max_new_tokens=32",
)


def test_a_job_that_was_stopped_proposes_what_it_would_have(
    run_job: RunJob, tmp_path: Path
) -> None:
    def told(results: list[CellResult]) -> list[tuple[float, float]]:
        return [
            (each.metrics["block_efficiency"], each.metrics["delivered_tokens"]) for each in results
        ]

    whole = told(run_job(*CELL, "prompts=4", results=tmp_path / "whole"))
    first = told(run_job(*CELL, "prompts=2", results=tmp_path / "parts"))
    assert told(run_job(*CELL, "prompts=4", results=tmp_path / "parts")) == whole
    batched = told(run_job(*CELL, "prompts=4", "repeats=2", results=tmp_path / "repeated"))
    assert batched[-1][0] == whole[-1][0]
    forgetful = run_job(
        *CELL, "prompts=4", "decoder.drafter.memory=none", results=tmp_path / "none"
    )
    assert told(forgetful)[-1][0] < whole[-1][0]
    assert first != whole
