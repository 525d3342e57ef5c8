"""``task.metrics`` from the command line to the CSV."""

from importlib.resources import files
from pathlib import Path

import pytest

from tests.jobs.tiny import make_task, rows_of
from tests.said import naming

OWN = Path(__file__).parents[1] / "metrics" / "length_ratio.py"


def test_modules_asked_for_by_name_and_path_are_columns(run_job, tmp_path):
    enough = f"task.source.path={make_task(tmp_path, rows=5)}"
    run_job("cells=[sd:3]", "warmup=0", f"task.metrics=[sacrebleu,rouge,{OWN}]", enough)
    for row in rows_of(tmp_path / "results"):
        for name in ("sacrebleu_score", "rouge_rouge2", "rouge_rougeL", "length_ratio_ratio"):
            assert float(row[name]) >= 0
        assert row["rouge2"] == ""  # metrics stand in place of the task's scores
        assert row["quality_signature"].startswith("sacrebleu evaluate:")


def test_metrics_of_the_same_names_as_the_scores_are_the_same_cell(run_job):
    first = run_job("cells=[]", "spec=2x2", "prompts=1")
    # `xsum` scores rouge2 by itself.
    assert run_job("cells=[]", "spec=2x2", "prompts=1", "task.metrics=[rouge2]") == first


def test_a_metric_that_cannot_be_had_is_said_before_anything_is_decoded(run_job, tmp_path):
    with pytest.raises(ValueError, match=naming("'/no/where.py'")):
        run_job("cells=[sd:3]", "task.metrics=[/no/where.py]")
    assert not (tmp_path / "results").exists()


def test_what_a_random_model_says_of_a_database_does_not_run_and_is_counted(run_job, tmp_path):
    (result, *_) = run_job(
        "cells=[sd:3]", "warmup=0", "prompts=5", "task=spider", "task.source.kind=embedded"
    )
    for row in rows_of(tmp_path / "results"):
        assert float(row["execution_accuracy"]) == float(row["execution_accuracy_low"]) == 0.0
        assert 0.5 < float(row["execution_accuracy_high"]) < 0.55  # Clopper and Pearson's of 0 in 5
        assert (float(row["execution_errors"]), float(row["execution_timeouts"])) == (5.0, 0.0)
        assert row["quality_signature"].startswith("execution_accuracy sqlite:")
    config = (tmp_path / "results" / "runs" / result.run_id / "config.yaml").read_text()
    assert "  databases: " in config


def test_a_reference_that_does_not_run_is_said_before_anything_is_decoded(run_job, tmp_path):
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"db_id": "shop", "question": "?", "query": "SELECT x FROM customer"}\n')
    shop = files("spec_bench") / "embedded" / "tasks" / "spider" / "database"
    with pytest.raises(ValueError, match=naming("'SELECT x FROM customer'", "no such column")):
        run_job("task=spider", f"task.source.path={rows}", f"task.database={shop}")
    assert not (tmp_path / "results").exists()
