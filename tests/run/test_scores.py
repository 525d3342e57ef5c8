"""``task.metrics`` from the command line to the CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.tiny import RunJob, rows_of

OWN = Path(__file__).parents[1] / "metrics" / "length_ratio.py"


def test_modules_asked_for_by_name_and_path_are_columns_with_intervals(
    run_job: RunJob, tmp_path: Path
) -> None:
    run_job("cells=[sd:3]", "warmup=0", f"task.metrics=[sacrebleu,rouge,{OWN}]")
    for row in rows_of(tmp_path / "results"):
        for name in ("sacrebleu_score", "rouge_rouge2", "rouge_rougeL", "length_ratio_ratio"):
            assert float(row[f"{name}_low"]) <= float(row[name]) <= float(row[f"{name}_high"])
        assert row["rouge2"] == ""  # metrics stand in place of the task's scores
        assert row["quality_signature"].startswith("sacrebleu evaluate:")


def test_metrics_of_the_same_names_as_the_scores_are_the_same_cell(run_job: RunJob) -> None:
    first = run_job("cells=[]", "spec=2x2", "prompts=1")
    # `xsum` scores rouge2 by itself.
    assert run_job("cells=[]", "spec=2x2", "prompts=1", "task.metrics=[rouge2]") == first


def test_a_metric_that_cannot_be_had_is_said_before_anything_is_decoded(
    run_job: RunJob, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"score '/no/where\.py': there is no such file"):
        run_job("cells=[sd:3]", "task.metrics=[/no/where.py]")
    assert not (tmp_path / "results").exists()
