"""A forest of draft beams behind each row's input beams, as tensors that a model runs over.

Letters: R rows, B input beams (the widest row's), D draft beams a layer, C columns. Column c of a
row stands for slot ``length + c``: first the row's trie nodes, the input beams last among them,
then the forest's nodes, layer by layer, D each. Rows may have tries of different sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import run_under_ancestors


class Forest:
    """One iteration's draft beams.

    Args:
        tries: per row, tokens and ancestors [n, n] of its trie nodes, on the host.
        depths: per row, the nodes' depths behind the trunk.
        widths: per row, how many input beams there are.
        lengths: per row, the trunk's length.
        width: D.
        layers: most layers that are drafted.
        device: where it lives.
    """

    def __init__(
        self,
        tries: Sequence[tuple[Sequence[int], Tensor]],
        depths: Sequence[Sequence[int]],
        widths: Sequence[int],
        lengths: list[int],
        width: int,
        layers: int,
        device: torch.device,
    ) -> None:
        self.device, self.lengths, self.width = device, lengths, width
        self.sizes = [len(tokens) for tokens, _ in tries]
        self.widths = list(widths)
        self.inputs = max(widths)
        self.tokens: list[Tensor] = []  # a layer each, [R, D]
        self.parents: list[Tensor] = []  # a layer each, [R, D] indices into the layer before
        rows, most = len(tries), max(self.sizes)
        self._trie_tokens = torch.zeros((rows, most), dtype=torch.long)
        self._trie_depth = torch.zeros((rows, most), dtype=torch.long)
        seen = torch.zeros((rows, most, most + layers * width), dtype=torch.bool)
        for row, ((tokens, ancestors), depth) in enumerate(zip(tries, depths, strict=True)):
            size = len(tokens)
            self._trie_tokens[row, :size] = torch.tensor(tokens)
            self._trie_depth[row, :size] = torch.tensor(depth) + lengths[row]
            seen[row, :size, :size] = ancestors
        self._trie_seen = seen
        inputs = [self._last(row, self.inputs) for row in range(rows)]
        self.input_tokens = _pick(self._trie_tokens, inputs).to(device)  # [R, B]
        self._seen = [_pick(seen, inputs).to(device)]  # the input beams', then a layer each
        self._depth = torch.tensor(
            [int(self._trie_depth[row, size - 1]) for row, size in enumerate(self.sizes)]
        )  # all input beams of a row are equally long

    def _last(self, row: int, count: int) -> list[int]:
        """Indices of a row's input beams; a short row repeats its first one."""
        size, width = self.sizes[row], self.widths[row]
        return [size - width + (beam if beam < width else 0) for beam in range(count)]

    def add_layer(self, tokens: Tensor, parents: Tensor) -> None:
        """Appends D draft beams; tokens and parents: [R, D], parents within the layer before."""
        layer = len(self.tokens)
        index = parents.unsqueeze(-1).expand(-1, -1, self._seen[-1].shape[-1])
        own = torch.tensor(self.sizes, device=self.device).unsqueeze(1) + layer * self.width
        own = own + torch.arange(self.width, device=self.device)
        seen = self._seen[-1].gather(1, index).scatter(2, own.unsqueeze(-1), True)
        self.tokens.append(tokens)
        self.parents.append(parents)
        self._seen.append(seen)

    def run_pending(self, model: LanguageModel, cache: object, drafted: Sequence[int]) -> Tensor:
        """Runs the trie nodes that a draft has not seen, the input beams among them.

        Args:
            model: the draft.
            cache: its cache.
            drafted: per row, how many nodes it has run.

        Returns:
            Logits after the input beams [R, B, V]; a row with fewer repeats its first.
        """
        rows = len(self.sizes)
        pending = [size - done for size, done in zip(self.sizes, drafted, strict=True)]
        most = max(pending)
        # A row with fewer pending nodes runs some stand-ins behind them; a later pass writes there.
        index = [
            [min(done + step, size - 1) for step in range(most)]
            for size, done in zip(self.sizes, drafted, strict=True)
        ]
        starts = [n + done for n, done in zip(self.lengths, drafted, strict=True)]
        columns = max(done + most for done in drafted)
        seen = _to_columns(_pick(self._trie_seen, index).to(self.device), columns)
        logits = run_under_ancestors(
            model,
            cache,
            self.lengths,
            starts,
            _pick(self._trie_tokens, index).to(self.device),
            _pick(self._trie_depth, index).to(self.device),
            seen,
        ).logits
        at = [[node - drafted[row] for node in self._last(row, self.inputs)] for row in range(rows)]
        return _pick(logits, at)

    def run_layer(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the newest layer with a draft; logits [R, D, V]."""
        layer = len(self.tokens)
        starts = [
            n + size + (layer - 1) * self.width
            for n, size in zip(self.lengths, self.sizes, strict=True)
        ]
        columns = max(self.sizes) + layer * self.width
        positions = (self._depth + layer).unsqueeze(1).expand(-1, self.width).to(self.device)
        return run_under_ancestors(
            model,
            cache,
            self.lengths,
            starts,
            self.tokens[-1],
            positions,
            self._seen[-1][..., :columns],
        ).logits

    def run_all(self, model: LanguageModel, cache: object) -> Tensor:
        """Runs the input beams and the whole forest with the target: the iteration's target call.

        Returns:
            Logits [R, B + layers D, V].
        """
        layers = len(self.tokens)
        tokens = torch.cat([self.input_tokens, *self.tokens], dim=1)
        seen = torch.cat(self._seen, dim=1)
        depth = self._depth.unsqueeze(1) + torch.tensor(
            [0] * self.inputs + [layer + 1 for layer in range(layers) for _ in range(self.width)]
        )
        positions = depth.to(self.device)
        starts = [n + s - w for n, s, w in zip(self.lengths, self.sizes, self.widths, strict=True)]
        drafted = list(range(self.inputs, tokens.shape[1]))
        # The slots of a row hold its own input beams, then the forest, then stand-ins.
        order = [[*range(width), *drafted, *([0] * (self.inputs - width))] for width in self.widths]
        ragged = min(self.widths) < self.inputs
        if ragged:
            tokens, positions, seen = (_pick(part, order) for part in (tokens, positions, seen))
        run = max(s - w for s, w in zip(self.sizes, self.widths, strict=True))
        seen = _to_columns(seen, run + tokens.shape[1])
        logits = run_under_ancestors(
            model, cache, self.lengths, starts, tokens, positions, seen
        ).logits
        if not ragged:
            return logits
        back = [
            [
                *(beam if beam < width else 0 for beam in range(self.inputs)),
                *(width + step for step in range(len(drafted))),
            ]
            for width in self.widths
        ]
        return _pick(logits, back)


def _pick(values: Tensor, index: list[list[int]]) -> Tensor:
    """values [R, T, ...] at index: per row, positions along T."""
    rows = torch.arange(len(index), device=values.device).unsqueeze(1)
    return values[rows, torch.tensor(index, device=values.device)]


def _to_columns(seen: Tensor, columns: int) -> Tensor:
    """A mask [..., C] cut or filled up with False to a number of columns."""
    missing = columns - seen.shape[-1]
    return torch.nn.functional.pad(seen, (0, missing)) if missing > 0 else seen[..., :columns]
