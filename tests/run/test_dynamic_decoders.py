"""Jobs of dynamic trees: planned, batched and resumed as all others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import DYNAMIC
from tests.run.test_command_line import main
from tests.run.tiny import RunJob, overrides, tokens_of

SMALL = dict(zip(DYNAMIC, ("2x2@3", "2x2@3", "3", "2x2", "3"), strict=True))
CELLS = f"cells=[{','.join(f'{name}:{spec}' for name, spec in SMALL.items())}]"


SHORT = ("warmup=0", "generation.max_new_tokens=6", "prompts=3")


def test_a_job_of_them_resumes_behind_its_last_line_and_knows_no_batches(
    run_job: RunJob, tmp_path: Path
) -> None:
    whole = run_job(CELLS, *SHORT)
    assert [(r.facts.decoder, r.status) for r in whole] == [
        (name, "complete") for name in ("ar", *DYNAMIC)
    ]
    results = tmp_path / "results"
    before = [tokens_of(results, cell.run_id) for cell in whole]
    for cell in whole:
        folder = results / "runs" / cell.run_id
        (folder / "result.json").unlink()
        lines = (folder / "generations.jsonl").read_text().splitlines(keepends=True)
        (folder / "generations.jsonl").write_text("".join(lines[:2]) + lines[2][:20])
    again = run_job(CELLS, *SHORT)
    assert [cell.run_id for cell in again] == [cell.run_id for cell in whole]
    assert [tokens_of(results, cell.run_id) for cell in again] == before
    batched = run_job(CELLS, *SHORT, "engine.batch_size=3", results=tmp_path / "batched")
    tokens = [tokens_of(tmp_path / "batched", cell.run_id) for cell in batched]
    assert tokens == before


def test_they_are_planned(
    family: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = overrides(family, tmp_path / "results", CELLS)
    assert main(monkeypatch, *given, "plan=true", "hydra/job_logging=none") == 0
    said = capsys.readouterr().out
    assert all(name in said for name in DYNAMIC)
    assert not (tmp_path / "results" / "default" / "results.csv").exists()
