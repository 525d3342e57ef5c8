"""From the papers' recipes, and files as the hub lays them out, to rows of the CSV."""

import json
import shutil

import datasets
import pytest

from tests.jobs.test_command_line import main
from tests.jobs.tiny import TEXTS, rows_of
from tests.question_files import question_file

SMALL = ("prompts=1", "warmup=0", "generation.max_new_tokens=4", "sink=quiet", "engine.threads=1")


@pytest.mark.slow
def test_two_pairs_three_tasks_and_41_rows_load_each_model_once(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spec_bench.jobs.work.models._models", {})
    caplog.set_level("INFO")
    sweep = ["-m", "rsd=exp2", "pair=embedded,embedded_plain", "results=results", *SMALL]
    assert main(monkeypatch, *sweep) == 0
    rows = rows_of(tmp_path / "results", "rsd-exp2")
    assert len(rows) == 2 * 3 * 41
    assert {row["status"] for row in rows} == {"complete"}
    loads = [record for record in caplog.records if record.getMessage().startswith("loading ")]
    assert len(loads) == 3  # one target, two drafts


@pytest.mark.parametrize("recipe", ["mcsd=acceptance", "mcsd=ablation"])
def test_a_recipe_runs_on_the_embedded_pair(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", recipe, "task=alpaca", "generation.temperature=1", "results=results", *SMALL]
    assert main(monkeypatch, *sweep) == 0
    rows = rows_of(tmp_path / "results", recipe.replace("=", "-"))
    assert {row["status"] for row in rows} == {"complete"}
    if recipe == "mcsd=ablation":
        off = [row for row in rows if row["tree_attention"] == "false"]
        assert sorted(row["decoder"] for row in off) == ["mcns", "mcsd", "mcsd_wor"]


PAIR = datasets.Features({"translation": datasets.Translation(languages=["de", "en"])})
TRANSLATIONS = [{"translation": {"de": f"Satz {n}.", "en": text}} for n, text in enumerate(TEXTS)]


def parquet(file, rows, features=None):
    file.parent.mkdir(parents=True)
    datasets.Dataset.from_list(rows, features=features).to_parquet(file)
    return file.parent


def jsonl(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def wmt(folder):
    return parquet(folder / "de-en" / "test-00000-of-00001.parquet", TRANSLATIONS, PAIR)


def xsum(folder):
    rows = [
        {"document": t, "summary": t[:20], "id": str(3_000_000 + n)} for n, t in enumerate(TEXTS)
    ]
    return parquet(folder / "default" / "test" / "0000.parquet", rows)


def dolly(folder):
    rows = [
        {"instruction": "Who won?", "context": t, "response": "He.", "category": "closed_qa"}
        for t in TEXTS
    ]
    return jsonl(folder / "databricks-dolly-15k.jsonl", rows)


def alpaca(folder):
    rows = [
        {"instruction": t, "input": "", "output": "Done.", "text": f"Below is ... {t}"}
        for t in TEXTS
    ]
    return parquet(folder / "data" / "train-00000-of-00001-a09b74b3ef9c3b56.parquet", rows)


def mt_bench(folder):
    rows = [
        {"question_id": 81 + n, "category": "writing", "turns": [text, "Shorten it."]}
        for n, text in enumerate(TEXTS)
    ]
    return jsonl(folder / "question.jsonl", rows)


LAYOUTS = {
    "wmt18_deen": (wmt, "bleu", 0.3, 1.0),
    "wmt14_ende": (wmt, "bleu", 1.0, 1.0),
    "xsum": (xsum, "rouge2", 0.3, 1.0),
    "dolly": (dolly, None, 1.0, 0.95),
    "alpaca": (alpaca, None, 1.0, 1.0),
    "mt_bench": (mt_bench, None, 1.0, 1.0),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_hub_task_runs_from_local_files_to_a_row(name, run_job, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write, score, temperature, top_p = LAYOUTS[name]
    path = write(tmp_path / "hub")
    # The task's own temperature and truncation stand: the papers'.
    run_job(
        f"task={name}",
        f"task.source.path={path}",
        "cells=[sd:2]",
        "prompts=3",
        "generation.temperature=null",
        "generation.max_new_tokens=6",
    )
    rows = rows_of(tmp_path / "results")
    assert [row["decoder"] for row in rows] == ["ar", "sd"]
    for row in rows:
        assert (row["task"], row["status"], row["prompts"]) == (name, "complete", "3")
        assert (float(row["temperature"]), float(row["top_p"])) == (temperature, top_p)
        assert (row["top_k"], row["lossless"]) == ("0", "exact")
        assert float(row["token_rate"]) > 0
        assert [column for column in ("bleu", "rouge2") if row[column]] == [score] * bool(score)


@pytest.fixture
def patient(family, tmp_path):
    """The tiny pair with room for real prompts."""
    for name in ("target", "draft"):
        shutil.copytree(family / name, tmp_path / name)
        file = tmp_path / name / "config.json"
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 9000})
        )
    return [f"pair.{name}={tmp_path / name}" for name in ("target", "draft")]


# A second turn is asked where the file has an answer to the first.
@pytest.mark.parametrize(
    ("name", "turns"), [("spec_bench", "2"), ("mt_bench", "3"), ("eagle_alpaca", "2")]
)
def test_a_question_file_of_others_runs_to_a_row(name, turns, run_job, tmp_path, patient):
    run_job(
        "task=jsonl", f"task.source.path={question_file(tmp_path, name)}", "task.name=real",
        "cells=[sd:2]", "prompts=2", "generation.max_new_tokens=6", *patient,
    )  # fmt: skip
    for row in rows_of(tmp_path / "results"):
        assert (row["task"], row["status"], row["prompts"]) == ("real", "complete", turns)


def test_a_file_of_ones_own_with_fields_template_and_metric_of_ones_own_runs_to_a_row(
    run_job, tmp_path
):
    file = jsonl(tmp_path / "mine.jsonl", [{"q": text, "a": [text]} for text in TEXTS])
    run_job(
        "task=jsonl", f"task.source.path={file}", 'task.template="{q} Answer:"',
        "task.fields.reference=a", "task.metrics=[rouge]", "cells=[sd:2]",
    )  # fmt: skip
    for row in rows_of(tmp_path / "results"):
        assert row["status"] == "complete"
        assert float(row["rouge_rougeL"]) >= 0
