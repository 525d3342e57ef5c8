"""Pipes, devices, dangling links and settings that nothing reads: one line, nothing waited for."""

import os
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from spec_bench.audit.__main__ import read_arguments
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.model_spec import kept_tokens
from spec_bench.jobs.config.config import check_own, read_positions
from spec_bench.jobs.config.model_files import fingerprint
from spec_bench.recommend.command import main as recommend
from spec_bench.records import cell_folder
from spec_bench.report.cli.command_line import main as report
from spec_bench.system import files
from spec_bench.tasks import build_task
from spec_bench.tasks.template import chat_text
from tests.warm import run

MODELS = Path(__file__).resolve().parents[2] / "spec_bench/embedded/models"


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe.csv"
    os.mkfifo(path)
    return path


def test_nothing_takes_the_place_of_a_pipe_or_a_device(pipe):
    with pytest.raises(OSError, match="no file is there") as refused:
        files.write_text(pipe, "a table")
    assert pipe.is_fifo()
    assert files.refused(refused.value) is not None


def test_a_report_is_not_written_over_a_pipe(pipe, capsys):
    with pytest.raises(SystemExit, match="2"):
        report(["table", "rsd/7", "--output", str(pipe)])
    assert "is a device or a pipe" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_a_pipe_in_place_of_rows_or_records_is_not_waited_for(pipe):
    with pytest.raises(ValueError, match="is no file"):
        files.read_csv(pipe)
    assert cell_folder.read(pipe).faults == ("it is no file",)


def test_a_byte_order_mark_is_no_part_of_a_columns_name(tmp_path):
    table = tmp_path / "results.csv"
    table.write_bytes(b"\xef\xbb\xbfpair,task\r\nours,xsum\r\n")
    assert files.read_csv(table, ["pair"]) == [{"pair": "ours", "task": "xsum"}]


@pytest.mark.parametrize(("made", "said"), [(os.mkfifo, "is no file"), (None, "No such file")])
def test_weights_that_are_none_are_named(tmp_path, made, said):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    if made is None:
        weights.symlink_to("nowhere")
    else:
        made(weights)
    with pytest.raises(ValueError, match=f"model.safetensors.*{said}"):
        fingerprint(str(tmp_path))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
    ],
)
def test_a_chat_template_that_fails_is_one_line(template, said):
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=f"the chat template fails: .*{said}"):
        chat_text(tokenizer, [{"role": "user", "content": "x"}])


def test_results_go_where_nothing_else_lies(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    check_own("results", there)
    (there / "letter.txt").touch()
    with pytest.raises(ValueError, match="holds other things and no results"):
        check_own("results", there)
    with pytest.raises(ValueError, match="'/' holds other things"):
        check_own("results", Path("/"))
    check_own("results", there / "new")
    (there / "default").mkdir()
    (there / "default/results.csv").touch()
    check_own("results", there)
    (here / "letter.txt").touch()
    check_own("results", Path())


@pytest.mark.parametrize("asked", ["plan=true", "sink=wandb"])
def test_recommend_refuses_what_it_would_not_heed(asked, capsys):
    assert recommend([asked]) == 2
    assert ": recommend " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--served-model", "x"], "--served-model goes with --server"),
        (["--answers", "3"], "--answers goes with --server"),
        (["--seed", "-1"], "--seed must be 0 or more"),
    ],
)
def test_the_audit_refuses_what_it_would_not_heed(given, said, capsys):
    with pytest.raises(SystemExit):
        read_arguments(given)
    assert said in capsys.readouterr().err


TASK = {"name": "mine", "source": {"kind": "local", "path": "x.jsonl"}}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scores": ["bleu", "rouge", "bleu"]}, "task.scores names bleu twice"),
        ({"fields": {"catgory": "kind"}}, "task.fields.catgory is read by nothing; read are categ"),
    ],
)
def test_a_task_refuses_what_it_would_not_heed(more, said):
    build_task(TASK | {"template": "{question}", "fields": {"question": "q", "category": "kind"}})
    with pytest.raises(ValueError, match=said):
        build_task(TASK | {"template": "{question}"} | more)


DEEP = "[" * 5000 + "]" * 5000


def test_a_file_nested_too_deep_is_named_or_left_to_what_loads_it(tmp_path):
    for name in ("config.json", "ids.json"):
        (tmp_path / name).write_text(DEEP)
    with pytest.raises(ValueError, match=r"config\.json.*recursion"):
        read_positions(str(tmp_path))
    with pytest.raises(ValueError, match=f"{tmp_path}.*recursion"):
        load_model(ModelSpec(str(tmp_path)))
    with pytest.raises(ValueError, match=r"ids\.json.*recursion"):
        kept_tokens(str(tmp_path / "ids.json"))


def test_a_config_group_nested_too_deep_is_one_line(tmp_path):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair/mine.yaml").write_text(f"target: x\nheads: {DEEP}\n")
    given = ("--config-dir", str(tmp_path), "pair=mine")
    status, _, said = run("spec_bench", *given, folder=tmp_path)
    assert status == 2
    assert len(said.splitlines()) == 1 and "pair=mine" in said
