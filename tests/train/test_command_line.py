"""``python -m spec_bench.train`` from the outside."""

import csv
import json
import sys
from pathlib import Path

import pytest
import torch

from spec_bench.draft.heads import load_heads
from spec_bench.train.collect import main as collect
from tests.said import naming
from tests.warm import run

TRAIN = "spec_bench.train"

CHATS = [
    {
        "conversations": [
            {"from": "human", "value": f"Who sings in house {number}?"},
            {"from": "gpt", "value": "Emma sings there, and Bruno paints."},
        ]
    }
    for number in range(8)
]


def test_a_wrong_file_is_one_line_and_status_2_before_the_target_is_loaded(tmp_path):
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([*CHATS, {"conversations": [{"from": "human"}]}]))
    data = (f"data.path={file}", "data.answered_by=file")
    target = "pair.target=nobody/nothing"
    status, _, said = run(TRAIN, f"results={tmp_path}", *data, target, folder=tmp_path)
    assert status == 2, said
    (line,) = [line for line in said.splitlines() if "spec_bench.train:" in line]
    assert "chats.json, record 9, turn 1: no text under 'value'; expected" in line
    assert "Traceback" not in said


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
    heads = load_heads(str(tmp_path / "made" / "heads"), torch.device("cpu"), torch.float32)
    facts = json.loads((tmp_path / "made" / "heads" / "training.json").read_text())
    assert facts["parameters"] == heads.parameter_count
    assert facts["data"]["train"]["dialogues"] + facts["data"]["validation"]["dialogues"] == 8
    assert list(facts["accuracy"]["validation"]) == ["t+1", "t+2", "t+3"]
    told = json.loads((tmp_path / "made" / "heads" / "accuracies.json").read_text())
    assert [len(ranks) for ranks in told["accuracies"]] == [10, 10, 10]
    assert str(tmp_path.parent) not in json.dumps(facts["provenance"]["versions"])
    with (tmp_path / "made" / "heads" / "log.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert all(float(row["tokens_per_s"]) > 0 and row["validation t+3"] for row in rows)
    assert list((tmp_path / "made" / "wandb").glob("offline-run-*-heads-*"))


def test_trained_heads_are_collected_as_rows(tmp_path, monkeypatch):
    for blocks, share in ((0, 0.5), (1, 0.625)):
        folder = tmp_path / "grid" / f"blocks{blocks}" / "heads"
        folder.mkdir(parents=True)
        head = {"kind": "redrafter", "recurrent": False, "blocks": blocks}
        facts = {
            "head": "redrafter_no_rnn",
            "settings": {"head": head, "optimiser": {"learning_rate": 0.001}},
            "parameters": 100 + blocks,
            "data": {"validation": {"dialogues": 4, "positions": 40}},
            "accuracy": {"train": {"t+1": 0.75}, "validation": {"t+1": share}},
            "steps": 120,
            "seconds": 1.5,
        }
        (folder / "training.json").write_text(json.dumps(facts))
    out = tmp_path / "heads.csv"
    monkeypatch.setattr(sys, "argv", ["collect", str(tmp_path / "grid"), "--out", str(out)])
    collect()
    first, second = csv.DictReader(out.read_text().splitlines())
    assert first["recurrent"] == "false"
    assert (first["blocks"], first["parameters"], first["validation t+1"]) == ("0", "100", "0.5")
    assert (second["blocks"], second["validation t+1"]) == ("1", "0.625")
    assert Path(second["folder"]) == tmp_path / "grid" / "blocks1" / "heads"


def test_a_folder_without_trainings_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["collect", str(tmp_path)])
    with pytest.raises(SystemExit, match=naming("training.json")):
        collect()
