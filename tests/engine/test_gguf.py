"""A GGUF file becomes a model folder once, which answers as transformers reading the file does."""

import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from spec_bench.engine import gguf_conversion
from spec_bench.engine.loading import ModelSpec, load_model, load_tokenizer
from spec_bench.jobs.config.model_files import compute_sampled_fingerprint, resolve_or_convert_model
from spec_bench.records.ends import find_end_token_ids
from spec_bench.records.types import Request
from spec_bench.system import signals
from spec_bench.system.model_cache import (
    describe_original_weights,
    find_gguf,
    get_converted_gguf_path,
    get_fetched_model_path,
)
from tests.commands import convert as main
from tests.commands import ls as print_listing
from tests.families import GREEDY, built
from tests.said import naming

gguf = pytest.importorskip("gguf")
WIDTH, VOCAB = 32, 40


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    return written(tmp_path / "tiny.Q8_0.gguf")


def written(path, without="", more="", shapes=None, split_max_tensors=0, **facts):
    """A Llama of two layers with random 8-bit weights and a byte-pair vocabulary of letters."""
    out = gguf.GGUFWriter(path, "llama", split_max_tensors=split_max_tensors)
    draw = np.random.default_rng(0)
    stored = {name: facts.pop(name) for name in list(facts) if name.endswith(".weight")}
    pairs = [a + b for a, b in pairwise(ascii_lowercase)]
    tokens = ["<s>", "</s>", *ascii_lowercase, *pairs][:VOCAB]
    facts = {
        "context_length": 64, "embedding_length": WIDTH, "block_count": 2,
        "feed_forward_length": 64, "head_count": 4, "head_count_kv": 2,
        "layer_norm_rms_eps": 1e-5, "rope_dimension_count": 8, "vocab_size": VOCAB,
        "tokenizer_model": "gpt2", "token_list": tokens, "token_types": [3, 3, *[1] * (VOCAB - 2)],
        "token_merges": [" ".join(pair) for pair in tokens[28:]], "bos_token_id": 0,
        "eos_token_id": 1, "file_type": gguf.LlamaFileType.MOSTLY_Q8_0, **facts,
    }  # fmt: skip
    for name, value in facts.items():
        getattr(out, f"add_{name}")(value)
    blocks = {
        "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH), "ffn_gate": (64, WIDTH),
        "attn_output": (WIDTH, WIDTH), "ffn_up": (64, WIDTH), "ffn_down": (WIDTH, 64),
    }  # fmt: skip
    if shapes is None:
        shapes = {"token_embd.weight": (VOCAB, WIDTH), "output_norm.weight": (WIDTH,)}
        shapes |= {f"blk.{n}.{name}.weight": s for n in range(2) for name, s in blocks.items()}
    shapes.pop(without, None)
    shapes |= {more: (WIDTH,)} if more else {}
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        values = draw.standard_normal(shape).astype(np.float32)
        if len(shape) == 1 or name in stored:
            out.add_tensor(name, stored.get(name, values))
        else:
            out.add_tensor(name, gguf.quantize(values, q8), raw_dtype=q8)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def test_a_file_is_converted_once_and_answers_as_transformers_reading_it_does(file, capsys):
    folder = get_converted_gguf_path(file)
    assert (
        resolve_or_convert_model(str(file))
        == resolve_or_convert_model(str(file.parent))
        == str(folder)
    )
    started, ended = capsys.readouterr().err.splitlines()
    assert "Q8_0, dequantised to float32" in started and str(folder) in started
    assert file.name in ended
    assert (
        compute_sampled_fingerprint(str(file))
        == compute_sampled_fingerprint(str(folder))
        is not None
    )
    model = load_model(ModelSpec(resolve_or_convert_model(str(file))))
    direct = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    ids = torch.arange(2, 12).unsqueeze(0)
    with torch.inference_mode():
        assert torch.equal(model.module(ids).logits, direct(ids).logits)
        both = [m.generate(ids, max_new_tokens=8, do_sample=False) for m in (model.module, direct)]
    assert torch.equal(*both)
    read = load_tokenizer(str(folder))  # whose end of text is the file's
    assert (read.encode("ab", add_special_tokens=False), read.eos_token_id) == ([28], 1)
    before = folder.stat().st_mtime_ns
    assert main([str(file)]) == 0
    assert folder.stat().st_mtime_ns == before  # once


def test_all_ends_of_a_file_end_answers_where_generate_ends_them(tmp_path):
    told, ids = {"do_sample": False, "max_new_tokens": 8}, torch.arange(2, 12).unsqueeze(0)

    def made(**ends):
        file = written(tmp_path / f"{len(ends)}.gguf", **ends)
        assert main([str(file)]) == 0
        return str(get_converted_gguf_path(file))

    plain = AutoModelForCausalLM.from_pretrained(made())
    whole = plain.generate(ids, **told)[0, 10:].tolist()
    turn = next(each for each in whole[2:] if each not in whole[:2])
    folder = made(eot_token_id=turn, eom_token_id=0)
    generated = AutoModelForCausalLM.from_pretrained(folder).generate(ids, **told)[0, 10:].tolist()
    assert generated == whole[: whole.index(turn) + 1]
    tokenizer = load_tokenizer(folder)
    assert find_end_token_ids(tokenizer) == (1, turn, 0)
    request = Request("p", tuple(range(2, 12)), 8, find_end_token_ids(tokenizer))
    (found,) = built("ar", [load_model(ModelSpec(folder))], GREEDY).generate([request], 0)
    assert (list(found.tokens), found.finish) == (generated, "stop")


def test_what_is_no_model_is_refused_in_a_line_and_leaves_nothing(cache, tmp_path, capsys):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    for path in (damaged, tmp_path / "missing.gguf"):
        assert main([str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert path.name in line
    whole = written(tmp_path / "whole.gguf").read_bytes()
    for size in (10, len(whole) // 2):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        assert main([str(tmp_path / "cut.gguf")]) == 2
        assert "damaged or cut off" in capsys.readouterr().err
    assert not list(cache.rglob("config.json"))
    assert find_gguf(tmp_path / "missing.gguf") is None


def test_a_file_without_weights_is_refused_before_its_vocabulary_is_read(tmp_path, capsys):
    file = written(tmp_path / "vocabulary.gguf", shapes={})
    whole = file.read_bytes()
    file.write_bytes(whole[:32])  # a header that cannot be read any further
    assert main([str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds no weights" in line


def test_a_quantisation_that_cannot_be_read_is_refused_by_its_name(tmp_path, capsys):
    plain = np.zeros((VOCAB, WIDTH), np.int8)
    file = written(tmp_path / "whole.gguf", **{"token_embd.weight": plain})
    assert main([str(file)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "token_embd.weight" in line and "I8" in line


def test_a_tensor_of_another_shape_than_the_header_says_is_refused_naming_it(tmp_path, capsys):
    file = written(tmp_path / "odd.gguf", **{"output_norm.weight": np.zeros(8, np.float32)})
    assert main([str(file)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "output_norm.weight" in line and "[8]" in line and f"[{WIDTH}]" in line


def test_a_large_model_is_written_in_bfloat16_and_in_several_files(file, monkeypatch):
    exact = load_model(ModelSpec(resolve_or_convert_model(str(file)))).module.state_dict()
    monkeypatch.setattr(gguf_conversion, "LARGE", 1)
    monkeypatch.setattr(gguf_conversion, "SHARD_BYTES", 4096)
    shutil.rmtree(get_converted_gguf_path(file))
    folder = Path(resolve_or_convert_model(str(file)))
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert describe_original_weights(folder) == "Q8_0, dequantised to bfloat16"
    rounded = load_model(ModelSpec(str(folder))).module.state_dict()
    assert exact.keys() == rounded.keys()
    for name, weight in exact.items():
        assert torch.equal(weight.bfloat16(), rounded[name].bfloat16()), name


def test_files_that_a_model_was_split_into_are_one_model_whichever_is_named(file, tmp_path, capsys):
    whole = load_model(ModelSpec(resolve_or_convert_model(str(file)))).module.state_dict()
    (tmp_path / "split").mkdir()
    written(tmp_path / "split" / "tiny.gguf", split_max_tensors=8)
    first, second, third = sorted((tmp_path / "split").glob("*.gguf"))
    folder = resolve_or_convert_model(str(second))
    assert (
        folder
        == resolve_or_convert_model(str(first))
        == resolve_or_convert_model(str(first.parent))
    )
    split = load_model(ModelSpec(folder)).module.state_dict()
    assert all(torch.equal(weight, split[name]) for name, weight in whole.items())
    third.unlink()
    assert main([str(first)]) == 2
    assert third.name in capsys.readouterr().err


def test_a_model_that_the_disk_has_no_room_for_is_refused_before_anything_is_written(
    file, cache, monkeypatch, capsys
):
    free = shutil.disk_usage(cache.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: free)
    assert main([str(file)]) == 2
    assert "GiB" in capsys.readouterr().err
    assert not list(cache.rglob("*.safetensors"))


def test_converted_models_are_listed_and_removed_by_name(file, capsys):
    folder = Path(resolve_or_convert_model(str(file)))
    assert print_listing(["models"]) == 0
    assert folder.name in capsys.readouterr().out
    assert main(["--remove", "another"]) == 2
    assert folder.name in capsys.readouterr().err
    assert main(["--remove", folder.name]) == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("tensor", "weight"),
    [
        ("blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ],
)
def test_a_file_that_lacks_a_tensor_is_refused_naming_it(tensor, weight, cache, tmp_path, capsys):
    assert main([str(written(tmp_path / "less.gguf", tensor))]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "less.gguf" in line and weight in line
    assert not list(cache.rglob("config.json"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_count": 1}, ("llama.block_count 1", "blk.1.attn_norm.weight")),
        ({"more": "blk.0.gate.weight"}, ("llama.block_count 2", "blk.0.gate.weight")),
    ],
)
def test_a_file_with_a_tensor_that_its_model_has_no_place_for_is_refused_naming_it(
    change, said, tmp_path, capsys
):
    assert main([str(written(tmp_path / "more.gguf", **change))]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert all(part in line for part in said)
    assert main([str(written(tmp_path / "rope.gguf", more="rope_freqs.weight"))]) == 0


def test_a_file_that_changes_in_its_middle_is_another_model(tmp_path):
    large = tmp_path / "large.gguf"
    large.write_bytes(bytes(5 << 20))
    first = get_converted_gguf_path(large)
    assert get_converted_gguf_path(large) == first
    with large.open("r+b") as stream:
        stream.seek(5 << 19)
        stream.write(b"x")
    assert get_converted_gguf_path(large) != first


def test_conversions_at_the_same_time_leave_one_whole_model(file):
    folder = get_converted_gguf_path(file)
    folder.mkdir(parents=True)  # empty: it is no model yet
    command = [sys.executable, "-m", "spec_bench", "convert", str(file)]
    with subprocess.Popen(command) as one, subprocess.Popen(command) as other:
        assert (one.wait(), other.wait()) == (0, 0)
    assert resolve_or_convert_model(str(file)) == str(folder)
    assert list(folder.parent.glob("[!.]*")) == [folder]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, 0])
def test_a_conversion_that_is_ended_leaves_no_part_and_the_next_one_none_of_a_killed_one(
    number, file, monkeypatch
):
    folder = get_converted_gguf_path(file)
    killed = folder.with_name("another.part")
    killed.mkdir(parents=True)
    (killed / "model.safetensors").write_bytes(bytes(1000))
    there = []

    def end(self, part, *_, **__):
        there.append(part.is_dir())
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patched:
        if number:
            patched.setattr(PreTrainedTokenizerBase, "save_pretrained", end)
            with pytest.raises(SystemExit) as ended, signals.exits_in_one_line("interrupted"):
                main([str(file)])
            assert (ended.value.code, there) == (128 + number, [True])
            assert not signals.was_interrupted(), "the next command of this process is another"
    assert main([str(file)]) == 0
    assert list(folder.parent.glob("[!.]*")) == [folder]


def test_a_model_that_was_not_fetched_is_named_with_the_command():
    for _ in range(2):
        with pytest.raises(ValueError, match=naming("fetched:smollm2", "make smollm2")):
            resolve_or_convert_model("fetched:smollm2")
        get_fetched_model_path("smollm2").mkdir(
            parents=True, exist_ok=True
        )  # an empty folder is no model
