"""Base class of draft states that compute the distributions of all levels in one pass.

The nodes of a level have the same distribution, or distributions that differ by a term of the
node's own token. So every policy that grows level by level works with it: chains, widths, draws
without replacement, and the tree of the likeliest nodes (DDTree, arXiv 2604.12989).

Letters: R rows, K levels, F frontier nodes, V tokens.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.host_device import CommittedTokens, cached_arange
from spec_bench.core.tree import Tree
from spec_bench.draft.base import DraftState


class OnePassDraftState(DraftState):
    """Drafts all levels from one forward pass."""

    has_term = False  # whether a node's token adds a term to the logits below it
    _level_logits: Tensor = torch.empty(0)

    @abstractmethod
    def compute_level_logits(self, committed: CommittedTokens) -> Tensor:
        """Computes the logits of all levels, [R, K, V], the level below the root first."""

    def compute_token_term(self, tokens: Tensor, level: int) -> Tensor:
        """Computes the term that tokens [R, F] of a level add to the logits below them, [R, F, V];
        level 0 is the root's.
        """
        raise NotImplementedError

    @torch.inference_mode()
    def root_logits(self, committed: CommittedTokens) -> Tensor:
        self._level_logits = self.compute_level_logits(committed)
        device = self._level_logits.device
        return self._compute_logits_below(
            lambda: committed.roots.get_tensor(device).unsqueeze(1), 1, 0
        )

    @torch.inference_mode()
    def frontier_logits(self, tree: Tree, committed: CommittedTokens) -> Tensor:
        nodes = tree.frontier
        return self._compute_logits_below(
            lambda: tree.tokens[:, nodes], nodes.stop - nodes.start, tree.grown
        )

    def _compute_logits_below(self, tokens: Callable[[], Tensor], nodes: int, level: int) -> Tensor:
        logits = self._level_logits[:, level : level + 1].expand(-1, nodes, -1)
        if self.has_term:
            logits = logits + self.compute_token_term(tokens(), level)
        return logits.unsqueeze(2)


def append_masks(values: Tensor, last_index: Tensor, mask_count: int, mask: int | Tensor) -> Tensor:
    """Appends masks to each row's ``values`` [R, P, ...]; returns [R, P + mask_count, ...].

    A row's last known value is at ``last_index`` [R, 1]; ``mask`` replaces all after it.
    """
    padded = pad(values, (*(0, 0) * (values.ndim - 2), 0, mask_count))
    is_known = cached_arange(padded.shape[1], padded.device) <= last_index
    return torch.where(is_known.view(*is_known.shape, *[1] * (values.ndim - 2)), padded, mask)


def gather_consecutive(rows: Tensor, first_index: Tensor, count: int) -> Tensor:
    """Gathers [R, K, ...] from [R, T, ...]: each row's entry at ``first_index`` [R, 1] and the
    next K - 1.
    """
    index = (first_index + cached_arange(count, rows.device)).unsqueeze(-1)
    return rows.gather(1, index.expand(-1, -1, rows.shape[-1]))
