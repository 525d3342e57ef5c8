"""Masks, positions and slots of the three kinds of pass: prefill, pending tokens, tree level.

A row that has ``length`` tokens in its cache keeps node i of its tree at slot ``length + i`` and
position ``length + depth(i)``; node 0 is the last committed token, which has not been run yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.transfer import Known, constant, places, send
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
    """Runs consecutive tokens [R, T] from slots and positions ``starts`` [R] on under a causal
    mask: what a draft has not seen yet, or the paths of a tree one by one.

    Returns logits [R, 1 or T, V] (``logits_to_keep`` of them, 0 for all), and hidden states [R, T,
    D] if asked for.
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
        *(cache, slice(0, rows), starts, tokens, positions, visible),
        needs_hidden=needs_hidden,
        shared=known.least,
    )


def causal(positions: Tensor, slots: int) -> Tensor:
    """[R, T, slots] visibility where every token is at the slot of its position."""
    return torch.arange(slots, device=positions.device) <= positions.unsqueeze(-1)


# A forest of draft beams after each row's input beams, as tensors that a model runs over.
#
# Letters: R rows, B input beams (the widest row's), D draft beams per layer, C columns. Column c of
# a row is slot `length + c`: first the row's trie nodes, the input beams last among them, then the
# forest's nodes, layer by layer, D each. Rows may have tries of different sizes.


class Forest:
    """One iteration's draft beams. What the host knows of them goes to the device with ``send``.

    Given per row: tokens and ancestors [n, n] of its trie nodes, on the host, their depths below
    the trunk, how many input beams there are, the trunk's length, and how many nodes the draft has
    run. ``width`` is D, ``layers`` the most that are drafted.
    """

    input_tokens: Tensor  # [R, B]

    def __init__(
        self,
        tries: Sequence[tuple[Sequence[int], Tensor]],
        depths: Sequence[Sequence[int]],
        widths: Sequence[int],
        lengths: list[int],
        drafted: Sequence[int],
        width: int,
        layers: int,
        device: torch.device,
    ) -> None:
        self.device, self.width = device, width
        self.widths, self.inputs = list(widths), max(widths)  # B
        self._drafted = drafted
        self._lengths, self._sizes = Known(lengths), Known([len(tokens) for tokens, _ in tries])
        rows, most = len(tries), max(self._sizes)
        seen = torch.zeros((rows, most, most + layers * width), dtype=torch.bool)
        for row, (tokens, ancestors) in enumerate(tries):
            seen[row, : len(tokens), : len(tokens)] = ancestors
        self._trie_seen = seen
        self._trie_tokens = Known([[*row, *[0] * (most - len(row))] for row, _ in tries])
        self._behind = Known([n + size for n, size in zip(lengths, self._sizes, strict=True)])
        self._starts = Known([n - w for n, w in zip(self._behind, widths, strict=True)])
        self._inputs = Known([self._last(row, self.inputs) for row in range(rows)])
        # All input beams of a row are equally long.
        self._depth = Known([n + depth[-1] for n, depth in zip(lengths, depths, strict=True)])
        self._order, self._back = self._slot_order(layers)
        self._pending = self._of_draft(depths) if layers else []
        self.tokens: list[Tensor] = []  # a layer each, [R, D]
        self._seen: list[Tensor] = []  # the input beams', then a layer each

    def _last(self, row: int, count: int) -> list[int]:
        """Indices of a row's input beams; a short row repeats its first one."""
        first, width = self._sizes[row] - self.widths[row], self.widths[row]
        return [first + (beam if beam < width else 0) for beam in range(count)]

    def _slot_order(self, layers: int) -> tuple[Known, Known]:
        """Where the target's pass takes its nodes from, and where it returns their logits.

        The slots of a row hold its own input beams, then the forest, then fillers.
        """
        inputs, nodes = self.inputs, layers * self.width
        drafted = range(inputs, inputs + nodes)
        order = [[*range(w), *drafted, *[0] * (inputs - w)] for w in self.widths]
        back = [
            [*(beam if beam < w else 0 for beam in range(inputs)), *range(w, w + nodes)]
            for w in self.widths
        ]
        return Known(order), Known(back)

    def _of_draft(self, depths: Sequence[Sequence[int]]) -> list[Known]:
        """What the draft has not run yet: nodes, their positions, first slots, the input beams.

        A row with fewer pending nodes runs fillers after them; a later pass writes there.
        """
        drafted = self._drafted
        most = max(size - done for size, done in zip(self._sizes, drafted, strict=True))
        nodes = [
            [min(done + step, size - 1) for step in range(most)]
            for size, done in zip(self._sizes, drafted, strict=True)
        ]
        positions = [
            [n + depth[node] for node in row]
            for n, depth, row in zip(self._lengths, depths, nodes, strict=True)
        ]
        starts = [n + done for n, done in zip(self._lengths, drafted, strict=True)]
        inputs = [[node - drafted[r] for node in row] for r, row in enumerate(self._inputs)]
        return [Known(nodes), Known(positions), Known(starts), Known(inputs)]

    def send(self, others: Sequence[Tensor]) -> list[Tensor]:
        """Sends all that the host knows to the device in one copy, along with other tensors; those,
        on the device.
        """
        numbers = [self._lengths, self._sizes, self._trie_tokens, self._behind, self._starts]
        numbers += [self._inputs, self._depth, *self._pending]
        if self._ragged:
            numbers += [self._order, self._back]
        self._trie_seen, *there = send(numbers, self.device, [self._trie_seen, *others])
        inputs = self._inputs.on(self.device)
        self.input_tokens = _pick(self._trie_tokens.on(self.device), inputs)
        self._seen = [_pick(self._trie_seen, inputs)]
        return there

    @property
    def _ragged(self) -> bool:
        """Whether some row has fewer input beams than another."""
        return min(self.widths) < self.inputs

    def add_layer(self, tokens: Tensor, parents: Tensor) -> None:
        """Appends D draft beams; tokens and parents: [R, D], parents within the layer before."""
        first = len(self.tokens) * self.width
        index = parents.unsqueeze(-1).expand(-1, -1, self._seen[-1].shape[-1])
        layer = constant(tuple(range(first, first + self.width)), self.device)
        nodes = self._sizes.on(self.device).unsqueeze(1) + layer
        seen = self._seen[-1].gather(1, index).scatter(2, nodes.unsqueeze(-1), True)
        self.tokens.append(tokens)
        self._seen.append(seen)

    def run_pending(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the trie nodes that a draft has not seen, including the input beams; returns logits
        after these [R, B, V], where a row with fewer repeats its first.
        """
        nodes, positions, starts, inputs = self._pending
        index = nodes.on(self.device)
        columns = max(self._drafted) + index.shape[1]
        logits = run_under_ancestors(
            model,
            cache,
            self._lengths,
            starts,
            _pick(self._trie_tokens.on(self.device), index),
            positions.on(self.device),
            _to_columns(_pick(self._trie_seen, index), columns),
        ).logits
        return _pick(logits, inputs.on(logits.device))

    def run_layer(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the newest layer with a draft; logits [R, D, V]."""
        layer = len(self.tokens)
        starts = self._behind.plus((layer - 1) * self.width)
        columns = max(self._sizes) + layer * self.width
        positions = (self._depth.on(self.device) + layer).unsqueeze(1).expand(-1, self.width)
        return run_under_ancestors(
            model,
            cache,
            self._lengths,
            starts,
            self.tokens[-1],
            positions,
            self._seen[-1][..., :columns],
        ).logits

    def run_all(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the input beams and the whole forest with the target: the iteration's target call.
        Returns logits [R, B + layers D, V].
        """
        tokens = torch.cat([self.input_tokens, *self.tokens], dim=1)
        seen = torch.cat(self._seen, dim=1)
        layers = range(1, len(self.tokens) + 1)
        levels = (0,) * self.inputs + tuple(n for n in layers for _ in range(self.width))
        positions = self._depth.on(self.device).unsqueeze(1) + constant(levels, self.device)
        if self._ragged:
            order = self._order.on(self.device)
            tokens, positions, seen = (_pick(part, order) for part in (tokens, positions, seen))
        run = max(size - width for size, width in zip(self._sizes, self.widths, strict=True))
        seen = _to_columns(seen, run + tokens.shape[1])
        logits = run_under_ancestors(
            model, cache, self._lengths, self._starts, tokens, positions, seen
        ).logits
        return _pick(logits, self._back.on(logits.device)) if self._ragged else logits


def _pick(values: Tensor, index: Tensor) -> Tensor:
    """values [R, T, ...] at index [R, U]: per row, positions along T."""
    return values[places(len(index), values.device).unsqueeze(1), index]


def _to_columns(seen: Tensor, columns: int) -> Tensor:
    """A mask [..., C] cut or filled up with False to a number of columns."""
    missing = columns - seen.shape[-1]
    return torch.nn.functional.pad(seen, (0, missing)) if missing > 0 else seen[..., :columns]
