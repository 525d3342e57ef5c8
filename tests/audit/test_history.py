"""Decoders on a toy that remembers three tokens: what a Markov chain cannot tell apart."""

from functools import partial

import pytest

from spec_bench.audit.decoders import block_law
from spec_bench.audit.rules import TOLERANCE
from spec_bench.audit.toys import HistoryModel, random_history
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder

WARM = SamplingSettings(probability_dtype="float64")
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
    got, expected, count = block_law(built, partial(target.law, settings=WARM))
    assert max(abs(got[tokens] - chance) for tokens, chance in expected.items()) <= TOLERANCE
    assert count > 8


def test_the_toy_tells_apart_what_lies_three_tokens_back():
    toys = random_history(2, seed=0)
    law = toys.law((0, 0, 0), 1, WARM), toys.law((1, 0, 0), 1, WARM)
    assert law[0] != law[1]
    assert toys.law((1, 0, 0, 0), 1, WARM) == law[0]
