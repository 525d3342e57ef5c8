"""Suffix decoding's proposals by counting every string by hand."""

from collections.abc import Sequence

Text = Sequence[int]
Path = tuple[int, ...]
Found = tuple[float, list[list[Path]]]


def occurrences(texts, string):
    """(text, end) of a string in some texts, in the order read."""
    size = len(string)
    return [
        (place, start + size)
        for place, text in enumerate(texts)
        for start in range(len(text) - size + 1)
        if tuple(text[start : start + size]) == string
    ]


def counted(texts, match, most, bounds, depth, least):
    """(score, nodes by level) below a match, the likeliest first, of a tree of paths."""
    levels = []
    offered, taken, score = [((), 1.0)], 0, 0.0
    waiting = []

    def offer(path, worth):
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


def by_hand(own, answers, bounds, depth, least):
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
