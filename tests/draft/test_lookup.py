"""What is proposed without a network: n-grams, suffixes, recycled guesses."""

import random
from itertools import pairwise

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from spec_bench.audit.toys import random_markov
from spec_bench.core.transfer import Committed
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.base import Equipment
from spec_bench.draft.lookup import (
    Answers,
    Bounds,
    FirstIndex,
    NgramIndex,
    RecyclingDrafting,
    SuffixIndex,
)
from tests.draft.plain import by_hand, first_match
from tests.families import decoder_settings, random_requests, tiny_pair


def guesses(tokens, bounds, longest=3, kind=NgramIndex):
    """The tokens are given in two portions."""
    index = kind(longest)
    index.extend(tokens[: len(tokens) // 2])
    index.guesses(bounds)
    index.extend(tokens[len(tokens) // 2 :])
    return [[tuple(guess) for guess in level] for level in index.guesses(bounds)]


VOTES = [7, 1, 7, 2, 7, 1, 7, 3, 7]
LATER = [1, 2, 3, 4, 5, 3, 9, 1, 2, 3]  # 1 2 3 was followed by 4, later a 3 alone by 9
BEGUN = [7, 1, 4, 7, 1, 5, 7, 2, 6, 7]
RARE = [*[7, 1] * 9, 7, 2, 7]
COPY = [1, 2, 8, 9, 1, 2, 7, 7, 1, 2, 7, 7, 1, 2]


@pytest.mark.parametrize(
    ("tokens", "bounds", "longest", "levels"),
    [
        (LATER, Bounds(1, 3), 3, [[(4, 0)], [(5, 0)], [(3, 0)]]),
        (LATER, Bounds(1, 2), 1, [[(9, 0)], [(1, 0)]]),
        (VOTES, Bounds(3, 1), 1, [[(1, 0), (3, 0), (2, 0)]]),  # by count, then by recency
        (VOTES, Bounds(2, 1), 1, [[(1, 0), (3, 0)]]),
        (BEGUN, Bounds(3, 2), 1, [[(1, 0), (2, 0)], [(6, 1), (5, 0), (4, 0)]]),
        (RARE, Bounds(2, 1, share=0.2), 1, [[(1, 0)]]),
        (RARE, Bounds(1, 8, per_match=2.0), 1, [[(1, 0)], [(7, 0)]]),
        (COPY, Bounds(1, 3), 2, [[(7, 0)], [(7, 0)], [(1, 0)]]),
        ([1, 2, 3], Bounds(2, 4), 3, []),
        ([], Bounds(2, 4), 3, []),
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
        levels = guesses(tokens, Bounds(1, count), longest, FirstIndex)
        span = first_match(tokens, longest, count)
        assert levels == [[(token, 0)] for token in span]
        assert span == by_transformers(tokens, longest, count)
        found += bool(span)
    assert found > 75


def as_paths(levels):
    """Guesses as whole paths."""
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
    bounds, depth, least = Bounds(width, 4), chance.choice([3, 6]), chance.choice([0.1, 0.4])
    memory = Answers(depth)
    memory.remember(answers)
    index = SuffixIndex(depth, 1.0, least, memory.trie)
    index.extend(own[:1])
    index.extend(own[1:])
    assert as_paths(index.guesses(bounds)) == by_hand(own, answers, bounds, depth, least)


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
    memory = Answers(3)
    memory.remember(answers)
    index = SuffixIndex(3, 1.0, 0.1, memory.trie)
    index.extend(own)
    assert as_paths(index.guesses(Bounds(1, 4)))[0] == [(guessed,)]


def test_more_answers_are_read_on_and_others_anew():
    memory, fresh = Answers(4), Answers(4)
    for answers in ([[1, 2]], [[1, 2], [2, 3]], [[3, 3], [2, 3]]):
        memory.remember(answers)
    fresh.remember([[3, 3], [2, 3]])
    assert memory.trie.root == fresh.trie.root


@pytest.mark.parametrize("width", [1, 3])
def test_the_text_is_plain_decodings_whatever_is_remembered(width):
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
        decoder.remember(expected)
    assert calls[1] < calls[0], "what was said before is proposed again"
    assert all(one <= other for one, other in pairwise(reversed(calls)))


def recycling(*trees, rows=1):
    """After trees of a root and two children in every row, of whose nodes the best two tokens are
    known; a node without any is not there.
    """
    made = RecyclingDrafting(Equipment(random_markov(4, seed=0), [], [], None, rows), 2)
    for root, children, best in trees:
        tree = Tree(TreeShape((2,), (2,)), torch.tensor(root), "deterministic")
        tokens, there = (
            torch.tensor([children] * rows),
            torch.tensor([[each is not None for each in best[1:]]] * rows),
        )
        tree.add_level(tokens, torch.zeros_like(tokens), there, None)
        scores = torch.zeros((rows, 3, 4))
        for node, (first, second) in enumerate(each or (3, 2) for each in best):
            scores[:, node, first], scores[:, node, second] = 2.0, 1.0
        made.see_scores(tree, scores)
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
    below = made.at_root(Committed([[0, 3]]))
    assert below.tolist() == [[[[-1.0, -torch.inf, 0.0, -torch.inf]]]]
    unknown = made.at_root(Committed([[3, 0]]))
    assert unknown.tolist() == [[[[0.0, -torch.inf, -torch.inf, -torch.inf]]]]


def test_a_row_that_moves_takes_its_table_along_and_a_new_one_begins_empty():
    made = recycling(([3, 2], [1, 1], FIRST[2]), rows=2)
    made.move_row(1, 0)
    assert made.tables[0, 2].tolist() == [0, 1]
    made.start(1, [1, 2])
    assert not made.tables[1].any()
