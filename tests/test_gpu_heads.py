"""Heads at true size, rehearsed on tiny models; its imports stay within torch's world."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_gpu_random_pair import REFUSE

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "gpu" / "heads.py"


@pytest.mark.slow
def test_training_and_batches_run_without_hydra_and_say_what_is_simulated(tmp_path):
    command = [sys.executable, "-c", REFUSE, str(SCRIPT), "--tiny", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "heads-training.csv").open() as stream:
        (training,) = csv.DictReader(stream)
    assert float(training["tokens_per_s"]) > 0
    assert 0 < float(training["last_loss"]) < 20
    with (tmp_path / "heads-batches.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["batch_size"] for row in rows} == {"1", "3"}
    lossless = {row["decoder"]: row["lossless"] for row in rows}
    assert lossless.pop("ar -") == "exact"
    assert set(lossless.values()) == {"simulated"}
    merged, apart = (
        next(float(r["nodes_per_call"]) for r in rows if r["decoder"] == name)
        for name in ("redrafter 8x5", "redrafter 8x5 apart")
    )
    assert merged < apart == 40
