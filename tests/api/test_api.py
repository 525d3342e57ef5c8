"""What a notebook calls: prompts are decoded, jobs give tables, mistakes are one line."""

import doctest
import json
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pandas as pd
import pytest
import torch

import spec_bench
from spec_bench import api
from spec_bench.api.answers import StreamedText
from spec_bench.api.jobs import (
    _write_prompts_file,
    build_overrides_and_save_prompts,
    select_columns,
)
from spec_bench.api.pairs import LoadedPair
from spec_bench.decode import recording
from spec_bench.engine.cache import CachePool
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.jobs.config.compose import compose_config
from spec_bench.records.ends import StopCriteria
from tests.simcuda import DEVICE, SimCuda

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "Article: The harbour was closed after a storm took the roof of the school.\nSummary:"
OTHER = "Article: Rain fell on the market.\nSummary:"
PAGES_WITH_CODE = ("python", "cookbook", "extending")
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}Summary:"


def test_a_pair_computes_on_the_threads_asked_for():
    usual = torch.get_num_threads()
    pair = spec_bench.load_pair("embedded", threads=3)
    assert torch.get_num_threads() == 3 and "engine.threads=3" in pair.overrides
    with pytest.raises(ValueError, match=r"engine.threads .*got 0"):
        spec_bench.load_pair("embedded", threads=0)
    torch.set_num_threads(usual)


@pytest.fixture(scope="module")
def pair():
    return spec_bench.load_pair("embedded")


def test_the_documented_example_runs(tmp_path):
    names = {"folder": str(tmp_path), "__name__": "example"}
    found = doctest.testmod(api, extraglobs=names)
    assert found.attempted == 7
    assert found.failed == 0


@pytest.mark.parametrize("decoder", ["ar", "sd:3", "rsd_s:4x3", "medusa", "dsbd:4x2@0.9"])
def test_a_trace_tells_where_every_token_of_an_answer_came_from(pair, decoder):
    answer = pair.decode(PROMPT, decoder, max_new_tokens=12, seed=3)
    assert answer.text and len(answer.tokens) <= 12
    assert tuple(t for step in answer.steps for t in step.tokens) == answer.tokens
    assert "".join(step.text for step in answer.steps) == answer.text
    assert all(0 <= step.accepted <= step.depth for step in answer.steps)
    assert answer.block_efficiency >= 1


def test_a_list_gives_the_answers_that_each_text_has_alone(pair):
    told = {"decoder": "rsd_s:2x2", "max_new_tokens": 6, "seed": 5}
    together = pair.decode([PROMPT, OTHER, PROMPT], **told)
    alone = [pair.decode(each, **told) for each in (PROMPT, OTHER)]
    assert [each.tokens for each in together] == [alone[i].tokens for i in (0, 1, 0)]
    assert [each.tokens for each in pair.decode(pd.Series([OTHER]), **told)] == [alone[1].tokens]
    assert pair.decode([], **told) == []


def test_a_conversation_goes_through_the_chat_template(pair, monkeypatch):
    monkeypatch.setattr(pair.tokenizer, "chat_template", TEMPLATE)
    told = {"decoder": "sd:2", "temperature": 0, "max_new_tokens": 5}
    message = {"role": "user", "content": "Article: Rain."}
    ids = pair.tokenizer("user: Article: Rain.\nSummary:", add_special_tokens=False)["input_ids"]
    assert pair._build_requests([[message]], 5, False, None, ())[0].prompt_ids == tuple(ids)
    plain = pair.decode("Article: Rain.", chat=True, **told)
    assert pair.decode([message], **told).tokens == plain.tokens
    longer = [message, {"role": "assistant", "content": "Rain."}, message]
    first, second = pair.decode([[message], longer], **told)
    assert first.tokens == plain.tokens and len(second.tokens) <= 5


def test_a_stop_string_ends_an_answer_with_the_token_that_makes_it_whole(pair):
    whole = pair.decode(PROMPT, "sd:3", max_new_tokens=16, seed=1)
    stop = whole.text[7:10]
    cut = pair.decode(PROMPT, "sd:3", max_new_tokens=16, seed=1, stop=[stop, "never"])
    assert cut.text == whole.text[: whole.text.find(stop)]
    assert cut.finish == "stop" and len(cut.tokens) < len(whole.tokens)
    assert cut.tokens == whole.tokens[: len(cut.tokens)]
    assert sum(len(step.tokens) for step in cut.steps) == len(cut.tokens)
    assert stop in pair.tokenizer.decode(cut.tokens)
    assert stop not in pair.tokenizer.decode(cut.tokens[:-1])
    assert "".join(step.text for step in cut.steps) == cut.text


class Letters:
    """A tokenizer of one letter, or one byte of it, each."""

    eos_token_id = None

    def __call__(self, text, **options):
        return {"input_ids": [*text]}

    def decode(self, tokens, **options):
        return "".join(tokens).replace("<e>", "é").replace("<", "\ufffd")


def test_what_may_become_a_stop_string_or_half_a_letter_is_held_back():
    stops = StopCriteria(Letters(), ["\n\n"])
    writing = StreamedText(Letters(), stops)
    told = [writing.add_tokens(list(each), is_last=False) for each in ("a\n", "b<", "e>\n", "\nc")]
    assert told == ["a", "\nb", "é", ""]
    assert StreamedText(Letters(), stops).add_tokens(["a", "\n"], is_last=True) == "a\n"


def test_a_stream_gives_the_steps_of_the_answer_as_they_come(pair):
    stream = pair.stream(PROMPT, "sd:3", max_new_tokens=12, seed=2)
    first = next(stream)
    between = pair.decode(OTHER, "sd:3", max_new_tokens=4)
    answer, whole = stream.answer, pair.decode(PROMPT, "sd:3", max_new_tokens=12, seed=2)
    assert answer.tokens == whole.tokens and answer.steps[0] == first
    assert first.nodes == 3 and first.seconds > 0 and between.tokens
    assert "".join(step.text for step in answer.steps) == whole.text == answer.text


def test_an_answer_tells_its_seconds_and_its_rate(pair):
    answer = pair.decode(PROMPT, "sd:3", max_new_tokens=8)
    took = answer.seconds
    assert took.prefill > 0 and took.total == took.prefill + took.decode
    assert sum(step.seconds for step in answer.steps) == pytest.approx(took.decode)
    assert 0 < took.draft + took.target <= took.decode
    assert answer.token_rate == len(answer.tokens) / took.decode
    assert str(answer) == answer.text and "tokens/s" in repr(answer) and len(repr(answer)) < 200
    assert repr(pair).startswith("LoadedPair('embedded': embedded:target, embedded:draft")
    assert {"text", "seconds", "token_rate", "block_efficiency"} <= {*dir(answer)}


def test_loaded_models_decode_as_their_names_do(pair):
    from transformers import AutoModelForCausalLM

    folder, load = ROOT / "spec_bench/embedded/models", AutoModelForCausalLM.from_pretrained
    target, draft = (load(folder / name) for name in ("target", "draft"))
    kind = type(target)
    mine = spec_bench.load_pair(target=target, draft=draft, tokenizer=pair.tokenizer)
    told = {"decoder": "sd:3", "temperature": 0, "max_new_tokens": 10}
    assert mine.decode(PROMPT, **told).tokens == pair.decode(PROMPT, **told).tokens
    assert type(target) is kind and not target.training
    with pytest.raises(ValueError, match=r"holds a loaded model.*save_pretrained"):
        spec_bench.run(pair=mine)
    with pytest.raises(ValueError, match="a loaded target comes with its tokenizer"):
        spec_bench.load_pair(target=target)


SAME = dict.fromkeys(("before", "after"), ROOT / "results/quickstart")
USER, SAID = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("prompt", "decoder", "settings", "named"),
    [
        (PROMPT, "rsd_x:4x3", {}, "rsd_x"),
        (PROMPT, "sd:2-2", {}, "2-2"),
        (PROMPT, "sd:3", {"temperature": -1}, "decode.temperature .* got -1"),
        (PROMPT, "sd:3", {"top_k": 1.5}, "decode.top_k .* got 1.5"),
        (PROMPT, "sd:3", {"sampling": {"min_p": 0.1}}, "sampling must be SamplingSettings"),
        (PROMPT, 3, {}, "decoder must be NAME:SPEC or a mapping, got int 3"),
        (PROMPT, "sd:3", {"stop": [""]}, "stop must be texts that are not empty, got ''"),
        (PROMPT, "sd:3", {"stop": 5}, "stop must be texts that are not empty, got 5"),
        (PROMPT, "sd:3", {"seed": "a"}, "seed must be a whole number, got str 'a'"),
        (PROMPT, "sd:3", {"chat": True}, "the tokenizer has no chat template"),
        (3, "sd:3", {}, "prompt must be a text that is not empty, a list of texts, .* got int 3"),
        ("", "sd:3", {}, "prompt must be a text that is not empty, .* got str ''"),
        (["a", " "], "sd:3", {}, "got .*' '.* in the list"),
        (["a", 3], "sd:3", {}, "got int 3 in the list"),
        ([1, 2, 3], "sd:3", {}, "of token ids pair.tokenizer.decode.* makes a text.*got int 1 "),
        ([USER], "sd:3", {}, "the tokenizer has no chat template"),
        ([{"role": "user"}], "sd:3", {}, r"prompt\[0\] must be a message"),
        ([USER, SAID], "sd:3", {}, "the last message must be the user's"),
    ],
)
def test_what_cannot_be_decoded_is_named(pair, prompt, decoder, settings, named, monkeypatch):
    monkeypatch.setattr(pair.tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match=named) as error:
        pair.decode(prompt, decoder, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "wrong", "named"),
    [
        (spec_bench.load_pair, {"name": "nobody"}, "nobody"),
        (spec_bench.load_pair, {"target": "embedded:none"}, "embedded:none"),
        (spec_bench.load_pair, {"heads": {"medusae": "x"}}, "medusae"),
        (spec_bench.load_pair, {"dtype": "float12"}, "float12"),
        (spec_bench.load_pair, {"target": 3}, "target must be a folder, .* model, got int"),
        (spec_bench.load_pair, {"draft": [3]}, "draft must be a folder"),
        (spec_bench.load_pair, {"tokenizer": 3}, "tokenizer must be a folder, .*, got int"),
        (spec_bench.run, {"prompts": Path("a.txt")}, r"data=FILE reads a file"),
        (spec_bench.run, {"texts": "a"}, "prompts must be a list of prompts"),
        (spec_bench.run, {"prompts": ["a"], "task": "xsum"}, "leave task out"),
        (
            spec_bench.run,
            {"prompts": ["a"], "references": ["b", "c"]},
            "references must .* of 1",
        ),
        (spec_bench.run, {"references": ["b"]}, r"references go with prompts=\["),
        (spec_bench.run, {"metrics": lambda predictions: {}}, "a name that no score has, got '<la"),
        (spec_bench.run, {"temprature": 0}, "temprature; did you mean temperature"),
        (spec_bench.run, {"pair": 3}, "pair must be a name or what load_pair gave, got int"),
        (spec_bench.run, {"seed": object()}, "seed must be a text, .* got object"),
        (spec_bench.run, {"columns": "few"}, "columns must be main, all or a list of names"),
        *((spec_bench.run, {"sede": 1}, "seed"), (spec_bench.run, {"task": "xsun"}, "xsum")),
        (spec_bench.run, {"seed": -1}, "-1"),
        (spec_bench.sweep, {"over": {"seed": 1}}, r"over\['seed'\] must be a list .*, got 1"),
        (spec_bench.sweep, {"over": {"seed": []}}, "over needs a value for each setting"),
        (spec_bench.compare, {**SAME, "after": ROOT / "docs"}, r"no results\.csv"),
        (spec_bench.compare, {**SAME, "alpha": 2}, "alpha is 2"),
        (api.audit, {"parts": ["rule"]}, r"parts are rules, .* got 'rule'"),
        (api.audit, {"target": "a"}, "go together"),
        (api.recommend, {"pair.target": "embedded:target", "cells": ["medusa"]}, "medusa"),
    ],
)
def test_what_a_call_cannot_take_is_named_and_nothing_written(
    call, wrong, named, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=named):
        call(**wrong)
    assert not list(tmp_path.iterdir())


def test_a_setting_by_keyword_is_read_as_it_was_given():
    texts = ["\n\n", 'a"b', "é\\", '\\"', "a: {b}, [c]"]
    told = {"task.stop": texts, "confirm": {"best": 1, "by": "speedup"}, "plan": False}
    config = compose_config(build_overrides_and_save_prompts((), told))
    assert list(config.task.stop) == texts
    assert (config.confirm.best, config.confirm.by, config.plan) == (1, "speedup", False)
    config = compose_config(
        build_overrides_and_save_prompts(
            (), {"prompts": "all", "task.metrics": "[./f.py]", "seed": 2}
        )
    )
    assert (config.prompts, config.task.metrics, config.seed) == (None, ["./f.py"], 2)
    assert compose_config(
        build_overrides_and_save_prompts((), {"metrics": ["f1", "./f.py"]})
    ).task.metrics == [
        "f1",
        "./f.py",
    ]


def test_a_loaded_draft_that_embeds_fewer_tokens_is_refused(pair):
    target = pair.models[0].module
    draft = type(target)(type(target.config)(**{**target.config.to_dict(), "vocab_size": 9}))
    with pytest.raises(ValueError, match="embeds 9 tokens"):
        spec_bench.load_pair(target=target, draft=draft, tokenizer=pair.tokenizer)


def test_a_loaded_pair_stands_for_its_names_in_a_job(pair):
    assert build_overrides_and_save_prompts((), {}, pair=pair)[0] == "pair=embedded"
    own = spec_bench.load_pair(target="embedded:target", draft="embedded:draft_distilled")
    words = build_overrides_and_save_prompts((), {"seed": 1}, pair=own)
    assert 'pair.target="embedded:target"' in words and "pair=embedded" not in words
    assert words[-2:] == ["seed=1", "sink=quiet"]


def test_a_job_of_own_texts_decodes_what_the_pair_decodes(pair, tmp_path):
    words = ("cells=[sd:3]", "generation.max_new_tokens=6", "warmup=0")

    def letters(predictions):
        return {"most": max(map(len, predictions))}

    told = {"prompts": [PROMPT, OTHER, OTHER], "columns": "all", "metrics": ["rouge2", letters]}
    golds = ["A storm.", None, ["Rain.", "Much rain."]]
    rows = spec_bench.run(*words, **told, references=golds, pair=pair, results=tmp_path)
    assert list(rows.prompts) == [3, 3]
    assert rows.quality_signature.str.contains("|scored: 2 of 3 answers", regex=False).all()
    assert (rows.letters_most > 0).all()
    lines = (tmp_path / f"runs/{rows.run_id[1]}/generations.jsonl").read_text("utf-8").splitlines()
    found = {each["prompt_id"]: each for each in map(json.loads, lines) if "prompt_id" in each}
    for text in (PROMPT, OTHER):
        mine = pair.decode(text, "sd:3", max_new_tokens=6).generation
        assert tuple(found[mine.prompt_id]["tokens"]) == mine.tokens
    assert len(list((tmp_path / "runs/texts").iterdir())) == 1


def test_a_function_scores_again_when_what_it_uses_has_changed(pair, tmp_path):
    words = ("cells=[sd:3]", "generation.max_new_tokens=2", "warmup=0")
    factors = {"k": 1.0}

    def scaled(predictions):
        return {"v": factors["k"]}

    for factors["k"] in (1.0, 7.0):
        given = {"prompts": [PROMPT], "metrics": scaled, "pair": pair, "results": tmp_path}
        rows = spec_bench.run(*words, **given, columns="all")
        assert list(rows.scaled_v) == [factors["k"]] * 2


def test_a_reference_of_a_conversation_is_of_its_last_turn(tmp_path):
    talk = [USER, SAID, USER]
    file = _write_prompts_file(
        ["a", talk, talk, "b"], [["x", "z"], "y", ["p", None], None], tmp_path
    )
    lines = map(json.loads, file.read_text("utf-8").splitlines())
    assert "generation.temperature=0" in build_overrides_and_save_prompts((), {"temperature": 0})
    golds = [line.get("reference") for line in lines]
    assert golds == [[["x", "z"]], [None, "y"], ["p", None], None]


def rows():
    frame = pd.read_csv(ROOT / "results/quickstart/results.csv")
    digest = "836f2fa2e595a355"
    frame = frame.assign(target_digest=digest, draft_digest=digest)
    frame.loc[frame.decoder == "ar", "draft_digest"] = ""
    return frame[frame.task == "xsum"].reset_index(drop=True)


def test_a_table_is_tidy_unless_all_of_it_is_asked_for():
    tidy = select_columns(rows(), "main")
    assert list(tidy)[:3] == ["decoder", "spec", "prompts"] and len(tidy.columns) <= 18
    assert {"speedup", "speedup_low", "speedup_high", "lossless", "status"} <= {*tidy}
    assert not {"seed", "pair", "run_id"} & {*tidy}
    busy = rows().assign(reason="speedup: disturbed: threads waited for a core 70% of the time")
    assert "reason" not in tidy and "reason" in select_columns(busy, "main")
    two = pd.concat([rows(), rows().assign(seed=1)])
    assert "seed" in select_columns(two, "main")
    few = select_columns(rows().assign(speedup_low=None), "main")  # too few prompts for an interval
    assert few.speedup_low.dtype == float and few.speedup_low.isna().all()
    assert select_columns(two, "all") is two
    assert list(select_columns(two, ["mbsu"])) == ["mbsu"]
    with pytest.raises(ValueError, match="no column 'mbs'"):
        select_columns(two, ["mbs"])


def test_a_sweep_runs_every_combination_and_checks_all_first(monkeypatch, tmp_path):
    asked = []

    def run(*words, columns):
        asked.append(words)
        return rows().assign(seed=len(asked))

    monkeypatch.setattr("spec_bench.api.jobs.run", run)
    told = {"task": ["xsum", "dolly"], "seed": [0, 1]}
    found = spec_bench.sweep(told, "cells=[sd:3]", results=tmp_path)
    swept = [[each for each in words if each.startswith(("task=", "seed="))] for words in asked]
    product = [[f"task={task}", f"seed={seed}"] for task in ("xsum", "dolly") for seed in (0, 1)]
    assert swept == product
    assert set(found.seed) == {1, 2, 3, 4}
    with pytest.raises(ValueError, match="-1"):
        spec_bench.sweep({"seed": [0, -1]}, results=tmp_path)
    assert len(asked) == 4


def test_the_decoders_that_are_named_beside_a_target_are_those_that_run():
    settings = {"target": "models/ours", "draft": "models/small", "decoders": ["sd:3"]}
    for order in (settings, dict(reversed(settings.items()))):
        assert not [
            word for word in build_overrides_and_save_prompts([], order) if "prompt_lookup" in word
        ]
        assert "cells=[sd:3]" in build_overrides_and_save_prompts([], order)
    assert any(
        "prompt_lookup" in word
        for word in build_overrides_and_save_prompts([], {"target": "models/ours"})
    )
    assert not any(
        "prompt_lookup" in word
        for word in build_overrides_and_save_prompts(["decoder=ar"], {"target": "x"})
    )


def test_compare_says_what_the_command_says():
    found = spec_bench.compare(**SAME)
    assert not found.regressed and set(found.changes.verdict) <= {"identical", "not judged"}
    assert found.sentence in found.text == found._repr_markdown_()


def test_audit_gives_the_lines_of_the_command(monkeypatch):
    from spec_bench.audit import command_line
    from spec_bench.audit.catalogue import AuditLine, AuditPart

    def parts_of(passed):
        return lambda *_: [AuditPart("a", lambda: [AuditLine("rule: a", "b", "c", passed)])]

    monkeypatch.setattr(command_line, "iter_node_and_path_rule_parts", parts_of(True))
    monkeypatch.setattr(command_line, "iter_approximate_decoder_parts", parts_of(None))
    found = spec_bench.api.audit(parts=["rules", "approximations"])
    assert found.passed and list(found.lines.passed) == [True, None]
    monkeypatch.setattr(command_line, "iter_node_and_path_rule_parts", parts_of(False))
    assert not spec_bench.api.audit(parts="rules").passed


@pytest.mark.slow
def test_recommend_gives_the_answer_of_the_command(tmp_path):
    words = ("cells=[sd:2,sd:3]", "confirm={best: 1, by: speedup, prompts: 2}", "prompts=2")
    few = ("generation.max_new_tokens=8", "warmup=0")
    found = spec_bench.api.recommend(*words, *few, results=tmp_path)
    assert found.cell in ("ar", "sd:2", "sd:3") and len(found.candidates) == 2
    assert found.candidates.fresh.tolist() == [True, False]
    assert found.text.startswith("cannot decide yet\n") and "(confirm.prompts)" in found.text


def test_the_public_names_are_listed_and_are_functions():
    names = {"compare", "load_pair", "run", "sweep"}
    others = {"SamplingSettings", "api", "plot"}
    assert names | others == {*spec_bench.__all__} <= {*dir(spec_bench)}
    assert all(getattr(spec_bench, name) is getattr(api, name) for name in names)
    assert all(getattr(api, name).__doc__ for name in (*names, "audit", "recommend"))
    assert spec_bench.plot.__doc__


def shown(folder, code):
    """What a documented block prints, run in an empty folder."""
    how = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, **how)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_every_block_of_the_manuals_pages_runs(page, tmp_path):
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    said = shown(tmp_path, "\n".join(found))
    if page == "cookbook":
        assert said.strip() in text, "printed as it is"


def test_the_readmes_example_runs(tmp_path):
    text = (ROOT / "README.md").read_text("utf-8")
    [block] = re.findall(r"<!-- api -->\n```python\n(.*?)```\n", text, re.DOTALL)
    table = shown(tmp_path, block).splitlines()[-4:]
    assert [line.split()[1] for line in table[1:]] == ["ar", "sd", "rsd_s"]
    assert (tmp_path / "results/default/results.csv").is_file()


@pytest.mark.slow
def test_a_gpus_answers_are_recorded_once_and_a_stream_under_way_keeps_its_decoder(
    monkeypatch, pair
):
    monkeypatch.setattr(recording, "CANARY_TOKENS", 2)
    monkeypatch.setattr(recording, "CANARY_ANSWERS", 1)
    expected = pair.decode("Dora has", "ar", max_new_tokens=4).tokens
    with SimCuda():
        module = deepcopy(pair.models[0].module).to(DEVICE)
        target = HuggingFaceModel(module, pair.models[0].vocab_size, DEVICE, "static")
        on_gpu = LoadedPair(pair.pair, pair.tokenizer, [target], (), CachePool())
        assert on_gpu.decode("Dora has", "ar", max_new_tokens=4).tokens == expected
        ((decoder, _),) = on_gpu._recorded_decoders.values()
        assert decoder.recordings.graphs
        made = decoder.recordings
        on_gpu.decode("Dora has three boats", "ar", max_new_tokens=4)
        assert decoder.recordings is made
        under_way = on_gpu.stream("Dora has", "ar", max_new_tokens=4)
        next(under_way)
        other = on_gpu.stream("Dora has", "ar", max_new_tokens=4)
        assert other._decoder is not under_way._decoder
        assert other.answer.tokens == under_way.answer.tokens == expected
        again = on_gpu.stream("Dora has", "ar", max_new_tokens=4)
        assert again._decoder is other._decoder
