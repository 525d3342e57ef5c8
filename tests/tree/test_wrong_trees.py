"""Trees that look like the right ones and are not: each is caught, and by how much it is off."""

import pytest

from spec_bench.audit.catalogue import WARM
from spec_bench.audit.decoders import enumerated_error
from spec_bench.audit.rules import TOLERANCE
from spec_bench.decode.config import read_decoder
from spec_bench.tree.chain import DynamicChain
from spec_bench.tree.dynamic import BestSlots
from spec_bench.tree.widths import IidPaths, Widths

LM = {"kind": "language_model"}
REJECTION = {"rule": "recursive_rejection", "replacement": False}
TRAVERSAL = {"rule": "traversal"}


class CutByToken(BestSlots):
    """A slot is kept for the probability of the token that was drawn into it."""

    def children(self, tree, scores, above, draws, **more):
        tokens, score, _, log_q = super().children(tree, scores, above, draws, **more)
        return tokens, score, score, log_q


class ReversedSlots(BestSlots):
    """Siblings are tested in the reverse of the order drawn."""

    def children(self, tree, scores, above, draws, **more):
        tokens, score, value, log_q = super().children(tree, scores, above, draws, **more)
        return tokens.flip(-1), score.flip(-1), value, log_q


class Reranked(Widths):
    """Siblings are drawn, and then tested from the draft's likeliest on."""

    def grow(self, tree, scores, draws):
        super().grow(tree, scores, draws)
        nodes, width = tree.frontier, self.widths[tree.grown - 1]
        tokens = tree.tokens[:, nodes].unflatten(1, (-1, width))
        order = scores[:, :, 0].gather(-1, tokens).sort(dim=-1, descending=True).indices
        tree.tokens[:, nodes] = tokens.gather(-1, order).flatten(1)


class Dropped(DynamicChain):
    """The token that stopped the chain is not verified."""

    def plant(self, ground):
        tree = super().plant(ground)
        for level in range(tree.shape.depth):
            q = tree.q[level]
            assert q is not None
            token = tree.tokens[:, level + 1 : level + 2]
            tree.valid[:, level + 1] &= (q[:, 0, 0].gather(1, token) >= self.confidence).squeeze(1)
        return tree


class MergedAlone(IidPaths):
    """Equal prefixes are merged, and a child's law stays q, its earlier siblings in it."""

    def siblings(self, settings):
        return "iid"

    def grow(self, tree, scores, draws):
        super().grow(tree, scores, draws)
        tree.q[-1], tree.log_q[-1] = scores.exp(), None


SLOTS = {"policy": "best_slots", "width": 2, "depth": 1, "total": 2}
CHAIN = {"policy": "dynamic_chain", "depth": 3, "confidence": 0.4}
PATHS = {"policy": "iid_paths", "paths": 2, "depth": 2, "merged": True}
DISTINCT = {"policy": "widths", "widths": [2], "replacement": False}
WRONG = [
    (CutByToken(2, 1, 1), SLOTS | {"total": 1}, REJECTION),
    (CutByToken(2, 1, 1), SLOTS | {"total": 1}, TRAVERSAL),
    (ReversedSlots(2, 1, 2), SLOTS, REJECTION),
    (ReversedSlots(2, 1, 2), SLOTS, TRAVERSAL),
    (Reranked((2,), False), DISTINCT, REJECTION),
    (Reranked((2,), False), DISTINCT, TRAVERSAL),
    (Dropped(3, 0.4), CHAIN, REJECTION),
    (Dropped(3, 0.4), CHAIN, TRAVERSAL),
    (MergedAlone(2, 2, True), PATHS, TRAVERSAL),
]


def error_of(tree, verifier, alter):
    given = {"name": "altered", "drafter": LM, "tree": tree, "verifier": verifier}
    return enumerated_error(read_decoder(given, WARM), WARM, vocab=3, seed=3, alter=alter)[0]


@pytest.mark.parametrize(
    ("policy", "tree", "verifier"),
    WRONG,
    ids=[f"{type(policy).__name__}, {verifier['rule']}" for policy, _, verifier in WRONG],
)
def test_a_wrong_tree_is_caught(policy, tree, verifier):
    def alter(decoder):
        decoder.policy = policy

    assert error_of(tree, verifier, alter) > 5e-3
    assert error_of(tree, verifier, None) <= TOLERANCE
