"""Builds trees from beams of equal length; finds and merges shared prefixes by tensor operations.

ReDrafter (arXiv 2403.09919), Listing 1, with axes corrected. Letters: R rows, W beams, L tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spec_bench.core.tree import Tree, TreeShape


def build_merged_beam_tree(root: Tensor, beams: Tensor) -> Tree:
    """Builds a tree per row with a node for every distinct prefix of beams [R, W, L], best first,
    so that siblings are best first too. Proposals are one-hot.

    On a CPU a level is as wide as the row with most prefixes needs. On other devices it is as wide
    as there are beams, because the host would have to wait for the number of prefixes. Absent nodes
    fill the end of a level.
    """
    width, length = beams.shape[1:]
    equal_tokens = beams.unsqueeze(2) == beams.unsqueeze(1)  # [R, W, W, L]
    lengths = torch.arange(1, length + 1, device=beams.device)
    # [R, W, L] at (w, l) the smallest w' whose first l + 1 tokens are those of beam w
    match = (equal_tokens.cumsum(dim=-1) == lengths).byte().argmax(dim=2)
    is_first = match == torch.arange(width, device=beams.device)[:, None]  # the prefix's first beam
    place = is_first.cumsum(dim=1) - 1  # among the distinct prefixes of its length
    counts = is_first.sum(dim=1).amax(dim=0).tolist() if beams.is_cpu else [width] * length
    tree = Tree(TreeShape(tuple(counts), (width,) * length), root, "deterministic")
    for level, count in enumerate(counts):
        order = (~is_first[:, :, level]).byte().sort(dim=1, stable=True).indices[:, :count]
        valid = is_first[:, :, level].gather(1, order)
        tokens = beams[:, :, level].gather(1, order)
        if level == 0:
            parent = torch.zeros_like(order)
        else:
            parent_beam = match[:, :, level - 1].gather(1, order)
            parent = place[:, :, level - 1].gather(1, parent_beam)
        tree.add_level(tokens, parent, valid, None)
    return tree


def build_separate_beam_tree(root: Tensor, beams: Tensor) -> Tree:
    """Builds a tree per row with a chain for every beam [R, W, L], without merging."""
    width, length = beams.shape[1:]
    shape = TreeShape((width,) * length, (width,) * length)
    tree = Tree(shape, root, "deterministic", shape.even_parents)
    for tokens in beams.unbind(2):
        tree.add_level(tokens, None, None, None)
    return tree
