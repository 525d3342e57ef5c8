"""Draws the target's token at every position and follows the children that hold it.

The distribution is the naive rule's, which is optimal for one-hot proposals. The difference is in
the randomness: each position of the text has its own uniform, whatever the iteration and the
children tested. So the text equals that of plain decoding with the same generator, token for token,
at any temperature, which shows losslessness without statistics.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spec_bench.core.warp import warped_probs
from spec_bench.verify.base import TreeVerifier, rule
from spec_bench.verify.children import list_children
from spec_bench.verify.device_walk import follow_accepted_children
from spec_bench.verify.walk import (
    ScoredTree,
    WalkResult,
    list_child_places,
    mark_accepted_copies,
)


def follow_target_tokens(scored_tree: ScoredTree, positions: int) -> WalkResult:
    """Follows the target's own tokens through the tree. ``positions`` is the number of positions to
    draw for, L + 1 of the deepest possible tree.
    """
    tree, logits, settings, draws, merge_copies = scored_tree
    if not logits.is_cpu and tree.shape.depth:
        return follow_target_tokens_at_once(scored_tree, positions)
    shape = tree.shape
    rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
    position_draws = draws.prepare_positions(positions)
    node = place = accepted_count = torch.zeros_like(rows)
    copies: Tensor | None = None
    active = torch.ones_like(rows, dtype=torch.bool)
    token = position_draws.sample_at(0, warped_probs(logits[:, 0], settings))
    path = [node]
    for level in range(shape.depth):
        order, valid = list_child_places(tree, level, place, copies)
        tokens = tree.tokens[:, shape.level(level + 1)].gather(1, order)
        hit = (tokens == token.unsqueeze(1)) & valid
        active = active & hit.any(dim=1)
        if active.is_cpu and not active.any():  # on a GPU this would wait for the device
            break
        place = order.gather(1, hit.byte().argmax(dim=1, keepdim=True)).squeeze(1)
        node = torch.where(active, place + shape.starts[level + 1], node)
        path.append(node)
        accepted_count = accepted_count + active
        if merge_copies:
            copies = mark_accepted_copies(tree, level, copies, token.unsqueeze(1))
        next_token = position_draws.sample_at(level + 1, warped_probs(logits[rows, node], settings))
        token = torch.where(active, next_token, token)
    path += [node] * (shape.depth + 1 - len(path))
    return WalkResult(torch.stack(path, dim=1), accepted_count, token)


def follow_target_tokens_at_once(scored_tree: ScoredTree, positions: int) -> WalkResult:
    """Finds the path of ``follow_target_tokens`` on a GPU, by drawing all nodes' tokens at once."""
    tree, logits, settings, draws, merge_copies = scored_tree
    inner = tree.shape.inner
    node_tokens = draws.prepare_positions(positions).sample_nodes_at(
        tree.depths, warped_probs(logits, settings)
    )
    children, present = list_children(tree, merge_copies)
    tokens = tree.tokens.gather(1, children.flatten(1)).view(children.shape)
    hit = (tokens == node_tokens[:, :inner].unsqueeze(2)) & present
    path, accepted_count = follow_accepted_children(tree, children, hit)
    return WalkResult(path, accepted_count, node_tokens.gather(1, path[:, -1:]).squeeze(1))


@rule("by_position", siblings=("deterministic",))
@dataclass(frozen=True)
class TargetTokenMatching(TreeVerifier):
    """Accepts the proposals that equal the tokens of plain decoding."""

    walk = staticmethod(follow_target_tokens)

    def judge(self, depth: int) -> int:
        return depth + 1
