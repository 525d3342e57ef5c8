"""The answer follows from fresh prompts alone, with the command that uses it."""

import pytest

from spec_bench.api.jobs import composed
from spec_bench.jobs.app import settings_of
from spec_bench.jobs.config.compose import register
from spec_bench.recommend import recommend as search
from spec_bench.recommend.command import command_of, main
from spec_bench.recommend.recommend import Recommendation, cost_of, stages_of
from spec_bench.report.page.headline import Headline

SMALL = ["task=xsum", "generation.max_new_tokens=8", "engine.threads=1", "hydra/job_logging=none"]


def found(code="rsd_c", spec="2-1"):
    return Recommendation(Headline("a", "xsum", "A", code, "", "", "", "", spec=spec), None)


def test_the_command_names_one_decoder_whatever_was_asked_for():
    asked = ["task=xsum", "decoder=sd", "spec=3", "decoder.tree.depth=2", "prompts=4"]
    assert command_of(found(), asked) == "spec-bench task=xsum decoder=rsd_c spec=2-1"
    for undecided in (found("", ""), found("ar", ""), Recommendation(None, None)):
        assert command_of(undecided, asked) == "spec-bench task=xsum decoder=ar"


@pytest.mark.parametrize(
    ("cells", "prompts", "sizes"),
    [
        (9, 10, [(9, 3), (5, 10), (3, 30)]),
        (9, 2, [(9, 2), (3, 30)]),  # too few prompts for a stage between
        (5, 10, [(5, 10), (3, 30)]),  # too few candidates for a first one
        (2, 10, [(2, 30)]),
    ],
)
def test_each_stage_takes_fewer_candidates_and_more_prompts(cells, prompts, sizes):
    register()
    trees = ",".join(f"sd:{length}" for length in range(1, cells + 1))
    words = ["experiment=recommend", f"cells=[{trees}]", f"prompts={prompts}"]
    asked = settings_of(composed(words))
    stages = stages_of(asked, asked.asked.confirm)
    assert [(each.most, len(each.examples)) for each in stages] == sizes
    assert [each.fresh for each in stages] == [False] * (len(sizes) - 1) + [True]
    earlier = {example.id for each in stages[:-1] for example in each.examples}
    assert not earlier & {example.id for example in stages[-1].examples}
    answers = sum((most + 1) * count for most, count in sizes)
    assert f", {answers} answers of at most {asked.max_new_tokens} tokens" in cost_of(asked, stages)


def test_an_interrupted_search_goes_on_and_answers_from_fresh_prompts(
    tmp_path, capsys, monkeypatch
):
    words = [*SMALL, "cells=[sd:2,block:2,rsd_c:2-1]", "prompts=2", f"results={tmp_path}"]
    words += ["confirm={best: 1, prompts: 2, by: speedup}"]
    run, jobs = search.run_stage, []

    def interrupted(job, sinks):
        jobs.append(job)
        if job.stage == "confirm" and len(jobs) == 2:
            raise KeyboardInterrupt
        return run(job, sinks)

    monkeypatch.setattr(search, "run_stage", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(words)
    screened = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("generations.jsonl")}
    assert len(screened) == 4 and main(words) == 0
    assert all(path.stat().st_mtime_ns == time for path, time in screened.items())
    assert [(job.stage, len(job.cells)) for job in jobs[2:]] == [("screen", 4), ("confirm", 2)]
    said, steps = capsys.readouterr()
    assert "3 candidates on 2 prompts, the best 1 on 2 fresh prompts: 6 cells" in steps
    best, why, command, page = said.splitlines()[-4:]
    assert best == "cannot decide yet"
    assert "try confirm.prompts=20 (2 prompts), of 3 candidates" in why
    assert command.startswith("spec-bench task=xsum") and command.endswith("decoder=ar")
    measured = [line for line in said.splitlines() if "2 fresh" in line]
    (cell,) = (each for each in jobs[-1].cells if each.name != "ar")
    assert [line.split("  ")[0] for line in measured] == [cell.title]
    text = (tmp_path / "recommend/recommend-embedded-xsum.html").read_text()
    assert page.endswith(".html") and "cannot decide yet" in text and "A draft pays if" in text


def test_a_target_alone_is_told_what_to_use_and_what_a_draft_would_need(tmp_path, capsys):
    told = [*SMALL, "prompts=2", "confirm.prompts=2", "pair.target=embedded:target"]
    told += ["cells=[sd:2,prompt_lookup,hf_prompt_lookup,medusa]", f"results={tmp_path}"]
    assert main(told) == 0
    said, steps = capsys.readouterr()
    tried = {line.split()[0] for line in said.splitlines() if " 2 fresh " in line}
    assert tried == {"prompt_lookup", "hf_prompt_lookup"}
    assert "A draft pays if" in said and "1 of 1: " in steps
    assert "pair.target=embedded:target" in said.splitlines()[-2]


def test_what_cannot_be_right_is_one_line(capsys):
    for wrong in ("confirm=null", "task=nowhere", "pair=none", "budget=1"):
        assert main(["task=xsum", wrong]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first == "spec_bench: recommend wants fresh prompts: set confirm={prompts: NUMBER}"
    for told, line in zip(("'nowhere'", "'none'", "2 to 256 nodes, got 1"), others, strict=True):
        assert told in line
