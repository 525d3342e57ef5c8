"""A head that is handed the wrong hidden states is noticed, and which are right is said."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.draft.eagle import misreading
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.eagle_shape import EagleShape
from spec_bench.engine.hugging_face import HuggingFaceModel

TOKENS, WIDTH, CHANGES = 20, 32, 2  # the block that changes the residual stream, the only one
RIGHT = (1, 2, 3)


def counting_target():
    """Six blocks; after token x it says x + 1. With it, per token, what stands behind block 2."""
    torch.manual_seed(0)
    module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=WIDTH,
            num_hidden_layers=6,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=256,
            tie_word_embeddings=False,
        )
    ).eval()
    with torch.no_grad():
        module.model.embed_tokens.weight.normal_()
        for number, block in enumerate(module.model.layers):
            block.self_attn.o_proj.weight.zero_()
            for part in (block.mlp.gate_proj, block.mlp.up_proj, block.mlp.down_proj):
                part.weight.normal_(std=0.5 if number == CHANGES else 0.0)
        states = module(torch.arange(TOKENS).unsqueeze(1), output_hidden_states=True).hidden_states
        module.lm_head.weight.copy_(rows_for(states[-1][:, 0], 1))
    return HuggingFaceModel(module, TOKENS, torch.device("cpu")), states[CHANGES + 1][:, 0]


def rows_for(states, further):
    """A last layer that says x + ``further`` at token x's state."""
    return torch.nn.functional.normalize(states, dim=-1).roll(further, dims=0)


def reading_head(states):
    """Passes on the third hidden state that it is handed, and reads the token after next off it."""
    head = Eagle3Head(EagleShape(3, WIDTH, WIDTH, TOKENS, TOKENS, 2, 2, 16, 8))
    with torch.no_grad():
        for parameter in head.layers.parameters():
            parameter.zero_()
        head.fc.weight.zero_()
        head.fc.weight[:, 2 * WIDTH :] = torch.eye(WIDTH)
        head.lm_head.weight.copy_(rows_for(states, 2))
    return head.eval()


def test_a_head_that_reads_what_it_learned_from_is_not_complained_of():
    target, states = counting_target()
    assert misreading(reading_head(states), target, RIGHT, (3, 4, 5)) is None


@pytest.mark.parametrize(
    ("moved", "message"),
    [((0, 1, 2), "one block later, 1, 2, 3"), ((3, 2, 1), "in the opposite order, 1, 2, 3")],
)
def test_a_head_with_swapped_layer_ids_is_noticed(moved, message):
    target, states = counting_target()
    said = misreading(reading_head(states), target, moved, (3, 4, 5))
    assert said is not None
    assert message in said
    assert "100% with those" in said
    assert "drafter.layer_ids" in said
