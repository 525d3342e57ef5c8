"""Questions of two turns: fixed, own or no continuation; FastChat's files of both."""

import json

import pytest
from hydra import compose, initialize_config_dir

from spec_bench.exchange.write import main as answers
from spec_bench.jobs.app import settings_of
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work import prompts
from spec_bench.jobs.work.models import tokenizer_of
from spec_bench.settings.configs import conf_dir
from tests.jobs.test_job import count_generate
from tests.jobs.tiny import overrides, rows_of, tokens_of
from tests.said import naming

CELLS = "cells=[sd:2]"
QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["the boat", "the tide"]},
    {"question_id": 82, "category": "math", "turns": ["a storm", "the roof"]},
    {"question_id": 83, "turns": ["the mayor", "the river"], "reference": ["a bridge"]},
]


@pytest.fixture
def chat(tmp_path):
    """Overrides for three questions of two turns."""
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return (CELLS, "task=mt_bench", f"task.source.path={path}", "warmup=0")


def fixed_file(folder, *questions):
    """First answers in FastChat's format."""
    path = folder / "fixed.jsonl"
    lines = [
        {"question_id": each, "choices": [{"index": 0, "turns": [f"it rained {each}", "x"]}]}
        for each in questions
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def prompts_asked(monkeypatch):
    """Prompt ids of every request, by decoder and prompt."""
    from spec_bench.decode.decoder import Decoder

    asked = {}
    generate = Decoder.generate

    def noting(self, requests, *arguments):
        asked.update({(self.name, each.prompt_id): each.prompt_ids for each in requests})
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", noting)
    return asked


def test_a_fixed_continuation_gives_every_decoder_the_same_second_prompt(
    run_job, chat, tmp_path, monkeypatch
):
    asked = prompts_asked(monkeypatch)
    run_job(*chat, f"task.answers={fixed_file(tmp_path, 81, 82, 83)}")
    for number in (81, 82, 83):
        assert asked["ar", f"{number}/1"] == asked["sd", f"{number}/1"]
    assert len({len(prompt) for prompt in asked.values()}) > 1
    for row in rows_of(tmp_path / "results"):
        assert (row["later_turns"], row["prompts"], row["status"]) == ("fixed", "6", "complete")


def test_a_second_turn_without_a_fixed_answer_is_left_out_and_the_row_says_so(
    run_job, chat, tmp_path
):
    (result, _) = run_job(*chat)
    assert set(tokens_of(tmp_path / "results", result.run_id)) == {"81/0", "82/0", "83/0", "83/1"}
    assert "later_turns: 2 not asked, no fixed answer to continue" in result.reason


def test_other_fixed_answers_are_another_cell(run_job, chat, tmp_path):
    path = fixed_file(tmp_path, 81, 82, 83)
    first = run_job(*chat, f"task.answers={path}")
    path.write_text(path.read_text().replace("rained", "snowed"))
    second = run_job(*chat, f"task.answers={path}")
    assert first[0].run_id != second[0].run_id


def test_own_second_turns_continue_what_the_cell_itself_decoded(
    run_job, chat, tmp_path, monkeypatch
):
    asked = prompts_asked(monkeypatch)
    calls = count_generate(monkeypatch)
    results = run_job(*chat, "task.later_turns=own", "generation.max_new_tokens=6")
    assert [ids for name, ids, _ in calls if name == "sd"] == [
        [f"{number}/{turn}"] for turn in (0, 1) for number in (81, 82, 83)
    ]
    assert asked["ar", "81/1"] != asked["sd", "81/1"]  # what was drawn differs, so do the prompts
    assert [result.metrics["prompts"] for result in results] == [6, 6]


def test_an_own_second_turns_limit_is_what_the_models_have_room_for(run_job, chat, monkeypatch):
    """MT-bench's 1024 tokens a turn fit into a model of 2048 places."""
    room, limit = 120, 40
    monkeypatch.setattr(prompts, "context_of", lambda settings: room)
    asked, resolve = {}, prompts.Prompts._resolve

    def noting(own, request, done):
        asked[request.prompt_id] = (len(request.prompt_ids), request.max_new_tokens)
        return resolve(own, request, done)

    monkeypatch.setattr(prompts.Prompts, "_resolve", noting)
    run_job(*chat, "prompts=1", "task.later_turns=own", f"generation.max_new_tokens={limit}")
    longest, left = asked["81/1"]
    assert asked["81/0"][1] == limit
    assert left == room - longest < limit


@pytest.mark.parametrize("size", [1, 2])
def test_own_second_turns_cut_at_any_line_resume_to_the_same_tokens(run_job, chat, tmp_path, size):
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


def test_none_asks_first_turns_only(run_job, chat, tmp_path):
    (result, _) = run_job(*chat, "task.later_turns=none")
    assert set(tokens_of(tmp_path / "results", result.run_id)) == {"81/0", "82/0", "83/0"}
    assert result.facts.later_turns == "none"
    assert "later_turns" not in result.reason


def test_an_own_second_turn_that_may_not_fit_is_said_before_anything_is_decoded(
    run_job, chat, tmp_path
):
    with pytest.raises(ValueError, match=r"prompt '81/1' needs \d+ positions"):
        run_job(*chat, "task.later_turns=own", "generation.max_new_tokens=200")
    assert not list((tmp_path / "results").rglob("generations.jsonl"))


def test_a_second_turn_whose_limit_is_cut_to_the_room_left_is_not_overlong(chat, family, tmp_path):
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
def test_a_setting_that_cannot_be_right_is_named(run_job, chat, overrides, message):
    with pytest.raises(ValueError, match=message):
        run_job(*chat, *overrides)


def test_an_answer_that_is_missing_in_the_file_is_named(run_job, chat, tmp_path):
    path = fixed_file(tmp_path, 81, 83)
    with pytest.raises(ValueError, match=naming("question 82", "0 turns", "1")):
        run_job(*chat, f"task.answers={path}")
    path.write_text('{"question_id": 81}\n')
    with pytest.raises(ValueError, match=naming("fixed.jsonl", "line 1", "question_id")):
        run_job(*chat, f"task.answers={path}")


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_answers_and_questions_are_written_as_fastchat_reads_them(run_job, chat, tmp_path, capsys):
    """As ``load_model_answers`` and ``load_questions`` of its ``llm_judge/common.py`` do."""
    (*_, result) = run_job(*chat)
    (table,) = (tmp_path / "results").glob("*/results.csv")
    assert answers([str(table)]) == 0
    folder = table.parent / "answers"
    first, _, last = lines_of(folder / "mt_bench" / "question.jsonl")
    assert first == {**QUESTIONS[0], "turns": ["the boat"]}  # the second was not asked
    assert last == {**QUESTIONS[2], "category": ""}
    said = {line["question_id"]: line for line in lines_of(folder / "run_1" / "sd-2.jsonl")}
    assert {number: len(each["choices"][0]["turns"]) for number, each in said.items()} == {
        **{81: 1, 82: 1},
        83: 2,
    }
    for line in said.values():
        assert {"question_id", "answer_id", "model_id", "choices", "tstamp"} <= line.keys()
    tokens = tokens_of(tmp_path / "results", result.run_id)["83/1"]
    assert said[83]["choices"][0]["new_tokens"][1] == len(tokens)
    # Questions that are no longer there are not made up.
    (tmp_path / "questions.jsonl").write_text(json.dumps(QUESTIONS[0]) + "\n")
    assert answers([str(table)]) == 2
    assert "mt_bench has other questions now" in capsys.readouterr().err


def test_a_task_that_is_not_judged_has_no_file_of_questions(run_job, tmp_path):
    run_job(CELLS, "warmup=0", "prompts=1")
    (table,) = (tmp_path / "results").glob("*/results.csv")
    assert answers([str(table)]) == 0
    assert not list(table.parent.rglob("question.jsonl"))
