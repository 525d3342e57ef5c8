"""Plain flags are the overrides they mean; a mistyped command is answered with the right one."""

import sys

import pytest

from spec_bench.__main__ import main
from spec_bench.jobs.config.flags import FLAGS, overrides_of
from spec_bench.jobs.config.help import COMMANDS, command_help, listing


@pytest.mark.parametrize(
    ("command", "given", "meant"),
    [
        ("run", "--target a/b --draft c/d", "pair.target=a/b pair.draft=c/d"),
        ("run", "--decoders sd:3,rsd_s:4x3", "cells=[sd:3,rsd_s:4x3]"),
        ("run", "--decoders=[sequoia:@14]", "cells=[sequoia:@14]"),
        ("run", "--data mine.jsonl", "task=jsonl task.source.path=mine.jsonl"),
        ("run", "--data m.jsonl --task alpaca", "task=alpaca task.source.path=m.jsonl"),
        ("run", "--data mine.jsonl task=dolly", "task.source.path=mine.jsonl task=dolly"),
        ("run", "--prompts 5 --temperature 0", "prompts=5 generation.temperature=0"),
        ("run", "--prompts all", "prompts=null"),
        ("run", "-m --seed 0,1 task=xsum", "-m seed=0,1 task=xsum"),
        ("run", "--device cuda:1", "engine=cuda engine.device=cuda:1"),
        ("run", "--device cuda engine=mine", "engine.device=cuda engine=mine"),
        ("run", "--name a --out b/c --batch-size 4", "engine.batch_size=4 name=a results=b/c"),
        ("run", "--max-new-tokens 8 --cfg job", "--cfg job generation.max_new_tokens=8"),
        ("run", "rsd=exp1 --config-dir my +x=1 ~y", "--config-dir my rsd=exp1 +x=1 ~y"),
        ("recommend", "--target a", "pair.target=a"),
        ("fit_tree", "width=4 --task xsum", "task=xsum width=4"),
        ("serve", "vllm --draft d --pair p", "vllm --draft d pair=p"),
        ("train", "--data chats.json --steps 3", "data.path=chats.json optimiser.steps=3"),
    ],
)
def test_a_flag_is_the_override_that_it_stands_for(command, given, meant):
    assert overrides_of(command, given.split()) == meant.split()


def test_a_path_with_odd_characters_stays_one_value():
    assert overrides_of("train", ["--target", "a b,'c'=d"]) == [r"pair.target='a b,\'c\'=d'"]


def test_a_target_alone_is_drafted_for_by_looking_up():
    def cells(*words):
        found = overrides_of("run", ["--target", "x", *words])
        return [word for word in found if word.startswith("cells=")]

    assert cells() == cells("prompts=3") == ["cells=[prompt_lookup]"]
    assert cells("--decoders", "sd:3, rsd_s:4x3") == ["cells=[sd:3,rsd_s:4x3]"]
    assert cells("--decoders", "sd a=1 b.c=2:3 sd") == ["cells=['sd a=1 b.c=2:3',sd]"]
    assert cells("decoder=ar") == cells("--draft", "y") == cells("rsd=exp1") == []


MISTYPED = {
    "rnu": "did you mean run?",
    "help plan": "there is no command 'plan'; did you mean run plan=true?",
    "diff a b": "did you mean compare?",
    "vllm": "did you mean serve?",
    "fit-tree": "did you mean fit_tree?",
    "nothing": "spec-bench --help",
    "xsum": "spec-bench run --task xsum",
    "rsd_s:4x3": "spec-bench run --decoders rsd_s:4x3",
    "llama2_7b": "spec-bench run --pair llama2_7b",
    "quickstart": "spec-bench run experiment=quickstart",
    "rsd": "spec-bench run rsd=exp1, or spec-bench ls tables rsd",
    "mine.jsonl": "spec-bench run --data mine.jsonl",
    "run sd": "spec-bench run --decoders sd",
    "run everything": "a setting is KEY=VALUE, a flag --NAME VALUE",
    "run target=A": "--target A, or pair.target=A",
    "run decoders=sd:3": "--decoders sd:3, or cells=[sd:3]",
    "run max_new_tokens=8": "--max-new-tokens 8, or generation.max_new_tokens=8",
    "run --cells=[sd:3]": "a setting, not a flag: cells=[sd:3]",
    "run --generation.top_p=0.9": "generation.top_p=0.9",
    "run --top-p 0.9": "--top-p is no flag: generation.top_p=VALUE",
    "run --decoder sd:3": "there is no flag --decoder; did you mean --decoders sd:3?",
    "run decoder=sd:3": '--decoders sd:3 (Python: decoders=["sd:3"]), or decoder=sd spec=3',
    "run --promts 3": "did you mean --prompts?",
    "run --max_new_tokens 8": "--max_new_tokens is --max-new-tokens",
    "run -seed 3": "-seed is --seed",
    "run --decoders []": "--decoders must name one, such as sd:3",
    "run --colour red": "spec-bench run --help lists them",
    "run --target": "--target: expected one argument",
    "run --device gpu": "--device must be auto, cpu, cuda or cuda:N, got 'gpu'",
    "train --head medusa": "a setting, not a flag: head=VALUE",
    "ls all": "spec-bench ls takes one of decoders,",
    "run hydra/launcher=processes": "hydra/launcher=workers",
    "ls decodres": "did you mean decoders?",
    "ls policy widht": "did you mean widths?",
}


@pytest.mark.parametrize("words", MISTYPED)
def test_a_mistyped_command_is_a_line_with_the_right_one(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spec-bench", *words.split()])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    assert stopped.value.code == 2 and not said.out
    (line,) = said.err.splitlines()
    assert MISTYPED[words] in line


def test_a_list_has_keys_with_their_defaults_alone_or_in_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert (
        listing(["rules"]) == listing(["train", "optimiser"]) == listing(["rule", "typical"]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("typical  epsilon=0.09 delta=0.3  Accept x where")
    assert max(map(len, lines)) == 80
    assert any(line.startswith("optimiser.batch=64 ") for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_is_short_and_ends_with_an_example(command):
    lines = command_help(command).rstrip().splitlines()
    assert lines[0].startswith(f"usage: spec-bench {command}") and len(lines) <= 28
    assert lines[-1].startswith(f"  spec-bench {command}") and lines[-2] == ""
    assert max(map(len, lines)) <= 100
    text = command_help(command)
    of_run = command in ("serve", "fit_tree")  # whose flags are those of run
    assert of_run or all(f"--{name} " in text for name in FLAGS.get(command, {}))
