"""Wrong overrides of every kind: one line, exit status 2, nothing written, no traceback."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spec_bench.jobs import app

SEED = 20240601
NOT_WHOLE = [
    "1.5",
    "nan",
    "inf",
    "true",
    "many",
    "[1]",
    "{a: 1}",
    "'7'",
    "ünï",
    "''",
    "-3",
    "1e400",
]
NOT_NUMBER = ["nan", "inf", "-inf", "true", "hot", "[0.5]", "{a: 1}", "''", "½", "-0.5", "'1'"]
NOT_FLAG = ["1", "0", "maybe", "[true]", "{a: true}", "''", "null", "wahr", "1.0"]
NOT_TEXT = ["''", "[a]", "{a: b}", "1.5", "true", "7"]
NOT_CHOICE = ["''", "[a]", "{a: b}", "1.5", "true", "nöne", "zzz", "null"]
WRONG = {
    **{key: [*NOT_WHOLE, "null"] for key in ("seed", "warmup", "engine.batch_size")},
    **{key: [*NOT_WHOLE, "0"] for key in ("prompts", "engine.threads")},
    **{f"generation.{key}": NOT_WHOLE for key in ("top_k", "max_new_tokens")},
    "generation.temperature": [*NOT_NUMBER, "1e-308"],
    "generation.draft_temperature": [*NOT_NUMBER, "1e-9"],
    "generation.top_p": [*NOT_NUMBER, "0", "1.1", "2"],
    "generation.probability_dtype": [v for v in NOT_CHOICE if v != "null"],
    **{f"engine.{key}": NOT_CHOICE for key in ("dtype", "batching", "compile")},
    "engine.device": [*NOT_CHOICE, "tpux", "cuda:x", "cpu:one"],
    "engine.gpu_memory_gib": [*NOT_NUMBER, "0"],
    "engine.tensor_parallel": NOT_FLAG,
    "plan": NOT_FLAG,
    "name": [*NOT_TEXT, "null", "runs", "..", "a/b", "x" * 300],
    "results": [*NOT_TEXT, "null", "/dev/null", "/dev/null/x"],
    "spec": ["4xx", "0", "-1", "[4,3]", "{a: 1}", "1.5", "nan", "true", "''", "четыре", "4x", "x3"],
    "cells": [
        *("sd", "3", "null", "[3]", "[[sd]]", "['']", "[nope:3]", "[sd:x]", "[{sd: 3, b: 1}]"),
        *(
            "[{grid: 3}]",
            "[{decoder: sd, spce: 3}]",
            "[{decoder: sd, tree: {width: 1}}]",
            "{sd: 3}",
        ),
    ],
    "simulate": [
        *("often", "1.2", "-0.1", "nan", "[]", "[a]", "true", "{table: rsd/1}", "''"),
        "[0.5,2]",
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
            yield [
                f"~{draw.choice(['seed', 'task', 'pair', 'decoder', 'nothing', 'engine.dtype'])}"
            ]
        else:
            yield [draw.choice(UNREADABLE)]


def complaint(capture, overrides):
    """What is wrong with how a command line was refused; "" where nothing is."""
    # The log is left to pytest, whose handlers Hydra would close.
    sys.argv = ["spec_bench", *overrides, "hydra/job_logging=none"]
    os.environ["HYDRA_FULL_ERROR"] = "0"
    try:
        app.main()
        status = "no exit"
    except SystemExit as stopped:
        status = stopped.code
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    said, told = capture.readouterr()
    lines = told.splitlines()
    if status != 2 or said or len(lines) != 1 or not lines[0].startswith("spec_bench: "):
        return f"status {status}: {said!r} {told!r}"
    return f"written: {sorted(Path().iterdir())}" if any(Path().iterdir()) else ""


@pytest.mark.parametrize("count", [30, pytest.param(450, marks=pytest.mark.slow)])
def test_wrong_overrides_of_every_group_are_one_line_and_write_nothing(
    tmp_path, monkeypatch, capsys, count
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(app, "run_stage", None)  # a job that starts is an error, not a wait
    cases = list(wrong_overrides(count))
    found = {str(case): complaint(capsys, case) for case in cases}
    assert not {case: what for case, what in found.items() if what}


def test_help_takes_less_than_two_seconds_of_the_processor():
    code = (
        "import time; from spec_bench.__main__ import main; import sys; sys.argv = ['x', '--help'];"
        "main(); assert time.process_time() < 2, time.process_time()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for word in ("usage:", "decoder=", "rsd_s", "task=", "results", "rsd=exp1", "slurm"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("engine.device=xpu:0", "'xpu:0'"),
        ("engine.threads=100000", "engine.threads must be a whole number from 1 to 1024"),
        ("pair.target=null", "pair.target must be a text"),
        ("decoder=[sd,rsd_s]", "cells=[sd,rsd_s]"),
        ("pair=[embedded,embedded_plain]", "pair takes one choice"),
    ],
)
def test_what_only_torch_or_the_task_would_stumble_over_is_named_before(
    override, told, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(app, "run_stage", None)
    monkeypatch.setattr(sys, "argv", ["spec_bench", override, "hydra/job_logging=none"])
    with pytest.raises(SystemExit) as stopped:
        app.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert told in line
