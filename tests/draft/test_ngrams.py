"""What followed before is found, the longest match first, by its first place or by votes."""

import random

import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from spec_bench.draft.lookup import Bounds, FirstIndex, Guess, NgramIndex


def guesses(tokens, bounds, longest=3):
    index = NgramIndex(longest)
    index.extend(tokens)
    return [[tuple(guess) for guess in level] for level in index.guesses(bounds)]


def test_the_longest_match_wins_over_a_later_shorter_one():
    # 1 2 3 was followed by 4, later a 3 alone by 9.
    tokens = [1, 2, 3, 4, 5, 3, 9, 1, 2, 3]
    assert guesses(tokens, Bounds(1, 3)) == [[(4, 0)], [(5, 0)], [(3, 0)]]
    assert guesses(tokens, Bounds(1, 2), longest=1) == [[(9, 0)], [(1, 0)]]


def test_continuations_stand_by_count_and_then_by_recency():
    tokens = [7, 1, 7, 2, 7, 1, 7, 3, 7]
    assert guesses(tokens, Bounds(3, 1), longest=1) == [[(1, 0), (3, 0), (2, 0)]]
    assert guesses(tokens, Bounds(2, 1), longest=1) == [[(1, 0), (3, 0)]]


def test_equal_beginnings_are_one_node_with_its_children_below():
    tokens = [7, 1, 4, 7, 1, 5, 7, 2, 6, 7]
    assert guesses(tokens, Bounds(3, 2), longest=1) == [[(1, 0), (2, 0)], [(6, 1), (5, 0), (4, 0)]]


def test_rare_continuations_are_left_out_and_a_short_match_guesses_little():
    tokens = [*[7, 1] * 9, 7, 2, 7]
    assert guesses(tokens, Bounds(2, 1, share=0.2), longest=1) == [[(1, 0)]]
    assert guesses(tokens, Bounds(1, 8, per_match=2.0), longest=1) == [[(1, 0)], [(7, 0)]]


def test_nothing_is_guessed_where_nothing_was_there_before():
    assert guesses([1, 2, 3], Bounds(2, 4)) == []
    assert guesses([], Bounds(2, 4)) == []


def test_tokens_come_in_any_portions():
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
    whole, parts = NgramIndex(3), NgramIndex(3)
    whole.extend(tokens)
    for token in tokens:
        parts.extend([token])
    assert whole.guesses(Bounds(3, 3)) == parts.guesses(Bounds(3, 3))
    assert whole.guesses(Bounds(3, 3))[0] == [Guess(4, 0)]


def copied(tokens, longest, count):
    """What ``FirstIndex`` proposes, the tokens given in two portions."""
    index = FirstIndex(longest)
    index.extend(tokens[: len(tokens) // 2])
    index.guesses(Bounds(1, count))
    index.extend(tokens[len(tokens) // 2 :])
    levels = index.guesses(Bounds(1, count))
    assert all(len(level) == 1 and level[0].parent == 0 for level in levels)
    return [level[0].token for level in levels]


def by_definition(tokens, longest, count):
    """Prompt lookup as its author describes it: the first match of the longest n-gram."""
    for length in range(longest, 0, -1):
        for start in range(len(tokens) - length):
            if tokens[start : start + length] == tokens[-length:]:
                return tokens[start + length :][:count]
    return []


def by_transformers(tokens, longest, count):
    generator = PromptLookupCandidateGenerator(
        num_output_tokens=count, max_matching_ngram_size=longest, max_length=10_000
    )
    candidates, _ = generator.get_candidates(torch.tensor([tokens]))
    return candidates[0, len(tokens) :].tolist()


def test_one_span_is_copied_from_the_first_match_though_others_are_later_and_more():
    # 1 2 went on with 8 9 once, then twice with 7 7; the votes go to 7.
    tokens = [1, 2, 8, 9, 1, 2, 7, 7, 1, 2, 7, 7, 1, 2]
    assert copied(tokens, 2, 3) == [8, 9, 1]
    assert guesses(tokens, Bounds(1, 3), longest=2) == [[(7, 0)], [(7, 0)], [(1, 0)]]


@pytest.mark.parametrize(("longest", "count"), [(3, 10), (2, 4), (1, 1), (5, 3)])
def test_spans_are_those_of_transformers_and_of_the_definition(longest, count):
    numbers, found = random.Random(longest), 0
    for trial in range(150):
        tokens = [numbers.randrange(2 + trial % 5) for _ in range(1 + trial % 40)]
        span = copied(tokens, longest, count)
        assert span == by_definition(tokens, longest, count)
        assert span == by_transformers(tokens, longest, count)
        found += bool(span)
    assert found > 75
