"""``python -m spec_bench.train``: what cannot be right is one line before anything is loaded."""

import csv
import json
import sys
from pathlib import Path

import pytest
import torch

from spec_bench.draft.heads import load_heads
from spec_bench.train.collect import main as collect
from spec_bench.train.settings import build_train_settings
from tests.said import naming
from tests.warm import run

from .tiny import composed

TRAIN = "spec_bench.train"


def settings(*overrides):
    return build_train_settings(composed(*overrides))


@pytest.mark.parametrize("head", ["medusa", "redrafter", "redrafter_no_rnn"])
def test_every_head_can_be_trained_on_chats_and_on_a_task(head):
    assert settings(f"head={head}", "data.path=chats.json").asked.head.guesses == 5
    assert settings(f"head={head}", "data.kind=task").task is not None


def test_the_heads_lie_beside_the_log_unless_another_folder_is_named():
    assert settings("data.kind=task", "name=grid/a").out == Path("results/train/grid/a/heads")
    assert settings("data.kind=task", "out=elsewhere").out == Path("elsewhere")


def test_what_the_numbers_do_not_follow_from_is_no_part_of_a_checkpoint():
    one = settings("data.kind=task", "name=a", "log_every=5", "sink=quiet")
    assert one.config == settings("data.kind=task", "name=b").config
    assert one.config != settings("data.kind=task", "seed=1").config
    assert one.config != settings("data.kind=task", "task=dolly").config


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
    with pytest.raises(ValueError, match=naming(complaint)) as raised:
        settings(*kind, *told)
    assert "\n" not in str(raised.value)


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
    (line,) = [line for line in said.splitlines() if "spec_bench.train:" in line]
    assert "chats.json, record 9, turn 1: no text under 'value'; expected" in line


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
    assert [len(ranks) for ranks in told["accuracies"]] == [10, 10, 10]
    assert str(tmp_path.parent) not in json.dumps(facts["provenance"]["versions"])
    with (made / "heads" / "log.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert all(float(row["tokens_per_s"]) > 0 and row["validation t+3"] for row in rows)
    assert list((made / "wandb").glob("offline-run-*-heads-*"))


def test_trained_heads_are_collected_as_rows(tmp_path, monkeypatch):
    for blocks, share in ((0, 0.5), (1, 0.625)):
        folder = tmp_path / "grid" / f"blocks{blocks}" / "heads"
        folder.mkdir(parents=True)
        head = {"kind": "redrafter", "recurrent": False, "blocks": blocks}
        facts = {
            "head": "redrafter_no_rnn", "parameters": 100 + blocks, "steps": 120, "seconds": 1.5,
            "settings": {"head": head, "optimiser": {"learning_rate": 0.001}},
            "data": {"validation": {"dialogues": 4, "positions": 40}},
            "accuracy": {"train": {"t+1": 0.75}, "validation": {"t+1": share}},
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
