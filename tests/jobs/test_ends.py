"""Answers end where transformers' ``generate`` ends them, and at texts, whatever their tokens."""

import ast
import json
import logging
import re
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import decoders
from transformers import AutoModelForCausalLM, AutoTokenizer

import spec_bench
from spec_bench.engine.loading import load_tokenizer
from spec_bench.engine.mapped_model import map_tokenizers
from spec_bench.jobs.app import build_unpinned_settings, run_config
from spec_bench.jobs.config.compose import compose_config
from spec_bench.jobs.config.config import ConfirmSettings
from spec_bench.jobs.config.pair import EngineSettings, PairSettings
from spec_bench.records.ends import StopCriteria, cut_at_stop, find_end_token_ids
from spec_bench.records.sampling import AnswerLimit, SamplingSettings
from spec_bench.server.settings import ServerSettings
from spec_bench.tasks import RandomPromptTask, Task, build_task_from_files
from spec_bench.train.dialogues import encode_chat
from spec_bench.train.settings import HeadSettings, OptimiserSettings, TrainingDataSettings
from tests.jobs.tiny import TEXTS, overrides, rows_of, tiny_tokenizer, tokens_of
from tests.said import naming, one_line
from tests.server.completions import Completions, serving

CELLS = "cells=[sd:3,rsd_s:2x2,hf_generate]"
GREEDY = ("generation.temperature=0", "prompts=2", "warmup=0", "task.metrics=[]", "task.stop=[]")
PROMPT = f"Article: {TEXTS[0]}\nSummary:"


def greedy(folder):
    """What ``generate`` answers to the first row's prompt, its end included."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = AutoTokenizer.from_pretrained(folder)(PROMPT, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        found = model.generate(ids, do_sample=False, max_new_tokens=12)
    return tuple(found[0, ids.shape[1] :].tolist())


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def folder(family, tmp_path):
    """A copy of the tiny family."""
    made = tmp_path / "family"
    for name in ("target", "draft"):
        shutil.copytree(family / name, made / name)
    shutil.copy(family / "rows.jsonl", made)
    return made


@pytest.fixture(scope="module")
def whole(family):
    """The greedy answer up to its limit; its seventh token is an end of what tests make."""
    answer = greedy(family / "target")
    assert len(answer) == 12 and answer[6] not in answer[:6]
    return answer


def decoded(folder, tmp_path, *more):
    """The tokens of each cell's first prompt, by decoder; and a row."""
    results = tmp_path / "results"
    run_config(compose_config(overrides(folder, results, *GREEDY, *more)))
    rows = rows_of(results)
    stored = {row["decoder"]: tokens_of(results, row["run_id"]) for row in rows}
    return {name: next(iter(answers.values())) for name, answers in stored.items()}, rows[0]


def in_generation_config(target, end):
    change(target / "generation_config.json", eos_token_id=[2, end])


def in_config(target, end):
    (target / "generation_config.json").unlink()
    change(target / "config.json", eos_token_id=[end, 2])


def as_additional_token(target, end):
    tokenizer = AutoTokenizer.from_pretrained(target)
    text = tokenizer.convert_ids_to_tokens(end)
    tokenizer.add_special_tokens({"additional_special_tokens": [text]})
    tokenizer.save_pretrained(target)
    change(target / "generation_config.json", eos_token_id=end)


def nowhere(target, end):
    (target / "generation_config.json").unlink()
    change(target / "config.json", eos_token_id=None)
    change(target / "tokenizer_config.json", eos_token=None)


MADE = [in_generation_config, in_config, as_additional_token, nowhere]


@pytest.mark.parametrize("make", MADE, ids=[each.__name__ for each in MADE])
def test_every_decoder_ends_where_generate_does(make, folder, whole, tmp_path):
    make(folder / "target", whole[6])
    expected = greedy(folder / "target")
    assert expected == (whole if make is nowhere else whole[:7])
    tokens, row = decoded(folder, tmp_path, CELLS)
    assert tokens == dict.fromkeys(("ar", "sd", "rsd_s", "hf_generate"), expected)
    name = load_tokenizer(str(folder / "target")).convert_ids_to_tokens(whole[6])
    assert row["stop_rule"] == ("" if make is nowhere else f"eos+{name}")
    answer = spec_bench.load_pair(target=folder / "target").decode(
        PROMPT, "ar", temperature=0, max_new_tokens=12
    )
    assert (answer.tokens, answer.finish) == (expected, "length" if make is nowhere else "stop")


@pytest.mark.parametrize("vocabulary", ["a file of ids", "intersection"])
def test_an_end_that_the_draft_lacks_still_ends_an_answer(vocabulary, folder, whole, tmp_path):
    in_generation_config(folder / "target", whole[6])
    if vocabulary == "intersection":
        other = tiny_tokenizer([text.replace("a", "o") for text in TEXTS])
        other.save_pretrained(folder / "draft")
        named = vocabulary
    else:
        named = folder / "ids.json"
        named.write_text(json.dumps([each for each in range(300) if each != whole[6]]))
    tokens, _ = decoded(
        folder, tmp_path, "cells=[sd:3,rsd_s:2x2]", f"pair.draft_vocabulary={named}"
    )
    assert tokens == dict.fromkeys(("ar", "sd", "rsd_s"), whole[:7])


def test_a_draft_of_another_tokenizer_reads_and_proposes_ends_as_ends():
    ours, theirs = tiny_tokenizer(), tiny_tokenizer()
    ours.answer_ends, theirs.answer_ends = (7,), ()
    theirs.add_tokens(["<|their end|>"])
    theirs.answer_ends = (300,)
    vocabulary = map_tokenizers(ours, theirs, 300)
    assert find_end_token_ids(theirs) == (2, 300)
    assert (vocabulary.target_ids[300], vocabulary.target_ids[2], vocabulary.draft_ids[7]) == (
        2,
        2,
        7,
    )


def test_rows_of_one_end_keep_their_run_ids_and_others_have_new_ones(folder, whole, tmp_path):
    known = {}
    for name in ("one", "two"):
        _, known[name] = decoded(folder, tmp_path / name, "cells=[ar]")
        in_generation_config(folder / "target", whole[6])
    settings = {}
    for name, row in known.items():
        cell = tmp_path / name / "results" / "runs" / row["run_id"] / "cell.json"
        settings[name] = json.loads(cell.read_text())["settings"]
    assert "ends" not in settings["one"] and known["one"]["stop_rule"] == "eos"
    assert (
        settings["two"]["ends"] == known["two"]["stop_rule"] == f"eos+{name_of(folder, whole[6])}"
    )


def name_of(folder, token):
    return load_tokenizer(str(folder / "target")).convert_ids_to_tokens(token)


def test_a_server_is_told_all_ends_and_what_it_says_behind_one_is_no_answer(
    folder, whole, tmp_path
):
    in_generation_config(folder / "target", whole[6])
    with serving(Completions(lambda _: [[whole[0]], [*whole[1:5]], [*whole[5:]]])) as server:
        more = ("engine=server", f"server.url={server.url}", "server.model=target")
        tokens, row = decoded(folder, tmp_path, *more, "task.stop=[never,'\n']")
    assert tokens == {"served": whole[:7]}
    assert row["stop_rule"] == f'eos+{name_of(folder, whole[6])}+"never"+newline'
    assert set(server.bodies[0]["stop_token_ids"]) >= {2, whole[6]}
    assert server.bodies[0]["stop"] == ["never", "\n"]


def test_a_stop_text_of_several_tokens_ends_an_answer_at_the_same_token_everywhere(
    folder, whole, tmp_path
):
    tokenizer = load_tokenizer(str(folder / "target"))
    text = tokenizer.decode(whole, skip_special_tokens=True)
    stop = tokenizer.decode(whole[2:4])[1:]  # of parts of two tokens
    end = next(n for n in range(13) if stop in tokenizer.decode(whole[:n]))
    assert end < 12 and stop not in [tokenizer.decode([each]) for each in whole]
    many = "cells=[sd:3,rsd_s:2x2,hf_generate,beam_search:1]"
    for batch in (1, 2):
        given = (f"task.stop=[{stop}]", many, f"engine.batch_size={batch}")
        tokens, row = decoded(folder, tmp_path / str(batch), *given)
        assert set(tokens.values()) == {whole[:end]}
        assert row["stop_rule"] == f'eos+"{stop}"'
    pair = spec_bench.load_pair(target=folder / "target", draft=folder / "draft")
    told = {"temperature": 0, "max_new_tokens": 12, "stop": stop}
    for decoder in ("ar", "sd:3", "beam_search:1"):
        answer = pair.decode(PROMPT, decoder, **told)
        assert (answer.tokens, answer.finish) == (whole[:end], "stop")
        assert answer.text == text[: text.find(stop)]


def test_stop_texts_are_found_where_they_begin_before_the_step_and_behind_a_letter_cut_in_two():
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.ByteLevel()
    ids = tokenizer("a boat é leaves", add_special_tokens=False)["input_ids"]
    stops = StopCriteria(tokenizer, ["t é l", "never"])
    end = next(n for n in range(len(ids) + 1) if "t é l" in tokenizer.decode(ids[:n]))
    assert [stops.count_tokens_to_stop_text(ids, before) for before in range(end)] == [end] * end
    assert stops.count_tokens_to_stop_text(ids[: end - 1]) is None
    assert cut_at_stop("at é lunch", stops.stop_texts) == "a"


def test_heads_learn_to_end_at_every_end_and_nothing_behind_it():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}\n{{ m.content }}</s> \n{% endfor %}"
        "{% if add_generation_prompt %}assistant\n{% endif %}"
    )
    said = [{"role": role, "content": role[0]} for role in ("user", "assistant") * 2]
    learned = encode_chat(said, tokenizer)
    kept = [each for each, told in zip(learned.ids, learned.loss_mask, strict=True) if told]
    assert tokenizer.convert_ids_to_tokens(kept) == ["a", "</s>"] * 2


def test_one_line_says_what_is_measured_before_anything_is_decoded(folder, whole, tmp_path, caplog):
    in_generation_config(folder / "target", whole[6])
    with caplog.at_level(logging.INFO):
        decoded(folder, tmp_path, "cells=[ar]", "task.stop=[Dora has]")
    (line,) = (each for each in caplog.messages if each.startswith("data: "))
    assert "rows.jsonl: 2 of 4" in line and "template: none" in line
    assert f'ends: </s>, {name_of(folder, whole[6])}, "Dora has"' in line
    assert line.endswith("; temperature 0, at most 12 new tokens")
    assert caplog.messages.index(line) < len(caplog.messages) - 1


def test_the_line_tells_a_systems_text_and_turns_that_are_prompts(tmp_path):
    rows = [
        {"turns": ["a", "b"]},
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "c"},
            ]
        },
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = build_task_from_files(str(tmp_path / "own.jsonl"), later_turns="own")
    told = task.describe_data(task.read_examples())
    assert told.endswith("2 conversations (turns, messages), 3 prompts; 1 with a system's text")


def test_without_a_log_the_line_is_printed_and_served_rows_have_it(
    folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("spec_bench.jobs.work.prompts"), "level", logging.WARNING)
    with serving(Completions(lambda _: [[5], [6, 7]])) as server:
        more = ("engine=server", f"server.url={server.url}", "server.model=target")
        decoded(folder, tmp_path, *more)
    said = capsys.readouterr().err.splitlines()
    (line,) = (each for each in said if each.startswith("data: "))
    assert "ends: </s>; template: none; temperature 0, at most" in line


def test_a_tree_deeper_than_heads_were_trained_for_is_refused_before_anything_is_loaded(
    folder, tmp_path
):
    trained = {"settings": {"head": {"kind": "dflash", "guesses": 3}}}
    (tmp_path / "training.json").write_text(json.dumps(trained))
    (tmp_path / "config.json").write_text("{}")
    for weights in folder.glob("*/model.safetensors"):
        weights.unlink()
    pard = "{decoder: pard, spec: 5, drafter: {levels: 4}}"
    for cell, said in (("dflash", "dflash:3"), ("dflash_ddtree", "decoder.tree.depth=3")):
        given = (f"cells=[{cell}]", f"pair.heads.dflash={tmp_path}")
        with one_line(naming("15 levels deep, its drafter reaches 3", said)):
            build_unpinned_settings(compose_config(overrides(folder, tmp_path / "results", *given)))
    with one_line(naming("reaches 4", "levels=4:4", "decoder.tree.depth=4")):
        build_unpinned_settings(
            compose_config(overrides(folder, tmp_path / "results", f"cells=[{pard}]"))
        )
    given = ("cells=[dflash:3]", f"pair.heads.dflash={tmp_path}")
    build_unpinned_settings(compose_config(overrides(folder, tmp_path / "results", *given)))


TEMPLATE = (
    "{% if thinks %}<think>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% for tool in tools %}{{ tool }}{% endfor %}"
)


def test_arguments_of_a_template_write_every_prompt_and_belong_to_the_row(folder, tmp_path, caplog):
    (folder / "target" / "chat_template.jinja").write_text(TEMPLATE)
    made = {}
    for name, given in (("plain", "tools: []"), ("thinking", "tools: [], thinks: true")):
        more = ("cells=[ar]", "task.chat=true", f"pair.chat_template_kwargs={{{given}}}")
        with caplog.at_level(logging.INFO):
            _, row = decoded(folder, tmp_path / name, *more)
        cell = tmp_path / name / "results" / "runs" / row["run_id"] / "cell.json"
        made[name] = row, json.loads(cell.read_text())["settings"]["pair"]
    assert made["thinking"][1]["chat_template_kwargs"] == {"tools": [], "thinks": True}
    assert len({row["prompts_digest"] for row, _ in made.values()}) == 2
    assert "template: the tokenizer's with {'tools': [], 'thinks': True}" in caplog.text
    settings = build_unpinned_settings(
        compose_config(overrides(folder, tmp_path / "none", "task.chat=true"))
    )
    assert "chat_template_kwargs" not in settings.pair.get_run_id_settings()
    with pytest.raises(ValueError, match=naming("tools", "pair.chat_template_kwargs={tools: ")):
        decoded(folder, tmp_path / "without", "cells=[ar]", "task.chat=true")


def test_special_tokens_in_a_text_and_answers_that_are_empty_are_said(folder, tmp_path, caplog):
    text = {"question_id": "twice", "turns": ["<s>the boat left</s>"]}
    (folder / "own.jsonl").write_text(json.dumps(text))
    change(folder / "target" / "generation_config.json", eos_token_id=[2, *range(290)])
    own = ("task=jsonl", f"task.source.path={folder / 'own.jsonl'}", "prompts=null")
    decoded(folder, tmp_path, "cells=[sd:2]", *own)
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    (special,) = (each for each in warned if "special tokens" in each)
    assert "1 prompt hold" in special and special.endswith("'twice' (line 1) has <s>, </s>")
    assert sum("1 of 1 answers are empty" in each for each in warned) == 2


FOLDERS = {
    "lora": (
        "adapter_config.json",
        {"base_model_name_or_path": "a/b"},
        "the adapter into its base",
    ),
    "gptq": ("config.json", {"quantization_config": {"quant_method": "gptq"}}, "'gptq'"),
    "awq": ("config.json", {"quantization_config": {"quant_method": "awq"}}, "'awq'"),
    "bnb": ("config.json", {"quantization_config": {"load_in_4bit": True}}, "load_in_4bit"),
    "mlx": ("config.json", {"quantization": {"group_size": 64, "bits": 4}}, "'MLX'"),
}


@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.parametrize("which", ["target", "draft"])
def test_folders_without_plain_weights_are_refused_with_what_to_do_before_any_is_read(
    kind, which, folder, tmp_path
):
    name, values, said = FOLDERS[kind]
    file = folder / which / name
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | values))
    for weights in folder.glob("*/model.safetensors"):
        weights.unlink()
    with one_line(naming(str(folder / which), said)):
        build_unpinned_settings(
            compose_config(overrides(folder, tmp_path / "results", "cells=[sd:2]"))
        )
    if kind == "lora":
        (folder / which / "config.json").unlink()
        with one_line(naming(str(folder / which), said)):
            build_unpinned_settings(
                compose_config(overrides(folder, tmp_path / "results", "cells=[sd:2]"))
            )


GROUPS = {
    "task": (Task, RandomPromptTask), "pair": (PairSettings,), "engine": (EngineSettings,),
    "generation": (SamplingSettings, AnswerLimit), "server": (ServerSettings,),
    "confirm": (ConfirmSettings,), "data": (TrainingDataSettings,),
    "optimiser": (OptimiserSettings,), "head": (HeadSettings,),
}  # fmt: skip
NAMED = re.compile(rf"(?<![\w./])({'|'.join(GROUPS)})\.([a-z_]+)(?![\w(.])")


def test_every_setting_that_a_message_names_exists():
    found = set()
    for path in Path(spec_bench.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        raised = (each for each in ast.walk(tree) if isinstance(each, ast.Raise | ast.Yield))
        texts = (part for each in raised for part in ast.walk(each))
        named = (each.value for each in texts if isinstance(each, ast.Constant))
        found |= {pair for text in named if isinstance(text, str) for pair in NAMED.findall(text)}
    assert len(found) > 40
    unknown = [
        f"{group}.{name}"
        for group, name in sorted(found)
        if not any(name in each.__dataclass_fields__ for each in GROUPS[group])
    ]
    assert not unknown


def test_a_target_without_a_template_is_told_what_training_can_do_instead():
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(ValueError, match=naming("pair.chat_template", "data.kind=prompts")):
        encode_chat(said, tiny_tokenizer())
