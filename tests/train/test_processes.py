"""Several processes share a step and arrive at the weights of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spec_bench.train.loop import run_training
from spec_bench.train.processes import Accelerated, share

from .tiny import training, two_streams

ROOT = Path(__file__).parents[2]
TEXT = two_streams(48, 16)
WORKER = """
import sys, torch
from pathlib import Path
from spec_bench.train.loop import run_training
from spec_bench.train.processes import Accelerated
from tests.train.tiny import training, two_streams
text, shared = two_streams(48, 16), Accelerated("cpu")
plan = training(Path(sys.argv[1]), "redrafter", text, 6, processes=shared, accumulate=2)
run_training(plan)
assert plan.processes.count == 2
torch.save(plan.trainee.state_dict(), Path(sys.argv[1]) / f"rank{plan.processes.rank}.pt")
"""


def test_every_dialogue_of_a_step_is_learned_once():
    pieces = [piece for rank in range(3) for piece in share(range(20), rank, 3, 2)]
    assert sorted(index for piece in pieces for index in piece) == list(range(20))
    assert all(pieces)


def test_accelerate_in_one_process_changes_nothing(tmp_path):
    pytest.importorskip("accelerate")
    plain = training(tmp_path / "plain", "medusa", TEXT, 5)
    shared = training(tmp_path / "shared", "medusa", TEXT, 5, processes=Accelerated("cpu"))
    run_training(plain)
    run_training(shared)
    for one, other in zip(plain.trainee.parameters(), shared.trainee.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
def test_two_processes_arrive_at_the_weights_of_one(tmp_path):
    pytest.importorskip("accelerate")
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc_per_node=2", str(worker), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    alone = training(tmp_path / "alone", "redrafter", TEXT, 6)
    run_training(alone)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for name, value in alone.trainee.state_dict().items():
        assert torch.equal(ranks[0][name], ranks[1][name])
        torch.testing.assert_close(ranks[0][name], value, rtol=1e-3, atol=1e-4)
