"""A training that was stopped and goes on ends where an undisturbed one ends."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from spec_bench.draft.heads import load_heads
from spec_bench.train.loop import TrainingLog, columns, run_training, share
from tests.warm import Command, run

from .tiny import CPU, trained, training, two_streams

TEXT = two_streams(64, 20)
TRAIN = "spec_bench.train"
ROOT = Path(__file__).parents[2]
WORKER = """
import sys, torch
from pathlib import Path
from spec_bench.train.loop import processes_for
from tests.train.tiny import trained, two_streams
shared = processes_for("cpu")
folder, text = Path(sys.argv[1]), two_streams(64, 20)
plan = trained(folder, "redrafter", text, 4, processes=shared, accumulate=2)
assert shared.num_processes == 2
torch.save(plan.trainee.state_dict(), folder / f"rank{shared.process_index}.pt")
"""


class Interrupted(Accelerator):
    """Is stopped from outside in the middle of a step."""

    def __init__(self, after):
        super().__init__(cpu=True, device_placement=False)
        self.left = after

    def reduce(self, tensor, **given):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().reduce(tensor, **given)


def equal(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


def lines(folder):
    """The log without what the clock says."""
    with (folder / "log.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        del row["seconds"], row["tokens_per_s"]
    return rows


@pytest.mark.parametrize("kind", ["medusa", "redrafter"])
@pytest.mark.parametrize("stop", [2, 4, 7])
def test_an_interrupted_training_gives_the_same_curve_and_weights(kind, stop, tmp_path):
    whole = trained(tmp_path / "whole", kind, TEXT, 10)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "cut", kind, TEXT, 10, processes=Interrupted(stop))
    again = trained(tmp_path / "cut", kind, TEXT, 10)
    assert lines(again.settings.folder) == lines(whole.settings.folder)
    assert [row["step"] for row in lines(again.settings.folder)] == ["2", "4", "6", "8", "10"]
    assert equal(whole.trainee, again.trainee)


def test_a_finished_training_is_not_trained_again_nor_with_other_settings(tmp_path):
    first = trained(tmp_path, "medusa", TEXT, 4)
    before = lines(first.settings.folder)
    second = trained(tmp_path, "medusa", TEXT, 4)
    assert lines(second.settings.folder) == before
    assert equal(first.trainee, second.trainee)
    with pytest.raises(ValueError, match="holds a training with other settings"):
        trained(tmp_path, "medusa", TEXT, 4, learned_from="something else")


@pytest.mark.parametrize("bad", [b"", b"half", b"\0" * 4000, None])
def test_a_checkpoint_that_is_half_is_set_aside_and_training_begins_anew(bad, tmp_path):
    whole = trained(tmp_path / "whole", "medusa", TEXT, 3)
    cut = training(tmp_path / "cut", "medusa", TEXT, 3)
    file = cut.settings.folder / "checkpoint.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    good = (whole.settings.folder / "checkpoint.pt").read_bytes()
    file.write_bytes(good[: len(good) // 2] if bad is None else bad)
    assert run_training(cut).step == 3
    assert file.with_name("checkpoint.pt.bad-1").exists()
    assert equal(whole.trainee, cut.trainee)


@pytest.mark.parametrize("parts", [2, 5])
def test_a_step_in_parts_is_the_same_step(parts, tmp_path):
    whole = trained(tmp_path / "1", "redrafter", TEXT, 4)
    split = trained(tmp_path / "n", "redrafter", TEXT, 4, accumulate=parts)
    for one, other in zip(whole.trainee.parameters(), split.trainee.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_every_dialogue_of_a_step_is_learned_once():
    pieces = [piece for rank in range(3) for piece in share(range(20), rank, 3, 2)]
    assert sorted(index for piece in pieces for index in piece) == list(range(20))
    assert all(pieces)


@pytest.mark.slow
def test_two_processes_arrive_at_the_weights_of_one(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    command = [*launcher, str(tmp_path / "worker.py"), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    alone = trained(tmp_path / "alone", "redrafter", TEXT, 4)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for name, value in alone.trainee.state_dict().items():
        assert torch.equal(ranks[0][name], ranks[1][name])
        torch.testing.assert_close(ranks[0][name], value, rtol=1e-3, atol=1e-4)


def test_lines_after_the_checkpoint_are_dropped_a_half_written_one_too(tmp_path):
    log = TrainingLog(tmp_path / "log.csv", columns(1))
    log.rewind(0)
    for step in (2, 4, 6):
        log.add({"step": step, "seconds": 1})
    with log.file.open("a") as stream:
        stream.write("8,1")
    log.rewind(4)
    assert [row["step"] for row in log.rows()] == ["2", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["redrafter", "eagle1", "eagle3"])
def test_a_training_killed_by_the_system_goes_on_exactly(head, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Translate"}\n{"prompt": "Article: It"}\n{"prompt": "A"}\n')

    def command(name):
        return [
            *(f"results={tmp_path}", f"name={name}"),
            *(f"head={head}", "data.kind=prompts", f"data.path={prompts}", "engine.threads=1"),
            *("data.answers.max_new_tokens=24", "optimiser.steps=60", "optimiser.batch=2"),
            *("log_every=2", "validate_every=10", "save_every=5", "sink.progress=false"),
            *("data.validation=0.3", "out_dtype=float32"),
        ]

    assert run(TRAIN, *command("whole"), folder=tmp_path)[0] == 0
    process = Command(TRAIN, command("cut"), tmp_path)
    log, until = tmp_path / "cut" / "log.csv", time.monotonic() + 200
    while not log.is_file() or log.read_text().count("\n") < 9:
        assert time.monotonic() < until
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    assert not (tmp_path / "cut" / "heads").exists()
    assert run(TRAIN, *command("cut"), folder=tmp_path)[0] == 0
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    heads = (str(tmp_path / name / "heads") for name in ("whole", "cut"))
    assert equal(*(load_heads(folder, CPU, torch.float32) for folder in heads))
