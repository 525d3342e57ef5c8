"""Suffix decoding's proposals are what counting by hand finds; what it remembers hangs on order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.draft.ngrams import Bounds, Guess
from spec_bench.draft.suffix import Answers
from spec_bench.draft.suffix_trie import SuffixIndex, SuffixTrie
from tests.families import decoder_settings, random_requests, tiny_pair

Text = Sequence[int]
Path = tuple[int, ...]


def occurrences(texts: Sequence[Text], string: Path) -> list[tuple[int, int]]:
    """(text, end) of a string in some texts, in the order read."""
    size = len(string)
    return [
        (place, start + size)
        for place, text in enumerate(texts)
        for start in range(len(text) - size + 1)
        if tuple(text[start : start + size]) == string
    ]


def counted(
    texts: Sequence[Text], match: Path, most: int, bounds: Bounds, depth: int, least: float
):
    """(score, nodes by level) below a match, the likeliest first, of a tree of paths."""
    levels: list[list[tuple[Path, float]]] = []
    offered, taken, score = [((), 1.0)], 0, 0.0
    waiting: list[tuple[float, int, Path]] = []

    def offer(path: Path, worth: float) -> None:
        here = occurrences(texts, (*match, *path))
        following = [texts[text][end] for text, end in here if end < len(texts[text])]
        for token in dict.fromkeys(following):
            share = worth * following.count(token) / len(here)
            longest = len(match) + len(path) + 1
            if share >= least and len(path) < bounds.depth and longest <= depth:
                waiting.append((-share, len(offered), (*path, token)))
                offered.append(((*path, token), share))

    if occurrences(texts, match):
        offer((), 1.0)
    while waiting and taken < most:
        worth, _, path = min(waiting)
        waiting.remove((worth, _, path))
        if len(path) > len(levels):
            levels.append([])
        if len(levels[len(path) - 1]) == bounds.width:
            continue
        if len(path) > 1 and path[:-1] not in [each for each, _ in levels[len(path) - 2]]:
            continue
        levels[len(path) - 1].append((path, -worth))
        score, taken = score - worth, taken + 1
        offer(path, -worth)
    return score, [[path for path, _ in level] for level in levels]


def by_hand(own: Text, answers: Sequence[Text], bounds: Bounds, depth: int, least: float):
    """The best proposal over all matches and both texts."""
    best = (0.0, [])
    for texts in ([own], answers):
        longest = (0.0, [])
        for length in range(1, min(len(own), depth + 1)):
            match = tuple(own[-length:])
            if not occurrences(texts, match):
                break
            most = min(bounds.width * bounds.depth, length)
            found = counted(texts, match, most, bounds, depth, least)
            if found[0] >= longest[0]:
                longest = found
        if longest[0] > best[0]:
            best = longest
    return best[1]


def as_paths(levels: list[list[Guess]]) -> list[list[Path]]:
    """Guesses as whole paths."""
    above: list[Path] = [()]
    paths = []
    for level in levels:
        above = [(*above[guess.parent], guess.token) for guess in level]
        paths.append(above)
    return paths


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_proposals_are_those_of_counting(width: int, seed: int) -> None:
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


def test_a_string_that_ends_a_text_counts_against_what_follows_it() -> None:
    trie = SuffixTrie(4)
    trie.read([1, 2, 1])
    assert trie.root.children[1].count == 2
    assert trie.root.children[1].children[2].count == 1


def test_more_answers_are_read_on_and_others_anew() -> None:
    memory, fresh = Answers(4), Answers(4)
    for answers in ([[1, 2]], [[1, 2], [2, 3]], [[3, 3], [2, 3]]):
        memory.remember(answers)
    fresh.remember([[3, 3], [2, 3]])
    assert memory.trie.root == fresh.trie.root


@pytest.mark.parametrize("width", [1, 3])
def test_the_text_is_plain_decodings_whatever_is_remembered(width: int) -> None:
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
