"""Draw the target's token at every position, and go down while a child has it.

The distribution is the naive rule's: for one-hot proposals nothing better is possible. What differs
is where the randomness sits: a position's uniform belongs to the position, not to the iteration or
to the children tested, so the text equals that of plain decoding with the same generator, token for
token, at any temperature: losslessness that one can see without statistics.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.warp import probs
from spec_bench.verify.base import TreeVerifier, rule
from spec_bench.verify.family import list_children
from spec_bench.verify.simultaneous import follow_path
from spec_bench.verify.walk import ScoredTree, WalkResult, candidates, find_copies


def walk_by_position(scored: ScoredTree, positions: int) -> WalkResult:
    """Finds the path that the target itself takes through the tree, as far as the tree goes, by
    draws for as many positions as an iteration may reach: L + 1 of the largest tree.
    """
    tree, logits, settings, draws, merge_copies = scored
    if not logits.is_cpu and tree.shape.depth:
        return walk_by_lookup(scored, positions)
    shape = tree.shape
    rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
    chosen = draws.by_position(positions)
    node = place = accepted = torch.zeros_like(rows)
    copies: Tensor | None = None
    going = torch.ones_like(rows, dtype=torch.bool)
    token = chosen.sample_at(0, probs(logits[:, 0], settings))
    path = [node]
    for level in range(shape.depth):
        order, valid = candidates(tree, level, place, copies)
        tokens = tree.tokens[:, shape.level(level + 1)].gather(1, order)
        hit = (tokens == token.unsqueeze(1)) & valid
        going = going & hit.any(dim=1)
        if going.is_cpu and not going.any():  # elsewhere asking would stall the device
            break
        place = order.gather(1, hit.byte().argmax(dim=1, keepdim=True)).squeeze(1)
        node = torch.where(going, place + shape.starts[level + 1], node)
        path.append(node)
        accepted = accepted + going
        if merge_copies:
            copies = find_copies(tree, level, copies, token.unsqueeze(1))
        following = chosen.sample_at(level + 1, probs(logits[rows, node], settings))
        token = torch.where(going, following, token)
    path += [node] * (shape.depth + 1 - len(path))
    return WalkResult(torch.stack(path, dim=1), accepted, token)


def walk_by_lookup(scored: ScoredTree, positions: int) -> WalkResult:
    """Finds the same path where every step is a launch: draws all nodes' tokens at once."""
    tree, logits, settings, draws, merge_copies = scored
    inner = tree.shape.inner
    drawn = draws.by_position(positions).sample_nodes_at(tree.depths, probs(logits, settings))
    children, there = list_children(tree, merge_copies)
    tokens = tree.tokens.gather(1, children.flatten(1)).view(children.shape)
    hit = (tokens == drawn[:, :inner].unsqueeze(2)) & there
    path, accepted = follow_path(tree, children, hit)
    return WalkResult(path, accepted, drawn.gather(1, path[:, -1:]).squeeze(1))


@rule("by_position", siblings=("deterministic",))
@dataclass(frozen=True)
class ByPosition(TreeVerifier):
    """Plain decoding's own draws, compared with the proposals."""

    walk = staticmethod(walk_by_position)

    def judge(self, depth: int) -> int:
        return depth + 1
