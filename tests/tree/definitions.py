"""Every tree policy once more: its trees by definition, as a random program over plain numbers.

A program draws by ``choose(probabilities) -> index`` and returns what stands below the root: for
each child, in the order of siblings, its token and what stands below it. It shares no code with the
policies, and is read beside their papers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from spec_bench.core.warp import SamplingSettings, warped_log_probs
from spec_bench.draft.lookup import GuessBounds
from tests.draft.plain import by_hand, first_match, voted


@dataclass(frozen=True)
class Draft:
    """What is proposed behind every path."""

    prompt: tuple  # what is continued
    settings: SamplingSettings
    logits: Callable  # (path below the root, draft) -> [V] behind it
    vocab: int
    drafts: int  # that share the children of a node
    drafter: str  # who proposes

    @property
    def cold(self):
        return self.settings.get_draft_settings().temperature == 0

    def law(self, path, draft=0):
        return (
            warped_log_probs(self.logits(path, draft), self.settings.get_draft_settings())
            .exp()
            .tolist()
        )

    def raw(self, path):
        """The law at temperature 1, nothing cut off."""
        return self.logits(path, 0).softmax(dim=-1).tolist()

    def ranked(self, path, count):
        return order(self.logits(path, 0).tolist())[:count]

    def chance(self, path):
        """Of a whole path at temperature 1."""
        return math.prod(self.raw(path[:at])[token] for at, token in enumerate(path))

    def children(self, path, count, choose):
        """Distinct tokens in the order drawn; the likeliest where nothing is drawn."""
        return self.ranked(path, count) if self.cold else distinct(self.law(path), count, choose)


def order(values):
    return sorted(range(len(values)), key=lambda index: -values[index])


def distinct(law, count, choose):
    """Draws one after the other, none twice, until nothing is left."""
    left, found = list(law), list[int]()
    while len(found) < count and sum(left) > 0:
        found.append(choose([mass / sum(left) for mass in left]))
        left[found[-1]] = 0.0
    return found


def trie(paths):
    """Paths with equal beginnings merged, in the order of their first appearance."""
    firsts = dict.fromkeys(path[0] for path in paths if path)
    return tuple((t, trie([path[1:] for path in paths if path[:1] == (t,)])) for t in firsts)


def apart(paths):
    """A chain for every path."""
    return tuple(item for path in paths for item in trie([path]))


def root(tree, draft, choose):
    return ()


def _drawn_chain(draft, depth, choose):
    path = ()
    while len(path) < depth:
        path = (*path, choose(draft.law(path)))
    return path


def chain(tree, draft, choose):
    return trie([_drawn_chain(draft, tree.depth, choose)])


def dynamic_chain(tree, draft, choose):
    path = ()
    while len(path) < tree.depth:
        sure = draft.raw(path)
        path = (*path, choose(draft.law(path)))
        if sure[path[-1]] < tree.confidence:
            break
        if tree.path is not None and draft.chance(path) < tree.path:
            break
    return trie([path])


def iid_paths(tree, draft, choose):
    paths = [_drawn_chain(draft, tree.depth, choose) for _ in range(tree.paths)]
    return trie(paths) if tree.merged else apart(paths)


def _branching(tree, pick, path=()):
    if len(path) == len(tree.widths):
        return ()
    tokens = pick(path, tree.widths[len(path)])
    return tuple((token, _branching(tree, pick, (*path, token))) for token in tokens)


def widths(tree, draft, choose):
    def pick(path, width):
        if tree.replacement:
            return [choose(draft.law(path, child % draft.drafts)) for child in range(width)]
        return draft.children(path, width, choose)

    return _branching(tree, pick)


def top_and_sample(tree, draft, choose):
    def pick(path, width):
        if draft.cold:
            return draft.ranked(path, width)
        law, drawn = draft.law(path), min(tree.sampled, width)
        best = [token for token in order(law)[: width - drawn] if law[token] > 0]
        rest = [0.0 if token in best else mass for token, mass in enumerate(law)]
        left = sum(rest)
        tries = range(drawn if left > 0 else 0)
        return [*(choose([mass / left for mass in rest]) for _ in tries), *best]

    return _branching(tree, pick)


def _listed(nodes, pick):
    def below(ranks, path):
        mine = [node[-1] for node in nodes if node[:-1] == ranks]
        tokens = pick(path, max(mine, default=-1) + 1)
        return tuple(
            (tokens[rank], below((*ranks, rank), (*path, tokens[rank])))
            for rank in sorted(mine)
            if rank < len(tokens)
        )

    return below((), ())


def node_list(tree, draft, choose):
    return _listed(tree.rank_paths, draft.ranked)


def sampled_list(tree, draft, choose):
    return _listed(tree.rank_paths, lambda path, count: draft.children(path, count, choose))


def fitted_list(tree, draft, choose):
    """Which nodes are the best ones is ``test_best_list``'s: here they are given."""
    assert len({*tree.nodes}) == tree.total
    return _listed(tree.nodes, lambda path, count: draft.children(path, count, choose))


def _whole(draft, depth):
    """All paths of a length."""
    paths = [()]
    for _ in range(depth):
        paths = [(*path, token) for path in paths for token in range(draft.vocab)]
    return paths


def stochastic_beam(tree, draft, choose):
    """Whole sequences drawn without replacement; a level has the first W of their beginnings."""
    if draft.cold:
        return trie(_beam_search(tree, draft, lambda law, token: law[token] - max(law)))
    leaves = _whole(draft, tree.depth)
    left = [math.prod(draft.law(leaf[:at])[t] for at, t in enumerate(leaf)) for leaf in leaves]
    levels = [{} for _ in range(tree.depth)]
    while sum(left) > 0 and any(len(level) < tree.width for level in levels):
        leaf = leaves[choose([mass / sum(left) for mass in left])]
        left[leaves.index(leaf)] = 0.0
        for at, level in enumerate(levels, 1):
            if len(level) < tree.width:
                level[leaf[:at]] = None
    return trie([path for level in levels for path in level])


def _beam_search(tree, draft, score):
    """The nodes of all levels, each level's best first, by the sum of a score along the path."""
    level = {(): 0.0}
    found = []
    for _ in range(tree.depth):
        below = {
            (*path, token): above + score(draft.logits(path, 0).tolist(), token)
            for path, above in level.items()
            for token in range(draft.vocab)
        }
        level = dict(sorted(below.items(), key=lambda item: -item[1])[: tree.width])
        found += level
    return found


def head_beams(tree, draft, choose):
    def log_softmax(logits, token):
        return logits[token] - math.log(sum(map(math.exp, logits)))

    beams = _beam_search(tree, draft, log_softmax)
    beams = [path for path in beams if len(path) == tree.depth]
    return trie(beams) if tree.merge else apart(beams)


_EQUAL = 12  # digits: values that are equal but for rounding count as equal


def _kept(slots, total):
    """Of equal values the shallower one is kept, then the earlier one."""
    best = sorted(slots, key=lambda slot: (-round(slot[0], _EQUAL), len(slot[1])))[:total]
    nodes = {path for _, path in best}
    return trie([path for _, path in slots if path in nodes])


def best_nodes(tree, draft, choose):
    slots = []
    level = [()]
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


def best_slots(tree, draft, choose):
    """A slot is worth its node's probability times what was not drawn there before."""
    scores = {(): 1.0}
    level = [()]
    slots = []
    for _ in range(tree.depth):
        below = []
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


def guessed(tree, draft, choose):
    if draft.drafter == "first_match":
        return trie([first_match(draft.prompt, 3, tree.depth)])
    if draft.drafter == "suffix":
        bounds = GuessBounds(tree.width, tree.depth)
        levels = by_hand(draft.prompt, (), bounds, depth=24, least=0.1)
        return trie([path for level in levels for path in level])
    return trie(voted(draft.prompt, 3, tree.width, tree.depth))


def guess_or_draft(tree, draft, choose):
    return trie(voted(draft.prompt, 3, 1, tree.depth)) or chain(tree, draft, choose)


def comb(tree, draft, choose):
    """Of ``tests/extension``: a level's first node has all children."""

    def below(path):
        tokens = draft.children(path, tree.teeth, choose) if len(path) < tree.depth else []
        return tuple((t, () if place else below((*path, t))) for place, t in enumerate(tokens))

    return below(())


def beams(tree, draft, choose):
    """Layers instead of a forest: each W i.i.d. beams out of all that continue the layer above."""
    layers = [((),)]
    for _ in range(tree.depth):
        cells = [(*path, token) for path in layers[-1] for token in range(draft.vocab)]
        weights = [draft.chance(cell) for cell in cells]
        law = [weight / sum(weights) for weight in weights]
        layers.append(tuple(cells[choose(law)] for _ in range(tree.width)))
    return tuple(layers[1:])


DEFINITIONS = {
    each.__name__: each
    for each in (
        *(root, chain, dynamic_chain, iid_paths, widths, top_and_sample, stochastic_beam),
        *(node_list, sampled_list, fitted_list, head_beams, best_nodes, best_slots),
        *(guessed, guess_or_draft, comb, beams),
    )
} | {"beam_root": root}
"""By the policy's name; beams without a draft draft nothing."""
