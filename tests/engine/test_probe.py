"""A model is tried when it is loaded: what would be decoded wrongly is refused in one line."""

import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spec_bench.engine import probe
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.layer_masks import LayerMaskMaker
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.engine.probe import check_cached_answers
from tests.kinds import KINDS, VOCAB, core_first, tiny_module

CPU = torch.device("cpu")
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
_SIZE = {"vocab_size": VOCAB, "hidden_size": 32}
_SMALL = _SIZE | {"num_hidden_layers": 3}
_HEADS = _SMALL | {"num_attention_heads": 4, "intermediate_size": 64}
_NEO = {
    "num_layers": 2, "num_heads": 4, "window_size": 8, "attention_types": [[["global", "local"], 1]]
}  # fmt: skip
_MPT = {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256}
_RWKV = {"attention_hidden_size": 32, "intermediate_size": 64, "context_length": 128}
_GEMMA = {"lru_width": 32, "attention_window_size": 16, "head_dim": 8}
_FALCON = {"new_decoder_architecture": False, "alibi": True}
_STATE = "linear_attention|keeps no keys|unexpected keyword"
REFUSED = {
    "rwkv": (_SMALL | _RWKV, "keeps no keys and values of past tokens"),
    "mamba": (_SMALL | {"state_size": 8}, _STATE),
    "recurrent_gemma": (_HEADS | _GEMMA, f"{_STATE}|IndexError"),  # by transformers' version
    "bert": (_HEADS | {"is_decoder": False}, "logits depend on tokens that come later"),
    "gpt_neo": (_SIZE | _NEO, "'gpt_neo' make masks of their own .windows."),
    "mpt": (_MPT, "'mpt' make masks of their own .alibi."),
    "bloom": (_SIZE | {"n_layer": 2, "n_head": 4}, "'bloom' make masks of their own .alibi."),
    "falcon": (_HEADS | _FALCON, "'falcon' make masks of their own .alibi."),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", core_first(KINDS))
def test_every_kind_that_is_decoded_right_passes_in_every_precision(name, dtype):
    check_cached_answers(HuggingFaceModel(tiny_module(name).to(dtype), VOCAB, CPU))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", core_first(name for name, kind in KINDS.items() if kind.open))
def test_a_window_that_is_not_followed_is_caught(name, dtype):
    model = HuggingFaceModel(tiny_module(name).to(dtype), VOCAB, CPU)
    model.mask_maker = LayerMaskMaker(model.module.config.get_text_config(), dtype)
    model.mask_maker.kinds = ("full_attention",)
    with pytest.raises(ValueError, match="differ from those of one plain pass"):
        check_cached_answers(model)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_window_that_is_named_but_not_read_by_the_module_is_refused(dtype):
    module = tiny_module("llama", sliding_window=8).to(dtype)
    with pytest.raises(ValueError, match="differ from those of one plain pass"):
        check_cached_answers(HuggingFaceModel(module, VOCAB, CPU))


@pytest.mark.parametrize("seen", [False, True])
def test_a_deep_models_own_rounding_is_allowed_and_a_wrong_mask_in_it_is_not(seen, monkeypatch):
    module = tiny_module("llama", num_hidden_layers=30)
    for name, weight in module.named_parameters():
        weight.data.mul_(3 if "proj" in name else 1)  # a trained model's rounding, .05 to .2
    if seen:
        run = probe.run_nodes

        def all_before(model, cache, tree, *given):
            tree.ancestors[:] = torch.ones_like(tree.ancestors[0]).tril()
            return run(model, cache, tree, *given)

        monkeypatch.setattr(probe, "run_nodes", all_before)
    model = HuggingFaceModel(module.to(torch.bfloat16), VOCAB, CPU)
    with pytest.raises(ValueError, match="at the nodes of a tree") if seen else nullcontext():
        check_cached_answers(model)


def test_the_probe_leaves_no_trace():
    model = HuggingFaceModel(tiny_module("mistral"), VOCAB, CPU, "dynamo")
    window = model.module.config.sliding_window
    check_cached_answers(model)
    assert model.fused
    assert model.module.config.sliding_window == window
    assert model.timer.take_s() == 0


def test_a_commit_that_keeps_the_wrong_nodes_is_caught(monkeypatch):
    model = HuggingFaceModel(tiny_module("llama"), VOCAB, CPU)
    allocate = model.allocate

    def forgetful(rows, slots):
        cache = allocate(rows, slots)
        monkeypatch.setattr(cache, "commit", lambda row, length, nodes: None)
        return cache

    monkeypatch.setattr(model, "allocate", forgetful)
    with pytest.raises(ValueError, match="behind an accepted path its logits differ"):
        check_cached_answers(model)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_decoded_is_refused_in_one_line(name, tmp_path):
    settings, reason = REFUSED[name]
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings))
    module.save_pretrained(tmp_path / "it")
    with pytest.raises(ValueError, match=reason) as caught:
        load_model(ModelSpec(str(tmp_path / "it")))
    text = str(caught.value)
    assert "\n" not in text and type(module).__name__ in text and str(tmp_path / "it") in text


def test_an_encoder_with_a_decoder_is_refused_in_one_line(tmp_path):
    config = AutoConfig.for_model("t5", vocab_size=VOCAB, d_model=32, num_layers=2, num_heads=4)
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="encoder with a decoder, and only") as caught:
        load_model(ModelSpec(str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_the_embedded_pair_is_tried_in_a_fraction_of_a_second():
    folder = Path(__file__).parents[2] / "spec_bench" / "embedded" / "models"
    models = [load_model(ModelSpec(str(path))) for path in sorted(folder.iterdir())]
    assert len(models) >= 2
    for model in models:
        started = time.process_time()
        check_cached_answers(model)
        assert time.process_time() - started < 2
