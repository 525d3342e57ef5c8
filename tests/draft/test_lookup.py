"""What is proposed hangs on the text alone: n-grams, suffixes, guesses; rows retire and move."""

import random
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from unittest import mock

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from spec_bench.audit.toys import make_random_markov_model
from spec_bench.core.host_device import CommittedTokens
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import DraftResources
from spec_bench.draft.lookup import FirstMatchIndex, GuessBounds, NgramIndex
from spec_bench.draft.recycling import RecyclingDraftState
from spec_bench.draft.suffix import AnswerMemory, Suffix, SuffixIndex
from spec_bench.engine.mapped_model import VocabularyMap, VocabularyMappedModel
from tests.draft import plain
from tests.draft.plain import Target, by_hand, first_match
from tests.families import VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import HEADS, dflash_head, eagle3_head, p_eagle_head
from tests.kinds import long_requests, tiny_pair_of


def guesses(tokens, bounds, longest=3, kind=NgramIndex):
    """The tokens are given in two portions."""
    index = kind(longest)
    index.extend(tokens[: len(tokens) // 2])
    index.guess_tree(bounds)
    index.extend(tokens[len(tokens) // 2 :])
    return [[tuple(guess) for guess in level] for level in index.guess_tree(bounds)]


VOTES = [7, 1, 7, 2, 7, 1, 7, 3, 7]
LATER = [1, 2, 3, 4, 5, 3, 9, 1, 2, 3]  # 1 2 3 was followed by 4, later a 3 alone by 9
BEGUN = [7, 1, 4, 7, 1, 5, 7, 2, 6, 7]
RARE = [*[7, 1] * 9, 7, 2, 7]
COPY = [1, 2, 8, 9, 1, 2, 7, 7, 1, 2, 7, 7, 1, 2]


@pytest.mark.parametrize(
    ("tokens", "bounds", "longest", "levels"),
    [
        (LATER, GuessBounds(1, 3), 3, [[(4, 0)], [(5, 0)], [(3, 0)]]),
        (LATER, GuessBounds(1, 2), 1, [[(9, 0)], [(1, 0)]]),
        (VOTES, GuessBounds(3, 1), 1, [[(1, 0), (3, 0), (2, 0)]]),  # by count, then by recency
        (VOTES, GuessBounds(2, 1), 1, [[(1, 0), (3, 0)]]),
        (BEGUN, GuessBounds(3, 2), 1, [[(1, 0), (2, 0)], [(6, 1), (5, 0), (4, 0)]]),
        (BEGUN, GuessBounds(3, 2, nodes_per_match_token=3.0), 1, [[(1, 0), (2, 0)], [(6, 1)]]),
        (RARE, GuessBounds(2, 1, min_share=0.2), 1, [[(1, 0)]]),
        # A share is of the occurrences before the end; one of exactly that share is proposed.
        ([1, 2, 1, 3, 1], GuessBounds(2, 1, min_share=0.5), 1, [[(3, 0), (2, 0)]]),
        (RARE, GuessBounds(1, 8, nodes_per_match_token=2.0), 1, [[(1, 0)], [(7, 0)]]),
        (COPY, GuessBounds(1, 3), 2, [[(7, 0)], [(7, 0)], [(1, 0)]]),
        ([1, 2, 3], GuessBounds(2, 4), 3, []),
        ([], GuessBounds(2, 4), 3, []),
    ],
)
def test_what_followed_before_is_guessed_by_the_longest_match_and_by_votes(
    tokens, bounds, longest, levels
):
    assert guesses(tokens, bounds, longest) == levels


def by_transformers(tokens, longest, count):
    generator = PromptLookupCandidateGenerator(
        num_output_tokens=count, max_matching_ngram_size=longest, max_length=10_000
    )
    candidates, _ = generator.get_candidates(torch.tensor([tokens]))
    return candidates[0, len(tokens) :].tolist()


@pytest.mark.parametrize(("longest", "count"), [(3, 10), (2, 4), (1, 1), (5, 3)])
def test_a_first_match_is_that_of_transformers_and_of_the_definition(longest, count):
    numbers, found = random.Random(longest), 0
    for trial in range(150):
        tokens = [numbers.randrange(2 + trial % 5) for _ in range(1 + trial % 40)]
        levels = guesses(tokens, GuessBounds(1, count), longest, FirstMatchIndex)
        span = first_match(tokens, longest, count)
        assert levels == [[(token, 0)] for token in span]
        assert span == by_transformers(tokens, longest, count)
        found += bool(span)
    assert found > 75


def as_paths(levels):
    above = [()]
    paths = []
    for level in levels:
        above = [(*above[guess.parent], guess.token) for guess in level]
        paths.append(above)
    return paths


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_proposals_are_those_of_counting(width, seed):
    chance = random.Random(seed)
    answers = [chance.choices("012", k=chance.randint(1, 12)) for _ in range(3)]
    answers = [[int(token) for token in answer] for answer in answers]
    own = [int(token) for token in chance.choices("012", k=chance.randint(2, 14))]
    bounds, depth, least = GuessBounds(width, 4), chance.choice([3, 6]), chance.choice([0.1, 0.4])
    memory = AnswerMemory(depth)
    memory.remember(answers)
    index = SuffixIndex(depth, 1.0, least, memory.trie)
    index.extend(own[:1])
    index.extend(own[1:])
    assert as_paths(index.guess_tree(bounds)) == by_hand(own, answers, bounds, depth, least)


@pytest.mark.parametrize(
    ("answers", "own", "guessed"),
    [
        # After 1 came 2 in two cases of four, the one at the end included; after 0 1 came 3 in one
        # of two: of equal scores the longer match proposes.
        ([], [0, 1, 3, 1, 2, 1, 2, 0, 1], 3),
        # After 0 1 came 2, after any 1 more often 0; a match is shorter than the row, which is 0 1.
        ([[0, 1, 2], [3, 1, 0], [3, 1, 0]], [0, 1], 0),
    ],
)
def test_which_match_proposes(answers, own, guessed):
    memory = AnswerMemory(3)
    memory.remember(answers)
    index = SuffixIndex(3, 1.0, 0.1, memory.trie)
    index.extend(own)
    assert as_paths(index.guess_tree(GuessBounds(1, 4)))[0] == [(guessed,)]


def test_more_answers_are_read_on_and_others_anew():
    memory = AnswerMemory(4)
    for answers in ([[1, 2]], [[1, 2], [2, 3]], [[3, 3], [2, 3]]):
        memory.remember(answers)
        fresh = AnswerMemory(4)
        fresh.remember(answers)
        assert memory.trie.root == fresh.trie.root


@pytest.mark.parametrize("width", [1, 3])
def test_the_text_is_plain_decodings_whatever_is_remembered(width, tmp_path):
    target, _ = tiny_pair("llama", torch.float64)
    requests, sampling = random_requests(4, 24), SamplingSettings(temperature=0.7)
    plain = build_decoder(decoder_settings("ar"), target, [], sampling, 2)
    expected = [each.tokens for each in plain.generate(requests, 0)]
    settings = decoder_settings("suffix_decoding")
    settings["tree"]["width"] = width
    decoder = build_decoder(settings, target, [], sampling, 2)
    calls = []
    for _ in range(2):
        found = decoder.generate(requests, 0)
        assert [each.tokens for each in found] == expected
        calls.append(sum(len(each.steps) for each in found))
        decoder.remember_for_drafting(expected)
    assert calls[1] < calls[0], "what was said before is proposed again"
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(f'{{"tokens": {[*tokens]}}}\n' for tokens in expected))
    settings["drafter"] |= {"earlier": str(path), "memory": "none"}
    known = build_decoder(settings, target, [], sampling, 2).generate(requests, 0)
    assert [each.tokens for each in known] == expected
    assert sum(len(each.steps) for each in known) == calls[1], "and so is what a file has"
    first = Suffix(earlier=str(path)).file_digest
    path.write_text('{"tokens": [1]}')
    assert "" != first != Suffix(earlier=str(path)).file_digest
    with pytest.raises(ValueError, match="earlier needs JSON lines with tokens, got 'none'"):
        Suffix(earlier="none")


def recycling(*trees, rows=1):
    """After trees of a root and two children, whose best two tokens are known where nodes are."""
    made = RecyclingDraftState(
        DraftResources(make_random_markov_model(4, seed=0), [], [], None, rows), 2
    )
    for root, children, best in trees:
        tree = Tree(TreeShape((2,), (2,)), torch.tensor(root), "deterministic")
        tokens = torch.tensor([children] * rows)
        there = torch.tensor([[each is not None for each in best[1:]]] * rows)
        tree.add_level(tokens, torch.zeros_like(tokens), there, None)
        scores = torch.zeros((rows, 3, 4))
        for node, (first, second) in enumerate(each or (3, 2) for each in best):
            scores[:, node, first], scores[:, node, second] = 2.0, 1.0
        made.observe_scores(tree, scores)
    return made


FIRST = ([3], [1, 1], [(0, 1), (2, 3), (3, 2)])


@pytest.mark.parametrize(
    ("trees", "known"),
    [
        ([FIRST], {3: [0, 1], 1: [3, 2]}),  # rejected nodes count; of equal tokens the last node
        ([FIRST, ([1], [2, 0], [(1, 0), (0, 1), (0, 1)])], {1: [1, 0], 3: [0, 1]}),
        ([([3], [1, 1], [(0, 1), (2, 3), None])], {1: [2, 3]}),  # a node that is not there
    ],
)
def test_what_was_guessed_last_behind_a_token_is_recycled(trees, known):
    (table,) = recycling(*trees).tables
    assert {token: table[token].tolist() for token in known} == known


def test_proposals_are_the_tables_by_rank_and_token_zero_where_nothing_is_known():
    made = recycling(([3], [1, 2], [(2, 0), (2, 3), (3, 2)]))
    below = made.root_logits(CommittedTokens([[0, 3]]))
    assert below.tolist() == [[[[-1.0, -torch.inf, 0.0, -torch.inf]]]]
    unknown = made.root_logits(CommittedTokens([[3, 0]]))
    assert unknown.tolist() == [[[[0.0, -torch.inf, -torch.inf, -torch.inf]]]]


def test_a_row_that_moves_takes_its_table_along_and_a_new_one_begins_empty():
    made = recycling(([3, 2], [1, 1], FIRST[2]), rows=2)
    made.move_row(1, 0)
    assert made.tables[0, 2].tolist() == [0, 1]
    made.start_row(1, [1, 2])
    assert not made.tables[1].any()


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
    """Every iteration of every row."""
    seen, grow_tree = [], type(decoder.policy).grow_tree

    def noted(own, context):
        tree = grow_tree(own, context)
        seen.extend(seen_of(tree, at, [*text]) for at, text in enumerate(context.committed))
        return tree

    with mock.patch.object(type(decoder.policy), "grow_tree", noted):
        decoder.generate(requests, seed=0)
    return seen


SHORT, LONG = (
    [replace(each, max_new_tokens=new) for each, new in zip(made(len(NEW), 1), NEW, strict=True)]
    for made in (random_requests, long_requests)
)
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
NORMS = ("norm_before_residual", "norm_before_fc", "norm_output")
LAWS = {
    "language model": (LM, lambda: models(1)),
    "two language models": (LM | {"drafts": 2}, lambda: models(1, 0)),
    "own blocks": ({"kind": "own_blocks", "kept": [1, 2]}, own_blocks),
    "other vocabulary": (LM, lambda: alone(plain.other_vocabulary, MAP)),
    "PARD": ({"kind": "pard", "levels": 3, "mask_token": 1}, lambda: alone(plain.pard, 1)),
    "lookup or model": ({"kind": "lookup_or_model", "longest": 4, "shortest": 1}, looked_up),
    "EAGLE": ({"kind": "eagle"}, lambda: with_head(head_of("eagle"), plain.eagle1)),
    "EAGLE-3": ({"kind": "eagle3"}, lambda: eagle3(head_of("eagle3"))),
    "EAGLE-3, all norms": (
        {"kind": "eagle3"},
        lambda: eagle3(eagle3_head(32, VOCAB, **dict.fromkeys(NORMS, True)).double()),
    ),
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
        drafts = [VocabularyMappedModel(draft, MAP, VOCAB)]
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
        lambda text: [*chain.from_iterable(by_hand(text, ANSWERS, GuessBounds(3, 4), 24, 0.1))],
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
    decoder.remember_for_drafting(ANSWERS)
    longer = [replace(each, max_new_tokens=3 * each.max_new_tokens) for each in SHORT]
    seen = watched(decoder, longer)
    assert sum(len(each.paths) > 0 for each in seen) > 20
    for each in seen:
        assert each.paths == literal(each.text), each.text
