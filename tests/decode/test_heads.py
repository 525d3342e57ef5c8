"""Draft heads on the engine: exact where they say so, batch-free, and their trees."""

import copy

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.decode.decoder import Decoder
from tests.decode.test_greedy import BATCHES, differences_from_generate
from tests.families import ARCHITECTURES, VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import medusa_heads, recurrent_head

WARM = SamplingSettings(temperature=0.9, top_p=0.95, probability_dtype="float64")
NODES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]
NAMES = ("medusa", "redrafter", "redrafter apart")


def settings_of(name, rule=None):
    decoder = decoder_settings(name.split()[0])
    if name == "medusa":
        decoder["tree"]["nodes"] = NODES
    else:
        decoder["tree"] |= {"width": 4, "depth": 3}
    if name.endswith("apart"):
        decoder["tree_attention"] = False
    if rule:
        decoder["verifier"] = rule
    return decoder


def decoder_of(name, settings, *, architecture="llama", dtype=torch.float32, rows=1, rule=None):
    target, _ = tiny_pair(architecture, dtype)
    make = medusa_heads if name == "medusa" else recurrent_head
    heads = make(target.hidden_size, VOCAB).to(dtype)
    built = build_decoder(settings_of(name, rule), target, [], settings, rows, heads=heads)
    assert isinstance(built, Decoder)
    return built


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_output_equals_generate(architecture, name, batch):
    decoder = decoder_of(
        name, SamplingSettings(temperature=0), architecture=architecture, rows=batch
    )
    differences = differences_from_generate(decoder, architecture, batch)
    assert all(difference.near_tie for difference in differences), differences
    assert len(differences) <= 1


@pytest.mark.parametrize("rule", [None, {"rule": "typical"}], ids=["exact", "typical"])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_do_not_depend_on_the_batch_or_the_order(name, rule):
    requests = random_requests(7, 16)

    def answers(asked, batch):
        decoder = decoder_of(name, WARM, dtype=torch.float64, rows=batch, rule=rule)
        return {
            generation.prompt_id: generation.tokens
            for start in range(0, len(asked), batch)
            for generation in decoder.generate(asked[start : start + batch], 3)
        }

    alone = answers(requests, 1)
    assert answers(requests, 4) == alone
    assert answers(requests[::-1], 3) == alone


def test_merging_prefixes_saves_nodes_and_changes_no_greedy_token():
    greedy = SamplingSettings(temperature=0, probability_dtype="float64")
    merged, apart = (
        decoder_of(name, greedy, dtype=torch.float64) for name in ("redrafter", "redrafter apart")
    )
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
    decoder = decoder_of(
        "medusa", SamplingSettings(temperature=0, probability_dtype="float64"), dtype=torch.float64
    )
    seen = []
    assert decoder.heads is not None
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
    assert decoder_of("medusa", WARM).lossless == "exact"
    assert decoder_of("redrafter", WARM).lossless == "exact"
    assert decoder_of("medusa", WARM, rule={"rule": "typical"}).lossless == "approximate"


def test_the_memory_bound_speed_up_counts_the_heads_own_parameters():
    medusa, redrafter = decoder_of("medusa", WARM), decoder_of("redrafter", WARM)
    assert medusa.heads is not None
    assert medusa.draft_calls == 1
    assert redrafter.draft_calls == 3
    expected = medusa.heads.parameter_count / medusa.target.parameters
    assert medusa.speed_ratio == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafter": {"kind": "redrafter"}}, "does not go with tree policy 'node_list'"),
        ({"tree": {"nodes": "oak"}}, "'oak' is no node list; known: mc_sim_7b_63"),
        ({"tree": {"nodes": [[0, 0]]}}, r"node \[0, 0\] has no parent \[0\]"),
        ({"verifier": {"rule": "typical", "epsilon": 2}}, "verifier.epsilon must be a number"),
        ({"verifier": {"rule": "typical", "alpha": 2}}, "verifier.alpha does not belong"),
        ({"verifier": {"rule": "k_seq"}}, "exact only for siblings drawn 'iid'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(change, message):
    decoder = copy.deepcopy(decoder_settings("medusa"))
    for part, values in change.items():
        decoder[part] = values if part == "verifier" else {**decoder[part], **values}
    with pytest.raises(ValueError, match=message):
        read_decoder(decoder)


def test_heads_of_another_model_are_refused():
    target, _ = tiny_pair("llama")
    for heads, message in (
        (None, "uses medusa heads, the pair has none"),
        (recurrent_head(target.hidden_size, VOCAB), "the pair has redrafter heads"),
        (medusa_heads(16, VOCAB), "for hidden states of 16"),
        (medusa_heads(target.hidden_size, VOCAB, 2), "3 levels deep, its drafter reaches 2"),
    ):
        with pytest.raises(ValueError, match=message):
            build_decoder(settings_of("medusa"), target, [], WARM, heads=heads)
