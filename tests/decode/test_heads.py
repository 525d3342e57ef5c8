"""Draft heads on the engine: what they see, how their trees are merged, what they count."""

import json

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.heads import load_heads
from tests.families import VOCAB, built, decoder_settings, random_requests, tiny_pair
from tests.heads import medusa_heads, recurrent_head

WARM = SamplingSettings(temperature=0.9, top_p=0.95, probability_dtype="float64")
COLD = SamplingSettings(temperature=0, probability_dtype="float64")


def test_merging_prefixes_saves_nodes_and_changes_no_greedy_token():
    pair = tiny_pair("llama", torch.float64)
    merged, apart = (built(name, pair, COLD) for name in ("redrafter", "redrafter apart"))
    saved = 0
    for request in random_requests(6, 20):
        (one,), (other,) = merged.generate([request], 1), apart.generate([request], 1)
        assert one.tokens == other.tokens
        for ours, theirs in zip(one.steps, other.steps, strict=True):
            assert ours.accepted == theirs.accepted
            assert ours.nodes <= theirs.nodes
            saved += theirs.nodes - ours.nodes
    assert saved > 0


def test_heads_see_the_state_from_which_the_target_chose_the_root():
    target, _ = tiny_pair("llama", torch.float64)
    decoder, seen = built("medusa", (target,), COLD), []
    decoder.heads.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    checked = 0
    for request in random_requests(6, 20):
        seen.clear()
        (answer,) = decoder.generate([request], 0)
        tokens, position = answer.tokens, 0
        for state, step in zip(seen, answer.steps, strict=True):
            if position:  # the first root is the prompt's last token, which nobody chose
                with torch.inference_mode():
                    chosen = int(target.module.lm_head(state[0]).argmax())
                assert chosen == tokens[position - 1]
                checked += 1
            position += step.accepted + 1
    assert checked > 50


def test_typical_acceptance_is_marked_approximate_and_exact_rules_exact():
    marks = [
        built(name, tiny_pair("llama")).lossless
        for name in ("medusa", "redrafter", "medusa_typical")
    ]
    assert marks == ["exact", "exact", "approximate"]


def test_the_memory_bound_speed_up_counts_the_heads_own_parameters():
    medusa, redrafter = (built(name, tiny_pair("llama")) for name in ("medusa", "redrafter"))
    assert (medusa.draft_calls, redrafter.draft_calls) == (1, 3)
    expected = medusa.heads.parameter_count / medusa.target.parameters
    assert medusa.speed_ratio == pytest.approx(expected)


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        (None, "uses medusa heads, the pair has none"),
        (recurrent_head(32, VOCAB), "the pair has redrafter heads"),
        (medusa_heads(16, VOCAB), "for hidden states of 16"),
        (medusa_heads(32, VOCAB, 2), "4 levels deep, its drafter reaches 2"),
    ],
)
def test_heads_of_another_model_are_refused(heads, message):
    target, _ = tiny_pair("llama")
    with pytest.raises(ValueError, match=message):
        build_decoder(decoder_settings("medusa"), target, [], WARM, heads=heads)


def test_medusas_published_layout_is_read_whatever_its_config_understates(tmp_path):
    made = medusa_heads(16, VOCAB, 5)
    _, weights, config = made.to_files()
    torch.save(weights, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text(json.dumps(config | {"medusa_num_heads": 2}))
    found = load_heads(str(tmp_path), torch.device("cpu"), torch.float32)
    assert found.shape == made.shape
    assert all(map(torch.equal, found.parameters(), made.parameters()))
