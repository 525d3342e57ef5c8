"""Answers end where transformers' ``generate`` ends them, and at texts, whatever their tokens."""

import json
import logging
import shutil

import pytest
import torch
from tokenizers import decoders
from transformers import AutoModelForCausalLM, AutoTokenizer

import spec_bench
from spec_bench.engine.loading import load_tokenizer
from spec_bench.engine.mapped_model import of_tokenizers
from spec_bench.jobs.app import run_config
from spec_bench.jobs.config.compose import composed
from spec_bench.records.ends import StopTexts, end_ids
from spec_bench.train.dialogues import encode_chat
from tests.jobs.tiny import TEXTS, overrides, rows_of, tiny_tokenizer, tokens_of
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
    run_config(composed(overrides(folder, results, *GREEDY, *more)))
    rows = rows_of(results)
    return {row["decoder"]: tokens_of(results, row["run_id"])["0"] for row in rows}, rows[0]


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
    vocabulary = of_tokenizers(ours, theirs, 300)
    assert end_ids(theirs) == (2, 300)
    assert (vocabulary.proposes[300], vocabulary.proposes[2], vocabulary.reads[7]) == (2, 2, 7)
    ours.add_tokens(["<|our end|>"])
    ours.answer_ends = (300,)
    assert of_tokenizers(ours, theirs, 301).reads[300] == 2


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
    stops = StopTexts(tokenizer, ["t é l", "never"])
    end = next(n for n in range(len(ids) + 1) if "t é l" in tokenizer.decode(ids[:n]))
    assert [stops.find_end(ids, before) for before in range(end)] == [end] * end
    assert stops.find_end(ids[: end - 1]) is None
    assert stops.cut("at é lunch") == "a" and stops.cut("nothing") == "nothing"


def test_heads_learn_to_end_at_every_end_and_nothing_behind_it():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}\n{{ m.content }}</s> \n{% endfor %}"
        "{% if add_generation_prompt %}assistant\n{% endif %}"
    )
    said = [{"role": role, "content": role[0]} for role in ("user", "assistant") * 2]
    learned = encode_chat(said, tokenizer)
    kept = [each for each, told in zip(learned.ids, learned.learned, strict=True) if told]
    assert tokenizer.convert_ids_to_tokens(kept) == ["a", "</s>"] * 2


def test_one_line_says_what_is_measured_before_anything_is_decoded(folder, whole, tmp_path, caplog):
    in_generation_config(folder / "target", whole[6])
    with caplog.at_level(logging.INFO):
        decoded(folder, tmp_path, "cells=[ar]", "task.stop=[Dora has]")
    (line,) = (each for each in caplog.messages if each.startswith("data: "))
    assert "rows.jsonl: 2 of 4" in line and "template: none" in line
    assert f'ends: </s>, {name_of(folder, whole[6])}, "Dora has"' in line
    assert caplog.messages.index(line) < len(caplog.messages) - 1
