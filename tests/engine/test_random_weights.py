"""Architectures without their weights: the published sizes, reproducible noise, clear errors."""

import json

import httpx
import pytest
import torch
from huggingface_hub.errors import GatedRepoError
from transformers import AutoModelForCausalLM, AutoTokenizer

from spec_bench.engine.architectures import ARCHITECTURES, architecture
from spec_bench.engine.loading import (
    ModelSpec,
    TokenIds,
    common_tokenizer,
    load_model,
    load_tokenizer,
    random_module,
    read_context_length,
)
from tests.said import naming

PUBLISHED = {
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama_33b": 32_528_943_616,
    "llama_68m": 68_030_208,
    "llama_160m": 162_417_408,
    "opt_125m": 125_239_296,
    "opt_350m": 331_196_416,
    "opt_1.3b": 1_315_758_080,
    "opt_13b": 12_853_473_280,
    "opt_30b": 29_974_540_288,
    "opt_66b": 65_719_701_504,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_architecture_has_the_published_number_of_parameters(name):
    module = random_module(f"random:{name}", torch.float16, "meta", 0)
    assert sum(weight.numel() for weight in module.parameters()) == PUBLISHED[name]


def test_the_unpublished_drafter_has_the_ratio_that_the_papers_tables_imply():
    module = random_module("random:llama_115m", torch.float16, "meta", 0)
    ratio = sum(weight.numel() for weight in module.parameters()) / PUBLISHED["llama2_7b"]
    # The interval of r that fits every MBSU of Llama-2-7B within print rounding.
    assert 0.017348 <= ratio <= 0.017361


@pytest.mark.parametrize("name", ["llama_tiny", "opt_tiny"])
def test_weights_are_those_of_their_seed_and_leave_other_randomness_alone(name):
    before = torch.random.get_rng_state()
    first, again, other = (
        random_module(f"random:{name}", torch.bfloat16, "cpu", seed).state_dict()
        for seed in (0, 0, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
    assert {weight.dtype for weight in first.values()} == {torch.bfloat16}
    assert all(torch.isfinite(weight).all() for weight in first.values())


@pytest.mark.parametrize("name", ["llama_tiny", "opt_tiny"])
def test_a_random_model_loads_like_any_other(name):
    model = load_model(ModelSpec(f"random:{name}", dtype="float32", seed=3))
    assert model.vocab_size == len(load_tokenizer(f"random:{name}")) == 512
    assert model.max_positions == read_context_length(f"random:{name}") == 512
    expected = random_module(f"random:{name}", torch.float32, "cpu", 3)
    tokens = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.equal(model.module(tokens).logits, expected(tokens).logits)
        assert model.module(tokens).logits.std() > 0


def test_a_folder_with_a_config_is_an_architecture(tmp_path):
    tiny = {**ARCHITECTURES["llama_tiny"], "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    assert architecture(f"random:{tmp_path}")["num_hidden_layers"] == 3
    assert len(load_model(ModelSpec(f"random:{tmp_path}")).module.model.layers) == 3


def test_a_model_that_projects_its_embeddings_as_opt_350m_does_loads(tmp_path):
    shape = {"word_embed_proj_dim": 32, "do_layer_norm_before": False}
    (tmp_path / "config.json").write_text(json.dumps({**ARCHITECTURES["opt_tiny"], **shape}))
    model = load_model(ModelSpec(f"random:{tmp_path}"))
    assert model.module.get_input_embeddings().weight.shape == (512, 32)
    assert model.vocab_size == 512


def test_an_unknown_architecture_is_refused_with_the_choices():
    with pytest.raises(ValueError, match=naming("'random:llama9'", "llama2_7b")):
        architecture("random:llama9")


def test_random_weights_are_made_on_one_device():
    with pytest.raises(ValueError, match=naming("target_device_map", "'auto'")):
        ModelSpec("random:llama_tiny", device_map="auto")


def test_models_without_tokenizers_must_embed_the_same_tokens():
    tokenizer, tokens = common_tokenizer([TokenIds(512), TokenIds(512)])
    assert (len(tokenizer), tokens) == (512, 512)
    with pytest.raises(ValueError, match=naming("32000", "50272")):
        common_tokenizer([TokenIds(32000), TokenIds(50272)])


def test_a_text_put_to_token_ids_says_which_task_to_take():
    with pytest.raises(ValueError, match=naming("task=random")):
        TokenIds(8)("a text")
    assert TokenIds(8).decode((3, 1)) == "3 1"


@pytest.mark.parametrize("what", [AutoModelForCausalLM, AutoTokenizer])
def test_a_gated_repository_is_one_line_that_says_what_to_do(monkeypatch, what):
    def refused(path, **options):
        response = httpx.Response(403, request=httpx.Request("GET", "https://hub/x"))
        gated = GatedRepoError("Cannot access gated repo.\nVisit ...", response=response)
        # How transformers passes it on.
        raise OSError("You are trying to access a gated repo.\nMake sure ...") from gated

    monkeypatch.setattr(what, "from_pretrained", refused)
    load = load_tokenizer if what is AutoTokenizer else lambda path: load_model(ModelSpec(path))
    with pytest.raises(ValueError, match="is gated; request access on its model page") as caught:
        load("meta-llama/Llama-2-7b-hf")
    assert "(meta-llama/Llama-2-7b-hf)" in str(caught.value)
    assert "HF_TOKEN" in str(caught.value)
    assert "\n" not in str(caught.value)
