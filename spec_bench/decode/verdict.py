"""What the host is sent of an iteration: each row's verdict, packed into one float64 vector."""

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
    tokens: list[int]  # emitted: the accepted ones and one more
    log_probs: Sequence[float]  # of these tokens under the target at temperature 1
    tree_nodes: int  # below the root
    tree_levels: int


class VerdictLayout(NamedTuple):
    """Sizes of the parts of an iteration's message."""

    depth: int  # L, levels of the trees
    cached_levels: int  # levels whose nodes are where the drafter ran them, the root's included
    node_counts: tuple[int, ...]  # nodes that the target scored, then the draft at each level

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
        """Raises PromptError if a largest logit, with which a row of ``pack_verdicts`` ends, is not
        finite.
        """
        draft = len(packed_verdict) - sum(self.node_counts[1:])
        target = map(math.isfinite, packed_verdict[draft - self.node_counts[0] : draft])
        require_distributions(
            prompt_id, all(target), all(map(math.isfinite, packed_verdict[draft:]))
        )


def pack_verdicts(tree: Tree, logits: Tensor, result: WalkResult) -> Tensor:
    """Packs each row's verdict into one float64 vector for the host, [R, ...]: the number accepted,
    L + 1 entries each of path, tokens emitted and their log-probabilities, nodes and levels of a
    tree that has any, and the largest logit of each node, of the target and then of the draft.

    Only the first ``accepted + 1`` of the L + 1 entries are defined.
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
    return torch.cat([*parts, logits.amax(dim=-1), *tree.largest], dim=1)
