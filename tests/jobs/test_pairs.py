"""The papers' pairs as data, a pair's name and tokens; run ids change with the numbers alone."""

import csv
import io
import logging
import re
import shutil
from dataclasses import replace
from functools import cache

import pytest
import sentencepiece
import torch
from huggingface_hub import constants, file_download
from omegaconf import OmegaConf
from transformers import PreTrainedTokenizerFast

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec
from spec_bench.engine.random_model import make_random_module
from spec_bench.jobs.app import build_unpinned_settings
from spec_bench.jobs.config import pair as pairs
from spec_bench.jobs.config import settings
from spec_bench.jobs.config.compose import compose_config, parse_request
from spec_bench.jobs.config.model_files import find_hub_commit
from spec_bench.jobs.config.pair import (
    EngineSettings,
    Pair,
    PairSettings,
    build_pair,
    drop_name_of_other_pair,
)
from spec_bench.jobs.store.experiment import compute_job_id
from spec_bench.jobs.work import models
from spec_bench.jobs.work.models import load_models
from spec_bench.records.types import ENGINE as VERSION
from spec_bench.records.types import Request
from spec_bench.settings.configs import get_conf_dir, read_composed_config
from spec_bench.sinks.rows import flatten_facts
from spec_bench.tree.widths import IidPaths
from tests.families import decoder_settings
from tests.jobs.tiny import TEXTS, make_family, make_task, overrides, rows_of
from tests.kinds import tiny_module
from tests.said import naming, one_line

FILES = sorted(get_conf_dir().glob("pair/*.yaml"))
HUB = [path for path in FILES if re.match(r"[^:]+/", read_composed_config(path)["target"])]
EXPERIMENTS = get_conf_dir().parent / "experiments"
ENGINE = EngineSettings(device="cpu", dtype="float32")
ARCHITECTURE_OF = {
    **{"meta-llama/Llama-2-7b-hf": "llama2_7b", "meta-llama/Llama-2-13b-hf": "llama2_13b"},
    **{"meta-llama/Llama-2-70b-hf": "llama2_70b", "meta-llama/Llama-2-7b-chat-hf": "llama2_7b"},
    **{"meta-llama/Llama-2-13b-chat-hf": "llama2_13b"},
    **{"meta-llama/Llama-2-70b-chat-hf": "llama2_70b", "huggyllama/llama-13b": "llama_13b"},
    **{"huggyllama/llama-30b": "llama_33b", "lmsys/vicuna-7b-v1.3": "vicuna_7b"},
    **{"lmsys/vicuna-13b-v1.3": "vicuna_13b", "lmsys/vicuna-33b-v1.3": "vicuna_33b"},
    **{"facebook/opt-13b": "opt_13b", "facebook/opt-30b": "opt_30b"},
    **{"facebook/opt-iml-30b": "opt_30b", "facebook/opt-66b": "opt_66b"},
    **{"facebook/opt-125m": "opt_125m", "facebook/opt-350m": "opt_350m"},
    **{"meta-llama/Llama-3.1-8B-Instruct": "llama3_8b"},
    **{"meta-llama/Llama-3.3-70B-Instruct": "llama3_70b"},
    **{"meta-llama/Llama-3.2-1B-Instruct": "llama3_1b", "Qwen/Qwen3-8B": "qwen3_8b"},
    **{"Qwen/Qwen3-0.6B": "qwen3_0.6b", "amd/PARD-Qwen3-0.6B": "qwen3_0.6b"},
    **{"XiaomiMiMo/MiMo-7B-RL": "mimo_7b", "JackFram/llama-68m": "llama_68m"},
    **{"JackFram/llama-160m": "llama_160m", "double7/vicuna-68m": "llama_68m"},
    **{"double7/vicuna-160m": "llama_160m"},
    **{"Qwen/Qwen2.5-Coder-1.5B-Instruct": "qwen25_coder_1.5b"},
    **{"Qwen/Qwen2.5-Coder-0.5B-Instruct": "qwen25_coder_0.5b"},
}


def pair_of(name):
    return read_composed_config(get_conf_dir() / "pair" / f"{name}.yaml")


def shown(name, *more):
    pair = compose_config([f"pair={name}", *more]).pair
    return OmegaConf.to_container(pair, resolve=True, throw_on_missing=True)


def labelled(name, *more):
    pair = PairSettings(**(shown(name, *more) if more else pair_of(name)))
    return build_pair(drop_name_of_other_pair(pair, [get_conf_dir()]), ENGINE).name


@cache
def parameters(model):
    module = make_random_module(f"random:{ARCHITECTURE_OF[model]}", torch.float16, "meta", 0)
    return sum(weight.numel() for weight in module.parameters())


def listed(value):
    return value if isinstance(value, list) else [value]


def printed_names(pair):
    """Targets and drafts as papers spell the pair's."""
    return {
        (target, draft or "")
        for paper in listed(pair["paper"] or [])
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
    assert pair_of(name) == shown(name)


@pytest.mark.parametrize("path", HUB, ids=lambda path: path.stem)
def test_a_pairs_file_says_its_parameters_and_whether_it_is_gated_spread_and_templated(path):
    pair = pair_of(path.stem)
    assert pair["target_parameters"] == parameters(pair["target"])
    drafts = None if pair["draft"] is None else parameters(pair["draft"])
    assert pair["draft_parameters"] == drafts
    assert pair["gated"] == pair["target"].startswith("meta-llama/")
    assert (pair["target_device_map"] == "auto") == (pair["target_parameters"] > 4e10)
    assert (pair["chat_template"] is not None) == pair["target"].startswith("lmsys/vicuna")
    named = [str(each["draft"]) for each in listed(pair["paper"] or [])]
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
    assert labelled("embedded", "pair.name=mine", "pair.draft=embedded:draft") == "mine"


def test_a_pair_file_of_the_users_own_names_its_models(tmp_path):
    (tmp_path / "pair").mkdir()
    (tmp_path / "pair" / "ours.yaml").write_text("name: ours\ntarget: a/b\ndraft: c/d\n")
    ours = PairSettings(name="ours", target="a/b", draft="c/d")
    folders = [tmp_path, get_conf_dir()]
    assert drop_name_of_other_pair(ours, folders).name == "ours"
    assert drop_name_of_other_pair(replace(ours, draft="e/f"), folders).name is None
    mine = tmp_path / "pair" / "mine.yaml"  # it builds on a shipped one
    mine.write_text("defaults: [embedded, _self_]\nname: mine\n")
    assert read_composed_config(mine) == {**pair_of("embedded"), "name": "mine"}
    mine.write_text("defaults: [embeded, _self_]\nname: mine\n")
    with pytest.raises(ValueError, match=naming(mine, "embeded")):
        read_composed_config(mine)


CHAT = [
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Bye."},
]


def test_vicunas_conversation_format_is_written_to_the_letter(family, monkeypatch):
    path = str(family / "target")
    settings = PairSettings(**shown("vicuna_7b", f"pair.target={path}", "pair.dtype=float32"))
    tokenizer, _ = models.load_pair_tokenizer(build_pair(settings, ENGINE))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    text = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<s>A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions. "
        "USER: Hello? ASSISTANT: Hi.</s>USER: Bye. ASSISTANT:"
    )
    plain, _ = models.load_pair_tokenizer(build_pair(replace(settings, chat_template=None), ENGINE))
    assert plain.chat_template is None


def test_heads_of_the_embedded_target_are_no_heads_of_another(run_job):
    with pytest.raises(ValueError, match=r"embedded:heads/medusa.*set pair\.heads\.medusa"):
        run_job("pair=embedded", "decoder=medusa", "cells=[]")


def test_heads_of_another_kind_are_refused_before_they_are_loaded(run_job, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "training.json").write_text('{"settings": {"head": {"kind": "redrafter"}}}')
    with pytest.raises(ValueError, match=r"has redrafter heads: name them as pair\.heads\.redr"):
        run_job(f"pair.heads={{medusa: {tmp_path}}}", "decoder=medusa", "cells=[]")


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
    monkeypatch.setattr(pairs, "is_cuda_usable", lambda: gpu)
    assert (
        pairs.resolve_device_and_compile(EngineSettings(device, "float32"), target).device
        == placed_on
    )


@pytest.mark.parametrize(
    ("device", "torch_version", "dtype", "compile"),
    [
        ("auto", "2.11.0+cu126", "bfloat16", "static"),
        ("cuda", "2.11.0+cu126", "bfloat16", "static"),
        ("cuda:1", "2.11.0+cu126", "bfloat16", "static"),
        ("cuda", "2.10.1+cu126", "bfloat16", "none"),
        ("cpu", "2.11.0+cu126", "float32", "none"),
    ],
)
def test_a_device_is_one_engine_however_it_is_asked_for(
    device, torch_version, dtype, compile, monkeypatch
):
    monkeypatch.setattr(pairs, "is_cuda_usable", lambda: True)
    monkeypatch.setattr(torch, "__version__", torch_version)
    words = (f"engine.device={device}", "pair.target=a/b")
    asked = parse_request(compose_config(words))
    for engine in (asked.engine, EngineSettings(device)):
        placed = pairs.resolve_device_and_compile(engine, "a/b")
        assert (pairs.resolve_dtype(placed, asked.pair), placed.compile) == (dtype, compile)
    kept = pairs.resolve_device_and_compile(replace(asked.engine, compile="none"), "a/b")
    assert kept.compile == "none", "what is asked for stays"


def test_a_cell_without_heads_is_left_out_and_the_others_are_decoded(
    run_job, tmp_path, caplog, monkeypatch
):
    untrained = "pair.heads={redrafter: results/train/redrafter_mine/heads}"
    mine = ("prompts=1", "pair.name=mine", untrained)
    with caplog.at_level(logging.WARNING):
        run_job("cells=[sd:2,redrafter:2x2]", *mine)
    rows = rows_of(tmp_path / "results")
    assert [(r["decoder"], r["status"]) for r in rows] == [("ar", "complete"), ("sd", "complete")]
    (said,) = (line for line in caplog.messages if "left out" in line)
    assert "redrafter 2x2" in said
    target = rows_of(tmp_path / "results")[0]["target"]
    command = f"spec-bench train head=redrafter pair.target={target} name=redrafter_mine"
    with pytest.raises(ValueError, match=naming(command)):
        run_job("cells=[redrafter:2x2]", *mine)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/train/redrafter_mine").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"does not exist; .* the command that began it goes on"):
        run_job("cells=[redrafter:2x2]", *mine)


def test_pard_is_left_out_unless_the_draft_was_trained_for_it(run_job, tmp_path):
    run_job("cells=[sd:2,pard:2]", "prompts=1")
    assert [row["decoder"] for row in rows_of(tmp_path / "results")] == ["ar", "sd"]
    said = "pard 2 needs a draft trained for it.* names no pard_token; pair=qwen3_8b_pard has one"
    with pytest.raises(ValueError, match=said):
        run_job("cells=[pard:2]")
    assert "qwen3_8b_pard" in {file.stem for file in FILES}


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


def test_a_tokenizer_model_is_read_beside_the_models_or_where_the_pair_says(
    run_job, bare, tmp_path
):
    with pytest.raises(ValueError, match=naming("tokenizer", bare / "target")):
        run_job(*pair(bare))
    for name in ("target", "draft"):
        shutil.copytree(bare / name, tmp_path / name)
        shutil.copy(bare / "tokens" / "tokenizer.model", tmp_path / name)
    for given in (pair(tmp_path), (*pair(bare), f"pair.tokenizer={bare / 'tokens'}")):
        assert [each.status for each in run_job(*given)] == ["complete", "complete"]
    damaged = shutil.copytree(bare / "tokens", tmp_path / "tokens")
    for data in (b"", b"half", b"\0" * 500):
        (damaged / "tokenizer.model").write_bytes(data)
        with one_line(naming("tokenizer", damaged)):
            run_job(*pair(bare), f"pair.tokenizer={damaged}")


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
    small = load_models(padded, 50)[0]
    target, draft = load_models(padded, tokens)
    assert load_models(padded, tokens)[0] is target  # so that its caches are found again
    assert small.vocab_size == 50  # a pair's target is not changed by the next pair
    assert target.vocab_size == draft.vocab_size == used
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings())
    assert len(decoder.generate([Request("p", (3, 1, 4), 8)], 0)[0].tokens) == 8
    with pytest.raises(ValueError, match=naming("p7", f"token {used}", f"0 to {used - 1}")):
        decoder.generate([Request("p7", (3, used), 8)], 0)


def job_of(family, *more):
    return build_unpinned_settings(compose_config(overrides(family, "results", *more)))


def ids(family, *more):
    job = job_of(family, *more)
    return [job.compute_run_id(cell) for cell in job.cells]


@pytest.mark.parametrize(("asked", "said"), [("null", ""), ("0.5", 0.5), ("1.0", "")])
def test_a_row_says_the_drafts_temperature_where_it_is_not_the_targets(family, asked, said):
    told = ("generation.temperature=1", f"generation.draft_temperature={asked}")
    job = job_of(family, *told)
    assert [flatten_facts(job.build_facts(cell))["draft_temperature"] for cell in job.cells] == [
        said
    ] * len(job.cells)


@pytest.mark.parametrize(
    "override", ["name=other", "results=elsewhere", "sink=default", "pair.name=label"]
)
def test_output_settings_leave_the_run_id_alone(family, override):
    assert ids(family, override) == ids(family)


@pytest.mark.parametrize(
    "override",
    [
        *("seed=1", "prompts=3", "generation.temperature=0.5", "generation.top_p=0.9", "warmup=2"),
        *("generation.max_new_tokens=13", "engine.batch_size=2", "engine.dtype=bfloat16"),
        "pair.draft=FAMILY/target",
    ],
)
def test_settings_that_change_the_numbers_change_every_run_id(family, override):
    asked = override.replace("FAMILY", str(family))
    assert not set(ids(family, asked)) & set(ids(family))


def test_the_tree_changes_its_own_cell_only(family):
    narrow, wide = ids(family, "spec=2x3"), ids(family, "decoder.tree.width=4")
    assert narrow[0] == wide[0]
    assert narrow[1] != wide[1]


@pytest.mark.parametrize(
    ("file", "was", "now"),
    [("draft/model.safetensors", b"", b"\x01"), ("rows.jsonl", b"harbour", b"airport")],
)
def test_other_weights_or_rows_in_the_same_place_are_another_cell(tmp_path, file, was, now):
    make_family(tmp_path)
    make_task(tmp_path)
    before, path = job_of(tmp_path), tmp_path / file
    data = path.read_bytes()
    path.write_bytes(data.replace(was, now) if was else data[:-1] + now)
    after = job_of(tmp_path)
    for cell in before.cells:
        assert before.compute_run_id(cell) != after.compute_run_id(cell)
        facts = (job.build_facts(cell).prompts_digest for job in (before, after))
        assert len({*facts}) == 1 + (file == "rows.jsonl")


def test_another_engine_is_another_cell_and_a_job_the_set_of_its_cells(family, monkeypatch):
    assert compute_job_id(["a", "b"]) == compute_job_id(["b", "a"]) != compute_job_id(["a"])
    before = ids(family)
    monkeypatch.setattr(settings, "ENGINE", VERSION + 1)
    assert not set(before) & set(ids(family))


def test_a_policy_that_draws_other_trees_makes_other_cells_of_those_alone(family, monkeypatch):
    asked = "cells=[traversal_paths:2x2,spectr:2x2,rsd_c:2-2]"
    now = job_of(family, asked)
    assert [now.build_facts(cell).tree_revision for cell in now.cells] == ["", "1", "", ""]
    revised = ids(family, asked)
    monkeypatch.setattr(IidPaths, "revision", 0)
    never = ids(family, asked)
    changed = [one != other for one, other in zip(revised, never, strict=True)]
    assert changed == [False, True, False, False]


@pytest.mark.parametrize(
    ("device", "engine", "pair", "resolved"),
    [
        ("cpu", "float32", "bfloat16", "float32"),
        ("cpu", None, "bfloat16", "bfloat16"),
        ("cpu", None, None, "float32"),
        ("cuda", None, None, "bfloat16"),
    ],
)
def test_the_number_format_is_the_engines_else_the_pairs_else_the_devices(
    device, engine, pair, resolved
):
    asked = PairSettings("org/target", None, dtype=pair)
    assert pairs.resolve_dtype(EngineSettings(device, engine), asked) == resolved


def test_a_moved_branch_of_the_hub_is_another_cell(monkeypatch):
    hub = {}
    monkeypatch.setattr(pairs, "find_hub_commit", lambda name, *_: hub.get(name))
    asked = PairSettings("org/target", "org/draft", heads={"medusa": "org/heads"})
    unknown = build_pair(asked, EngineSettings("cpu", "float32"))
    assert pairs.pin_revisions(unknown).revisions == (None, None)
    hub.update({"org/target": "a" * 40, "org/draft": "b" * 40, "org/heads": "c" * 40})
    known = pairs.pin_revisions(unknown, ["medusa"])
    assert [spec.revision for spec in known.specs] == ["a" * 40, "b" * 40] == [*known.revisions]
    assert known.find_heads_fingerprint_or_commit("medusa") == "c" * 40
    assert known.get_run_id_settings() != unknown.get_run_id_settings()


def test_a_repository_in_the_hubs_cache_tells_its_commit(tmp_path, monkeypatch):
    folder, commit = tmp_path / "models--org--tiny", "0123456789abcdef" * 2 + "01234567"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(file_download.constants, "HF_HUB_CACHE", str(tmp_path))
    assert find_hub_commit("org/tiny", fetch=False) == commit
    assert find_hub_commit("org/other", fetch=False) is None
    assert find_hub_commit("embedded:target") is None
