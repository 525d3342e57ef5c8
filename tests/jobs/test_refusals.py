"""What cannot be right is one line, status 2, nothing written, no wait for torch or a pipe."""

import ast
import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from spec_bench.__main__ import run_command
from spec_bench.decode.config import apply_tree_shorthand
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.model_spec import read_output_ids
from spec_bench.jobs import app
from spec_bench.jobs.config.config import read_max_positions, refuse_unrelated_folder
from spec_bench.jobs.config.model_files import compute_sampled_fingerprint
from spec_bench.records import cell_folder
from spec_bench.settings.arguments import COMMANDS
from spec_bench.settings.registry import scan_registrations
from spec_bench.system import files
from spec_bench.tasks import build_task
from spec_bench.tasks.template import render_chat
from spec_bench.tree.base import policy
from tests.commands import audit, recommend
from tests.warm import run

SEED = 20240601
NOT_WHOLE = [
    *("1.5", "nan", "inf", "true", "many", "[1]", "{a: 1}", "'7'", "ünï", "''", "-3", "1e400")
]
NOT_NUMBER = ["nan", "inf", "-inf", "true", "hot", "[0.5]", "{a: 1}", "''", "½", "-0.5", "'1'"]
NOT_FLAG = ["1", "0", "maybe", "[true]", "{a: true}", "''", "null", "wahr", "1.0"]
NO_WORD = ["''", "[a]", "{a: b}"]
NOT_TEXT = [*NO_WORD, "1.5", "true", "7"]  # where a setting takes more than texts
NOT_CHOICE = ["''", "[a]", "{a: b}", "1.5", "true", "nöne", "zzz", "null"]
WRONG = {
    **{key: [*NOT_WHOLE, "null"] for key in ("seed", "warmup", "gate", "engine.batch_size")},
    **{key: [*NOT_WHOLE, "0"] for key in ("prompts", "engine.threads")},
    **{f"generation.{key}": NOT_WHOLE for key in ("top_k", "max_new_tokens")},
    "generation.temperature": [*NOT_NUMBER, "1e-308"],
    "generation.draft_temperature": [*NOT_NUMBER, "1e-9"],
    "generation.top_p": [*NOT_NUMBER, "0", "1.1", "2"],
    "generation.probability_dtype": [v for v in NOT_CHOICE if v != "null"],
    **{f"engine.{key}": NOT_CHOICE for key in ("batching", "compile")},
    "engine.dtype": [v for v in NOT_CHOICE if v != "null"],
    "engine.device": [*NOT_CHOICE, "tpux", "cuda:x", "cpu:one"],
    "engine.gpu_memory_gib": [*NOT_NUMBER, "0"],
    "engine.tensor_parallel": NOT_FLAG,
    "plan": NOT_FLAG,
    "name": [*NO_WORD, "null", "runs", "..", "a/b", "x" * 300],
    "results": [*NO_WORD, "null", "/dev/null", "/dev/null/x"],
    "spec": ["4xx", "0", "-1", "[4,3]", "{a: 1}", "1.5", "nan", "true", "''", "четыре", "4x", "x3"],
    "cells": [
        *("sd", "3", "null", "[3]", "[[sd]]", "['']", "[nope:3]", "[sd:x]", "[{sd: 3, b: 1}]"),
        *("[{grid: 3}]", "[{decoder: sd, spce: 3}]", "[{decoder: sd, tree: {width: 1}}]"),
        "{sd: 3}",
    ],
    "simulate": [
        *("often", "1.2", "-0.1", "nan", "[]", "[a]", "true", "{table: rsd/1}", "[0.5,2]"),
        *("no.csv", "printed"),
    ],
    **{f"sink.{key}": NOT_FLAG for key in ("progress", "table", "wandb.enabled")},
    "sink.wandb.mode": NOT_CHOICE,
    "sink.wandb.tags": ["3", "true", "{a: b}", "['']", "[1.5]", "one"],
    "pair.target": [*NOT_TEXT, "null", "./no/such/folder", "embedded:none", "random:none"],
    "pair.draft": ["''", "1.5", "true", "{a: b}", "['']", "[3]", "/no/such", "embedded:nöne"],
    "pair.dtype": [v for v in NOT_CHOICE if v != "null"],
    "pair.heads": ["3", "[a]", "true", "{medusae: x}", "{medusa: 3}", "{medusa: ''}"],
    "pair.target_device_map": ["3", "true", "[a]", "''", "{a: 1.5}"],
    "pair.target_parameters": NOT_WHOLE,
    "pair.gated": NOT_FLAG,
    "pair.paper": ["3", "x", "true", "{targt: x}", "{target: 3}"],
    "task.name": [*NOT_TEXT, "null"],
    "task.template": ["hello", "''", "[]", "'{'", "'a {} b'", "3", "true", "null", "[x]", "[3]"],
    "+task.plain": ["hello", "''", "'{question}'", "3", "[a]", "null"],
    "task.chat": ["yes", "''", "1.5", "[a]", "null", "automatic"],
    "+task.later_turns": NOT_CHOICE,
    "+task.judged": NOT_FLAG,
    "task.stop": ["3", "true", "{a: b}", "['']", "null", "[[a]]"],
    "task.scores": ["3", "{a: b}", "['']", "[bleuu]", "[1]"],
    "task.metrics": ["3", "{a: b}", "['']", "[no_such_score]"],
    "task.source.kind": [*NOT_CHOICE, "disk"],
    "task.source": ["3", "disk", "[a]", "null"],
    "task.generation": ["{temprature: 1}", "{top_p: 2}", "{max_new_tokens: 0}", "3", "[a]"],
    "energy.meter": NOT_CHOICE,
    "energy=nvml energy.idle_s": NOT_NUMBER,
    "energy=nvml energy.period_s": [*NOT_NUMBER, "0", "null"],
    "energy=nvml energy.devices": ["[]", "[0,0]", "first", "[1.5]", "true", "{a: 1}", "-1"],
    "energy=nvidia_smi energy.field": [*NOT_CHOICE, "watts"],
    "energy=rapl energy.root": [*NOT_TEXT, "null"],
    "decoder.tree.policy": ["forest", "''", "3", "[widths]", "null", "true", "bäum"],
    "decoder.tree.width": [*NOT_WHOLE, "0", "null"],
    "decoder.tree.depth": [*NOT_WHOLE, "0", "null"],
    "decoder.verifier.rule": ["k_seq", "''", "3", "[naive]", "null", "true", "nope"],
    "decoder.drafter.kind": ["medusa", "''", "3", "[none]", "null", "nobody"],
    "decoder.drafter": ["3", "x", "[a]", "null", "true"],
    "hydra/launcher": ["nope", "3", "slurmm"],
    "hydra.job.num": ["x", "[1]", "{a: 1}"],
}
GROUPS = ("decoder", "task", "pair", "engine", "energy", "sink", "generation", "experiment", "rsd")
PLAIN = [key for key in WRONG if " " not in key and "/" not in key and not key.startswith("hydra")]
UNREADABLE = ["seed=[1", "seed={a", "cells=[sd", "=", "a b", "seed=${nowhere}", "seed=${", "[=]"]


def misspelt(key, draw):
    """A key with two letters swapped, one lost or one doubled."""
    head, _, word = key.removeprefix("+").rpartition(".")
    at = draw.randrange(len(word) - 1)
    wrong = draw.choice([word[:at] + word[at + 1 :], word[: at + 1] + word[at:], word + "s"])
    return f"{head}.{wrong}" if head else wrong


def wrong_overrides(count):
    """Command lines with one override each that cannot be right."""
    draw = random.Random(SEED)
    for _ in range(count):
        kind = draw.random()
        if kind < 0.7:
            *before, key = draw.choice(list(WRONG)).split(" ")
            value = draw.choice(WRONG[" ".join([*before, key])])
            yield [*before, f"{key}={value}"]
        elif kind < 0.85:
            key = misspelt(draw.choice(PLAIN), draw)
            yield [f"{draw.choice(['', '+', '++'])}{key}=1"]
        elif kind < 0.93:
            group = draw.choice(GROUPS)
            yield [f"{group}={draw.choice(['nöne', 'nope', '3', '[a,b]', 'xsumm', 'true'])}"]
        elif kind < 0.97:
            gone = ["seed", "task", "pair", "decoder", "nothing", "engine.dtype"]
            yield [f"~{draw.choice(gone)}"]
        else:
            yield [draw.choice(UNREADABLE)]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Gives what is wrong with how a command line was refused; "" where nothing is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(app, "run_stages", None)  # a job that starts is an error, not a wait

    def complaint(overrides, naming=""):
        try:
            status = run_command("run", [*overrides, "hydra/job_logging=none"])
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        said, told = capsys.readouterr()
        one = told.startswith("spec_bench: ") and told.count("\n") == 1 and naming in told
        if status != 2 or said or not one:
            return f"status {status}: {said!r} {told!r}"
        return f"written: {sorted(Path().iterdir())}" if any(Path().iterdir()) else ""

    return complaint


@pytest.mark.parametrize("count", [30, pytest.param(450, marks=pytest.mark.slow)])
def test_wrong_overrides_of_every_group_are_one_line_and_write_nothing(refused, count):
    found = {str(case): refused(case) for case in wrong_overrides(count)}
    assert not {case: what for case, what in found.items() if what}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--help"], [f"\n  {name} " for name in COMMANDS if " " not in name]),
        (["run", "--help"], ["usage:", "--target MODEL", "KEY=VALUE", "spec-bench run --target"]),
        (["ls", "recipes"], ["rsd=exp1 "]),
    ],
)
def test_help_takes_less_than_two_seconds_of_the_processor_and_no_torch(asked, words):
    code = (
        "import contextlib, sys, time; from spec_bench.__main__ import main\n"
        f"sys.argv = {['x', *asked]}\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "assert time.process_time() < 2, time.process_time();"
        "assert not {'torch', 'transformers'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [word for word in words if word not in done.stdout] == []


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("engine.device=xpu:0", "'xpu:0'"),
        ("engine.threads=100000", "engine.threads must be a whole number from 1 to 1024"),
        ("pair.target=null", "pair.target must be a text"),
        ("decoder=[sd,rsd_s]", "cells=[sd,rsd_s]"),
        ("pair=[embedded,embedded_plain]", "pair takes one choice"),
        ("energy=nvml energy.idle_s=inf", "energy.idle_s must be a number >= 0, got inf"),
    ],
)
def test_what_only_torch_or_the_task_would_stumble_over_is_named_before(
    override, told, monkeypatch, refused
):
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert refused(override.split(), told) == ""


LIGHT = """
import contextlib, io, json, sys, time
from spec_bench.__main__ import main
for given, said in json.load(sys.stdin):
    sys.argv, told, began = ["spec_bench", *given], io.StringIO(), time.process_time()
    try:
        with contextlib.redirect_stderr(told):
            main()
    except SystemExit as stopped:
        assert stopped.code == 2, (given, stopped.code)
    told = told.getvalue()
    assert said in told and told.count("\\n") == 1, (given, told)
    assert not {"torch", "transformers"} & {*sys.modules}, given
    assert time.process_time() - began < 5, given  # torch alone takes longer
"""
WITHOUT_TORCH = [
    (["task=jsonl", "task.source.path=/nowhere/q.jsonl"], "/nowhere/q.jsonl"),
    (["generation.temperature=nan"], "generation.temperature"),
    (["decoder=rsd_x"], "rsd_x"),
    (["task=xsum", "pair.target=no_folder"], "--target 'no_folder': no folder here, and the hub"),
    (["-m", "seed=0,1,x", "cells=[sd:3],[sd:4]"], "got 'x' (in seed=x cells=[sd\\:3])"),
]
MORE = [
    (["cells=[sdd:3]"], "unknown decoder 'sdd'"),
    (["generation.top_p=2"], "generation.top_p"),
    (["pair.draft=/no/such"], "/no/such"),
    (["pair.draft_vocabulary=/no/such"], "/no/such"),
    (["generation.max_new_tokens=100000"], "leaves no room"),
    (["pair.heads.medusa=broken"], "cannot read 'broken/config.json'"),
    (["-m", "pair=embedded,nope"], "'nope'"),
    (["-m", "task=xsum,jsonl", "task.source.path=missing.jsonl"], "'missing.jsonl'"),
]


@pytest.mark.parametrize(
    "cases",
    [WITHOUT_TORCH, pytest.param(MORE, marks=pytest.mark.slow)],
    ids=["quick", "more"],
)
def test_a_wrong_name_range_folder_or_file_is_refused_without_torch(cases, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    how = {"capture_output": True, "text": True, "cwd": tmp_path}
    given = [sys.executable, "-c", LIGHT]
    done = subprocess.run(given, input=json.dumps(cases), **how)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cells=[{decoder: rsd_s, tree: {widht: 3}}]"], "tree.widht"),
        (["cells=[{decoder: sd, verifier: {rule: bogus}}]"], "verifier.rule must be one of beam"),
        (["decoder.tree.policy=forest"], "tree.policy must be one of beam"),
        (["cells=[{decoder: rsd_s, drafter: nobody}]"], "drafter.kind must be one of dflash"),
        (["cells=[sd:4x3]"], "decoder 'sd': spec '4x3' does not fit its tree policy 'chain'"),
        (["-m", "cells=[sd:3],[sd:x]"], "decoder 'sd': spec 'x' does not fit"),
        (["cells=[{decoder: rsd_s, drafter: lookup}]"], "does not go with"),
        (["cells=[sd:3]", "pair.draft=null"], "needs draft models: 1"),
        (["cells=[medusa]", "pair.heads=null"], "pair.heads.medusa"),
        (["task=jsonl", "task.source.path=long.jsonl"], "task.overlong=skip"),
        (["-m", "seed=0,1", "cells=[sd:3],[{decoder: sd, tree: {depth: 0}}]"], "tree.depth"),
    ],
    ids=str,
)
def test_all_else_is_refused_in_a_line_before_a_model_is_loaded(arguments, said, tmp_path):
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "the cat " * 4000}))
    status, out, told = run("spec_bench", *arguments, folder=tmp_path)
    assert status == 2 and "loading" not in out
    (line,) = [each for each in told.splitlines() if each.startswith("spec_bench: ")]
    assert said in line
    assert not list(tmp_path.rglob("generations.jsonl"))


def test_the_policies_that_modules_text_tells_are_those_registered():
    ours = {name for name, each in policy.items() if each.__module__.startswith("spec_bench.")}
    assert set(scan_registrations("spec_bench.tree", "policy")) == ours


def test_a_policys_forms_are_read_from_its_text_and_no_other_is_taken():
    shorthand = {"root": "-", "number": "3", "levels": "2-2-1", "product": "4x3"}
    for name, facts in scan_registrations("spec_bench.tree", "policy").items():
        forms = ast.literal_eval(facts["forms"])
        assert forms == tuple(policy[name].forms)
        for form, text in shorthand.items():
            decoder = {"name": "x", "tree": {"policy": name}}
            if form in forms:
                assert apply_tree_shorthand(decoder, text)["tree"]
            else:
                with pytest.raises(ValueError, match="does not fit"):
                    apply_tree_shorthand(decoder, text)


MODELS = Path(__file__).resolve().parents[2] / "spec_bench/embedded/models"


def test_nothing_takes_the_place_of_a_pipe_and_none_is_waited_for(tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no file is there") as refused:
        files.write_text(pipe, "a table")
    assert pipe.is_fifo()
    assert files.explain_write_error(refused.value) is not None
    with pytest.raises(ValueError, match="is no file"):
        files.read_csv(pipe)
    assert cell_folder.read_generation_lines(pipe).faults == ("it is no file",)


def test_a_byte_order_mark_is_no_part_of_a_columns_name(tmp_path):
    table = tmp_path / "results.csv"
    table.write_bytes(b"\xef\xbb\xbfpair,task\r\nours,xsum\r\n")
    assert files.read_csv(table, ["pair"]) == [{"pair": "ours", "task": "xsum"}]


@pytest.mark.parametrize(("made", "said"), [(os.mkfifo, "is no file"), (None, "No such file")])
def test_weights_that_are_none_are_named(tmp_path, made, said):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    if made is None:
        weights.symlink_to("nowhere")
    else:
        made(weights)
    with pytest.raises(ValueError, match=f"model.safetensors.*{said}"):
        compute_sampled_fingerprint(str(tmp_path))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}", "Unexpected end of template"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ raise_exception('no \x1b]0;title\x07 \u202e') }}", r"no \\x1b]0;title\\x07 \\u202e"),
    ],
)
def test_a_chat_template_that_fails_is_one_line(template, said):
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=f"the chat template fails: .*{said}"):
        render_chat(tokenizer, [{"role": "user", "content": "x"}])


def test_results_go_where_nothing_else_lies(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    monkeypatch.chdir(here)
    refuse_unrelated_folder("results", there)
    (there / "letter.txt").touch()
    with pytest.raises(ValueError, match=f"'{there}' holds other things and no results"):
        refuse_unrelated_folder("results", there)
    refuse_unrelated_folder("results", there / "new")
    (there / "default").mkdir()
    (there / "default/results.csv").touch()
    refuse_unrelated_folder("results", there)
    (here / "letter.txt").touch()
    refuse_unrelated_folder("results", Path())


@pytest.mark.parametrize(
    ("command", "given", "said"),
    [
        (recommend, ["sink=wandb"], ": recommend "),
        (audit, ["--served-model", "x"], "--served-model goes with --server"),
        (audit, ["--answers", "3"], "--answers goes with --server"),
        (audit, ["--seed", "-1"], "--seed must be 0 or more"),
    ],
)
def test_a_command_refuses_what_it_would_not_heed(command, given, said, capsys):
    with suppress(SystemExit):
        assert command(given) == 2
    assert said in capsys.readouterr().err


TASK = {"name": "mine", "source": {"kind": "local", "path": "x.jsonl"}, "template": "{question}"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scores": ["bleu", "rouge", "bleu"]}, "task.scores names bleu twice"),
        ({"fields": {"catgory": "kind"}}, "task.fields.catgory is read by nothing; read are categ"),
    ],
)
def test_a_task_refuses_what_it_would_not_heed(more, said):
    build_task(TASK | {"fields": {"question": "q", "category": "kind"}})
    with pytest.raises(ValueError, match=said):
        build_task(TASK | more)


DEEP = "[" * 5000 + "]" * 5000


def test_positions_are_read_from_the_config_alone_and_a_file_nested_too_deep_is_named(tmp_path):
    assert read_max_positions(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 7}}')
    assert read_max_positions(str(tmp_path)) == 7
    for name in ("config.json", "ids.json"):
        (tmp_path / name).write_text(DEEP)
    with pytest.raises(ValueError, match=r"config\.json.*recursion"):
        read_max_positions(str(tmp_path))
    with pytest.raises(ValueError, match=f"{tmp_path}.*recursion"):
        load_model(ModelSpec(str(tmp_path)))
    with pytest.raises(ValueError, match=r"ids\.json.*recursion"):
        read_output_ids(str(tmp_path / "ids.json"))


def test_a_config_group_nested_too_deep_is_one_line(tmp_path):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair/mine.yaml").write_text(f"target: x\nheads: {DEEP}\n")
    given = ("--config-dir", str(tmp_path), "pair=mine")
    status, _, said = run("spec_bench", *given, folder=tmp_path)
    assert status == 2
    assert len(said.splitlines()) == 1 and "pair/mine.yaml" in said
