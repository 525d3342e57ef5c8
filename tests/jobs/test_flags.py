"""Plain flags are the overrides they mean; a mistyped command is answered with the right one."""

import re
import sys
from itertools import permutations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from spec_bench.__main__ import main, parse_arguments, run_command
from spec_bench.api.jobs import build_overrides_and_save_prompts
from spec_bench.jobs.config.compose import (
    compose_config,
    explain_in_one_line,
    parse_request,
)
from spec_bench.jobs.config.flags import (
    FLAGS,
    TYPED_ESCAPE,
    flags_to_overrides,
    parse_job_arguments,
    replace_escapes_in_model_texts,
)
from spec_bench.settings.arguments import COMMANDS, make_parser
from spec_bench.settings.override_values import quote_setting_value
from tests.commands import ls as print_listing
from tests.printed import printed


@pytest.mark.parametrize(
    ("command", "given", "meant"),
    [
        ("run", "--target a/b --draft c/d", "pair.target=a/b pair.draft=c/d"),
        ("run", "--decoders sd:3,rsd_s:4x3", "cells=[sd:3,rsd_s:4x3]"),
        ("run", "--decoders=[sequoia:@14]", "cells=[sequoia:@14]"),
        ("run", "--data mine.jsonl", "task=jsonl task.source.path=mine.jsonl"),
        ("run", "--data m.jsonl --task alpaca", "task=alpaca task.source.path=m.jsonl"),
        ("run", "--data mine.jsonl task=dolly", "task.source.path=mine.jsonl task=dolly"),
        ("run", "--prompts all", "prompts=null"),
        ("run", "-m --seed 0,1 task=xsum", "seed=0,1 task=xsum"),
        ("run", "--device cuda:1", "engine.device=cuda:1"),
        ("run", "--device cuda engine=mine", "engine.device=cuda engine=mine"),
        ("run", "--name a --out b/c --batch-size 4", "engine.batch_size=4 name=a results=b/c"),
        ("run", "--max-new-tokens 8 --cfg job", "generation.max_new_tokens=8"),
        ("run", "rsd=exp1 --config-dir my +x=1 ~y", "rsd=exp1 +x=1 ~y"),
        ("recommend", "--target a", "pair.target=a"),
        ("fit", "width=4 --task xsum", "task=xsum width=4"),
        ("serve", "vllm --draft d --pair p", "pair=p"),
        ("train", "--data chats.json --steps 3", "data.path=chats.json optimiser.steps=3"),
    ],
)
def test_a_flag_is_the_override_that_it_stands_for(command, given, meant):
    assert flags_to_overrides(command, given.split()) == meant.split()


TEXTS = ["a b,'c'=d", "Jürgen/modell", "ünï.jsonl", "日本", "500", "2026_11_27", "1e5", "null"]
TEXTS += ["True", "inf", "-1", 'a"b', "c\\", "{a}", "[b]", ".5", "./x", "~y", "a/500", "_1", "N"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("flag", ["target", "draft", "data", "name", "out", "metrics"])
def test_a_flags_text_reaches_hydra_letter_by_letter(flag, text):
    if flag in ("name", "metrics"):
        text = re.sub(r"[][, ]", "", text)  # which tells several names
    words = flags_to_overrides("run", [f"--{flag}={text}", "prompts=1"])
    key = FLAGS["run"][flag]["means"].partition("=")[0]
    (word,) = [each for each in words if each.startswith(f"{key}=")]
    value = OverridesParser.create().parse_override(word).value()
    (value,) = value if flag == "metrics" else [value]
    assert isinstance(value, str | QuotedString)
    assert getattr(value, "text", value) == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_settings_text_from_python_reaches_hydra_letter_by_letter(text):
    value = (
        OverridesParser.create().parse_override(f"name={quote_setting_value('name', text)}").value()
    )
    assert getattr(value, "text", value) == text and isinstance(value, str | QuotedString)


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (r'task.stop="\n\n"', "\n\n"),
        (r'task.template="{a}\n\tSummary:"', "{a}\n\tSummary:"),
        (r"--system=One.\nTwo, \\nabla", "One.\nTwo, \\nabla"),
        (r'task.stop="\\nabla"', r"\nabla"),
        (r'task.stop="\frac"', r"\frac"),
        (r'pair.chat_template="{{ m }}\n"', "{{ m }}\n"),
        (r'task.source.path="\n"', r"\n"),
        ('task.stop="\nabla"', "\nabla"),
    ],
)
def test_a_typed_backslash_n_is_a_newline_where_a_model_reads_the_text(typed, text):
    (word,) = parse_arguments("run", [typed]).words
    assert OverridesParser.create().parse_override(word).value() == text
    assert replace_escapes_in_model_texts(replace_escapes_in_model_texts([word], TYPED_ESCAPE)) == [
        word
    ]  # as a command that is printed


@pytest.mark.parametrize("command", ["run", "train", "recommend"])
def test_a_typed_text_that_may_be_a_newline_or_latex_is_refused(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spec-bench", command, r'task.stop=["\nabla"]'])
    with pytest.raises(SystemExit) as end:
        main()
    told = capsys.readouterr().err
    assert (end.value.code, told.count("\n")) == (2, 1)
    assert r'task.stop=["\nabla"]' in told and r"\\na" in told and "$'...'" in told


def test_a_text_from_python_keeps_its_backslash():
    words = build_overrides_and_save_prompts((), {"task.stop": [r"\nabla", "\n"]})
    assert 'task.stop=["\\nabla", "\n"]' in words


def test_the_newlines_of_printed_commands_are_newlines():
    texts = {word for each in printed() for word in each.words if r"\n" in word}
    assert {r'task.stop=["\n\n"]', r"task.template={article}\nSummary:"} <= {
        text.replace('e="', "e=").removesuffix('"') for text in texts
    }
    assert not [word for word in replace_escapes_in_model_texts([*texts]) if "\\" in word]


def test_several_names_are_swept_each_as_a_text():
    assert flags_to_overrides("run", ["-m", "--name", "7,ü,x"]) == ['name="7","ü",x']
    assert flags_to_overrides("run", ["-m", "--task", "xsum,dolly"]) == ["task=xsum,dolly"]


@pytest.mark.parametrize("chat", ["false", "true"])
def test_a_tasks_config_is_shown_resolved_whatever_ends_its_answers(chat):
    shown = compose_config(["task=spider", f"task.chat={chat}"])
    OmegaConf.resolve(shown.task)  # as --cfg job
    assert list(shown.task.stop) == ([] if chat == "true" else ["\n"])


def test_hydras_info_takes_overrides_with_and_without_a_topic():
    for given, topic in (
        ("--info prompts=1", "all"),
        ("prompts=1 -i", "all"),
        ("prompts=1 --info defaults", "defaults"),
    ):
        asked = parse_job_arguments("run", given.split())
        assert (asked.info, asked.words) == (topic, ["prompts=1"])


@pytest.mark.parametrize("own", ["--config-dir a", "-cd a", "--cfg job", "--info searchpath"])
def test_a_flag_of_hydras_keeps_its_value_wherever_it_stands(own):
    for given in permutations(("-m", own, "seed=0,1")):
        asked = parse_job_arguments("run", " ".join(given).split())
        assert asked.sweeps and asked.words == ["seed=0,1"]
        assert own.split()[1] in (*asked.folders, asked.shown, asked.info)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("-m --cfg nonsense", "'nonsense' (choose from"),
        ("--info=nope", "searchpath, got nope"),
        ("--info squad", "searchpath, got squad"),
        ("seed=1 --cfg", "--cfg: expected one argument"),
    ],
)
def test_a_wrong_value_of_a_flag_of_hydras_is_one_line_with_the_choices(given, told, capsys):
    with pytest.raises(SystemExit) as ended:
        sys.exit(run_command("run", given.split()))
    assert ended.value.code == 2 and told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "project"),
    [
        ("2026_11_27", "2026_11_27"),
        ("007", "007"),
        ("Küche", "Küche"),
        ("null", None),
        ("'x'", "x"),
    ],
)
def test_a_setting_that_takes_text_alone_takes_what_was_typed(given, project):
    config = compose_config([f"sink.wandb.entity={given}"])
    assert config.sink.wandb.entity == project


def test_a_number_where_a_text_belongs_is_said_to_have_been_read_so():
    with pytest.raises(ValueError, match="got 20261127, which was read as no text: put it in quo"):
        parse_request(compose_config(["sink.wandb={project: 2026_11_27}"]))
    with pytest.raises(ValueError, match=r"128 letters.*got 'a#b'$"):
        parse_request(compose_config(["sink.wandb.project=a#b"]))
    with pytest.raises(
        ValueError, match=r"entity must be a team's or a user's name or null, got 'a/b'"
    ):
        parse_request(compose_config(["sink.wandb.entity=a/b"]))


def test_decoders_that_are_named_replace_a_recipes_unless_its_lists_are_named_too():
    def cells(*words):
        asked = parse_request(
            compose_config(flags_to_overrides("run", ["--decoders", "sd:2,sd:9", *words]))
        )
        return len(asked.cells)

    assert cells() == cells("rsd=exp1") == cells("experiment=smollm2") == 2
    assert cells("beyond=verification") == 2 < cells("rsd=exp1", "length=2")


def test_a_target_alone_is_drafted_for_by_looking_up():
    def cells(*words):
        found = flags_to_overrides("run", ["--target", "x", *words])
        return [word for word in found if word.startswith("cells=")]

    assert cells() == cells("prompts=3") == ["cells=[prompt_lookup]"]
    assert cells("--decoders", "sd:3, rsd_s:4x3") == ["cells=[sd:3,rsd_s:4x3]"]
    assert cells("--decoders", "sd a=1 b.c=2:3 sd") == ['cells=["sd a=1 b.c=2:3",sd]']
    assert cells("--decoders", "sd 3, rsd_s 4x3 ar") == ["cells=[sd:3,rsd_s:4x3,ar]"]
    assert cells("decoder=ar") == cells("--draft", "y") == cells("rsd=exp1") == []


MISTYPED = {
    "rnu": "did you mean run?",
    "help plan": "there is no command 'plan'; did you mean run?",
    "diff a b": "did you mean compare?",
    "vllm": "did you mean serve?",
    "complare": "did you mean compare?",
    "check everything": "check takes one of results, claims, decoders, spider, got 'everything'",
    "nothing": "spec-bench --help",
    "xsum": "spec-bench run --task xsum",
    "rsd_s:4x3": "spec-bench run --decoders rsd_s:4x3",
    "llama2_7b": "spec-bench run --pair llama2_7b",
    "quickstart": "spec-bench run experiment=quickstart",
    "rsd": "spec-bench run rsd=exp1, or spec-bench ls tables rsd",
    "mine.jsonl": "spec-bench run --data mine.jsonl",
    "run sd": "spec-bench run --decoders sd",
    "run everything": "a setting is KEY=VALUE, a flag --NAME VALUE",
    "run target=A": "did you mean --target A?",
    "run decoders=sd:3": "did you mean --decoders sd:3?",
    "run max_new_tokens=8": "did you mean --max-new-tokens 8?",
    "run --cells=[sd:3]": "did you mean cells=[sd:3]?",
    "run --generation.top_p=0.9": "generation.top_p=0.9",
    "run --top-p 0.9": "did you mean generation.top_p=VALUE?",
    "run --decoder sd:3": "there is no flag --decoder; did you mean --decoders VALUE?",
    "run decoder=sd:3": '--decoders sd:3 (Python: decoders=["sd:3"]), or decoder=sd spec=3',
    "run --promts 3": "did you mean --prompts VALUE?",
    "run --max_new_tokens 8": "did you mean --max-new-tokens VALUE?",
    "run -seed 3": "did you mean --seed VALUE?",
    "run --decoders []": "--decoders must name one, such as sd:3",
    "run budget=abc": "cells=[sd:7,rsd_c:2-2-1], got 'abc'",
    "run --model a/b": "did you mean --target VALUE?",
    "train --dataset chats.json": "did you mean --data VALUE?",
    "run -m temperature=0,1": "did you mean --temperature 0,1?",
    "run task.name=jürgen": "task.name=jürgen",
    "run --colour red": "spec-bench run --help lists them",
    "run --target": "--target: expected one argument",
    "run --device gpu": "--device must be auto, cpu, cuda or cuda:N, got 'gpu'",
    "train --head medusa": "did you mean head=VALUE?",
    "ls all": "spec-bench ls takes one of decoders,",
    "run hydra/launcher=processes": "hydra/launcher must be one of basic, joblib, workers,",
    "run --pair embeded": "spec_bench: did you mean pair=embedded? pair must be one of ",
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
        print_listing(["rules"])
        == print_listing(["train", "optimiser"])
        == print_listing(["rule", "typical"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("typical  epsilon=0.09 delta=0.3  Accepts x if")
    assert max(map(len, lines)) == 80
    assert any(line.startswith("optimiser.batch=64 ") for line in lines)


@pytest.mark.parametrize("kind", ["recipes", "experiments", "launchers"])
def test_a_list_has_no_command_that_runs_into_its_sentence(kind, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "5000")
    assert print_listing([kind]) == 0
    for line in capsys.readouterr().out.splitlines():
        about = line.split("  ", 1)[-1].strip()
        assert not re.search(r"\. (spec-bench|make|add) |: spec-bench (run|train)$", about)
        assert not about.endswith(":") and about.count("spec-bench run") <= (": " in about)


def test_scores_and_what_is_always_counted_are_listed_with_the_settings_they_take(capsys):
    assert print_listing(["metrics"]) == print_listing(["metric", "chrf"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("chrf", "rouge2", "sacrebleu", "block_efficiency"))
    assert "task.tokenize" in told and "task.run_code" in told


def test_the_settings_of_sinks_and_meters_are_listed(capsys):
    assert print_listing(["settings", "sink"]) == print_listing(["settings", "energy"]) == 0
    said = capsys.readouterr().out
    assert "sink.wandb.project=${oc.env:WANDB_PROJECT,spec_bench}" in said
    assert "energy.meter=auto" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_is_short_and_ends_with_an_example(command):
    lines = make_parser(command).format_help().rstrip().splitlines()
    assert lines[0].startswith(f"usage: spec-bench {command}") and len(lines) <= 40
    assert lines[-1].startswith("  spec-bench ") and lines[-2] == ""
    assert max(map(len, lines)) <= 100


def test_the_launchers_that_are_listed_are_those_of_the_refusal(capsys):
    assert print_listing(["launchers"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    with pytest.raises(ValueError, match="must be one of") as refused:
        compose_config(["hydra/launcher=slrum"])
    assert f"one of {', '.join(listed)}, got 'slrum'" in str(refused.value)
    assert {"basic", "joblib", "workers", "slurm", "ray", "ray_cluster"} <= {*listed}


def test_a_launcher_without_its_plug_in_is_named_as_it_was_typed():
    said = "In 'hydra/launcher/ray_cluster': Could not find 'hydra/launcher/ray'\n\nAvailable"
    told = explain_in_one_line(MissingConfigException(said, "hydra/launcher/ray"))
    assert told.startswith("hydra/launcher=ray_cluster is not") and "constraints-ray.txt" in told
