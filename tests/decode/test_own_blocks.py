"""A target that drafts for itself: its first blocks bit for bit, its text whatever is kept."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from spec_bench.core.warp import SamplingSettings
from spec_bench.draft.language_model import OwnBlocks
from spec_bench.engine.loading import adopt_model
from spec_bench.engine.own_blocks import with_blocks
from spec_bench.engine.tree_pass import run_pending
from tests.families import GREEDY, built, decoder_settings, random_requests, tiny_pair
from tests.said import naming


def of_blocks(family="llama", temperature=0.0, **kept):
    """A target that drafts with some of its blocks."""
    settings = decoder_settings("own_blocks")["drafter"] | kept
    sampling = SamplingSettings(temperature=temperature)
    return built("own_blocks", tiny_pair(family, torch.float64), sampling, 2, drafter=settings)


def tokens(decoder):
    return [each.tokens for each in decoder.generate(random_requests(4, 16), seed=0)]


@pytest.mark.parametrize("family", ["llama", "opt"])
@pytest.mark.parametrize("kept", [{"first": 1}, {"kept": (0, 2)}, {"kept": (1,)}, {}])
def test_whatever_is_kept_the_text_is_the_targets(family, kept):
    plain = built("ar", tiny_pair(family, torch.float64), GREEDY, 2)
    assert tokens(of_blocks(family, **kept)) == tokens(plain)


def test_all_blocks_accept_all():
    decoder = of_blocks(temperature=1.0, first=3)
    (found,) = decoder.generate(random_requests(1, 16), seed=0)
    assert [step.accepted for step in found.steps] == [3, 3, 3, 3]
    assert decoder.speed_ratio == 1.0


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_the_first_blocks_keep_what_the_target_keeps_of_them(family):
    target, _ = tiny_pair(family)
    view = with_blocks(target, (0, 1))
    given = torch.tensor([[1, 2, 3, 4]])
    caches = [each.allocate(1, 8) for each in (target, view)]
    for each, cache in zip((target, view), caches, strict=True):
        with torch.inference_mode():
            run_pending(each, cache, [0], given)
    for layer in range(2):
        for kept in ("keys", "values"):
            whole, part = (getattr(cache.layers[layer], kept) for cache in caches)
            assert torch.equal(whole[:, :, :4], part[:, :, :4])
    assert target.blocks == 3
    assert view.parameters < target.parameters


def test_an_early_exit_is_transformers():
    target, _ = tiny_pair("llama", torch.float64)
    view = with_blocks(target, (0,))
    cache, given = view.allocate(1, 8), torch.tensor([[1, 2, 3]])
    config = target.module.config
    with torch.inference_mode():
        ours = run_pending(view, cache, [0], given).logits[0, 0]
        before, config.num_hidden_layers = config.num_hidden_layers, 1  # as assistant_early_exit
        try:
            theirs = target.module(input_ids=given, use_cache=False).logits[0, -1]
        finally:
            config.num_hidden_layers = before
    torch.testing.assert_close(ours, theirs[: view.vocab_size])


def test_blocks_that_the_target_lacks_are_named():
    with pytest.raises(ValueError, match="blocks 0 to 2, got 3"):
        of_blocks(kept=(0, 3))


GEMMA = {
    **{"vocab_size": 64, "vocab_size_per_layer_input": 64, "hidden_size": 32, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size_per_layer_input": 8},
    **{"num_hidden_layers": 4, "num_kv_shared_layers": 2},
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
FAMILIES = {
    "gemma3n_text": {"intermediate_size": [64] * 4, "activation_sparsity_pattern": [0.0] * 4},
    "gemma4_text": {"intermediate_size": 64, "global_head_dim": 8},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_whose_blocks_cannot_be_left_out_is_refused_in_one_line(name):
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **GEMMA, **FAMILIES[name]))
    target = adopt_model(module, name)
    said = naming("blocks 0, 2, 3 of the target", type(module).__name__, "shape")
    with pytest.raises(ValueError, match=said) as caught:
        OwnBlocks().model(target)
    assert "\n" not in str(caught.value)


def test_by_default_every_other_block_with_the_first_and_the_last():
    assert OwnBlocks().places(6) == (0, 2, 4, 5)
    assert OwnBlocks().places(5) == (0, 2, 4)
    assert OwnBlocks().places(1) == (0,)
