"""A search in stages: who goes on, on which prompts, and what is recommended."""

import re
from dataclasses import make_dataclass, replace
from types import SimpleNamespace

import pytest

from spec_bench.jobs import app
from spec_bench.jobs.app import build_unpinned_settings
from spec_bench.jobs.config.compose import compose_config
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.confirmation import (
    build_confirmation_job,
    select_best_ids_of_each_decoder,
)
from spec_bench.jobs.config.settings import reserve_confirmation_prompts
from spec_bench.jobs.job import session
from spec_bench.jobs.sweep.plan import ExpectedRate
from spec_bench.recommend import recommend as search
from spec_bench.recommend.recommend import (
    RecommendationResult,
    describe_search_cost,
    format_command,
    start_race,
)
from spec_bench.records.types import Reason
from spec_bench.report.page.headline import Headline
from spec_bench.tasks import RandomPromptTask
from spec_bench.tasks.random_prompts import RandomPromptSource
from spec_bench.vocabulary.columns import ENDS
from tests.cells import result
from tests.commands import recommend
from tests.jobs.tiny import main, overrides, rows_of

CELLS = "cells=[sd:1,sd:2,sd:3,rsd_s:2x1,rsd_s:2x2]"
SEARCH = (CELLS, "prompts=2", "confirm={best: 1, by: block_efficiency, prompts: 2}", "warmup=0")


def test_the_best_of_each_decoder_go_on_and_never_the_baseline():
    rates = (("a", "ar", 9.0), ("b", "sd", 1.0), ("c", "sd", 3.0), ("d", "sd", 2.0))
    screened = [
        result(name, {"speedup": rate, "latency_s": rate}, decoder=decoder)
        for name, decoder, rate in (*rates, ("e", "rsd_s", 0.5))
    ]
    screened.append(result("failed", {"speedup": None}, decoder="sd"))
    assert select_best_ids_of_each_decoder(screened, ConfirmSettings(2, best=2)) == ["c", "d", "e"]
    assert select_best_ids_of_each_decoder(
        screened, ConfirmSettings(2, best=1, by="latency_s")
    ) == ["b", "e"]


def test_the_best_are_decoded_again_as_planned_on_prompts_that_the_search_did_not_see(
    run_job, family, tmp_path, calls, monkeypatch, capsys
):
    asked = overrides(family, tmp_path / "results", *SEARCH, "plan=true")
    assert main(monkeypatch, *asked) == 0
    said = capsys.readouterr().out
    assert "9 cells: 9 missing" in said
    assert "best 1 of 3 by block_efficiency" in said and "best 1 of 2 by block_efficiency" in said
    results = run_job(*SEARCH)
    rows = {stage: [] for stage in ("screen", "confirm")}
    for row in rows_of(tmp_path / "results"):
        rows[row["stage"]].append(row)
    assert [row["decoder"] for row in rows["screen"]] == ["ar", *["sd"] * 3, *["rsd_s"] * 2]
    assert [row["decoder"] for row in rows["confirm"]] == ["ar", "sd", "rsd_s"]
    for row in rows["confirm"][1:]:
        same = [each for each in rows["screen"] if each["decoder"] == row["decoder"]]
        best = max(same, key=lambda each: float(each["block_efficiency"]))
        assert row["spec"] == best["spec"] and row["run_id"] != best["run_id"]
        assert row["baseline"] == "same job" and float(row["speedup"]) > 0
    prompts = [ids[0] for _, ids in calls]
    assert set(prompts[: 2 * 6]) == {"0", "1"} and set(prompts[2 * 6 :]) == {"2", "3"}
    assert [each.facts.stage for each in results] == ["screen"] * 6 + ["confirm"] * 3
    calls.clear()
    again = run_job(*SEARCH)
    assert [each.run_id for each in again] == [each.run_id for each in results] and not calls
    assert main(monkeypatch, *asked) == 0
    said = capsys.readouterr().out
    assert "9 cells: 9 complete" in said and "best 1 of" not in said


@pytest.mark.parametrize(("by", "is_said"), [("speedup", True), ("block_efficiency", False)])
def test_a_choice_by_rates_that_were_disturbed_is_said_and_one_by_counts_is_not(
    family, tmp_path, caplog, by, is_said
):
    asked = overrides(family, tmp_path, CELLS, "prompts=2", f"confirm={{prompts: 2, by: {by}}}")
    settings = build_unpinned_settings(compose_config(asked))
    names = [settings.compute_run_id(cell) for cell in settings.cells]
    rows = [result(name, {by: 1.5}, decoder="sd", spec="1") for name in names]
    busy = Reason("speedup", "disturbed: threads waited for a core")
    build_confirmation_job(settings, [*rows[:-1], replace(rows[-1], reasons=(busy,))])
    assert ("1 of 6 cells stalled or were disturbed, such as sd 1" in caplog.text) == is_said


def test_a_cell_measured_before_is_a_row_of_the_search_too(run_job, tmp_path):
    before = run_job("cells=[sd:1]", "prompts=2", "warmup=0", "name=other")
    results = run_job("cells=[sd:1,sd:2]", *SEARCH[1:])
    assert results[1].run_id == before[1].run_id
    stages = [row["stage"] for row in rows_of(tmp_path / "results")]
    assert sorted(stages) == ["confirm"] * 2 + ["screen"] * 3
    assert {row["stage"] for row in rows_of(tmp_path / "results", "other")} == {""}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("confirm={prompts: 2, by: speed}", "confirm.by must be one of .*speedup.* got 'speed'"),
        ("confirm={prompts: 2, best: 0}", "confirm.best must be .* got 0"),
        ("prompts=null", "confirm wants prompts that the search has not seen"),
        ("prompts=4", "has 4 prompts, and prompts=4 leaves none fresh for confirm"),
    ],
)
def test_what_cannot_be_confirmed_is_named(run_job, wrong, message):
    with pytest.raises(ValueError, match=message):
        run_job(*SEARCH, wrong)


SHARE, ALONE = ConfirmSettings(30, best=3, share=True), ConfirmSettings(30)
Asked = make_dataclass("Asked", ["prompts", "confirm"])


def split(rows, confirm):
    task = RandomPromptTask("random", RandomPromptSource("random"), 8, rows, 0)
    return reserve_confirmation_prompts(Asked(10, confirm), task).prompts


def test_few_rows_are_shared_and_many_are_not():
    shares = {2: 1, 8: 2, 14: 4, 15: 10, 40: 10, 99: 10}
    assert {rows: split(rows, SHARE) for rows in shares} == shares
    assert (split(11, ALONE), split(8, None)) == (10, 10)
    refused = [(8, ALONE, "has 8 prompts"), (10, ALONE, "leaves none fresh"), (1, SHARE, "has 1 ")]
    for rows, confirm, said in refused:
        with pytest.raises(ValueError, match=said):
            split(rows, confirm)


SMALL = ["task=xsum", "generation.max_new_tokens=8", "engine.threads=1", "hydra/job_logging=none"]


def test_the_command_names_one_decoder_whatever_was_asked_for():
    asked = ["task=xsum", "decoder=sd", "spec=3", "decoder.tree.depth=2", "prompts=4"]
    for code, spec in (("rsd_c", "2-1"), ("", ""), ("ar", ""), (None, "")):
        best = None if code is None else Headline("a", "xsum", "A", code, *[""] * 4, spec=spec)
        named = f"{code or 'ar'}{':2-1' if spec else ''}"
        command = format_command(RecommendationResult(best, None), asked)
        assert command == (f"spec-bench run task=xsum --decoders {named}" if code != "" else "")


@pytest.mark.parametrize(
    ("cells", "prompts", "searched"),
    [(60, 15, 243), (6, 15, 81), (4, 15, 75), (9, 2, 20), (2, 15, 0)],
)
def test_a_search_decodes_as_many_answers_as_its_candidates_and_prompts_allow(
    cells, prompts, searched
):
    trees = ",".join(f"sd:{length}" for length in range(1, cells + 1))
    words = ["experiment=recommend", f"cells=[{trees}]", f"prompts={prompts}"]
    asked = build_unpinned_settings(compose_config(words))
    race = start_race(asked, asked.request.confirm)
    assert (len(race.candidates), race.prompt_count, race.count_next_round_prompts() > 0) == (
        cells,
        prompts,
        cells > 3,
    )
    answers = searched + (min(cells, 3) + 1) * 30
    told = f"at most {answers} answers of at most {asked.max_new_tokens} tokens"
    assert describe_search_cost(asked, race).startswith(
        f"{cells} candidates, the best {min(cells, 3)} on 30 "
    )
    assert describe_search_cost(asked, race).endswith(told)
    assert not {each.id for each in asked.examples} & {
        each.id for each in asked.confirmation_examples
    }


def test_an_interrupted_search_goes_on_and_answers_from_fresh_prompts(
    tmp_path, capsys, monkeypatch
):
    words = [*SMALL, "cells=[sd:2,block:2,rsd_c:2-1]", "prompts=2", f"results={tmp_path}"]
    words += ["confirm={best: 1, prompts: 2, by: speedup}"]
    run, jobs = search.run_stages, []
    done, decoded = session._decode_and_store_batch, []

    def cut(its, cell, *told):
        decoded.append(cell)
        if len(decoded) == 1 + 6:  # the pace, a prompt and a half
            raise KeyboardInterrupt
        done(its, cell, *told)

    monkeypatch.setattr(session, "_decode_and_store_batch", cut)
    monkeypatch.setattr(app, "describe_disturbance", lambda *_: "disturbed: threads waited")
    with pytest.raises(KeyboardInterrupt):
        recommend(words)
    monkeypatch.setattr(session, "_decode_and_store_batch", done)
    ranked = capsys.readouterr().err.partition("ranking so far")[2].splitlines()[2:]
    assert sorted(line.split()[0] for line in ranked) == ["block", "rsd_c", "sd"]
    assert all(line.partition("  ")[0].endswith(", disturbed") for line in ranked)
    assert {line.split()[3] for line in ranked} <= {"1", "2"} and "no interval" not in ranked[0]

    def interrupted(job):
        jobs.append(job)
        if job.stage == "confirm" and len(jobs) == 3:
            raise KeyboardInterrupt
        return run(job)

    monkeypatch.setattr(search, "run_stages", interrupted)
    monkeypatch.setattr(search, "get_timing_doubt", lambda *_: "")  # whoever else uses this machine
    with pytest.raises(KeyboardInterrupt):
        recommend(words)
    screened = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("generations.jsonl")}
    assert len(screened) == 5 and recommend(words) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in screened.items())
    assert [(job.stage, len(job.cells)) for job in jobs[3:]] == [
        ("screen", 1),  # plain decoding's pace
        ("screen", 4),
        ("confirm", 2),
    ]
    said, steps = capsys.readouterr()
    assert "3 candidates, the best 1 on 2 fresh prompts: at most 12 answers" in steps
    answer, nothing, *_, page = said.splitlines()
    assert answer.startswith("cannot decide yet: ") and not nothing
    assert "more prompts (confirm.prompts) may decide (2 prompts), of 3 candidates" in answer
    measured = [line for line in said.splitlines() if "2 fresh" in line]
    (cell,) = (each for each in jobs[-1].cells if each.name != "ar")
    assert [line.split("  ")[0] for line in measured] == [cell.title]
    text = (tmp_path / "recommend/recommend-embedded-xsum.html").read_text()
    assert page.endswith(".html") and "cannot decide yet" in text and "A draft pays if" in text


SPEEDS = {  # of two prompts each; of 30 fresh ones with the ends of their own intervals
    "sd:1": [1.35, (1.3, 1.2, 1.4)],
    "sd:2": [1.2, (1.31, 1.21, 1.41)],
    "sd:3": [1.1, (1.2, 1.1, 1.3)],
    **{f"sd:{length}": [0.4] * 2 for length in range(4, 10)},
}


class CountsOfSpeeds:
    """Records in which each prompt has a row's token rate."""

    def __init__(self, results):
        """Of no file."""

    def sum_counts_over_repeats(self, row, name):
        assert name == "token_rate"
        prompts = (f"{row['run_id']} {place}" for place in range(int(row["prompts"])))
        return {prompt: (float(row[name]), 1.0) for prompt in prompts}


def test_a_search_says_the_time_that_is_left_and_names_of_those_that_tie_the_first_on_all_prompts(
    monkeypatch, capsys, tmp_path
):
    def measured(job):
        fresh = job.stage == "confirm"
        for cell in job.cells:
            speeds = {"speedup": 1.0, "token_rate": 100.0}
            if cell.name != "ar":
                told = SPEEDS[f"{cell.name}:{cell.config.spec}"][fresh]
                ends = told if isinstance(told, tuple) else (told,)
                names = ("speedup", "speedup_low", "speedup_high")
                speeds = dict(zip(names, ends, strict=False)) | {"token_rate": 100 * ends[0]}
            numbers = {**speeds, "prompts": float(len(job.examples)), "latency_s": 12.0}
            row = result(
                job.compute_run_id(cell), numbers, decoder=cell.name, spec=cell.config.spec
            )
            few = (Reason("intervals", "fewer than 5 prompts"),) if len(job.examples) < 5 else ()
            row = replace(row, facts=replace(row.facts, stage=job.stage), reasons=few)
            if fresh and cell.config.spec == "3":
                lost = Reason("prompts_failed", "1 of 30: 'q7', no memory")
                row = replace(row, status="partial", reasons=(lost,))
                row.metrics["prompts"] = 29.0
            yield row

    monkeypatch.setattr(search, "run_stages", lambda *told: list(measured(*told)))
    monkeypatch.setattr(search, "RecordReader", CountsOfSpeeds)
    words = [f"cells=[{','.join(SPEEDS)}]", "prompts=6", f"results={tmp_path}", "task=xsum"]
    assert recommend([*words, "confirm.prompts=30"]) == 0
    said, steps = capsys.readouterr()
    left = [line.partition(" minutes left")[0] for line in steps.splitlines() if " left" in line]
    # 12 s an answer: 54 of the race and 4 cells on 30 prompts; then without what is done.
    assert left == ["some 34.8", "some 30.8", "some 24.0"]
    answer, *_ = said.splitlines()
    assert answer.startswith("sd 1: ") and "the fastest on all prompts of the search" in answer
    interval = re.search(r"1\.30× \[(.*?) to (.*?)\]", answer).groups()
    assert (float(interval[0]), float(interval[1])) != (1.2, 1.4)  # three intervals at once
    lines = {line.split("  ")[0]: line for line in said.splitlines()}
    assert f"1.30 [{', '.join(interval)}]" in lines["sd 1"]
    assert re.search(r" 29 fresh .* 1\.20 \[.*\], partial: 1 of 30: 'q7', no ", lines["sd 3"])
    assert lines["sd 9"].endswith("  0.40") and "from 5 prompts on" in said
    assert steps.count("of the whole search") == 3


@pytest.mark.parametrize(("prompts", "again"), [(6, True), (3, False)])
def test_a_disturbed_round_drops_nobody_or_is_no_certainty(
    monkeypatch, capsys, tmp_path, prompts, again
):
    jobs = []

    def measured(job):
        jobs.append(job)
        for cell in job.cells:
            spec = cell.config.spec
            speedup = {"2": 1.5, "9": 0.4}.get(spec, 1.2) if cell.name != "ar" else 1.0
            first = job.stage == "screen" and len(jobs) == 2  # after that of the pace
            speedup = 0.1 if first and spec == "2" else speedup
            ends = dict(zip(ENDS, (speedup - 0.05, speedup + 0.05), strict=True))
            numbers = {f"speedup{end}": value for end, value in ends.items()}
            numbers |= {"speedup": speedup, "token_rate": 100 * speedup, "latency_s": 1.0}
            numbers |= {"prompts": float(len(job.examples))}
            row = result(job.compute_run_id(cell), numbers, decoder=cell.name, spec=spec)
            busy = (Reason("speedup", "disturbed: threads waited for a core"),) * first
            yield replace(row, facts=replace(row.facts, stage=job.stage), reasons=busy)

    monkeypatch.setattr(search, "run_stages", lambda job: list(measured(job)))
    monkeypatch.setattr(search, "RecordReader", CountsOfSpeeds)
    monkeypatch.setattr(search, "measure_break_evens", lambda pair: ())
    words = ["cells=[sd:2,sd:3,sd:9]", f"prompts={prompts}", f"results={tmp_path}", "task=xsum"]
    assert recommend([*words, "confirm={best: 1, prompts: 30}"]) == 0
    said, steps = capsys.readouterr()
    answer = said.splitlines()[0]
    if again:
        first, second = (job for job in jobs[1:] if job.stage == "screen" and len(job.cells) == 4)
        assert not {each.id for each in first.examples} & {each.id for each in second.examples}
        assert "nobody is left out" in steps and answer.startswith("sd 2: ")
        assert "surely faster than AR" in answer and "left out" not in answer
    else:
        assert answer.startswith("sd 3: ") and "surely" not in answer
        assert answer.endswith("not the fastest: on disturbed rates sd 2, sd 9 left out")


def test_disturbed_candidates_are_marked_and_say_nothing_of_what_a_draft_would_need(
    tmp_path, capsys, caplog, monkeypatch
):
    monkeypatch.setattr(search, "get_timing_doubt", lambda *_: "disturbed: threads waited")
    told = [*SMALL, "prompts=2", "confirm.prompts=2", "pair.target=embedded:target"]
    told += ["cells=[sd:2,prompt_lookup,hf_prompt_lookup,medusa]", f"results={tmp_path}"]
    assert recommend(told) == 0
    said, steps = capsys.readouterr()
    tried = [line for line in said.splitlines() if " 2 fresh " in line]
    assert {line.split()[0] for line in tried} == {"prompt_lookup", "hf_prompt_lookup"}
    assert all(line.partition("  ")[0].endswith(", disturbed") for line in tried)
    assert "A draft pays if" not in said and "now 2 decoders on 2 fresh prompts" in steps
    logged = [*steps.splitlines(), *caplog.messages]
    assert any("data: " in line and "fresh prompts" in line for line in logged)
    assert said.startswith("cannot decide yet: ")


def test_the_plan_of_a_search_says_its_answers_its_minutes_and_what_makes_it_shorter(
    tmp_path, capsys, monkeypatch
):
    words = ["plan=true", "task=xsum", f"results={tmp_path}"]
    assert recommend(words) == 0
    cost, unknown = capsys.readouterr().out.splitlines()
    assert "58 candidates, the best 3 on " in cost and "357 answers" in cost
    assert unknown.startswith("minutes unknown until plain decoding") and "--decoders" in unknown
    rate = ExpectedRate(12.8, "measured")
    monkeypatch.setattr(search, "plan_stage", lambda _: [SimpleNamespace(rate=rate)])
    assert recommend(words) == 0  # 357 answers of 128 tokens
    assert "some 59.5 minutes at plain decoding's rate (measured)" in capsys.readouterr().out


def test_what_cannot_be_right_is_one_line(capsys):
    for wrong in ("confirm=null", "task=nowhere", "pair=none", "seed=0,1", "budget=1"):
        assert recommend(["task=xsum", wrong]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "spec-bench recommend: fresh prompts are needed: set confirm={prompts: NUMBER}"
    for told, line in zip(("'nowhere'", "'none'", "-m seed=0,1", "got 1"), others, strict=True):
        assert told in line
