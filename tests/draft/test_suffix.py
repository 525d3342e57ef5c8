"""Suffix decoding's proposals are what counting by hand finds; what it remembers hangs on order."""

import random
from itertools import pairwise

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.lookup import Answers, Bounds, SuffixIndex, SuffixTrie
from tests.draft.counting import by_hand
from tests.families import decoder_settings, random_requests, tiny_pair


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


def test_a_string_that_ends_a_text_counts_against_what_follows_it():
    trie = SuffixTrie(4)
    trie.read([1, 2, 1])
    assert trie.root.children[1].count == 2
    assert trie.root.children[1].children[2].count == 1


def test_of_equal_scores_the_longer_match_proposes():
    """After 1 came 2 in two cases of four, the one at the end included; after 0 1 came 3 in one of
    two.
    """
    index = SuffixIndex(3, 1.0, 0.1, None)
    index.extend([0, 1, 3, 1, 2, 1, 2, 0, 1])
    assert as_paths(index.guesses(Bounds(1, 4))) == [[(3,)]]


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


def test_a_growing_list_of_answers_is_read_as_the_whole_at_once():
    answers = [[1, 2, 1], [2, 3], [], [1, 2, 3, 1, 2]]
    grown, whole = Answers(4), Answers(4)
    for count in range(len(answers) + 1):
        grown.remember(answers[:count])
    whole.remember(answers)
    assert grown.trie.root == whole.trie.root


def test_a_match_is_shorter_than_the_text_that_it_ends():
    """After 0 1 came 2 and after any 1 more often 0; 0 1 is all that there is of the row."""
    index = SuffixIndex(4, 1.0, 0.1, memory := SuffixTrie(4))
    for answer in ([0, 1, 2], [3, 1, 0], [3, 1, 0]):
        memory.read(answer)
    index.extend([0, 1])
    assert as_paths(index.guesses(Bounds(1, 4))) == [[(0,)]]
