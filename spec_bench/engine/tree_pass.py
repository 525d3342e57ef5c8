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
    """Runs a prompt, without its last token, into one row's cache, in chunks, whose hidden states
    ``seen`` takes. Rows are prefilled one by one, so that a row's numbers are the same in every
    batch.
    """
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = torch.tensor([tokens[start : start + PREFILL_CHUNK]], device=model.device)
        hidden = run_pending(
            model, cache, [start], chunk, needs_hidden=needs_hidden, row=row, prefill=True
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
    row: int = 0,
    prefill: bool = False,
) -> ForwardOutput:
    """Runs consecutive tokens [R, T] from slots and positions ``starts`` [R] on under a causal
    mask, in rows from ``row`` on: a prompt, what a draft has not seen yet, or the paths of a tree
    one by one.

    Returns logits [R, 1 or T, V] (``logits_to_keep`` of them, 0 for all), and hidden states [R, T,
    D] if asked for.
    """
    starts = Known.of(starts)
    positions = starts.on(model.device).unsqueeze(1) + places(tokens.shape[1], model.device)
    return model.forward(
        cache,
        starts,
        tokens,
        positions,
        causal(positions, max(starts) + tokens.shape[1]),
        row=row,
        logits_to_keep=logits_to_keep,
        needs_hidden=needs_hidden,
        prefill=prefill,
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
    """Runs T consecutive tree nodes with tree attention: each sees its row's committed tokens,
    ``lengths`` [R], its ancestors, which are in the cache or among the nodes, and itself.

    Returns logits [R, T, V], and hidden states [R, T, D] if asked for.
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
    """Runs nodes [R, T], written from slots ``starts`` [R] on, that see their row's first
    ``length`` slots and, of the later ones, those that ``ancestors`` [R, T, C] says: entry c is
    about slot ``length + c``. Returns what ``run_nodes`` does.
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
        cache, starts, tokens, positions, visible, needs_hidden=needs_hidden, shared=known.least
    )


def causal(positions: Tensor, slots: int) -> Tensor:
    """[R, T, slots] visibility where every token is at the slot of its position."""
    return torch.arange(slots, device=positions.device) <= positions.unsqueeze(-1)
