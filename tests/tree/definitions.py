"""Every tree policy once more: its trees by definition, as a random program over plain numbers.

A program draws by ``choose(probabilities) -> index`` and returns what stands below the root: for
each child, in the order of siblings, its token and what stands below it. It shares no code with the
policies, and is read beside their papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from spec_bench.draft.ngrams import Bounds
from tests.draft.counting import by_hand
from tests.tree.proposals import Choose, Draft, Forest, Path, apart, order, trie

Definition = Callable[[Any, Draft, Choose], Forest]


def root(tree: Any, draft: Draft, choose: Choose) -> Forest:
    return ()


def _drawn_chain(draft: Draft, depth: int, choose: Choose) -> Path:
    path: Path = ()
    while len(path) < depth:
        path = (*path, choose(draft.law(path)))
    return path


def chain(tree: Any, draft: Draft, choose: Choose) -> Forest:
    return trie([_drawn_chain(draft, tree.depth, choose)])


def dynamic_chain(tree: Any, draft: Draft, choose: Choose) -> Forest:
    path: Path = ()
    while len(path) < tree.depth:
        sure = draft.raw(path)
        path = (*path, choose(draft.law(path)))
        if sure[path[-1]] < tree.confidence:
            break
        if tree.path is not None and draft.chance(path) < tree.path:
            break
    return trie([path])


def iid_paths(tree: Any, draft: Draft, choose: Choose) -> Forest:
    paths = [_drawn_chain(draft, tree.depth, choose) for _ in range(tree.paths)]
    return trie(paths) if tree.merged else apart(paths)


def _branching(tree: Any, pick: Callable[[Path, int], list[int]], path: Path = ()) -> Forest:
    if len(path) == len(tree.widths):
        return ()
    tokens = pick(path, tree.widths[len(path)])
    return tuple((token, _branching(tree, pick, (*path, token))) for token in tokens)


def widths(tree: Any, draft: Draft, choose: Choose) -> Forest:
    def pick(path: Path, width: int) -> list[int]:
        if tree.replacement:
            return [choose(draft.law(path, child % draft.drafts)) for child in range(width)]
        return draft.children(path, width, choose)

    return _branching(tree, pick)


def top_and_sample(tree: Any, draft: Draft, choose: Choose) -> Forest:
    def pick(path: Path, width: int) -> list[int]:
        if draft.cold:
            return draft.ranked(path, width)
        law, drawn = draft.law(path), min(tree.sampled, width)
        best = [token for token in order(law)[: width - drawn] if law[token] > 0]
        rest = [0.0 if token in best else mass for token, mass in enumerate(law)]
        left = sum(rest)
        tries = range(drawn if left > 0 else 0)
        return [*(choose([mass / left for mass in rest]) for _ in tries), *best]

    return _branching(tree, pick)


def _listed(nodes: Sequence[Path], pick: Callable[[Path, int], list[int]]) -> Forest:
    def below(ranks: Path, path: Path) -> Forest:
        mine = [node[-1] for node in nodes if node[:-1] == ranks]
        tokens = pick(path, max(mine, default=-1) + 1)
        return tuple(
            (tokens[rank], below((*ranks, rank), (*path, tokens[rank])))
            for rank in sorted(mine)
            if rank < len(tokens)
        )

    return below((), ())


def node_list(tree: Any, draft: Draft, choose: Choose) -> Forest:
    return _listed(tree.paths, draft.ranked)


def sampled_list(tree: Any, draft: Draft, choose: Choose) -> Forest:
    return _listed(tree.paths, lambda path, count: draft.children(path, count, choose))


def fitted_list(tree: Any, draft: Draft, choose: Choose) -> Forest:
    """Which nodes are the best ones is ``test_best_list``'s: here they are given."""
    assert len({*tree.nodes}) == tree.total
    return _listed(tree.nodes, lambda path, count: draft.children(path, count, choose))


def _whole(draft: Draft, depth: int) -> list[Path]:
    """All paths of a length."""
    paths: list[Path] = [()]
    for _ in range(depth):
        paths = [(*path, token) for path in paths for token in range(draft.vocab)]
    return paths


def stochastic_beam(tree: Any, draft: Draft, choose: Choose) -> Forest:
    """Whole sequences drawn without replacement; a level has the first W of their beginnings."""
    if draft.cold:
        return trie(_beam_search(tree, draft, lambda law, token: law[token] - max(law)))
    leaves = _whole(draft, tree.depth)
    left = [math.prod(draft.law(leaf[:at])[t] for at, t in enumerate(leaf)) for leaf in leaves]
    levels: list[dict[Path, None]] = [{} for _ in range(tree.depth)]
    while sum(left) > 0 and any(len(level) < tree.width for level in levels):
        leaf = leaves[choose([mass / sum(left) for mass in left])]
        left[leaves.index(leaf)] = 0.0
        for at, level in enumerate(levels, 1):
            if len(level) < tree.width:
                level[leaf[:at]] = None
    return trie([path for level in levels for path in level])


def _beam_search(tree: Any, draft: Draft, score: Callable[[list[float], int], float]) -> list[Path]:
    """The nodes of all levels, each level's best first, by the sum of a score along the path."""
    level: dict[Path, float] = {(): 0.0}
    found: list[Path] = []
    for _ in range(tree.depth):
        below = {
            (*path, token): above + score(draft.logits(path, 0).tolist(), token)
            for path, above in level.items()
            for token in range(draft.vocab)
        }
        level = dict(sorted(below.items(), key=lambda item: -item[1])[: tree.width])
        found += level
    return found


def head_beams(tree: Any, draft: Draft, choose: Choose) -> Forest:
    def log_softmax(logits: list[float], token: int) -> float:
        return logits[token] - math.log(sum(map(math.exp, logits)))

    beams = _beam_search(tree, draft, log_softmax)
    beams = [path for path in beams if len(path) == tree.depth]
    return trie(beams) if tree.merge else apart(beams)


Slot = tuple[float, Path]  # value and path
_EQUAL = 12  # digits: values that are equal but for rounding count as equal


def _kept(slots: Sequence[Slot], total: int) -> Forest:
    """Of equal values the shallower one is kept, then the earlier one."""
    best = sorted(slots, key=lambda slot: (-round(slot[0], _EQUAL), len(slot[1])))[:total]
    nodes = {path for _, path in best}
    return trie([path for _, path in slots if path in nodes])


def best_nodes(tree: Any, draft: Draft, choose: Choose) -> Forest:
    slots: list[Slot] = []
    level: list[Path] = [()]
    expected = 0.0
    while level and len(level[0]) < tree.depth:
        below = [(*path, t) for path in level for t in draft.ranked(path, tree.width)]
        slots += [(draft.chance(path), path) for path in below]
        best = sum(sorted((value for value, _ in slots), reverse=True)[: tree.total])
        if tree.gain is not None and len(below[0]) > 1 and not best - expected > tree.gain:
            break
        expected = best
        level = sorted(below, key=lambda path: -draft.chance(path))[: tree.width]
    return _kept(slots, tree.total)


def best_slots(tree: Any, draft: Draft, choose: Choose) -> Forest:
    """A slot is worth its node's probability times what was not drawn there before."""
    scores: dict[Path, float] = {(): 1.0}
    level: list[Path] = [()]
    slots: list[Slot] = []
    for _ in range(tree.depth):
        below: list[Path] = []
        for path in level:
            law = draft.raw(path) if draft.cold else draft.law(path)
            left = 1.0
            for token in draft.children(path, tree.width, choose):
                child = (*path, token)
                slots.append((scores[path] * left, child))
                scores[child] = scores[path] * law[token]
                left -= law[token]
                below.append(child)
        level = sorted(below, key=lambda path: -scores[path])[: tree.width]
    return _kept(slots, tree.total)


def _occurred(past: Path) -> list[int]:
    """Where the longest n-gram at the end, of at most three tokens, ended before."""
    for length in (3, 2, 1):
        ends = [
            end for end in range(length, len(past)) if past[end - length : end] == past[-length:]
        ]
        if ends:
            return ends
    return []


def _copied(draft: Draft, depth: int) -> Forest:
    """What followed the first occurrence, to the depth or the end of the text."""
    past = draft.prompt
    return trie([past[end : end + depth] for end in _occurred(past)[:1]])


def _voted(draft: Draft, width: int, depth: int) -> Forest:
    """What followed most occurrences, and of equally many the latest."""
    past = draft.prompt
    runs = [(end, past[end : end + depth]) for end in _occurred(past)]
    found: list[Path] = []
    level: list[Path] = [()]
    for at in range(1, depth + 1):
        seen: dict[Path, list[int]] = {}
        for end, run in runs:
            if len(run) >= at and run[: at - 1] in level:
                seen.setdefault(run[:at], []).append(end)
        level = sorted(seen, key=lambda path: (-len(seen[path]), -max(seen[path])))[:width]
        found += level
    return trie(found)


def guessed(tree: Any, draft: Draft, choose: Choose) -> Forest:
    if draft.drafter == "first_match":
        return _copied(draft, tree.depth)
    if draft.drafter == "suffix":
        bounds = Bounds(tree.width, tree.depth)
        levels = by_hand(draft.prompt, (), bounds, depth=24, least=0.1)
        return trie([path for level in levels for path in level])
    return _voted(draft, tree.width, tree.depth)


def guess_or_draft(tree: Any, draft: Draft, choose: Choose) -> Forest:
    return _voted(draft, 1, tree.depth) or chain(tree, draft, choose)


def comb(tree: Any, draft: Draft, choose: Choose) -> Forest:
    """Of ``tests/extension``: a level's first node has all children."""

    def below(path: Path) -> Forest:
        tokens = draft.children(path, tree.teeth, choose) if len(path) < tree.depth else []
        return tuple((t, () if place else below((*path, t))) for place, t in enumerate(tokens))

    return below(())


def beams(tree: Any, draft: Draft, choose: Choose) -> Forest:
    """Layers instead of a forest: each W i.i.d. beams out of all that continue the layer above."""
    layers: list[tuple[Path, ...]] = [((),)]
    for _ in range(tree.depth):
        cells = [(*path, token) for path in layers[-1] for token in range(draft.vocab)]
        weights = [draft.chance(cell) for cell in cells]
        law = [weight / sum(weights) for weight in weights]
        layers.append(tuple(cells[choose(law)] for _ in range(tree.width)))
    return tuple(layers[1:])


DEFINITIONS: dict[str, Definition] = {
    each.__name__: each
    for each in (
        *(root, chain, dynamic_chain, iid_paths, widths, top_and_sample, stochastic_beam),
        *(node_list, sampled_list, fitted_list, head_beams, best_nodes, best_slots),
        *(guessed, guess_or_draft, comb, beams),
    )
} | {"beam_root": root}
"""By the policy's name; beams without a draft draft nothing."""
