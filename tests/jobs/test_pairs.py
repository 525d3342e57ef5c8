"""The papers' pairs as data, the name of a pair's rows, and where its tokens are told."""

import csv
import io
import logging
import shutil
from dataclasses import replace
from functools import cache

import pytest
import sentencepiece
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerFast

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec, random_module
from spec_bench.jobs.config import pair as pairs
from spec_bench.jobs.config.pair import (
    EngineSettings,
    Pair,
    PairSettings,
    build_pair,
    with_own_name,
)
from spec_bench.jobs.work import models
from spec_bench.jobs.work.models import models_of
from spec_bench.records.types import Request
from spec_bench.settings.configs import conf_dir, read_config
from tests.families import decoder_settings
from tests.jobs.tiny import TEXTS, make_family, rows_of
from tests.kinds import tiny_module
from tests.said import naming

FILES = sorted(conf_dir().glob("pair/*.yaml"))
HUB = [path for path in FILES if "/" in read_config(path)["target"]]
EXPERIMENTS = conf_dir().parent / "experiments"
ENGINE = EngineSettings(device="cpu", dtype="float32")
ARCHITECTURE_OF = {
    "meta-llama/Llama-2-7b-hf": "llama2_7b",
    "meta-llama/Llama-2-13b-hf": "llama2_13b",
    "meta-llama/Llama-2-70b-hf": "llama2_70b",
    "meta-llama/Llama-2-7b-chat-hf": "llama2_7b",
    "meta-llama/Llama-2-13b-chat-hf": "llama2_13b",
    "meta-llama/Llama-2-70b-chat-hf": "llama2_70b",
    "huggyllama/llama-13b": "llama_13b",
    "huggyllama/llama-30b": "llama_33b",
    "lmsys/vicuna-7b-v1.3": "vicuna_7b",
    "lmsys/vicuna-13b-v1.3": "vicuna_13b",
    "lmsys/vicuna-33b-v1.3": "vicuna_33b",
    "facebook/opt-13b": "opt_13b",
    "facebook/opt-30b": "opt_30b",
    "facebook/opt-iml-30b": "opt_30b",
    "facebook/opt-66b": "opt_66b",
    "facebook/opt-125m": "opt_125m",
    "facebook/opt-350m": "opt_350m",
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_8b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3_70b",
    "meta-llama/Llama-3.2-1B-Instruct": "llama3_1b",
    "Qwen/Qwen3-8B": "qwen3_8b",
    "Qwen/Qwen3-0.6B": "qwen3_0.6b",
    "amd/PARD-Qwen3-0.6B": "qwen3_0.6b",
    "XiaomiMiMo/MiMo-7B-RL": "mimo_7b",
    "JackFram/llama-68m": "llama_68m",
    "JackFram/llama-160m": "llama_160m",
    "double7/vicuna-68m": "llama_68m",
    "double7/vicuna-160m": "llama_160m",
}


@cache
def pair_of(name, *overrides):
    if not overrides:
        return read_config(conf_dir() / "pair" / f"{name}.yaml")
    return composed(name, *overrides)


def composed(name, *overrides):
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("config", overrides=[f"pair={name}", *overrides])
    pair = OmegaConf.to_container(config.pair, resolve=True, throw_on_missing=True)
    assert isinstance(pair, dict)
    return pair


def labelled(name, *overrides):
    pair = PairSettings(**pair_of(name, *overrides))
    return build_pair(with_own_name(pair, [conf_dir()]), ENGINE).name


@cache
def parameters(model):
    module = random_module(f"random:{ARCHITECTURE_OF[model]}", torch.float16, "meta", 0)
    return sum(weight.numel() for weight in module.parameters())


def listed(value):
    return value if isinstance(value, list) else [value]


def printed_names(pair):
    """Targets and drafts as papers spell the pair's."""
    return {
        (target, draft or "")
        for paper in listed(pair["paper"])
        for target in listed(paper["target"])
        for draft in listed(paper["draft"])
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_pair_bears_its_file_name(path):
    pair = pair_of(path.stem)
    assert pair["name"] == path.stem
    if not pair["target"].startswith("fetched:"):  # which may not be there
        assert labelled(path.stem) == path.stem


@pytest.mark.parametrize("name", ["embedded_plain", "llama2_70b", "vicuna_13b"])
def test_a_pairs_file_reads_as_hydra_composes_it(name):
    assert pair_of(name) == composed(name)


@pytest.mark.parametrize("path", HUB, ids=lambda path: path.stem)
def test_a_pairs_parameter_counts_are_those_of_its_architectures(path):
    pair = pair_of(path.stem)
    assert pair["target_parameters"] == parameters(pair["target"])
    if pair["draft"] is None:
        assert pair["draft_parameters"] is None
    else:
        assert pair["draft_parameters"] == parameters(pair["draft"])


@pytest.mark.parametrize("path", HUB, ids=lambda path: path.stem)
def test_gated_spread_and_templated_pairs_say_so(path):
    pair = pair_of(path.stem)
    assert pair["gated"] == pair["target"].startswith("meta-llama/")
    assert (pair["target_device_map"] == "auto") == (pair["target_parameters"] > 4e10)
    assert (pair["chat_template"] is not None) == pair["target"].startswith("lmsys/vicuna")
    named = [str(each["draft"]) for each in listed(pair["paper"])]
    assert (pair["stand_in"] is not None) == any("115M" in draft for draft in named)


@pytest.mark.parametrize("paper", ["rsd", "mcsd", "dsbd", "redrafter"])
def test_every_pair_that_a_paper_prints_has_its_file(paper):
    ours = {names for path in HUB for names in printed_names(pair_of(path.stem))}
    with (EXPERIMENTS / paper / "reference.csv").open(encoding="utf-8") as stream:
        printed = {(row["target"], row.get("draft", "")) for row in csv.DictReader(stream)}
    # A baseline's row has no draft; a table without a target names no pair.
    alone = {("", ""), *((target, "") for target, _ in ours)}
    assert printed - alone <= ours
    assert {target for target, _ in printed if target} <= {target for target, _ in ours}


def test_a_name_does_not_outlive_its_models(family):
    replaced = labelled("llama2_7b", "pair.draft=JackFram/llama-68m")
    assert replaced == "Llama-2-7b-hf+llama-68m"
    folders = (f"pair.target={family / 'target'}", f"pair.draft={family / 'draft'}")
    assert labelled("embedded", *folders) == "target+draft"
    assert labelled("embedded", "pair.draft=embedded:draft") == "target+draft"
    assert labelled("embedded", "pair.target=random:llama_tiny").startswith("random:llama_tiny+")
    assert labelled("vicuna_7b", "pair.draft=JackFram/llama-68m") == "vicuna-7b-v1.3+llama-68m"


def test_a_label_of_the_users_own_stays():
    assert labelled("embedded", "pair.name=mine", "pair.draft=embedded:draft") == "mine"


def test_a_pair_file_of_the_users_own_names_its_models(tmp_path):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "ours.yaml").write_text("name: ours\ntarget: a/b\ndraft: c/d\n")
    ours = PairSettings(name="ours", target="a/b", draft="c/d")
    folders = [tmp_path, conf_dir()]
    assert with_own_name(ours, folders).name == "ours"
    assert with_own_name(replace(ours, draft="e/f"), folders).name is None


def test_rows_bear_the_pairs_name(run_job, tmp_path):
    run_job("spec=2x2", "prompts=1", "pair=embedded_plain")
    assert {row["pair"] for row in rows_of(tmp_path / "results")} == {"target+draft"}


CHAT = [
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye."},
]


def test_vicunas_conversation_format_is_written_to_the_letter(family, monkeypatch):
    path = str(family / "target")
    settings = PairSettings(**pair_of("vicuna_7b", f"pair.target={path}", "pair.dtype=float32"))
    tokenizer, _ = models.tokenizer_of(build_pair(settings, ENGINE))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    text = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<s>A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions. "
        "USER: Hello? ASSISTANT: Hi.</s>USER: Bye. ASSISTANT:"
    )
    plain, _ = models.tokenizer_of(build_pair(replace(settings, chat_template=None), ENGINE))
    assert plain.chat_template is None


def test_heads_of_the_embedded_target_are_no_heads_of_another(run_job):
    """The default pair names them, and a target of one's own does not change what it names."""
    with pytest.raises(ValueError, match=r"embedded:heads/medusa.*set pair\.heads\.medusa"):
        run_job("decoder=medusa", "cells=[]")


@pytest.mark.parametrize(
    ("device", "target", "gpu", "placed_on"),
    [
        ("auto", "org/model", True, "cuda"),
        ("auto", "org/model", False, "cpu"),
        ("auto", "random:llama2_7b", True, "cuda"),
        ("auto", "embedded:target", True, "cpu"),
        ("cpu", "org/model", True, "cpu"),
        ("cuda:1", "embedded:target", False, "cuda:1"),
    ],
)
def test_a_model_goes_to_the_gpu_where_there_is_one_and_it_is_no_small_one(
    device, target, gpu, placed_on, monkeypatch
):
    monkeypatch.setattr(pairs, "sees_cuda", lambda: gpu)
    assert pairs.placed(EngineSettings(device, "float32"), target).device == placed_on


def test_a_pair_of_ones_own_may_build_on_a_shipped_one(tmp_path):
    (tmp_path / "pair").mkdir()
    mine = tmp_path / "pair" / "mine.yaml"
    mine.write_text("defaults: [embedded, _self_]\nname: mine\n")
    named = {**read_config(conf_dir() / "pair" / "embedded.yaml"), "name": "mine"}
    assert read_config(mine) == named
    mine.write_text("defaults: [embeded, _self_]\nname: mine\n")
    with pytest.raises(ValueError, match=naming(mine, "embeded")):
        read_config(mine)


UNTRAINED = "pair.heads={redrafter: results/train/redrafter_mine/heads}"


def test_a_cell_without_heads_is_left_out_and_the_others_are_decoded(run_job, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run_job("cells=[sd:2,redrafter:2x2]", "prompts=1", "pair.name=mine", UNTRAINED)
    rows = rows_of(tmp_path / "results")
    assert [(r["decoder"], r["status"]) for r in rows] == [("ar", "complete"), ("sd", "complete")]
    (said,) = (line for line in caplog.messages if "left out" in line)
    assert "redrafter 2x2" in said


def test_where_no_cell_is_left_the_refusal_prints_the_training(run_job):
    command = "python -m spec_bench.train head=redrafter pair=mine engine=cuda name=redrafter_mine"
    with pytest.raises(ValueError, match=naming(command)):
        run_job("cells=[redrafter:2x2]", "prompts=1", "pair.name=mine", UNTRAINED)


CELLS = ("cells=[sd:3]", "warmup=0", "prompts=1")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The tiny family without tokenizers, and a tokenizer.model in a folder ``tokens``."""
    folder = tmp_path_factory.mktemp("bare")
    make_family(folder)
    for file in folder.glob("*/*token*"):
        file.unlink()
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, vocab_size=80, model_type="bpe"
    )
    (folder / "tokens").mkdir()
    shutil.copy(folder / "target" / "config.json", folder / "tokens")
    (folder / "tokens" / "tokenizer.model").write_bytes(written.getvalue())
    return folder


def pair(folder):
    return (f"pair.target={folder / 'target'}", f"pair.draft={folder / 'draft'}", *CELLS)


def test_a_folder_with_tokenizer_model_alone_is_decoded(run_job, bare, tmp_path):
    for name in ("target", "draft"):
        shutil.copytree(bare / name, tmp_path / name)
        shutil.copy(bare / "tokens" / "tokenizer.model", tmp_path / name)
    results = run_job(*pair(tmp_path))
    assert [each.status for each in results] == ["complete", "complete"]


def test_a_pairs_own_tokenizer_serves_models_that_have_none(run_job, bare):
    with pytest.raises(ValueError, match=naming("tokenizer", bare / "target")):
        run_job(*pair(bare))
    results = run_job(*pair(bare), f"pair.tokenizer={bare / 'tokens'}")
    assert [each.status for each in results] == ["complete", "complete"]


@pytest.mark.parametrize("data", [b"", b"half", b"\0" * 500])
def test_a_tokenizer_that_is_damaged_is_one_line(run_job, bare, tmp_path, data):
    shutil.copytree(bare / "tokens", tmp_path / "tokens")
    (tmp_path / "tokens" / "tokenizer.model").write_bytes(data)
    with pytest.raises(ValueError, match=naming("tokenizer", tmp_path / "tokens")) as raised:
        run_job(*pair(bare), f"pair.tokenizer={tmp_path / 'tokens'}")
    assert "\n" not in str(raised.value)


@pytest.fixture
def padded(tmp_path):
    """A target that embeds 60 tokens and a draft that embeds 64."""
    for name, rows in (("target", 60), ("draft", 64)):
        tiny_module("llama", vocab_size=rows).float().save_pretrained(tmp_path / name)
    paths = [str(tmp_path / name) for name in ("target", "draft")]
    specs = tuple(ModelSpec(path) for path in paths)
    return Pair("tiny", paths[0], (paths[1],), specs, (None, None))


@pytest.mark.parametrize(("tokens", "used"), [(57, 57), (60, 60), (61, 60), (100, 60)])
def test_a_pair_uses_the_tokens_that_both_models_embed_and_the_tokenizer_has(padded, tokens, used):
    target, draft = models_of(padded, tokens)
    assert target.vocab_size == draft.vocab_size == used
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    assert len(decoder.generate([Request("p", (3, 1, 4), 8)], 0)[0].tokens) == 8


def test_a_shared_model_is_not_cut_for_the_next_pair(padded):
    assert models_of(padded, 50)[0].vocab_size == 50
    assert models_of(padded, 60)[0].vocab_size == 60


def test_a_prompt_with_a_token_that_is_not_embedded_is_refused_by_name(padded):
    target, draft = models_of(padded, 61)
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    with pytest.raises(ValueError, match=naming("p7", "token 60", "0 to 59")):
        decoder.generate([Request("p7", (3, 60), 8)], 0)
