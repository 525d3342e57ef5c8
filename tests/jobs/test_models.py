"""A cell is of the bytes of its models' files: others are another model's, under any name."""

import json
import os
import shutil

import pytest

from scripts.check import model_files
from spec_bench.jobs.config.model_files import compute_file_digests, read_config_dtype
from spec_bench.jobs.store.experiment import Experiment
from spec_bench.sinks.rows import build_past_models_id
from spec_bench.system import file_digests, files
from tests.commands import answers, report, verify
from tests.jobs.tiny import untimed

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def target(family, tmp_path):
    """A copy of the target with a chat template."""
    folder = tmp_path / "target"
    shutil.copytree(family / "target", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def rewrite(path, text):
    """Gives a file another text and its old time."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rows(results, name="results.csv"):
    read = files.read_csv(results / "default" / name)
    return {row["decoder"]: row for row in untimed(read, "reason", "baseline")}


def test_a_cell_of_other_files_is_archived_and_comes_back_with_them(
    run_job, target, tmp_path, caplog, calls
):
    words = (f"pair.target={target}", "cells=[sd:2]", "prompts=2", "warmup=0", "task.chat=true")
    results = tmp_path / "results"
    run_job(*words)
    first = rows(results)
    rewrite(target / "chat_template.jinja", f"so {TEMPLATE}")
    caplog.clear()
    run_job(*words)
    second = rows(results)
    said = [each for each in caplog.messages if "another model's" in each]
    assert len(said) == 2 and all("chat_template.jinja of its target" in each for each in said)
    for decoder, old in first.items():
        new = second[decoder]
        assert (old["run_id"], old["prompts_digest"]) == (new["run_id"], new["prompts_digest"])
        assert old["target_digest"] != new["target_digest"] != ""
        assert old["token_ids_digest"] != new["token_ids_digest"] != ""
        assert rows(results, "archive.csv")[decoder] == {**old, "run_id": build_past_models_id(old)}
    assert verify([str(results)]) == 0
    rewrite(target / "chat_template.jinja", TEMPLATE)
    before = len(calls)
    run_job(*words)
    assert (rows(results), len(calls)) == (first, before), "nothing is decoded again"
    archived = {row["run_id"] for row in rows(results, "archive.csv").values()}
    assert archived == {build_past_models_id(row) for row in second.values()}


def test_a_job_that_is_killed_in_another_models_cell_leaves_the_old_row_in_the_archive(
    run_job, target, tmp_path, monkeypatch
):
    words = (f"pair.target={target}", "cells=[sd:2]", "prompts=2", "warmup=0")
    run_job(*words)
    first = rows(tmp_path / "results")
    rewrite(target / "chat_template.jinja", f"so {TEMPLATE}")
    monkeypatch.setattr("spec_bench.jobs.job.job.decode_interleaved", lambda *_: None)
    monkeypatch.setattr("spec_bench.jobs.job.job.write_results", lambda *_: None)
    run_job(*words)
    Experiment(tmp_path / "results", "default").rebuild_tables()
    assert rows(tmp_path / "results") == {}
    archived = rows(tmp_path / "results", "archive.csv")
    assert archived == {
        name: {**row, "run_id": build_past_models_id(row)} for name, row in first.items()
    }


def test_a_cell_of_before_there_were_digests_stays_and_has_none(run_job, tmp_path, caplog):
    words = ("cells=[sd:2]", "prompts=2", "warmup=0")
    results = tmp_path / "results"
    made = run_job(*words)
    for each in made:
        (files.get_run_folder(results, each.run_id) / files.MODELS).unlink()
    caplog.set_level("INFO")
    run_job(*words)
    assert caplog.text.count("it keeps no digest of its models") == 2
    run_job(*words, "repeats=2")
    assert {row["target_digest"] for row in rows(results).values()} == {""}


def test_answers_to_other_token_ids_are_not_gone_on_with(run_job, tmp_path, monkeypatch):
    words = ("cells=[sd:2]", "warmup=0", "prompts=2")
    run_job(*words)
    monkeypatch.setattr("spec_bench.jobs.work.prompts.JobPrompts.token_ids_digest", "others")
    with pytest.raises(ValueError, match=r"other token ids.*others"):
        run_job(*words, "repeats=2")


def test_answers_are_written_by_the_tokenizer_that_decoded_and_by_no_other(
    run_job, target, tmp_path, capsys
):
    run_job(f"pair.target={target}", "cells=[sd:2]", "prompts=2", "warmup=0")
    table = str(tmp_path / "results" / "default" / files.RESULTS)
    rewrite(target / "chat_template.jinja", f"so {TEMPLATE}")  # makes prompts, no answers
    assert answers([table, "--out", str(tmp_path / "first")]) == 0
    path = target / "tokenizer.json"
    text = path.read_text()
    tokenizer = json.loads(text)
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["e"] = ids["e"], ids["a"]
    path.write_text(json.dumps(tokenizer))
    capsys.readouterr()
    assert answers([table, "--out", str(tmp_path / "second")]) == 2
    said = capsys.readouterr().err
    assert str(path) in said and said.count("\n") == 1 and not (tmp_path / "second").exists()
    path.unlink()
    assert answers([table, "--out", str(tmp_path / "second")]) == 2
    assert str(path) in capsys.readouterr().err
    path.write_text(text)
    assert answers([table, "--out", str(tmp_path / "second")]) == 0


@pytest.mark.parametrize("moved", ["table", "runs", "table and runs"])
def test_a_row_of_other_models_than_its_cells_is_no_row_of_these_answers(
    run_job, target, tmp_path, capsys, caplog, moved
):
    words = (f"pair.target={target}", "cells=[sd:2]", "prompts=2", "warmup=0", "task.chat=true")
    sides = [tmp_path / "mine", tmp_path / "others"]
    for results, text in zip(sides, (TEMPLATE, f"so {TEMPLATE}"), strict=True):
        rewrite(target / "chat_template.jinja", text)
        run_job(*words, results=results)
    mine, others = sides
    if "table" in moved:
        shutil.rmtree(mine / "default")
        shutil.copytree(others / "default", mine / "default")
    if moved == "table and runs":
        shutil.rmtree(mine / files.RUNS / "jobs")
    elif moved == "runs":
        for cell in (mine / files.RUNS).glob("*/models.json"):
            shutil.rmtree(cell.parent)
        shutil.copytree(others / files.RUNS, mine / files.RUNS, dirs_exist_ok=True)
    table = str(mine / "default" / files.RESULTS)
    capsys.readouterr()
    assert answers([table]) == 2
    said = capsys.readouterr().err
    assert "target_digest" in said and said.count("\n") == 1
    assert verify([str(mine)]) == 2
    assert "target_digest is" in capsys.readouterr().err
    assert report([table]) == 0
    if moved == "table and runs":  # without the jobs' notes rows are what the table says
        assert "2 rows of other models" in caplog.text and "target_digest" in caplog.text
    else:
        assert answers([table]) == 0, "the table was made of its cells again"


INDEX = json.dumps({"weight_map": {"a": "model.safetensors", "b": "parts/more.safetensors"}})


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((f"model{ending}", True) for ending in (".safetensors", ".bin", ".pt", ".gguf")),
        ("medusa_lm_head.pt", True),
        ("merges.txt", True),
        ("vocab.txt", True),
        ("tokenizer.model", True),
        ("chat_template.jinja", True),
        ("additional_chat_templates/tools.jinja", True),
        ("parts/more.safetensors", True),
        ("checkpoint-5/model.safetensors", False),
        (".cache/model.safetensors", False),
        ("README.md", False),
        ("LICENSE", False),
    ],
)
def test_what_a_model_is_made_of_is_what_its_loaders_read(tmp_path, name, counts):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(INDEX)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(100))
    before = compute_file_digests(str(tmp_path))
    rewrite(path, "x" * 100)
    after = compute_file_digests(str(tmp_path))
    changed = {each for each in before if before[each] != after[each]}
    assert changed == ({name} if counts else set())


@pytest.mark.slow
def test_no_changed_byte_of_a_models_files_is_missed(monkeypatch, capsys):
    monkeypatch.setattr(file_digests, "SETTLED_S", file_digests.SETTLED_S)  # the script sets it
    monkeypatch.setenv("SPEC_BENCH_CACHE", os.environ["SPEC_BENCH_CACHE"])
    assert model_files.main(["--changes", "24"]) == 0
    assert "24 changes, 0 missed" in capsys.readouterr().out


def test_auto_is_the_number_format_in_which_the_targets_files_are_stored(run_job, target, tmp_path):
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    run_job(f"pair.target={target}", "cells=[ar]", "prompts=1", "engine.dtype=auto")
    assert rows(tmp_path / "results")["ar"]["dtype"] == "bfloat16"
    (target / "config.json").write_text(json.dumps({**config, "dtype": "int8"}))
    assert read_config_dtype(str(target)) == "float32"
