"""Acceptance beside its bound: from a sample of iterations, and nothing else of a cell changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.jobs.rows.gaps import columns_of, contexts
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work.cell_run import VisitedNode
from spec_bench.records.types import Generation, Request, StepRecord
from tests.jobs.tiny import RunJob

STEPS = (StepRecord(3, 3, 2, 3), StepRecord(3, 3, 0, 1), StepRecord(3, 3, 1, 1))


def answer(prompt_id: str) -> Generation:
    return Generation(prompt_id, (7, 8, 9, 4, 5), "length", STEPS, 0.0, 0.1, 0.0, 0.1)


def test_sampled_iterations_start_where_the_cells_own_did() -> None:
    request = Request("a", (1, 2), 5)
    found = contexts([request], [answer("a")], most=9, seed=0)
    told = {each.prompt_ids[2:]: each.max_new_tokens for each in found}
    assert told == {(): 5, (7, 8, 9): 2, (7, 8, 9, 4): 1}
    assert len({each.prompt_id for each in found} | {"a"}) == 4  # draws of their own
    several = contexts([request] * 9, [answer("a")] * 9, most=5, seed=0)
    assert len(several) == 5
    assert several == contexts([request] * 9, [answer("a")] * 9, most=5, seed=0)


def test_columns_are_means_by_depth() -> None:
    nodes = [VisitedNode(1, 0.5, 0.75), VisitedNode(1, 0.7, 0.65), VisitedNode(3, 0.5, 0.5)]
    assert columns_of(nodes) == {
        "acceptance_bound": "[0.7, null, 0.5]",
        "acceptance_gap": "[0.1, null, 0.0]",
        "acceptance_nodes": "[2, 0, 1]",
    }
    assert columns_of([]) == {}


def test_looking_at_nodes_changes_no_token_and_says_where_there_is_no_bound(
    run_job: RunJob, tmp_path: Path
) -> None:
    cells = ("cells=[specinfer:2-1,rsd_c:2-2,spectr:2x2,rsd_s:2x2]", "prompts=2", "warmup=0")
    looked = run_job(*cells)
    without = run_job(*cells, "bound_iterations=0", results=tmp_path / "without")
    for mine, other in zip(looked, without, strict=True):
        assert mine.run_id == other.run_id
        stores = [CellStore(tmp_path / name, mine.run_id) for name in ("results", "without")]
        found = [store.load() for store in stores]
        assert all(found[0][key].repeats(found[1][key]) for key in found[0] | found[1])
        assert "acceptance_bound" not in other.metrics
    rows = {row.facts.decoder: row for row in looked}
    for decoder, levels in (("specinfer", 2), ("rsd_c", 2), ("spectr", 1)):
        lists = [json.loads(str(rows[decoder].metrics[f"acceptance_{name}"]))
                 for name in ("bound", "gap", "nodes")]  # fmt: skip
        assert [len(each) for each in lists] == [levels] * 3
        assert lists[2][0] == min(24, rows[decoder].metrics["target_calls"])  # type: ignore[type-var]
        assert all(0 < bound <= 1 for bound in lists[0] if bound is not None)
    assert "acceptance_bound" not in rows["rsd_s"].metrics
    assert "acceptance_bound: with tree policy 'stochastic_beam'" in rows["rsd_s"].reason
    assert "acceptance_bound" not in rows["ar"].reason


def test_trees_that_vary_have_no_acceptance_rate_and_say_why(run_job: RunJob) -> None:
    cells = "cells=[sd:2,sd_dynamic:2,opt_tree:2x2@3]"
    for row in run_job(cells, "prompts=1", "warmup=0", "bound_iterations=0")[1:]:
        known = row.facts.decoder == "sd"
        told = [row.metrics[f"acceptance_rate{end}"] for end in ("", "_low", "_by_depth")]
        assert (told[0] is not None and told[2] is not None) if known else told == [None] * 3
        assert ("acceptance_rate: trees have another form" in row.reason) != known


def test_a_look_that_fails_is_a_reason_and_the_cell_is_complete(
    run_job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(Decoder, "begin", begin)
    (_, row) = run_job("cells=[sd:2]", "prompts=1", "warmup=0")
    assert row.status == "complete"
    assert "acceptance_bound: RuntimeError: no room" in row.reason
