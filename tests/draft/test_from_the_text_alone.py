"""A drafter's proposals hang on the text alone, in batches whose rows retire and move.

Whatever a drafter caches, gathers, moves and catches up with: the law that the walk is told below a
node is the one that plain torch makes of the text and the node's path.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from unittest import mock

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.lookup import Bounds
from spec_bench.engine.mapped_model import MappedModel, VocabularyMap
from spec_bench.tree.chain import Chain
from tests.decode.test_simulated_device import built
from tests.draft import plain
from tests.draft.plain import Target, by_hand
from tests.families import VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import HEADS, dflash_head, p_eagle_head
from tests.kinds import long_requests, tiny_pair_of
from tests.simcuda import DEVICE, SimCuda

WARM = SamplingSettings(probability_dtype="float64")
NEW = (4, 14, 9, 6, 11, 3, 8)


@dataclass(frozen=True)
class Seen:
    """An iteration of a row: its text, every node's path in order, laws [D, V] of inner nodes."""

    text: list
    paths: list
    laws: dict


def seen_of(tree, place, text):
    path_of = {0: ()}
    parents, tokens = tree.parent[place].tolist(), tree.tokens[place].tolist()
    laws, valid = {}, tree.valid[place].tolist()
    for node in range(1, tree.shape.size):
        if valid[node]:
            path_of[node] = (*path_of[parents[node]], tokens[node])
    inner = {parents[node] for node in path_of if node}
    for level, (q, log_q) in enumerate(zip(tree.q, tree.log_q, strict=True)):
        if (law := q if q is not None else log_q) is None:
            continue
        first = tree.shape.level(level).start
        for index, of_node in enumerate(law[place].cpu()):
            if first + index in inner:
                of_node = of_node if q is not None else of_node.exp().unsqueeze(0)
                laws[path_of[first + index]] = of_node
    return Seen(text, [path_of[node] for node in sorted(path_of) if node], laws)


def watched(decoder, requests):
    """Every iteration of every row whose verdict counts; what the host knew of lengths held."""
    seen = []
    commit = decoder._commit

    def noted(now, verdict):
        seen.extend(seen_of(now.tree, at, [*row.tokens]) for at, row in enumerate(now.rows))
        bounds = now.next_lengths()
        counts = commit(now, verdict)
        assert all(bounds.least <= row.length for row in now.rows)
        assert all(row.length <= most for row, most in zip(now.rows, bounds, strict=True))
        return counts

    with mock.patch.object(decoder, "_commit", noted):
        decoder.generate(requests, seed=0)
    return seen


def asked_for(requests):
    return [replace(each, max_new_tokens=new) for each, new in zip(requests, NEW, strict=True)]


SHORT, LONG = asked_for(random_requests(len(NEW), 1)), asked_for(long_requests(len(NEW), 1))
TREE = {
    "tree": {"policy": "widths", "widths": [2, 2, 1], "replacement": False},
    "verifier": {"rule": "recursive_rejection", "replacement": False},
}
# Read: 5 of 6 tokens as others, every seventh in two parts; two of the draft's mean the target's 0.
MEANT = [(7 * token + 3) % VOCAB if token % 6 else -1 for token in range(VOCAB)]
MEANT[5] = MEANT[1]
MAP = VocabularyMap(
    tuple(MEANT.index(token) if token in MEANT else token // 2 for token in range(VOCAB)),
    tuple(MEANT),
    {token: (token, token // 3) for token in range(0, VOCAB, 2) if token not in MEANT},
)


def with_head(head, oracle, *more):
    target, _ = tiny_pair("llama", torch.float64)
    return head, [oracle(dict(head.state_dict()), Target(target.module), *more)]


def head_of(kind):
    return HEADS[kind](32, VOCAB).double()


def eagle3(head):
    return with_head(head, plain.eagle3, (2, 1, 0), head.shape, head.ids)


def dflash(**changes):
    head = dflash_head(32, VOCAB, block=4, **changes).double()
    return with_head(head, plain.dflash, head.shape)


def module_of(which=1):
    return tiny_pair("llama", torch.float64)[which].module


def models(*whiches):
    return None, [plain.language_model(module_of(which)) for which in whiches]


def alone(oracle, *more):
    """Of one draft model."""
    return None, [oracle(module_of(), *more)]


def own_blocks():
    return None, [plain.own_blocks(tiny_pair_of("qwen3")[0].module, (1, 2))]


def looked_up():
    return None, [plain.looked_up_or(plain.language_model(module_of()), VOCAB, 4, 3)]


LM = {"kind": "language_model"}
LAWS = {
    "language model": (LM, lambda: models(1)),
    "two language models": (LM | {"drafts": 2}, lambda: models(1, 0)),
    "own blocks": ({"kind": "own_blocks", "kept": [1, 2]}, own_blocks),
    "other vocabulary": (LM, lambda: alone(plain.other_vocabulary, MAP)),
    "PARD": ({"kind": "pard", "levels": 3, "mask_token": 1}, lambda: alone(plain.pard, 1)),
    "lookup or model": ({"kind": "lookup_or_model", "longest": 4, "shortest": 1}, looked_up),
    "EAGLE": ({"kind": "eagle"}, lambda: with_head(head_of("eagle"), plain.eagle1)),
    "EAGLE-3": ({"kind": "eagle3"}, lambda: eagle3(head_of("eagle3"))),
    "P-EAGLE": (
        {"kind": "eagle3", "parallel": 3},
        lambda: eagle3(p_eagle_head(32, VOCAB).double()),
    ),
    "MTP": ({"kind": "mtp"}, lambda: with_head(head_of("mtp"), plain.mtp, False)),
    "MTP, zeros first": (
        {"kind": "mtp", "zero_first": True},
        lambda: with_head(head_of("mtp"), plain.mtp, True),
    ),
    "DFlash": ({"kind": "dflash"}, dflash),
    "DSpark": ({"kind": "dflash"}, lambda: dflash(markov_rank=3, gated=True)),
}
OTHER_TREES = {
    "two language models": {
        "tree": {"policy": "widths", "widths": [2, 1], "replacement": True},
        "verifier": {"rule": "recursive_rejection", "replacement": True},
    },
    "lookup or model": {"tree": {"policy": "guess_or_draft", "depth": 3}},
}


def decoder_of(name, drafter, heads=None, **changes):
    target, draft = (tiny_pair("llama", torch.float64), tiny_pair_of("qwen3"))[name == "own blocks"]
    drafts = [draft, target]
    if name == "other vocabulary":
        drafts = [MappedModel(draft, MAP, VOCAB)]
    settings = decoder_settings("rsd_c") | {"drafter": drafter} | changes
    return build_decoder(settings, target, drafts, WARM, 3, heads=heads)


def differ(seen, below):
    """Where a law is not what plain torch makes of the text, and how large the difference is."""
    assert sum(len(each.laws) for each in seen) > 20
    for each in seen:
        for path, laws in each.laws.items():
            for law, plainly in zip(laws, below, strict=True):
                found = plainly(each.text, path)[: len(law)].softmax(-1)
                if (error := float((law - found).abs().max())) > 1e-4:  # angles are of float32
                    yield f"{each.text} + {path}: {error}"


@torch.inference_mode()
@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_that_of_the_text_and_the_path_alone(name):
    drafter, made = LAWS[name]
    heads, below = made()
    decoder = decoder_of(name, drafter, heads, **OTHER_TREES.get(name, TREE))
    seen = watched(decoder, LONG if name == "own blocks" else SHORT)
    assert [*differ(seen, below)] == []


NODES = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0))


def of_ranks(below, text):
    """Medusa's nodes: each its parent's so-many-th best token."""
    found = {(): ()}
    for node in NODES:
        above = found[node[:-1]]
        ranked = below(text, above)[:VOCAB].argsort(descending=True).tolist()
        found[node] = (*above, ranked[node[-1]])
    return [*found.values()][1:]


def of_beams(below, text):
    """All beginnings of the 3 likeliest beams of 3 tokens, best first."""
    beams = {(): 0.0}
    for _ in range(3):
        longer = {
            (*beam, token): score + float(value)
            for beam, score in beams.items()
            for token, value in enumerate(below(text, beam)[:VOCAB].log_softmax(-1))
        }
        beams = dict(sorted(longer.items(), key=lambda each: -each[1])[:3])
    return [*dict.fromkeys(beam[:size] for size in (1, 2, 3) for beam in beams)]


def of_copy(text):
    run = tuple(plain.first_match(text, 3, 10))
    return [run[:size] for size in range(1, len(run) + 1)]


ANSWERS = [[1, 2, 3, 1, 2, 4], [40, 38, 1, 40, 38, 2, 33], [58, 47]]
RANKED = {
    "medusa": ({"policy": "node_list", "nodes": [[*node] for node in NODES]}, of_ranks),
    "redrafter": ({"policy": "head_beams", "width": 3, "depth": 3}, of_beams),
    "prompt_lookup": ({}, of_copy),
    "lookup_vote": ({}, lambda text: plain.voted(text, 3, 1, 10)),
    "suffix_decoding": (
        {"width": 3, "depth": 4},
        lambda text: [*chain.from_iterable(by_hand(text, ANSWERS, Bounds(3, 4), 24, 0.1))],
    ),
}


@torch.inference_mode()
@pytest.mark.parametrize("name", RANKED)
def test_proposals_without_a_law_are_those_of_the_text_alone(name):
    settings, (tree, literal) = decoder_settings(name), RANKED[name]
    settings["tree"] = tree if "policy" in tree else settings["tree"] | tree
    heads = None
    if name in HEADS:
        heads, (below,) = with_head(head_of(name), getattr(plain, name))
        literal = partial(literal, below)
    target, _ = tiny_pair("llama", torch.float64)
    often = SamplingSettings(temperature=0.4, probability_dtype="float64")  # texts that repeat
    decoder = build_decoder(settings, target, [], often, 3, heads=heads)
    decoder.remember(ANSWERS)
    longer = [replace(each, max_new_tokens=3 * each.max_new_tokens) for each in SHORT]
    seen = watched(decoder, longer)
    assert sum(len(each.paths) > 0 for each in seen) > 20
    for each in seen:
        assert each.paths == literal(each.text), each.text


@torch.inference_mode()
@pytest.mark.parametrize("name", ["sd", "pard"])
def test_behind_a_gpu_too_the_law_is_that_of_the_text(name):
    """Rows end where the host does not expect it, and the others catch up."""
    draft = module_of()
    below = plain.language_model(draft) if name == "sd" else plain.pard(draft, 1)
    with SimCuda():
        decoder = built(name, 3, 1.0, "none", DEVICE)
        decoder.settings, decoder.policy = WARM, Chain(1 if name == "sd" else 2)
        seen = watched(decoder, SHORT)
    assert [*differ(seen, [below])] == []
