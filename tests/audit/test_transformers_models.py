"""Decoders over a real transformers model, plain and captured: its own law, by enumeration."""

import itertools
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.audit.catalogue import WARM, tree_cases
from spec_bench.audit.decoders import block_law
from spec_bench.core.warp import probs
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model_spec import COMPILERS

VOCAB = 3
CASES = {case.name: case.config for case in tree_cases("exact")}
AR = "root - + recursive_rejection with replacement: true"
DRAFTED = (
    "chain 2 + recursive_rejection with replacement: false",
    "iid_paths 2x2, i.i.d. + k_seq",
    "widths 2-1, without replacement + recursive_rejection with replacement: false",
)
NEEDS_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="needs a C++ compiler"
)


def random_llama(seed, how):
    """Two layers, three tokens, float64; sharpened, so that tokens differ in probability."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    module = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return HuggingFaceModel(module, VOCAB, torch.device("cpu"), how)


@torch.no_grad()
def own_law(target, prefix, length):
    """P(continuation | prefix) by the module itself: one plain pass over all sequences."""
    continuations = list(itertools.product(range(VOCAB), repeat=length))
    tokens = torch.tensor([[*prefix, *continuation] for continuation in continuations])
    at = probs(target.module(tokens).logits[:, len(prefix) - 1 : -1], WARM)
    chances = at.gather(2, tokens[:, len(prefix) :, None]).squeeze(2).prod(dim=1)
    return dict(zip(continuations, chances.tolist(), strict=True))


def error(config, how):
    """The largest error of one block's law."""
    if how != "none":
        torch._dynamo.reset()  # imports for seconds
    target, draft = random_llama(0, how), random_llama(1, how)
    built = config.build(target, [draft], WARM)
    got, expected, _ = block_law(built, lambda prefix, length: own_law(target, prefix, length))
    assert max(expected.values()) - min(expected.values()) > 0.05  # no uniform law
    return max(abs(got[tokens] - chance) for tokens, chance in expected.items())


@pytest.mark.parametrize("name", [AR, *DRAFTED])
def test_one_iteration_has_exactly_the_models_law(name):
    assert error(CASES[name], "none") <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTED)
@pytest.mark.parametrize(
    "how", ["static", "dynamo", pytest.param("inductor", marks=NEEDS_COMPILER)]
)
def test_a_captured_model_keeps_exactly_the_models_law(how, name):
    # Fused kernels round otherwise, and the norms compute in float32.
    assert error(CASES[name], how) <= (1e-7 if how == "inductor" else 1e-9)
