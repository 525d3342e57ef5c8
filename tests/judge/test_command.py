"""``python -m spec_bench.judge``: a results file gets its scores, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spec_bench.jobs.store.store import CellStore
from spec_bench.judge import cells
from spec_bench.judge.command_line import main
from spec_bench.records import parquet
from spec_bench.records.types import Generation, StepRecord
from spec_bench.report.claims.contrast import Contrast, difference
from spec_bench.report.data.counts import Records
from spec_bench.system import files
from spec_bench.system.files import read_csv
from tests.judge.endpoint import KEY, Judge


def run(results: Path, *more: str) -> int:
    return main([str(results), "--model", "tiny", "--attempts", "1", "--parallel", "1", *more])


def row(results: Path) -> dict[str, str]:
    return read_csv(results)[0]


def later_better(body: dict) -> str:
    """8 for a second turn, 6 for a first one."""
    return "[[8]]" if "Question 2" in body["messages"][1]["content"] else "[[6]]"


def test_the_score_is_the_mean_of_the_turns(judge: Judge, results: Path) -> None:
    judge.reply = later_better
    assert run(results) == 0
    found = row(results)
    assert float(found["judge_score"]) == 7.0
    assert found["judge_score_low"] == found["judge_score_high"] == ""  # of two questions
    assert float(found["judge_score_turn_1"]) == 6.0
    assert float(found["judge_score_later_turns"]) == 8.0
    assert (found["judgements"], found["judgements_failed"]) == ("4", "0")
    assert found["judge_model"] == "tiny"
    assert found["reason"] == "energy_j_per_token: no meter"


def test_judging_again_asks_nothing_and_changes_nothing(judge: Judge, results: Path) -> None:
    assert run(results) == 0
    first = results.read_text()
    assert len(judge.bodies) == 4
    assert run(results) == 0
    assert len(judge.bodies) == 4
    assert results.read_text() == first


def test_another_judge_is_asked_anew(judge: Judge, results: Path) -> None:
    run(results)
    run(results, "--model", "other")
    assert [body["model"] for body in judge.bodies] == ["tiny"] * 4 + ["other"] * 4
    assert row(results)["judge_model"] == "other"


def test_a_reply_without_a_rating_is_counted_is_no_number_and_is_asked_again(
    judge: Judge, results: Path
) -> None:
    judge.script = [(200, "I cannot say."), (200, "[[2]]")]
    assert run(results) == 0
    found = row(results)
    assert (found["judgements"], found["judgements_failed"]) == ("3", "1")
    assert float(found["judge_score"]) == (2 + 7 + 7) / 3
    assert run(results) == 0
    assert len(judge.bodies) == 5
    assert row(results)["judgements_failed"] == "0"


def test_one_silent_judgement_leaves_the_others_going(judge: Judge, results: Path) -> None:
    judge.script = [(0, 60.0)]
    assert run(results, "--timeout-s", "2") == 0
    assert row(results)["judgements_failed"] == "1"
    assert float(row(results)["judge_score"]) == 7.0


def test_an_endpoint_that_is_lost_is_asked_no_more_and_leaves_no_score(
    judge: Judge, results: Path
) -> None:
    judge.script = [(200, "[[9]]"), *[(500, "")] * 3]
    assert run(results) == 1
    found = row(results)
    assert found["judge_score"] == found["judge_score_low"] == ""
    assert found["reason"].split("; ")[1] == (
        "judge_score: 3 of 4 judgements failed, status 500 after 1 attempts"
    )
    judge.script = []
    assert run(results) == 0
    assert len(judge.bodies) == 4 + 3  # what was had is kept
    assert float(row(results)["judge_score"]) == (9 + 7 + 7 + 7) / 4
    assert "judge_score" not in row(results)["reason"]


def test_a_refused_key_is_tried_once(judge: Judge, results: Path) -> None:
    judge.script = [(401, "no")] * 4
    assert run(results) == 1
    assert len(judge.bodies) == 1
    assert "judge_score: 4 of 4 judgements failed, status 401" in row(results)["reason"]


def test_without_an_endpoint_the_column_is_empty_and_the_reason_says_so(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPEC_BENCH_JUDGE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert run(results) == 1
    assert row(results)["judge_score"] == ""
    assert "judge_score: no endpoint: set SPEC_BENCH_JUDGE_URL" in row(results)["reason"]


def test_the_key_is_in_no_file_and_on_no_line(
    judge: Judge, results: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    judge.script = [(400, f"wrong {KEY}"), (200, "no rating"), (500, KEY)]
    run(results)
    assert judge.keys == [f"Bearer {KEY}"] * 4
    written = [path for path in results.parents[1].rglob("*") if path.is_file()]
    assert len(written) >= 5
    assert not [path for path in written if KEY in path.read_text()]
    assert KEY not in "".join(capfd.readouterr())


def test_the_cells_folder_holds_what_the_row_says(judge: Judge, results: Path) -> None:
    run(results)
    judged = cells.read_judged(results.parents[1] / "runs" / "abc")
    assert judged is not None
    assert str(judged.columns["judge_score"]) == row(results)["judge_score"]
    kept = sorted((results.parents[1] / "runs" / "judgements").iterdir())
    assert len(kept) == 4
    assert json.loads(kept[0].read_text()) == {
        "model": "tiny",
        "rating": 7.0,
        "reply": "Good. Rating: [[7]]",
    }


def test_what_each_question_was_rated_is_in_the_records_so_that_cells_are_paired_by_question(
    judge: Judge, results: Path
) -> None:
    store = CellStore(results.parent.parent, "abc")
    steps = (StepRecord(0, 0, 0, 1),)
    store.append(
        Generation(f"{question}/{turn}", (5,), "stop", steps, 0.1, 0.2, 0.0, 0.1)
        for question in (81, 111)
        for turn in (0, 1)
    )
    store.keep_scores({"f1": {"81/0": 1.0}})
    table = files.records_file(results)
    parquet.write(table, parquet.joined([parquet.pack("other", [*store.load().values()], None)]))
    parquet.write(
        table, parquet.joined([parquet.read(table), store.records() or parquet.joined([])])
    )
    judge.reply = later_better
    assert run(results) == 0
    kept = parquet.read(table)
    assert kept.run_ids == ["other", "abc"]
    assert kept.scores("abc") == {
        "f1": {"81/0": 1.0},
        "judge_score": {"81/0": [14, 2], "111/0": [14, 2]},
        "judge_score_turn_1": {"81/0": [6, 1], "111/0": [6, 1]},
        "judge_score_later_turns": {"81/0": [8, 1], "111/0": [8, 1]},
    }
    counts = Records(results).counts({"run_id": "abc"}, "judge_score")
    assert counts == {"81/0": (14, 2), "111/0": (14, 2)}
    cell = {"run_id": "abc", "seed": 0, "decoder": "ar", "spec": "-"}
    gap = difference([[Contrast((cell,), (cell,))]], "judge_score", Records(results), relative=True)
    assert gap and gap.tested and str(gap) == "+0.0% (no interval: fewer than 5 prompts)"
    judge.reply = lambda body: "no number"
    assert run(results, "--model", "other") == 1
    assert parquet.read(table).scores("abc") == {"f1": {"81/0": 1.0}}


def test_a_file_without_answers_is_refused_in_one_line(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.csv"), "--model", "tiny"]) == 2
    assert "no results file" in capsys.readouterr().err
    (results.parents[1] / "runs" / "abc" / "mt_bench_answers.jsonl").unlink()
    assert main([str(results), "--model", "tiny"]) == 2
    assert "has mt_bench_answers.jsonl" in capsys.readouterr().err
