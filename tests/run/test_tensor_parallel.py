"""A target split over two processes decodes what it decodes in one, and one process writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spec_bench.engine.loading import ModelSpec
from spec_bench.run.store import CellStore
from tests.run.tiny import RunJob, overrides, rows_of, tokens_of

CELLS = "cells=[sd:3,rsd_s:3x2,dsbd:3x2@0.9]"


def by_decoder(results: Path) -> dict[str, dict[str, tuple[int, ...]]]:
    return {
        f"{row['decoder']} {row['spec']}": tokens_of(results, row["run_id"])
        for row in rows_of(results)
    }


def test_two_processes_decode_what_one_does_and_one_of_them_writes(
    family: Path, run_job: RunJob, tmp_path: Path
) -> None:
    run_job(CELLS)
    split = tmp_path / "split"
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("-m", "spec_bench", *overrides(family, split, CELLS, "engine.tensor_parallel=true")),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(2):  # the second time everything is there already
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    together, apart = by_decoder(tmp_path / "results"), by_decoder(split)
    assert list(apart) == ["ar -", "sd 3", "rsd_s 3x2", "dsbd 3x2@0.9"]
    assert apart == together
    for row in rows_of(split):
        assert row["status"] == "complete"
        lines = (split / "runs" / row["run_id"] / "generations.jsonl").read_text().splitlines()
        assert len(lines) == len(CellStore(split, row["run_id"]).load()) == int(row["prompts"])


@pytest.mark.parametrize(
    ("environment", "wanted", "message"),
    [
        ({}, {}, "needs several processes: start with torchrun"),
        ({"WORLD_SIZE": "2"}, {"device_map": "auto"}, "has a device map"),
        ({"WORLD_SIZE": "2"}, {"path": "random:llama_tiny"}, "has no weights"),
    ],
)
def test_what_cannot_be_split_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict, wanted: dict, message: str
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ModelSpec(**{"path": "somewhere", "tensor_parallel": True, **wanted})
