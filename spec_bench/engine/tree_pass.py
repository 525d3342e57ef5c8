"""Masks, positions and slots of the three kinds of pass: prefill, pending tokens, tree level.

A row that has ``length`` tokens in its cache keeps node i of its tree at slot ``length + i`` and
position ``length + depth(i)``; node 0 is the last committed token, which has not been run yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.transfer import Known, constant, places
from spec_bench.core.tree import Tree
from spec_bench.engine.model import ForwardOutput, LanguageModel, Layers

PREFILL_CHUNK = 512
Seen = Callable[[int, Tensor], None]
"""Takes hidden states [T, D] of consecutive tokens of a prompt, and which token is the first."""


def unseen(start: int, hidden: Tensor) -> None:
    """Ignores hidden states."""


def prefill(
    model: LanguageModel,
    cache: object,
    row: int,
    tokens: Sequence[int],
    needs_hidden: Layers = (),
    seen: Seen = unseen,
) -> None:
    """Runs a prompt into one row's cache, in chunks. Rows are prefilled one by one, so that a
    row's numbers are the same in every batch.

    Args:
        model: the model.
        cache: its cache.
        row: the row.
        tokens: the prompt without its last token; may be empty.
        needs_hidden: which hidden states are wanted.
        seen: takes those of every chunk.
    """
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = torch.tensor([tokens[start : start + PREFILL_CHUNK]], device=model.device)
        positions = start + torch.arange(chunk.shape[1], device=model.device).unsqueeze(0)
        visible = causal(positions, start + chunk.shape[1])
        rows = slice(row, row + 1)
        hidden = model.forward(
            cache,
            rows,
            [start],
            chunk,
            positions,
            visible,
            logits_to_keep=1,
            needs_hidden=needs_hidden,
            prefill=True,
            shared=start,
        ).hidden
        if hidden is not None:
            seen(start, hidden[0])


def run_pending(
    model: LanguageModel,
    cache: object,
    starts: Sequence[int],
    tokens: Tensor,
    *,
    logits_to_keep: int = 1,
    needs_hidden: Layers = (),
) -> ForwardOutput:
    """Runs consecutive tokens under a causal mask: what a draft has not seen yet, or the paths of a
    tree one by one.

    Args:
        model: the draft.
        cache: its cache.
        starts: [R] first slot = first position per row.
        tokens: [R, T].
        logits_to_keep: how many of the last logits, 0 for all.
        needs_hidden: which hidden states to return.

    Returns:
        Logits [R, 1 or T, V], and hidden states [R, T, D] if asked for.
    """
    offsets = places(tokens.shape[1], model.device)
    starts = Known.of(starts)
    positions = starts.on(model.device).unsqueeze(1) + offsets
    visible = causal(positions, max(starts) + tokens.shape[1])
    rows = slice(0, len(starts))
    return model.forward(
        cache,
        rows,
        starts,
        tokens,
        positions,
        visible,
        logits_to_keep=logits_to_keep,
        needs_hidden=needs_hidden,
        shared=starts.least,
    )


def run_nodes(
    model: LanguageModel,
    cache: object,
    tree: Tree,
    lengths: list[int],
    nodes: slice,
    *,
    needs_hidden: Layers = (),
) -> ForwardOutput:
    """Runs a range of tree nodes with tree attention: each sees its row's committed tokens, its
    ancestors and itself.

    Args:
        model: target (all nodes) or draft (one level).
        cache: its cache; all ancestors of the nodes are in it or among the nodes.
        tree: the tree, grown at least to these nodes.
        lengths: [R] committed tokens in the cache.
        nodes: consecutive node indices, T of them.
        needs_hidden: which hidden states to return.

    Returns:
        Logits [R, T, V], and hidden states [R, T, D] if asked for.
    """
    device, known = model.device, Known.of(lengths)
    if tree.own_depths is None:
        depth = constant(tree.shape.node_depth[nodes], device)
    else:
        depth = tree.own_depths[:, nodes].to(device)
    positions = known.on(device).unsqueeze(1) + depth
    ancestors = tree.ancestors[:, nodes, : nodes.stop].to(device)
    starts = known.plus(nodes.start)
    tokens = tree.tokens[:, nodes].to(device)
    return run_under_ancestors(
        model, cache, known, starts, tokens, positions, ancestors, needs_hidden=needs_hidden
    )


def run_under_ancestors(
    model: LanguageModel,
    cache: object,
    lengths: list[int],
    starts: list[int],
    tokens: Tensor,
    positions: Tensor,
    ancestors: Tensor,
    *,
    needs_hidden: Layers = (),
) -> ForwardOutput:
    """Runs nodes that see their row's first ``length`` slots and, of the later ones, those that
    ``ancestors`` says.

    Args:
        model: target or draft.
        cache: its cache.
        lengths: [R] slots that all nodes of a row see.
        starts: [R] first slot written.
        tokens: [R, T].
        positions: [R, T].
        ancestors: [R, T, C]; entry c is about slot ``length + c``.
        needs_hidden: which hidden states to return.

    Returns:
        Logits [R, T, V], and hidden states [R, T, D] if asked for.
    """
    device, known = model.device, Known.of(lengths)
    rows, count, columns = ancestors.shape
    if known.equal:
        visible = pad(ancestors, (lengths[0], 0), value=True)
    else:
        shape = (rows, count, max(lengths) + columns)
        length = known.on(device).unsqueeze(1)
        committed = torch.arange(shape[2], device=device) < length
        at = (length + places(columns, device)).unsqueeze(1)
        visible = committed.unsqueeze(1).expand(shape).clone()
        visible.scatter_(2, at.expand_as(ancestors), ancestors)
    return model.forward(
        *(cache, slice(0, rows), starts, tokens, positions, visible),
        needs_hidden=needs_hidden,
        shared=known.least,
    )


def causal(positions: Tensor, slots: int) -> Tensor:
    """[R, T, slots] visibility where every token is at the slot of its position."""
    return torch.arange(slots, device=positions.device) <= positions.unsqueeze(-1)
