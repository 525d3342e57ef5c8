"""Masks, positions and slots of the three kinds of pass: prefill, pending tokens, tree level.

In a row with ``length`` cached tokens, node i of the tree has slot ``length + i`` and position
``length + depth(i)``. Node 0 is the last committed token, which has not been run yet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.host_device import HostDeviceInts, cached_arange, cached_constant
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.engine.cache import CachePool, adjacent_slots
from spec_bench.engine.model import ForwardOutput, LanguageModel, Layers

PREFILL_CHUNK = 512
HiddenCallback = Callable[[int, Tensor], None]
"""Takes hidden states [T, D] of consecutive tokens of a prompt, and which token is the first."""


def prefill(
    model: LanguageModel,
    cache: object,
    row: int,
    tokens: Sequence[int],
    needs_hidden: Layers = (),
    on_hidden: HiddenCallback | None = None,
) -> None:
    """Runs a prompt without its last token, in chunks, into a row of the cache; passes each chunk's
    hidden states to ``on_hidden``. Rows are prefilled one by one, so that a row's numbers are the
    same in every batch.
    """
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = torch.tensor([tokens[start : start + PREFILL_CHUNK]], device=model.device)
        hidden = run_causal_tokens(
            model,
            cache,
            [start],
            chunk,
            needs_hidden=needs_hidden,
            row=row,
            prefill=True,
        ).hidden
        if on_hidden is not None and hidden is not None:
            on_hidden(start, hidden[0])


def run_causal_tokens(
    model: LanguageModel,
    cache: object,
    starts: Sequence[int],
    tokens: Tensor,
    *,
    logits_to_keep: int = 1,
    needs_hidden: Layers = (),
    row: int = 0,
    prefill: bool = False,
) -> ForwardOutput:
    """Runs consecutive tokens [R, T] under a causal mask, from slots and positions ``starts`` [R]
    on, in rows from ``row`` on. The tokens are a prompt, a draft's pending tokens, or the paths of
    a tree.

    Returns the logits of the last ``logits_to_keep`` tokens, [R, 1 or T, V] (0: all), and hidden
    states [R, T, D] if ``needs_hidden`` names some.
    """
    starts = HostDeviceInts.wrap(starts)
    count = tokens.shape[1]
    positions = adjacent_slots(starts, count, model.device)
    slots = cached_arange(max(starts) + count, model.device)
    return model.forward(
        cache,
        starts,
        tokens,
        positions,
        slots <= positions.unsqueeze(-1),
        row=row,
        logits_to_keep=logits_to_keep,
        needs_hidden=needs_hidden,
        prefill=prefill,
        shared=starts.lower_bound,
    )


@torch.inference_mode()
def compute_next_logits(model: LanguageModel, text: Sequence[int]) -> Tensor:
    """Computes logits [V] after a text, without a tree and in a new cache."""
    cache = model.allocate(1, len(text))
    prefill(model, cache, 0, text[:-1])
    last_token = torch.tensor([text[-1:]], device=model.device)
    return run_causal_tokens(model, cache, [len(text) - 1], last_token).logits[0, -1]


def run_nodes(
    model: LanguageModel,
    cache: object,
    tree: Tree,
    lengths: list[int],
    nodes: slice,
    *,
    needs_hidden: Layers = (),
) -> ForwardOutput:
    """Runs T consecutive tree nodes with tree attention: each attends to its row's committed
    tokens, ``lengths`` [R], to its ancestors and to itself. Ancestors must be cached or among the
    nodes.

    Returns logits [R, T, V], and hidden states [R, T, D] if ``needs_hidden`` names some.
    """
    device = model.device
    host_lengths = HostDeviceInts.wrap(lengths)
    if tree.row_depths is None:
        depth = cached_constant(tree.shape.node_depths[nodes], device)
    else:
        depth = tree.row_depths[:, nodes].to(device)
    ancestors = tree.ancestors[:, nodes, : nodes.stop].to(device)
    return model.forward(
        cache,
        host_lengths.plus(nodes.start),
        tree.tokens[:, nodes].to(device),
        host_lengths.get_tensor(device).unsqueeze(1) + depth,
        make_tree_mask(host_lengths, ancestors, tree, nodes),
        needs_hidden=needs_hidden,
        shared=host_lengths.lower_bound,
    )


def make_tree_mask(
    lengths: HostDeviceInts,
    ancestors: Tensor,
    tree: Tree | None = None,
    nodes: slice = slice(None),
) -> Tensor:
    """Makes the mask [R, T, slots] of nodes that see their row's first ``length`` slots and the
    slots ``length + c`` where ``ancestors`` [R, T, C] is True. The first pass over a ``tree``
    stores the parts that its passes share.
    """
    if lengths.are_known_equal:
        return pad(ancestors, (lengths[0], 0), value=True)
    device = ancestors.device
    count, columns = (tree.shape.size,) * 2 if tree else ancestors.shape[1:]
    mask_parts = tree.mask_parts if tree else None
    if mask_parts is None or mask_parts[0] is not lengths or mask_parts[1:3] != (count, device):
        length = lengths.get_tensor(device).unsqueeze(1)
        is_committed = cached_arange(max(lengths) + columns, device) < length
        visible = is_committed.unsqueeze(1).expand(-1, count, -1).clone()
        slots = (length + cached_arange(columns, device)).unsqueeze(1)
        mask_parts = lengths, count, device, visible, slots
    if tree:
        tree.mask_parts = mask_parts
    *_, visible, slots = mask_parts
    columns = ancestors.shape[2]
    slots = slots[..., :columns].expand_as(ancestors)
    return visible[:, nodes, : max(lengths) + columns].scatter_(2, slots, ancestors)


@dataclass
class TreeScorer:
    """Runs the target with tree attention: a cache row per sequence, and every node once."""

    rows_per_sequence = 1  # cache rows per sequence

    target: LanguageModel
    pool: CachePool
    needs_hidden: Layers = ()
    cache: Any = None

    def reserve(self, rows: int, slots: int) -> None:
        """Grows the cache to ``rows`` sequences of ``slots`` tokens, tree included."""
        self.cache = self.pool.get_or_grow_cache("target", self.target, rows, slots)

    def prefill(self, row: int, tokens: Sequence[int], on_hidden: HiddenCallback) -> None:
        """Runs a prompt without its last token; passes its hidden states, if needed, to
        ``on_hidden``.
        """
        prefill(self.target, self.cache, row, tokens, self.needs_hidden, on_hidden)

    def score(self, tree: Tree, lengths: list[int]) -> ForwardOutput:
        """Computes logits [R, N, V] at every node, and hidden states [R, N, D] if needed, after
        ``lengths`` [R] committed tokens.
        """
        return run_nodes(
            self.target,
            self.cache,
            tree,
            lengths,
            slice(0, tree.shape.size),
            needs_hidden=self.needs_hidden,
        )

    def commit(self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor) -> None:
        """Keeps every row's accepted path, root first, after its ``lengths`` [R] tokens. ``nodes``
        lists the path on the host; ``path`` [R, L + 1] on the device has undefined entries after
        it.
        """
        commit_paths(self.cache, lengths, nodes, path)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Moves a sequence of ``length`` tokens to another place."""
        self.cache.move_row(source, target, length)


def commit_paths(
    cache: Any,
    lengths: Sequence[int],
    nodes: Sequence[Sequence[int]],
    path: Tensor,
) -> None:
    """Keeps the paths of a cache's first R rows, with the arguments of ``TreeScorer.commit``. On a
    CPU it moves nodes row by row; on a GPU it moves all rows' nodes at once by ``path``, so that no
    indices are copied.
    """
    if not path.is_cpu:
        cache.commit_all(lengths, path)
        return
    for row, (length, row_nodes) in enumerate(zip(lengths, nodes, strict=True)):
        cache.commit(row, length, row_nodes)


class PathScorer(TreeScorer):
    """Runs the target without tree attention: the K paths of a sequence are K cache rows under a
    causal mask.

    This is MCSD's ablation. Each path from the root to a leaf is a cache row: shared nodes are run
    once per path, each row holds the prompt, and an accepted path is copied to all of them. The
    logits equal those of tree attention; work and memory differ.

    The parents in trees of this shape never change: node i of a level with n nodes lies on the
    paths of the leaves K i / n to K (i + 1) / n - 1.
    """

    def __init__(
        self,
        target: LanguageModel,
        pool: CachePool,
        shape: TreeShape,
        *,
        needs_hidden: Layers = (),
    ) -> None:
        super().__init__(target, pool, needs_hidden)
        self._shape = shape
        self._paths = self.rows_per_sequence = shape.levels[-1] if shape.levels else 1
        counts = (1, *shape.levels)
        per_node = [self._paths // count for count in counts for _ in range(count)]
        index_in_level = [index for count in counts for index in range(count)]
        self._first_path = tuple(
            i * width for i, width in zip(index_in_level, per_node, strict=True)
        )
        starts = tuple(zip(shape.starts, counts, strict=False))
        self._nodes = tuple(  # [K, L + 1]
            tuple(start + path * count // self._paths for start, count in starts)
            for path in range(self._paths)
        )

    def reserve(self, rows: int, slots: int) -> None:
        self.cache = self.pool.get_or_grow_cache("target", self.target, rows * self._paths, slots)

    def prefill(self, row: int, tokens: Sequence[int], on_hidden: HiddenCallback) -> None:
        first_path = row * self._paths
        prefill(self.target, self.cache, first_path, tokens, self.needs_hidden, on_hidden)
        for copy in range(first_path + 1, first_path + self._paths):
            self.cache.move_row(first_path, copy, len(tokens))

    def score(self, tree: Tree, lengths: list[int]) -> ForwardOutput:
        nodes = cached_constant(self._nodes, tree.tokens.device)
        tokens = tree.tokens[:, nodes].flatten(0, 1)  # [R K, L + 1]
        starts = HostDeviceInts.wrap(lengths).repeat_interleave(self._paths)
        output = run_causal_tokens(
            self.target,
            self.cache,
            starts,
            tokens,
            logits_to_keep=0,
            needs_hidden=self.needs_hidden,
        )
        depth = cached_constant(self._shape.node_depths, tokens.device)
        path = cached_constant(self._first_path, tokens.device)
        by_row = (len(lengths), self._paths)
        outputs: Any = [
            None if o is None else o.unflatten(0, by_row)[:, path, depth] for o in output
        ]
        return ForwardOutput(*outputs)

    def commit(self, lengths: Sequence[int], nodes: Sequence[Sequence[int]], path: Tensor) -> None:
        for row, (length, row_nodes) in enumerate(zip(lengths, nodes, strict=True)):
            first_row = row * self._paths
            accepted_row = first_row + self._first_path[row_nodes[-1]]
            for copy in range(first_row, first_row + self._paths):
                if copy != accepted_row:
                    self.cache.move_row(accepted_row, copy, length + len(row_nodes), length)

    def move_row(self, source: int, target: int, length: int) -> None:
        for path in range(self._paths):
            self.cache.move_row(source * self._paths + path, target * self._paths + path, length)
