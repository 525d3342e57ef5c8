"""Decoders on a toy that remembers three tokens: what a Markov chain cannot tell apart."""

from functools import partial

import pytest

from spec_bench.audit.decoders import block_law
from spec_bench.audit.rules import TOLERANCE
from spec_bench.audit.toys import HistoryModel, random_history
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import read_decoder
from spec_bench.records.types import Request

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


def toy(settings, vocab, rows=1):
    target = random_history(vocab, seed=0)
    count = settings["drafter"]["drafts"]
    drafts = [
        HistoryModel(target.logits + random_history(vocab, seed=1000 + index).logits)
        for index in range(count)
    ]
    return read_decoder(settings, WARM).build(target, drafts, WARM, rows), target


SLOW = ("the optimal rule, two paths of three",)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
)
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


def test_several_iterations_in_a_batch_commit_the_tokens_that_were_accepted():
    # What is in the cache after commits must be what was delivered: so says the greedy answer.
    cold = SamplingSettings(temperature=0.0, probability_dtype="float64")
    target = random_history(3, seed=4)
    draft = HistoryModel(target.logits + random_history(3, seed=5).logits)
    requests = [Request(str(i), (i % 3, 1, 2), 12) for i in range(4)]
    root = {"name": "ar", "drafter": {"kind": "none"}, "tree": {"policy": "root"}}
    plain = read_decoder(root | {"verifier": DISTINCT}, cold).build(target, [], cold)
    wanted = [plain.generate([request], seed=0)[0].tokens for request in requests]
    assert len(set(wanted)) > 1
    settings = decoder(widths(2, 2, 1, replacement=False), DISTINCT)
    built = read_decoder(settings, cold).build(target, [draft], cold, 2)
    assert [answer.tokens for answer in built.generate(requests, seed=0)] == wanted
