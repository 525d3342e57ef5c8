"""The training command: what cannot be right is one line; stopped, it goes on to the same end."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from spec_bench.draft.heads import load_heads
from spec_bench.jobs.config.compose import compose_config as job_of
from spec_bench.jobs.config.compose import parse_request
from spec_bench.jobs.config.flags import flags_to_overrides
from spec_bench.settings.configs import get_conf_dir
from spec_bench.train import train
from spec_bench.train.collect import write_training_table as collect
from spec_bench.train.loop import (
    TrainingCheckpoint,
    TrainingLog,
    TrainingProgress,
    list_log_columns,
    run_training,
    split_process_share,
)
from spec_bench.train.settings import build_train_settings
from tests.said import naming, one_line
from tests.warm import Command, run, until

from .tiny import CPU, composed, trained, training, two_streams

TRAIN = "spec_bench.train"


def settings(*overrides):
    return build_train_settings(composed(*overrides))


def test_the_heads_lie_beside_the_log_unless_another_folder_is_named():
    assert settings("data.kind=task", "name=grid/a").heads_folder == Path(
        "results/train/grid/a/heads"
    )
    assert settings("data.kind=task", "out=elsewhere").heads_folder == Path("elsewhere")


def test_what_the_numbers_do_not_follow_from_is_no_part_of_a_checkpoint():
    one = settings("data.kind=task", "name=a", "log_every=5", "sink=quiet")
    assert one.identity == settings("data.kind=task", "name=b").identity
    assert one.identity != settings("data.kind=task", "seed=1").identity
    assert one.identity != settings("data.kind=task", "task=dolly").identity


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ("", "data.kind=chats needs data.path, the file"),
        ("data.kind=books", "must be one of chats, prompts, sampled, task, got 'books'"),
        ("data.kind=task data.answered_by=file", "data.kind=task has no answers"),
        ("head.guesses=0", "head.guesses must be a whole number >= 1, got 0"),
        ("head.decay=1.5", "head.decay must be a number from 0 to 1, got 1.5"),
        ("+head.layers=2", "unknown setting head.layers; head has blocks"),
        ("head=redrafter head.init=target", "head.init=target: the last layer of redrafter"),
        ("head=mtp head.init=embedded:x", "head.init must be random or target, got 'embedded:x'"),
        ("head=medusa +head.draft_vocab=64", "head.draft_vocab must be null for medusa"),
        ("head=pard +head.width=64", "head.init=embedded:draft_distilled has its own"),
        ("head=draft_model head.blocks=0", "head.kind=draft_model needs head.blocks"),
        ("data.validation=1", "data.validation must be a number from 0 to 0.9"),
        ("data.answers.temperatures=[]", "temperatures must be a number >= 0 or a list"),
        ("optimiser.steps=none", "whole number >= 1 or null, got 'none'"),
        ("optimiser.precision=half", "one of float32, bfloat16, got 'half'"),
        ("optimiser.accumulate=65", "splits a batch of 64 dialogues"),
        ("validate_every=30", "validate_every must be a multiple of log_every"),
        ("name=../x", "name must be a folder below results, got '../x'"),
        ("name=cache/x", "name 'cache' is taken"),
        ("pair.target=embedded:none", "unknown embedded model"),
        ("data.path=x.jsonl", "data.kind=task reads no file, got data.path=x"),
        ("out_dtype=int8", "out_dtype must be one of float32, float16"),
    ],
)
def test_a_value_that_cannot_be_is_named(overrides, complaint):
    told = overrides.split()
    kind = ["data.kind=task"] if told and "data.kind" not in overrides else []
    with one_line(naming(complaint)):
        settings(*kind, *told)


ANSWER = {"from": "gpt", "value": "Emma sings there, and Bruno paints."}
CHATS = [
    {"conversations": [{"from": "human", "value": f"Who sings in house {number}?"}, ANSWER]}
    for number in range(8)
]


def test_a_wrong_file_is_one_line_and_status_2_before_the_target_is_loaded(tmp_path):
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([*CHATS, {"conversations": [{"from": "human"}]}]))
    given = (f"results={tmp_path}", f"data.path={file}", "data.answered_by=file")
    status, _, said = run(TRAIN, *given, "pair.target=nobody/nothing", folder=tmp_path)
    assert status == 2 and "Traceback" not in said, said
    (line,) = [line for line in said.splitlines() if "spec-bench train:" in line]
    assert "record 9: conversations[0] must be a message" in line


@pytest.mark.slow
@pytest.mark.parametrize("head", ["medusa", "redrafter", "redrafter_no_rnn"])
def test_chats_become_heads_with_their_log_and_provenance(head, tmp_path):
    file = tmp_path / "chats.json"
    file.write_text(json.dumps(CHATS))
    status, _, said = run(
        *(TRAIN, "engine.threads=1", f"results={tmp_path}", f"head={head}"),
        *(f"data.path={file}", "data.answered_by=file"),
        *("optimiser.steps=6", "optimiser.batch=2", "log_every=2", "validate_every=2"),
        *("data.validation=0.3", "head.guesses=3", "sink.wandb.enabled=true", "name=made"),
        *("sink.progress=false", "optimiser.precision=bfloat16", "optimiser.accumulate=2"),
        folder=tmp_path,
    )
    assert status == 0, said
    made = tmp_path / "made"
    heads = load_heads(str(made / "heads"), torch.device("cpu"), torch.float32)
    facts = json.loads((made / "heads" / "training.json").read_text())
    assert facts["parameters"] == heads.parameter_count
    assert facts["data"]["train"]["dialogues"] + facts["data"]["validation"]["dialogues"] == 8
    assert list(facts["accuracy"]["validation"]) == ["t+1", "t+2", "t+3"]
    told = json.loads((made / "heads" / "accuracies.json").read_text())
    assert facts["positions"] == told["positions"]
    assert [len(ranks) for ranks in told["accuracies"]] == [10, 10, 10]
    assert str(tmp_path.parent) not in json.dumps(facts["provenance"]["versions"])
    with (made / "heads" / "log.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert all(float(row["tokens_per_s"]) > 0 and row["validation t+3"] for row in rows)
    assert list((made / "wandb").glob("offline-run-*-heads-*"))


@pytest.mark.parametrize(
    "head", sorted(file.stem for file in (get_conf_dir() / "head").glob("*.yaml"))
)
def test_the_words_that_measure_a_head_are_those_of_a_job_that_uses_it(head):
    words = settings("data.kind=task", f"head={head}").config.head.measured
    assert "HEADS" in words
    asked = parse_request(job_of(flags_to_overrides("run", words.replace("HEADS", "made").split())))
    assert "made" in [asked.pair.draft, *(asked.pair.heads or {}).values()]


@pytest.mark.parametrize("held_out", [{}, {"t+1": 0.25}])
def test_a_training_ends_with_what_was_measured_on_which_prompts_and_the_next_command(
    held_out, tmp_path, monkeypatch, capsys
):
    accuracy = {"train": {"t+1": 0.75}, "validation": held_out}
    monkeypatch.setattr(train, "_prepare_training", lambda *_: None)
    monkeypatch.setattr(train, "run_training", lambda _: None)
    facts = {"accuracy": accuracy, "parameters": 1, "positions": [8, 7]}
    monkeypatch.setattr(train, "write_training_results", lambda *_: facts)
    words = ["pair.target=embedded:target", "data.kind=task", "sink=quiet", f"results={tmp_path}"]
    monkeypatch.setattr(train, "_get_command_line_overrides", lambda: words)
    train.train_heads(settings(*words))
    told, heads, command = capsys.readouterr().out.splitlines()
    assert ("on the training data" in told) is not bool(held_out)
    share = "0.25" if held_out else "0.75"
    assert told.endswith(f": t+1 {share} (of 8 positions)")
    folder = heads.removeprefix("heads: ")
    assert command.partition(": ")[2] == (
        "spec-bench run pair.target=embedded:target "
        f"pair.heads.medusa={folder} --decoders medusa task.chat=false --data FILE"
    )


def test_trained_heads_are_collected_as_rows(tmp_path, monkeypatch):
    for blocks, kept in ((0, 0.5), (1, 0.625)):
        folder = tmp_path / "grid" / f"blocks{blocks}" / "heads"
        folder.mkdir(parents=True)
        head = {"kind": "redrafter", "recurrent": False, "blocks": blocks}
        facts = {
            "head": "redrafter_no_rnn", "parameters": 100 + blocks, "steps": 120, "seconds": 1.5,
            "settings": {"head": head, "optimiser": {"learning_rate": 0.001}},
            "data": {"validation": {"dialogues": 4, "positions": 40}},
            "accuracy": {"train": {"t+1": 0.75}, "validation": {"t+1": kept}},
        }  # fmt: skip
        (folder / "training.json").write_text(json.dumps(facts))
    out = tmp_path / "heads.csv"
    monkeypatch.setattr(sys, "argv", ["collect", str(tmp_path / "grid"), "--out", str(out)])
    collect()
    first, second = csv.DictReader(out.read_text().splitlines())
    names = ("recurrent", "blocks", "parameters", "validation t+1")
    assert [first[name] for name in names] == ["false", "0", "100", "0.5"]
    assert [second[name] for name in names] == ["false", "1", "101", "0.625"]
    assert Path(second["folder"]) == tmp_path / "grid" / "blocks1" / "heads"
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sys, "argv", ["collect", str(tmp_path / "empty")])
    with pytest.raises(SystemExit, match=naming("training.json")):
        collect()


TEXT = two_streams(64, 20)
ROOT = Path(__file__).parents[2]
WORKER = """
import sys, torch
from pathlib import Path
from spec_bench.train.loop import make_accelerator
from tests.train.tiny import trained, two_streams
shared = make_accelerator("cpu")
folder, text = Path(sys.argv[1]), two_streams(64, 20)
plan = trained(folder, "redrafter", text, 4, processes=shared, accumulate=2)
assert shared.num_processes == 2
torch.save(plan.trainee.state_dict(), folder / f"rank{shared.process_index}.pt")
"""


class Interrupted(Accelerator):
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
    assert lines(again.settings.checkpoint_folder) == lines(whole.settings.checkpoint_folder)
    assert [row["step"] for row in lines(again.settings.checkpoint_folder)] == [
        "2",
        "4",
        "6",
        "8",
        "10",
    ]
    assert equal(whole.trainee, again.trainee)


def test_a_finished_training_is_not_trained_again_nor_with_other_settings(tmp_path):
    first = trained(tmp_path, "medusa", TEXT, 4)
    before = lines(first.settings.checkpoint_folder)
    second = trained(tmp_path, "medusa", TEXT, 4)
    assert lines(second.settings.checkpoint_folder) == before
    assert equal(first.trainee, second.trainee)
    with pytest.raises(ValueError, match="holds a training with other settings"):
        trained(tmp_path, "medusa", TEXT, 4, learned_from="something else")


def test_a_checkpoint_made_by_hand_calls_nothing_and_no_step_of_it_is_below_0(tmp_path):
    layer, ran = torch.nn.Linear(2, 2), tmp_path / "ran"
    optimiser = torch.optim.AdamW(layer.parameters())
    checkpoint = TrainingCheckpoint(tmp_path, {})

    class Calls:
        def __reduce__(self):
            return ran.touch, ()

    for step, more, found in ((3, {}, 3), (-5, {}, 0), (3, {"more": Calls()}, 0)):
        checkpoint.save(layer, optimiser, TrainingProgress(step))
        state = torch.load(checkpoint.file, weights_only=True)
        torch.save({**state, **more}, checkpoint.file)
        assert checkpoint.load(layer, optimiser).step == found
    assert not ran.exists()
    assert len([*tmp_path.glob("checkpoint.pt.bad-*")]) == 2


@pytest.mark.parametrize("bad", [b"", b"half", b"\0" * 4000, None])
def test_a_checkpoint_that_is_half_is_set_aside_and_training_begins_anew(bad, tmp_path):
    whole = trained(tmp_path / "whole", "medusa", TEXT, 3)
    cut = training(tmp_path / "cut", "medusa", TEXT, 3)
    file = cut.settings.checkpoint_folder / "checkpoint.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    good = (whole.settings.checkpoint_folder / "checkpoint.pt").read_bytes()
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
    pieces = [piece for rank in range(3) for piece in split_process_share(range(20), rank, 3, 2)]
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
    log = TrainingLog(tmp_path / "log.csv", list_log_columns(1))
    log.drop_rows_after(0)
    for step in (2, 4, 6):
        log.append_row({"step": step, "seconds": 1})
    with log.file.open("a") as stream:
        stream.write("8,1")
    log.drop_rows_after(4)
    assert [row["step"] for row in log.read_rows()] == ["2", "4"]


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
    log = tmp_path / "cut" / "log.csv"
    assert until(lambda: log.is_file() and log.read_text().count("\n") >= 9, 200)
    assert process.poll() is None, "it ended before it could be killed"
    process.kill()
    assert not (tmp_path / "cut" / "heads").exists()
    assert run(TRAIN, *command("cut"), folder=tmp_path)[0] == 0
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    heads = (str(tmp_path / name / "heads") for name in ("whole", "cut"))
    assert equal(*(load_heads(folder, CPU, torch.float32) for folder in heads))
