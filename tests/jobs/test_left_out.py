"""Cells whose drafts or heads a pair lacks end no job that has others."""

import logging

import pytest

from tests.jobs.tiny import rows_of
from tests.said import naming

UNTRAINED = "pair.heads={redrafter: results/train/redrafter_mine/heads}"


def test_a_cell_without_heads_is_left_out_and_the_others_are_decoded(run_job, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run_job("cells=[sd:2,redrafter:2x2]", "prompts=1", "pair.name=mine", UNTRAINED)
    rows = rows_of(tmp_path / "results")
    assert [(row["decoder"], row["status"]) for row in rows] == [
        ("ar", "complete"),
        ("sd", "complete"),
    ]
    said = [line for line in caplog.messages if "left out" in line]
    assert len(said) == 1
    assert "redrafter 2x2" in said[0]


def test_where_no_cell_is_left_the_refusal_prints_the_training(run_job):
    command = "python -m spec_bench.train head=redrafter pair=mine engine=cuda name=redrafter_mine"
    with pytest.raises(ValueError, match=naming(command)):
        run_job("cells=[redrafter:2x2]", "prompts=1", "pair.name=mine", UNTRAINED)
