"""A target split over two processes decodes what it decodes in one, and one process writes."""

import os
import socket
import subprocess
import sys

import pytest

from spec_bench.engine.loading import ModelSpec
from spec_bench.jobs.store.store import CellStore
from tests.jobs.tiny import overrides, rows_of, tokens_of
from tests.warm import Command

CELLS = "cells=[sd:3,rsd_s:3x2,dsbd:3x2@0.9]"


def by_decoder(results):
    return {
        f"{row['decoder']} {row['spec']}": tokens_of(results, row["run_id"])
        for row in rows_of(results)
    }


def through_torchrun(arguments, folder):
    """As a user starts it, in interpreters of their own."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "-m", "spec_bench"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


def through_its_variables(arguments, folder):
    """What torchrun tells its processes, told to forks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in ("0", "1"):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(Command("spec_bench", arguments, folder, told))
    for rank in ranks:
        status, _, said = rank.finish()
        assert status == 0, said[-3000:]


@pytest.mark.parametrize(
    "start", [through_its_variables, pytest.param(through_torchrun, marks=pytest.mark.slow)]
)
def test_two_processes_decode_what_one_does_and_one_of_them_writes(
    start, family, run_job, tmp_path
):
    run_job(CELLS)
    split = tmp_path / "split"
    for _ in range(2):  # the second time everything is there already
        start(overrides(family, split, CELLS, "engine.tensor_parallel=true"), tmp_path)
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
def test_what_cannot_be_split_is_refused(monkeypatch, environment, wanted, message):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ModelSpec(**{"path": "somewhere", "tensor_parallel": True, **wanted})
