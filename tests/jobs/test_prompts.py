"""What is asked: recipes, files as the hub lays them out, two turns, prompts that are too long."""

import json
import shutil
from types import SimpleNamespace

import datasets
import pytest

from spec_bench.decode.decoder import Decoder
from spec_bench.jobs.app import build_unpinned_settings
from spec_bench.jobs.config.compose import compose_config, parse_request
from spec_bench.jobs.job import job
from spec_bench.jobs.job.results import write_results
from spec_bench.jobs.store.store import CellStore
from spec_bench.jobs.work import prompts
from spec_bench.tasks import build_task
from spec_bench.tasks.example import CUT, TREE_LEVELS, cut_middle_of_text, fit_to_context
from tests.commands import answers
from tests.jobs.tiny import TEXTS, main, rows_of, tokens_of
from tests.jobs.tiny import cut as killed
from tests.question_files import question_file, written
from tests.said import naming
from tests.tasks.conftest import LetterTokenizer, config

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


@pytest.mark.parametrize(
    ("kind", "plain", "chat"),
    [
        *[("prompts", True, None), ("prompts", False, "false"), ("sampled", False, None)],
        *[("chats", True, "true"), ("task", True, None), ("task", False, None)],
    ],
)
def test_heads_that_learned_prompts_of_another_form_are_warned_of(
    kind, plain, chat, tmp_path, caplog
):
    told = {"settings": {"data": {"kind": kind}}}
    for name in ("medusa", "eagle"):  # which no cell uses
        (tmp_path / name).mkdir()
        (tmp_path / name / "training.json").write_text(json.dumps(told))
    heads = {name: str(tmp_path / name) for name in ("medusa", "eagle", "redrafter")}
    cells = [SimpleNamespace(config=SimpleNamespace(heads=each)) for each in (None, "medusa")]
    prompts.warn_of_heads_for_other_prompts(
        SimpleNamespace(cells=cells, pair=SimpleNamespace(heads=heads)), plain
    )
    assert [each.partition("task.chat=")[2].split()[0] for each in caplog.messages] == (
        [chat] if chat else []
    )


def test_a_later_turns_limit_is_what_answers_at_their_limits_leave_of_the_context(monkeypatch):
    monkeypatch.setattr(prompts, "find_prompt_and_answer_room", lambda _: 25)
    monkeypatch.setattr(prompts, "list_asked_prompt_ids", lambda *_: ("0/0", "0/1", "0/2"))
    task = SimpleNamespace(
        later_turns="own",
        make_stop_criteria=lambda _: SimpleNamespace(stop_ids=()),
        encode=lambda example, tokenizer, turn, *_: (1,) * (3 + 2 * turn),
    )
    made = prompts._encode_example(SimpleNamespace(task=task, max_new_tokens=8), None, None)
    found = [(len(each.prompt_ids), each.max_new_tokens) for each in made]
    assert found == [(3, 8), (5 + 8, 8), (7 + 8 + 8, 2)]


def test_the_first_prompts_are_shown_as_they_are_sent(run_job, caplog, tmp_path):
    with caplog.at_level("DEBUG", "spec_bench.jobs.work.prompts"):
        run_job(*SMALL, "cells=[sd:2]")
    (said,) = [line for line in caplog.messages if line.startswith("'A r t i c l e : ")]
    text, _, ids = said.partition("', (")
    (first, *_) = (tmp_path / "results/runs").glob("*/generations.jsonl")
    sent = json.loads(first.read_text().splitlines()[0])["prompt_tokens"]
    assert text.endswith("m ar y :") and len(json.loads(f"[{ids[:-1]}]")) == sent


def translated(n, text):
    return {"translation": {"de": f"Satz {n}.", "en": text}}


WMT = ("de-en/test-00000-of-00001.parquet", translated, "bleu")
# File, row of a text, score, temperature and top-p: the papers' own.
LAYOUTS = {
    "wmt18_deen": (*WMT, 0.3, 1.0),
    "wmt14_ende": (*WMT, 1.0, 1.0),
    "xsum": (
        "default/test/0000.parquet",
        lambda n, t: {"document": t, "summary": t[:20], "id": f"{3_000_000 + n}"},
        *("rouge2", 0.3, 1.0),
    ),
    "dolly": (
        "databricks-dolly-15k.jsonl",
        lambda n, t: {"instruction": "Who?", "context": t, "response": "He.", "category": "qa"},
        *(None, 1.0, 0.95),
    ),
    "alpaca": (
        "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",
        lambda n, t: {"instruction": t, "input": "", "output": "Done.", "text": f"Below ... {t}"},
        *(None, 1.0, 1.0),
    ),
    "mt_bench": (
        "question.jsonl",
        lambda n, t: {"question_id": 81 + n, "category": "writing", "turns": [t, "Shorten it."]},
        *(None, 1.0, 1.0),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_hub_task_runs_from_local_files_to_a_row(name, run_job, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file, row_of, score, temperature, top_p = LAYOUTS[name]
    path = tmp_path / "hub" / file
    path.parent.mkdir(parents=True)
    rows = [row_of(*each) for each in enumerate(TEXTS)]
    if path.suffix == ".jsonl":
        source = written(path, *rows)
    else:
        languages = datasets.Translation(languages=["de", "en"])
        features = datasets.Features({"translation": languages}) if score == "bleu" else None
        datasets.Dataset.from_list(rows, features=features).to_parquet(path)
        source = path.parent
    # The task's own temperature and truncation stand.
    own = ("generation.temperature=null", "generation.max_new_tokens=6")
    run_job(f"task={name}", f"task.source.path={source}", "cells=[sd:2]", "prompts=3", *own)
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
        told = json.loads(file.read_text()) | {"max_position_embeddings": 9000}
        file.write_text(json.dumps(told))
    return [f"pair.{name}={tmp_path / name}" for name in ("target", "draft")]


# A second turn is asked where the file has an answer to the first.
@pytest.mark.parametrize(
    ("name", "turns"), [("spec_bench", "2"), ("mt_bench", "3"), ("eagle_alpaca", "2")]
)
def test_a_question_file_of_others_runs_to_a_row(name, turns, run_job, tmp_path, patient):
    real = ("task=jsonl", f"task.source.path={question_file(tmp_path, name)}", "task.name=real")
    run_job(*real, "cells=[sd:2]", "prompts=2", "generation.max_new_tokens=6", *patient)
    for row in rows_of(tmp_path / "results"):
        assert (row["task"], row["status"], row["prompts"]) == ("real", "complete", turns)


def test_a_file_with_fields_template_and_metric_of_ones_own_runs_to_a_row(run_job, tmp_path):
    file = written(tmp_path / "mine.jsonl", *({"q": text, "a": [text]} for text in TEXTS))
    own = ('task.template="{q} Answer:"', "task.fields.reference=a", "task.metrics=[rouge]")
    run_job("task=jsonl", f"task.source.path={file}", *own, "cells=[sd:2]")
    for row in rows_of(tmp_path / "results"):
        assert row["status"] == "complete"
        assert float(row["rouge_rougeL"]) >= 0


CELLS = "cells=[sd:2]"
QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["the boat", "the tide"]},
    {"question_id": 82, "category": "math", "turns": ["a storm", "the roof"]},
    {"question_id": 83, "turns": ["the mayor", "the river"], "reference": ["a bridge"]},
]


@pytest.fixture
def chat(tmp_path):
    path = written(tmp_path / "questions.jsonl", *QUESTIONS)
    return (CELLS, "task=mt_bench", f"task.source.path={path}", "warmup=0")


def fixed_file(folder, *questions):
    """First answers in FastChat's format."""
    lines = [
        {"question_id": each, "choices": [{"index": 0, "turns": [f"it rained {each}", "x"]}]}
        for each in questions
    ]
    return written(folder / "fixed.jsonl", *lines)


@pytest.fixture
def asked(monkeypatch):
    asked, generate = {}, Decoder.generate

    def noting(self, requests, *arguments):
        asked.update({(self.name, each.prompt_id): each.prompt_ids for each in requests})
        return generate(self, requests, *arguments)

    monkeypatch.setattr(Decoder, "generate", noting)
    return asked


def test_a_fixed_continuation_gives_every_decoder_the_same_second_prompt(
    run_job, chat, tmp_path, asked
):
    path = fixed_file(tmp_path, 81, 82, 83)
    first = run_job(*chat, f"task.answers={path}")
    for number in (81, 82, 83):
        assert asked["ar", f"{number}/1"] == asked["sd", f"{number}/1"]
    assert len({len(prompt) for prompt in asked.values()}) > 1
    for row in rows_of(tmp_path / "results"):
        assert (row["later_turns"], row["prompts"], row["status"]) == ("fixed", "6", "complete")
    path.write_text(path.read_text().replace("rained", "snowed"))
    assert run_job(*chat, f"task.answers={path}")[0].run_id != first[0].run_id


@pytest.mark.parametrize(
    ("how", "ids", "left"), [("fixed", ["83/1"], "2 not asked, no fixed answer"), ("none", [], "")]
)
def test_a_second_turn_that_is_not_asked_is_left_out_and_the_row_says_so(
    run_job, chat, tmp_path, how, ids, left
):
    (result, _) = run_job(*chat, f"task.later_turns={how}")
    asked = tokens_of(tmp_path / "results", result.run_id)
    assert {*asked} == {"81/0", "82/0", "83/0", *ids}
    assert result.facts.later_turns == how
    assert (f"later_turns: {left}" if left else "") in result.reason
    assert ("later_turns" in result.reason) == bool(left)


def test_own_second_turns_continue_what_the_cell_decoded(run_job, chat, calls, asked, tmp_path):
    results = run_job(*chat, "task.later_turns=own", "generation.max_new_tokens=6")
    assert [ids for name, ids in calls if name == "sd"] == [
        [f"{number}/{turn}"] for turn in (0, 1) for number in (81, 82, 83)
    ]
    assert asked["ar", "81/1"] != asked["sd", "81/1"]  # what was drawn differs, so do the prompts
    assert [result.metrics["prompts"] for result in results] == [6, 6]
    done = CellStore(tmp_path / "results", results[1].run_id).load_first_repeat().values()
    assert {each.category for each in done} == {"writing", "math", ""}


def test_an_own_second_turns_limit_is_what_the_models_have_room_for(run_job, chat, monkeypatch):
    room, limit = 120, 40
    monkeypatch.setattr(prompts, "find_prompt_and_answer_room", lambda settings: room)
    asked, resolved = {}, prompts.JobPrompts.fill_in_own_answers

    def noting(own, requests, done):
        asked.update({r.prompt_id: (len(r.prompt_ids), r.max_new_tokens) for r in requests})
        return resolved(own, requests, done)

    monkeypatch.setattr(prompts.JobPrompts, "fill_in_own_answers", noting)
    own = ("task.later_turns=own", "task.overlong=skip", f"generation.max_new_tokens={limit}")
    for result in run_job(*chat, *own, "prompts=1"):
        assert (result.metrics["prompts"], result.metrics["prompts_skipped"]) == (2, 0)
    longest, left = asked["81/1"]
    assert asked["81/0"][1] == limit
    assert left == room - longest < limit


@pytest.mark.parametrize("size", [1, 2])
def test_own_second_turns_cut_at_any_line_resume_to_the_same_tokens(run_job, chat, tmp_path, size):
    own = (*chat, "task.later_turns=own", f"engine.batch_size={size}")
    whole = tmp_path / "whole"
    results = run_job(*own, results=whole)
    expected = {result.run_id: tokens_of(whole, result.run_id) for result in results}
    for lines in (0, 2, 4, 5):
        again = tmp_path / f"cut{lines}"
        for number, run_id in enumerate(expected):
            killed(whole, run_id, max(0, lines - number), again)
        run_job(*own, results=again)
        for run_id, tokens in expected.items():
            assert tokens_of(again, run_id) == tokens
            assert CellStore(again, run_id).is_complete()


def test_own_second_turns_resume_beside_a_baseline_that_another_job_holds_and_leaves_undone(
    run_job, chat, tmp_path, monkeypatch
):
    results, own = tmp_path / "results", (*chat, "task.later_turns=own")
    baseline, cell, *_ = run_job(*own)
    tokens = [tokens_of(results, each.run_id) for each in (baseline, cell)]
    other = CellStore(results, baseline.run_id)
    other.lock()
    for lines in (0, 3):
        killed(results, baseline.run_id, 0)
        killed(results, cell.run_id, lines)
        run_job(*own)
        assert CellStore(results, cell.run_id).is_complete()
    killed(results, cell.run_id, 3)
    with monkeypatch.context() as patch:  # the other job ends while this one has its numbers
        patch.setattr(job, "write_results", lambda *given: (write_results(*given), other.unlock()))
        run_job(*own)
    assert [tokens_of(results, each.run_id) for each in (baseline, cell)] == tokens
    assert other.is_complete() and CellStore(results, cell.run_id).is_complete()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["task.later_turns=mine"], "task.later_turns must be one of fixed, own, none, got 'mine'"),
        (["task.answers=/no/where"], r"task\.answers: there is no file '/no/where'"),
        (["task.answers=x", "task.later_turns=own"], "a file for task.later_turns=fixed, not own"),
        (["task.answers=fixed.jsonl"], "answers to 0 turns of question 82, needed: 1"),
        (["task.answers=bad.jsonl"], "bad.jsonl.*line 1.*question_id"),
    ],
)
def test_what_cannot_be_asked_is_named_before_anything_is_decoded(
    run_job, chat, tmp_path, monkeypatch, given, message
):
    monkeypatch.chdir(tmp_path)
    fixed_file(tmp_path, 81, 83)
    written(tmp_path / "bad.jsonl", {"question_id": 81})
    with pytest.raises(ValueError, match=message):
        run_job(*chat, *given)
    assert not list((tmp_path / "results").rglob("generations.jsonl"))


def lines_of(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


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
    turns = {number: len(each["choices"][0]["turns"]) for number, each in said.items()}
    assert turns == {81: 1, 82: 1, 83: 2}
    for line in said.values():
        assert {"question_id", "answer_id", "model_id", "choices", "tstamp"} <= line.keys()
    tokens = tokens_of(tmp_path / "results", result.run_id)["83/1"]
    assert said[83]["choices"][0]["new_tokens"][1] == len(tokens)
    # Questions that are no longer there are not made up.
    (tmp_path / "questions.jsonl").write_text(json.dumps(QUESTIONS[0]) + "\n")
    assert answers([str(table)]) == 2
    assert "mt_bench has other questions now" in capsys.readouterr().err
    run_job(CELLS, "warmup=0", "prompts=1", "name=plain")  # of a task that is not judged
    assert answers([str(tmp_path / "results" / "plain" / "results.csv")]) == 0
    assert not list((tmp_path / "results" / "plain").rglob("question.jsonl"))


PLAIN = ("cells=[sd:3]", "warmup=0")
LENGTHS = (1, 30, 2, 40)  # the models take 256 tokens


@pytest.fixture
def rows(tmp_path):
    lines = [
        {"id": f"{n}", "document": " ".join(TEXTS[n] for _ in range(times)), "summary": "it did"}
        for n, times in enumerate(LENGTHS)
    ]
    return written(tmp_path / "long.jsonl", *lines)


def test_overlong_prompts_alone_are_refused_with_the_ways_out_and_no_weights_are_needed(
    run_job, rows, family, tmp_path
):
    for name in ("target", "draft"):
        weights = shutil.ignore_patterns("*.safetens*")
        shutil.copytree(family / name, tmp_path / name, ignore=weights)
    pair = [f"pair.{name}={tmp_path / name}" for name in ("target", "draft")]
    ways = ("task.overlong=skip", "task.overlong=truncate", "generation.max_new_tokens")
    file = written(tmp_path / "all.jsonl", *(each for each in lines_of(rows) if each["id"] in "13"))
    with pytest.raises(ValueError, match=naming("2 of 2 prompts", "'1'", "positions", 256, *ways)):
        run_job(*PLAIN, f"task.source.path={file}", *pair)
    assert not list((tmp_path / "results").rglob("generations.jsonl"))


def test_a_limit_is_that_of_the_models_that_cells_use_less_their_deepest_tree(
    run_job, rows, family, tmp_path
):
    shutil.copytree(family / "draft", tmp_path / "draft")
    file = tmp_path / "draft" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_position_embeddings": 25}))
    short = (f"pair.draft={tmp_path / 'draft'}", "prompts=1", f"task.source.path={rows}")
    with pytest.raises(ValueError, match=naming("7 tree levels", str(tmp_path / "draft"), 25)):
        run_job("cells=[sd:3,sd:7]", *short)
    assert len(run_job("cells=[prompt_lookup]", *short)) == 2  # no draft, so no limit of its


@pytest.mark.parametrize(
    ("how", "kept", "counts"),
    [("truncate", ["0", "1", "2", "3"], ("2", "0")), ("skip", ["0", "2"], ("0", "2"))],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_they_are_cut_or_left_out_and_counted_also_after_a_kill(
    run_job, rows, tmp_path, how, kept, counts, batch
):
    source, batched = f"task.source.path={rows}", f"engine.batch_size={batch}"
    given = (*PLAIN, source, f"task.overlong={how}", batched)
    results = run_job(*given)
    for row in rows_of(tmp_path / "results"):
        assert (row["prompts_truncated"], row["prompts_skipped"]) == counts
        assert row["prompts"] == f"{len(kept)}"
    whole = {each.run_id: tokens_of(tmp_path / "results", each.run_id) for each in results}
    run = tmp_path / "results" / "runs" / results[0].run_id
    lines = (run / "generations.jsonl").read_text()
    longest = max(json.loads(line)["prompt_tokens"] for line in lines.splitlines())
    most = results[0].facts.max_new_tokens
    assert longest + most + TREE_LEVELS == 256 or how == "skip"
    for run_id, tokens in whole.items():
        assert list(tokens) == kept
        killed(tmp_path / "results", run_id, 1)
    run_job(*given)
    assert {run_id: tokens_of(tmp_path / "results", run_id) for run_id in whole} == whole


def test_the_template_stays_whole_and_as_much_of_both_ends_of_the_text_as_fits(rows):
    values = config("xsum", kind="local", path=str(rows))
    task, tokenizer = build_task(values), LetterTokenizer()
    example = task.read_examples()[1]
    for room in (90, 91, 300):
        short = fit_to_context(
            example, room, task.cut_texts_to, lambda each: len(task.encode(each, tokenizer))
        )
        text = task.format_prompt(short)
        assert text.startswith(f"Article: {TEXTS[1][:10]}") and text.endswith("\nSummary:")
        assert CUT in text and len(task.encode(short, tokenizer)) == room
    with pytest.raises(ValueError, match=naming("'1'", "room for 10")):
        fit_to_context(
            example, 10, task.cut_texts_to, lambda each: len(task.encode(each, tokenizer))
        )
    assert cut_middle_of_text("abcdefgh", 3) == f"ab{CUT}h"
    assert cut_middle_of_text("abcdefgh", 0) == CUT
    assert (
        cut_middle_of_text("abc", 3),
        cut_middle_of_text("abc", None),
        cut_middle_of_text(7, 1),
    ) == (
        "abc",
        "abc",
        7,
    )


def test_a_random_choice_of_rows_is_the_seeds_and_stages_share_none():
    first = build_task(config("xsum"))
    rows = {each.id: each for each in first.read_examples()}
    chosen = build_task({**config("xsum"), "sample": "random", "sample_seed": 3})
    again = build_task({**config("xsum"), "sample": "random", "sample_seed": 4})
    some, other = ([each.id for each in task.read_examples(5)] for task in (chosen, again))
    assert some == [each.id for each in chosen.read_examples(5)] != other
    assert some != list(rows)[:5] and len(set(some)) == 5
    assert all(rows[each.id] == each for each in chosen.read_examples(5))
    assert not {each.id for each in chosen.read_examples(5, 5)} & set(some)


@pytest.mark.parametrize(
    ("task", "stop"),
    [("humaneval", ["\nclass", "\ndef", "\n#", "\nif", "\nprint"]), ("spider", ["\n"])],
)
def test_the_stops_of_code_and_sql_as_plain_text_cut_no_answer_of_a_chat(task, stop):
    def stops(*words):
        return list(parse_request(compose_config([f"task={task}", *words])).task["stop"])

    assert stops() == stop
    assert stops("task.chat=true") == stops("task.chat=auto") == []
    assert stops("task.chat=true", "task.stop=[a,b]") == ["a", "b"]


def test_how_words_are_found_makes_other_rows_and_none_of_those_that_leave_it_open():
    def ids(*words):
        settings = build_unpinned_settings(
            compose_config(["prompts=1", "task=wmt18_deen", "cells=[sd:2]", *words])
        )
        return [
            (settings.compute_run_id(cell), settings.build_facts(cell).tokenize)
            for cell in settings.cells
        ]

    assert ids() == ids("task.tokenize=null")
    assert {name for _, name in ids("task.tokenize=zh")} == {"zh"}
    assert not {*ids()} & {*ids("task.tokenize=zh")}
