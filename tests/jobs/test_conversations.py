"""Questions of two turns: fixed, own or no continuation; the answers' file; the judge's column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from spec_bench.jobs.app import settings_of
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work import prompts
from spec_bench.jobs.work.models import tokenizer_of
from spec_bench.settings.configs import conf_dir
from tests.jobs.test_job import count_generate
from tests.jobs.tiny import RunJob, overrides, rows_of, tokens_of
from tests.judge.endpoint import Judge, serving
from tests.said import naming

CELLS = "cells=[sd:2]"
QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["the boat", "the tide"]},
    {"question_id": 82, "category": "math", "turns": ["a storm", "the roof"]},
    {"question_id": 83, "turns": ["the mayor", "the river"], "reference": ["a bridge"]},
]


@pytest.fixture
def chat(tmp_path: Path) -> tuple[str, ...]:
    """Overrides for three questions of two turns."""
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return (CELLS, "task=mt_bench", f"task.source.path={path}", "warmup=0")


def fixed_file(folder: Path, *questions: int) -> Path:
    """First answers in FastChat's format."""
    path = folder / "fixed.jsonl"
    lines = [
        {"question_id": each, "choices": [{"index": 0, "turns": [f"it rained {each}", "x"]}]}
        for each in questions
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prompts_asked(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], tuple[int, ...]]:
    """Prompt ids of every request, by decoder and prompt."""
    from spec_bench.decode.decoder import Decoder

    asked: dict[tuple[str, str], tuple[int, ...]] = {}
    generate = Decoder.generate

    def noting(self, requests, *arguments):
        asked.update({(self.name, each.prompt_id): each.prompt_ids for each in requests})
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", noting)
    return asked


def test_a_fixed_continuation_gives_every_decoder_the_same_second_prompt(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = prompts_asked(monkeypatch)
    run_job(*chat, f"task.answers={fixed_file(tmp_path, 81, 82, 83)}")
    for number in (81, 82, 83):
        assert asked["ar", f"{number}/1"] == asked["sd", f"{number}/1"]
    assert len({len(prompt) for prompt in asked.values()}) > 1
    for row in rows_of(tmp_path / "results"):
        assert (row["later_turns"], row["prompts"], row["status"]) == ("fixed", "6", "complete")


def test_a_second_turn_without_a_fixed_answer_is_left_out_and_the_row_says_so(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path
) -> None:
    (result, _) = run_job(*chat)
    assert set(tokens_of(tmp_path / "results", result.run_id)) == {"81/0", "82/0", "83/0", "83/1"}
    assert "later_turns: 2 not asked, no fixed answer to continue" in result.reason


def test_other_fixed_answers_are_another_cell(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path
) -> None:
    path = fixed_file(tmp_path, 81, 82, 83)
    first = run_job(*chat, f"task.answers={path}")
    path.write_text(path.read_text().replace("rained", "snowed"))
    second = run_job(*chat, f"task.answers={path}")
    assert first[0].run_id != second[0].run_id


def test_own_second_turns_continue_what_the_cell_itself_decoded(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = prompts_asked(monkeypatch)
    calls = count_generate(monkeypatch)
    results = run_job(*chat, "task.later_turns=own", "generation.max_new_tokens=6")
    assert [ids for name, ids, _ in calls if name == "sd"] == [
        [f"{number}/{turn}"] for turn in (0, 1) for number in (81, 82, 83)
    ]
    assert asked["ar", "81/1"] != asked["sd", "81/1"]  # what was drawn differs, so do the prompts
    for result in results:
        line = answers_of(tmp_path / "results", result.run_id)[0]
        assert "continued" not in line["choices"][0]
        assert result.metrics["prompts"] == 6


def test_an_own_second_turns_limit_is_what_the_models_have_room_for(
    run_job: RunJob, chat: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MT-bench's 1024 tokens a turn fit into a model of 2048 places."""
    room, limit = 120, 40
    monkeypatch.setattr(prompts, "_context", lambda settings: room)
    asked: dict[str, tuple[int, int]] = {}
    made = prompts.Prompts._of.__func__  # type: ignore[attr-defined]

    def noting(cls, settings, tokenizer, examples, *more):
        for request in (each for _, own in examples for each in own):
            asked[request.prompt_id] = (len(request.prompt_ids), request.max_new_tokens)
        return made(cls, settings, tokenizer, examples, *more)

    monkeypatch.setattr(prompts.Prompts, "_of", classmethod(noting))
    run_job(*chat, "prompts=1", "task.later_turns=own", f"generation.max_new_tokens={limit}")
    longest, left = asked["81/1"]
    assert asked["81/0"][1] == limit
    assert left == room - longest < limit


@pytest.mark.parametrize("size", [1, 2])
def test_own_second_turns_cut_at_any_line_resume_to_the_same_tokens(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path, size: int
) -> None:
    own = (*chat, "task.later_turns=own", f"engine.batch_size={size}")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    results = run_job(*own, results=whole)
    expected = {result.run_id: tokens_of(whole, result.run_id) for result in results}
    for lines in (0, 2, 4, 5):
        for number, result in enumerate(results):
            text = (whole / "runs" / result.run_id / "generations.jsonl").read_text()
            kept = "".join(text.splitlines(keepends=True)[: max(0, lines - number)])
            folder = cut / str(lines) / "runs" / result.run_id
            folder.mkdir(parents=True)
            (folder / "generations.jsonl").write_text(kept + text[len(kept) :][:20])
        run_job(*own, results=cut / str(lines))
        for run_id, tokens in expected.items():
            assert tokens_of(cut / str(lines), run_id) == tokens
            assert CellStore(cut / str(lines), run_id).complete()


def test_none_asks_first_turns_only(run_job: RunJob, chat: tuple[str, ...], tmp_path: Path) -> None:
    (result, _) = run_job(*chat, "task.later_turns=none")
    assert set(tokens_of(tmp_path / "results", result.run_id)) == {"81/0", "82/0", "83/0"}
    assert result.facts.later_turns == "none"
    assert "later_turns" not in result.reason


def test_an_own_second_turn_that_may_not_fit_is_said_before_anything_is_decoded(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"prompt '81/1' needs \d+ positions"):
        run_job(*chat, "task.later_turns=own", "generation.max_new_tokens=200")
    assert not list((tmp_path / "results").rglob("generations.jsonl"))


def test_a_second_turn_whose_limit_is_cut_to_the_room_left_is_not_overlong(
    chat: tuple[str, ...], family: Path, tmp_path: Path
) -> None:
    own = ("task.later_turns=own", "task.overlong=skip", "generation.max_new_tokens=120")
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=overrides(family, tmp_path / "results", *chat, *own))
    settings = settings_of(config)
    asked = prompts.Prompts.build(settings, tokenizer_of(settings.pair)[0])
    limits = {each.prompt_id: each.max_new_tokens for each in asked.requests}
    assert asked.skipped == 0 and len(limits) == 6
    assert limits["81/0"] == 120  # of 256 positions that leaves the second turn's answer few
    assert 0 < limits["81/1"] < 120


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task.later_turns=mine"], "task.later_turns must be one of fixed, own, none, got 'mine'"),
        (["task.answers=/no/where"], r"task\.answers: there is no file '/no/where'"),
        (
            ["task.answers=x", "task.later_turns=own"],
            "task.answers is a file for task.later_turns=fixed, not own",
        ),
    ],
)
def test_a_setting_that_cannot_be_right_is_named(
    run_job: RunJob, chat: tuple[str, ...], overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_job(*chat, *overrides)


def test_an_answer_that_is_missing_in_the_file_is_named(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path
) -> None:
    path = fixed_file(tmp_path, 81, 83)
    with pytest.raises(ValueError, match=naming("question 82", "0 turns", "1")):
        run_job(*chat, f"task.answers={path}")
    path.write_text('{"question_id": 81}\n')
    with pytest.raises(ValueError, match=naming("fixed.jsonl", "line 1", "question_id")):
        run_job(*chat, f"task.answers={path}")


def answers_of(results: Path, run_id: str) -> list[dict]:
    text = (results / "runs" / run_id / "mt_bench_answers.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_answers_are_written_in_fastchats_format(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path
) -> None:
    (_, result) = run_job(*chat, f"task.answers={fixed_file(tmp_path, 81, 82, 83)}")
    lines = answers_of(tmp_path / "results", result.run_id)
    assert [line["question_id"] for line in lines] == [81, 82, 83]
    for line in lines:
        assert list(line) == ["question_id", "answer_id", "model_id", "choices", "tstamp"]
        assert line["model_id"] == f"target_draft-sd-2-{result.run_id}"
        (choice,) = line["choices"]
        assert (choice["index"], len(choice["turns"])) == (0, 2)
        assert choice["continued"] == [f"it rained {line['question_id']}"]
    assert len({line["answer_id"] for line in lines}) == 3
    questions = tmp_path / "results" / "runs" / result.run_id / "mt_bench_questions.jsonl"
    first, *_, last = (json.loads(line) for line in questions.read_text().splitlines())
    assert first == QUESTIONS[0]
    assert last == {**QUESTIONS[2], "category": ""}


def test_a_task_that_is_not_judged_leaves_no_answers_and_has_no_score(
    run_job: RunJob, tmp_path: Path
) -> None:
    run_job(CELLS, "warmup=0", "prompts=1")
    assert not list((tmp_path / "results").rglob("mt_bench_*"))
    row = rows_of(tmp_path / "results")[0]
    assert row["judge_score"] == ""
    assert "judge_score" not in row["reason"]


def test_a_judge_that_is_named_grades_at_the_end_and_costs_nothing_again(
    run_job: RunJob, chat: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(*chat)
    for row in rows_of(tmp_path / "results"):
        assert (row["judge_score"], row["status"]) == ("", "complete")
        assert "judge_score: not judged" in row["reason"]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Judge()) as judge:
        monkeypatch.setenv("SPEC_BENCH_JUDGE_URL", judge.url)
        for _ in range(2):
            run_job(*chat, "judge.model=tiny", "judge.wait_s=0")
            assert len(judge.bodies) <= 2 * 4  # 4 turns asked of each of the two cells
    for row in rows_of(tmp_path / "results"):
        assert float(row["judge_score"]) == 7.0
        assert "judge_score" not in row["reason"]
    # A later job with the same cells and no judge keeps what was judged.
    run_job(*chat)
    assert float(rows_of(tmp_path / "results")[0]["judge_score"]) == 7.0


def test_without_an_endpoint_the_job_ends_well_and_the_row_says_why(
    run_job: RunJob, chat: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPEC_BENCH_JUDGE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    (result, _) = run_job(*chat, "judge.model=tiny")
    assert result.status == "complete"
    assert result.metrics["judge_score"] is None
    assert "judge_score: no endpoint: set SPEC_BENCH_JUDGE_URL" in result.reason
