"""What followed before is found, the longest match first, the most frequent continuation first."""

from __future__ import annotations

from spec_bench.draft.ngrams import Bounds, Guess, NgramIndex


def guesses(tokens: list[int], bounds: Bounds, longest: int = 3) -> list[list[tuple[int, int]]]:
    index = NgramIndex(longest)
    index.extend(tokens)
    return [[tuple(guess) for guess in level] for level in index.guesses(bounds)]


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    # 1 2 3 was followed by 4, later a 3 alone by 9.
    tokens = [1, 2, 3, 4, 5, 3, 9, 1, 2, 3]
    assert guesses(tokens, Bounds(1, 3)) == [[(4, 0)], [(5, 0)], [(3, 0)]]
    assert guesses(tokens, Bounds(1, 2), longest=1) == [[(9, 0)], [(1, 0)]]


def test_continuations_stand_by_count_and_then_by_recency() -> None:
    tokens = [7, 1, 7, 2, 7, 1, 7, 3, 7]
    assert guesses(tokens, Bounds(3, 1), longest=1) == [[(1, 0), (3, 0), (2, 0)]]
    assert guesses(tokens, Bounds(2, 1), longest=1) == [[(1, 0), (3, 0)]]


def test_equal_beginnings_are_one_node_with_its_children_below() -> None:
    tokens = [7, 1, 4, 7, 1, 5, 7, 2, 6, 7]
    assert guesses(tokens, Bounds(3, 2), longest=1) == [
        [(1, 0), (2, 0)],
        [(6, 1), (5, 0), (4, 0)],
    ]


def test_rare_continuations_are_left_out_and_a_short_match_guesses_little() -> None:
    tokens = [*[7, 1] * 9, 7, 2, 7]
    assert guesses(tokens, Bounds(2, 1, share=0.2), longest=1) == [[(1, 0)]]
    assert guesses(tokens, Bounds(1, 8, per_match=2.0), longest=1) == [[(1, 0)], [(7, 0)]]


def test_nothing_is_guessed_where_nothing_was_there_before() -> None:
    assert guesses([1, 2, 3], Bounds(2, 4)) == []
    assert guesses([], Bounds(2, 4)) == []


def test_tokens_come_in_any_portions() -> None:
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2]
    whole, parts = NgramIndex(3), NgramIndex(3)
    whole.extend(tokens)
    for token in tokens:
        parts.extend([token])
    assert whole.guesses(Bounds(3, 3)) == parts.guesses(Bounds(3, 3))
    assert whole.guesses(Bounds(3, 3))[0] == [Guess(4, 0)]
