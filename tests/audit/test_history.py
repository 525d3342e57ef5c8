"""Decoders' laws by enumeration: on a toy that remembers three tokens and on a real model."""

import itertools
from functools import partial

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.audit.catalogue import WARM, iter_audit_cases
from spec_bench.audit.decoders import enumerate_block_law
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.warp import warped_probs
from spec_bench.decode.config import read_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from tests.families import NEEDS_COMPILER
from tests.toys import HistoryModel, random_history

REPLACED = {"rule": "recursive_rejection", "replacement": True}
DISTINCT = {"rule": "recursive_rejection", "replacement": False}
TRAVERSAL, OPTIMAL = {"rule": "traversal"}, {"rule": "optimal"}


def widths(*children, replacement):
    return {"policy": "widths", "widths": list(children), "replacement": replacement}


def paths(depth, **more):
    return {"policy": "iid_paths", "paths": 2, "depth": depth, **more}


def decoder(tree, verifier, drafts=1):
    drafter = {"kind": "language_model", "drafts": drafts}
    return {"name": "toy", "drafter": drafter, "tree": tree, "verifier": verifier}


CHAIN = {"policy": "chain", "depth": 3}
STOPS = {"policy": "dynamic_chain", "depth": 3, "confidence": 0.5}
SLOTS = {"policy": "best_slots", "width": 2, "depth": 3, "total": 4}
BEST = {"policy": "top_and_sample", "widths": [2, 1, 1]}
TREE = widths(2, 1, 1, replacement=False)
CASES = {
    "K-SEQ, two paths of three": (2, decoder(paths(3), {"rule": "k_seq"})),
    "chain of three": (2, decoder(CHAIN, DISTINCT)),
    "widths 2-1-1, without replacement": (2, decoder(TREE, DISTINCT)),
    "widths 2-1-1, replacement": (2, decoder(widths(2, 1, 1, replacement=True), REPLACED)),
    "a block of three": (2, decoder(CHAIN, TRAVERSAL)),
    "whole paths of widths 2-1-1": (2, decoder(TREE, TRAVERSAL)),
    "the best and one drawn, 2-1-1": (2, decoder(BEST, {"rule": "top_and_sample"})),
    "the optimal rule, two paths of two": (2, decoder(paths(2), OPTIMAL)),
    "the optimal rule, two paths of three": (2, decoder(paths(3), OPTIMAL)),
    "two paths of three, merged, as whole paths": (2, decoder(paths(3, merged=True), TRAVERSAL)),
    "a chain that stops, as a block": (3, decoder(STOPS, TRAVERSAL)),
    "the best slots of three levels": (2, decoder(SLOTS, DISTINCT)),
    "the best slots of three levels, as whole paths": (2, decoder(SLOTS, TRAVERSAL)),
    "three children from two drafts": (3, decoder(widths(3, replacement=True), REPLACED, drafts=2)),
}


def toy(settings, vocab):
    target = random_history(vocab, seed=0)
    noises = [random_history(vocab, 1000 + n) for n in range(settings["drafter"]["drafts"])]
    drafts = [HistoryModel(target.logits + noise.logits) for noise in noises]
    return read_decoder(settings, WARM).build(target, drafts, WARM), target


@pytest.mark.parametrize("name", CASES)
def test_one_iteration_has_exactly_the_law_of_a_model_with_a_memory(name):
    vocab, settings = CASES[name]
    built, target = toy(settings, vocab)
    got, expected, count = enumerate_block_law(
        built, partial(target.compute_continuation_law, settings=WARM)
    )
    assert max(abs(got[tokens] - chance) for tokens, chance in expected.items()) <= TOLERANCE
    assert count > 8


def test_the_toy_tells_apart_what_lies_three_tokens_back():
    toys = random_history(2, seed=0)
    law = (
        toys.compute_continuation_law((0, 0, 0), 1, WARM),
        toys.compute_continuation_law((1, 0, 0), 1, WARM),
    )
    assert law[0] != law[1]
    assert toys.compute_continuation_law((1, 0, 0, 0), 1, WARM) == law[0]


VOCAB = 3
EXACT = {case.name: case.config for case in iter_audit_cases("exact")}
AR = "root - + recursive_rejection with replacement: true"
DRAFTED = (
    "chain 2 + recursive_rejection with replacement: false",
    "iid_paths 2x2, i.i.d. + k_seq",
    "widths 2-1, without replacement + recursive_rejection with replacement: false",
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
    at = warped_probs(target.module(tokens).logits[:, len(prefix) - 1 : -1], WARM)
    chances = at.gather(2, tokens[:, len(prefix) :, None]).squeeze(2).prod(dim=1)
    return dict(zip(continuations, chances.tolist(), strict=True))


def error(config, how):
    """The largest error of one block's law."""
    if how != "none":
        torch._dynamo.reset()  # imports for seconds
    target, draft = random_llama(0, how), random_llama(1, how)
    built = config.build(target, [draft], WARM)
    got, expected, _ = enumerate_block_law(
        built, lambda prefix, length: own_law(target, prefix, length)
    )
    assert max(expected.values()) - min(expected.values()) > 0.05  # no uniform law
    return max(abs(got[tokens] - chance) for tokens, chance in expected.items())


@pytest.mark.parametrize("name", [AR, *DRAFTED])
def test_one_iteration_has_exactly_the_models_law(name):
    assert error(EXACT[name], "none") <= 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTED)
@pytest.mark.parametrize(
    "how", ["static", "dynamo", pytest.param("inductor", marks=NEEDS_COMPILER)]
)
def test_a_captured_model_keeps_exactly_the_models_law(how, name):
    # Fused kernels round otherwise, and the norms compute in float32.
    assert error(EXACT[name], how) <= (1e-7 if how == "inductor" else 1e-9)
