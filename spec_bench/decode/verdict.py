"""Packs an iteration's verdicts for the host, one float64 vector per row, and unpacks them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.core.host_device import cached_arange
from spec_bench.core.tree import Tree
from spec_bench.core.warp import raw_token_log_probs
from spec_bench.decode.rows import require_distributions
from spec_bench.verify.walk import WalkResult


class RowVerdict(NamedTuple):
    """One row's verdict, on the host."""

    nodes: list[int]  # the accepted path, root first
    tokens: list[int]  # emitted: the accepted tokens, then the residual or bonus token
    log_probs: Sequence[float]  # of these tokens under the target at temperature 1
    tree_nodes: int  # below the root
    tree_levels: int


class VerdictLayout(NamedTuple):
    """Sizes of the parts of a row's packed verdict."""

    depth: int  # L, levels of the trees
    # levels, the root's included, whose nodes lie in the cache slots where the drafter ran them
    cached_levels: int
    node_counts: tuple[int, ...]  # nodes that the target scored, then the draft's of each level

    def unpack(self, packed_verdict: Sequence[float]) -> RowVerdict:
        """Unpacks a row of ``pack_verdicts``."""
        width = self.depth + 1
        emitted = int(packed_verdict[0]) + 1
        path, tokens, log_probs = (
            packed_verdict[start : start + emitted] for start in range(1, 1 + 3 * width, width)
        )
        sizes = packed_verdict[1 + 3 * width : 3 + 3 * width] if self.depth else (0, 0)
        return RowVerdict([*map(int, path)], [*map(int, tokens)], log_probs, *map(int, sizes))

    def require_distributions(self, prompt_id: str, packed_verdict: Sequence[float]) -> None:
        """Raises PromptError if one of the largest logits at the end of a packed verdict is not
        finite.
        """
        draft = len(packed_verdict) - sum(self.node_counts[1:])
        target = map(math.isfinite, packed_verdict[draft - self.node_counts[0] : draft])
        require_distributions(
            prompt_id, all(target), all(map(math.isfinite, packed_verdict[draft:]))
        )


def pack_verdicts(tree: Tree, logits: Tensor, result: WalkResult) -> Tensor:
    """Packs each row's verdict into one float64 vector for the host, [R, ...].

    The parts: the number accepted; L + 1 entries each of path, emitted tokens and their
    log-probabilities, of which only the first ``accepted + 1`` are defined; the tree's numbers of
    nodes and levels, if L > 0; each node's largest logit, first the target's, then the draft's.
    """
    emitted = result.token.unsqueeze(1)
    depth = tree.shape.depth
    if depth:
        is_last = cached_arange(depth + 1, emitted.device) >= result.accepted.unsqueeze(1)
        accepted_tokens = tree.tokens.gather(1, result.path).roll(-1, dims=1)
        emitted = torch.where(is_last, emitted, accepted_tokens)
    log_probs = raw_token_log_probs(logits, result.path, emitted)
    parts = [result.accepted.unsqueeze(1), result.path, emitted, log_probs.double()]
    if depth:
        parts.append(tree.count_nodes_and_levels())
    return torch.cat([*parts, logits.amax(dim=-1), *tree.largest_logits], dim=1)
