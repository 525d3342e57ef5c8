"""A served judge, the environment that names it, and a cell with answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spec_bench.judge.endpoint import VARIABLES
from spec_bench.records.reasons import Reason
from spec_bench.sinks.csv import merge_csv
from tests.cells import result
from tests.judge.endpoint import KEY, Judge, serving


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    for name in (name for pair in VARIABLES for name in pair):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Judge()) as served:
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        yield served


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results file with one cell: two questions of two turns."""
    folder = tmp_path / "results" / "runs" / "abc"
    folder.mkdir(parents=True)
    questions, answers = [], []
    for number in (81, 111):
        category = "math" if number == 111 else "writing"
        turns = [f"first of {number}", f"second of {number}"]
        gold = [f"gold 1 of {number}", f"gold 2 of {number}"]
        questions.append(
            {"question_id": number, "category": category, "turns": turns, "reference": gold}
        )
        own = [f"answer 1 of {number}", f"answer 2 of {number}"]
        choice = {"index": 0, "turns": own, "continued": gold[:1]}
        answers.append({"question_id": number, "choices": [choice]})
    for name, lines in (("questions", questions), ("answers", answers)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"mt_bench_{name}.jsonl").write_text(text)
    path = tmp_path / "results" / "default" / "results.csv"
    reasons = (Reason("energy_j_per_token", "no meter"), Reason("judge_score", "not judged"))
    cell = result("abc", {"judge_score": None}, task="mt_bench")
    merge_csv(path, [replace(cell, reasons=reasons)])
    return path
