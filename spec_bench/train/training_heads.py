"""Wraps heads for training: computes their guesses, and the loss of these.

Medusa and ReDrafter learn single positions by cross-entropy. EAGLE, MTP and DFlash heads learn the
target's distributions on whole sequences, and run as they do in decoding.

Letters: B dialogues, T tokens, A learned rows of a dialogue, N learned positions of all, S tokens
of a block, W width of the target's features, D width, K guesses, V tokens, V' those in the head's
vocabulary, d head width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, smooth_l1_loss

from spec_bench.draft.cached_head import CachedHead, FeatureHead
from spec_bench.draft.dflash import DFlashHead
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.heads import save_heads
from spec_bench.draft.network import DraftHeads, scatter_to_vocabulary
from spec_bench.engine.model import LAST, Layers
from spec_bench.train.batches import (
    IGNORED_LABEL,
    DialogueBatches,
    SequenceBatch,
    SequenceBatches,
)

LOGITS_WEIGHT = 0.1  # weight of EAGLE-1's cross-entropy relative to its regression (section 3.2)


class GuessLosses(NamedTuple):
    """Sums over positions, per guess."""

    loss: Tensor  # [K] cross-entropy in nats
    right: Tensor  # [K] number of positions where the best guess was right


class TrainableHead(nn.Module):
    """Heads with their loss. The base class learns every guess at single positions."""

    batches_class: ClassVar[type[DialogueBatches]] = DialogueBatches

    def __init__(self, heads: DraftHeads, guesses: int) -> None:
        super().__init__()
        self.heads = heads
        self.guesses = guesses  # K; for Medusa the number of its heads

    def get_target_layers(self, blocks: int) -> Layers:
        """Returns the layers to learn from, of a target with ``blocks`` blocks."""
        return LAST

    def round_and_save(self, folder: Path, dtype: torch.dtype) -> None:
        """Rounds the parameters to ``dtype`` and writes the heads."""
        save_heads(self.heads.to(dtype), folder)
        self.heads.float()

    def iter_guess_logits(self, batch: Any) -> Iterator[Tensor]:
        """Yields the logits of guesses 1, 2, ..., K, each [N, V]."""
        for own_logits in self.heads.iter_guess_logits(batch.hidden_states, batch.embeddings):
            yield scatter_to_vocabulary(own_logits, self._vocabulary_ids, self.heads.shape.vocab)

    @property
    def _vocabulary_ids(self) -> Tensor | None:
        """Target ids of the heads' vocabulary, [V'] in increasing order; None if they have all
        tokens.
        """
        ids: Tensor | None = getattr(self.heads, "ids", None)
        return ids

    def iter_target_logits(self, batch: Any) -> Iterator[Tensor] | None:
        """Yields the target's logits for guesses 1, 2, ..., K, each [N, V]; None if the batch lacks
        the hidden states for them.
        """
        return None

    def forward(self, hidden_states: Tensor, embeddings: Tensor, labels: Tensor) -> GuessLosses:
        """Sums the losses of a ``PositionBatch`` per guess."""
        losses = []
        right = []
        ids = self._vocabulary_ids
        sum_loss = partial(cross_entropy, ignore_index=IGNORED_LABEL, reduction="sum")
        if ids is not None:  # labels become indices into the heads' vocabulary; others are ignored
            places = torch.searchsorted(ids, labels.contiguous()).clamp(max=len(ids) - 1)
            labels = torch.where(ids[places] == labels, places, IGNORED_LABEL)
        for logits, tokens in zip(
            self.heads.iter_guess_logits(hidden_states, embeddings), labels.unbind(1), strict=True
        ):
            losses.append(sum_loss(logits.float(), tokens))
            right.append((logits.detach().argmax(-1) == tokens).sum())
        return GuessLosses(torch.stack(losses), torch.stack(right))


def compute_decay_powers(decay: float, guesses: int) -> Tensor:
    """Computes decay^k for k = 1, ..., K, the weights [K] of the guesses in the loss.

    The decay is 0.8 for Medusa (arXiv 2401.10774, section 2.2.1) and 1 for ReDrafter, whose
    authors' code adds up the guesses' mean losses.
    """
    return decay ** torch.arange(1, guesses + 1)


def compute_weighted_loss(losses: Tensor, counts: Sequence[int], weights: Tensor) -> Tensor:
    """Computes the loss to minimise: the sum over guesses of weight times mean cross-entropy.
    ``losses`` [K] are sums over one part of the step, ``counts`` the K label counts of the whole
    step.
    """
    means = losses / torch.tensor(counts, device=losses.device).clamp(min=1)
    return (means * weights.to(losses.device)).sum()


class TrainableSequenceHead(TrainableHead):
    """A head with a cache, trained on whole sequences.

    ``project`` is the target's last layer. The first ``learned_steps`` guesses are learned (None:
    all K). Uniform noise up to ``noise`` is added to the features. ``mask`` [D] is the target's
    embedding of the mask token, for heads that have one.
    """

    heads: CachedHead
    batches_class = SequenceBatches
    mask: Tensor

    def __init__(
        self,
        heads: CachedHead,
        guesses: int,
        project: Callable[[Tensor], Tensor],
        learned_steps: int | None = None,
        noise: float = 0.0,
        mask: Tensor | None = None,
    ) -> None:
        super().__init__(heads, guesses)
        if mask is not None:
            self.register_buffer("mask", mask.detach().float(), persistent=False)
        self._project = project
        self._noise = noise
        self._learned_steps = min(learned_steps or guesses, guesses)

    @abstractmethod
    def iter_outputs(
        self,
        features: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        steps: int,
    ) -> Iterator[Tensor]:
        """Yields the outputs [N, D] of guesses 0, 1, ..., ``steps - 1`` from features [B, T + K, W]
        and the other fields of a ``SequenceBatch``.
        """

    def iter_guess_logits(self, batch: SequenceBatch) -> Iterator[Tensor]:
        features = batch.hidden_states[..., : self.heads.hidden_input_width]
        for output in self.iter_outputs(features, batch.embeddings, batch.locations, self.guesses):
            yield self.heads.compute_logits(output, self._project, self.heads.shape.vocab)

    def iter_target_logits(self, batch: SequenceBatch) -> Iterator[Tensor]:
        last_states = batch.hidden_states[..., -self.heads.shape.hidden :]
        row, place = batch.locations.unbind(1)
        for step in range(self.guesses):
            yield self._project(last_states[row, place + 1 + step])[:, : self.heads.shape.vocab]

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        labels: Tensor,
    ) -> GuessLosses:
        """Sums the losses of a ``SequenceBatch`` per guess; guesses that are not learned have loss
        0.
        """
        width = self.heads.hidden_input_width
        row, place = locations.unbind(1)
        features = hidden_states[..., :width]
        last_states = hidden_states[..., -self.heads.shape.hidden :]
        if self._noise:
            features = features + (torch.rand_like(features) * 2 - 1) * self._noise
        is_learned = [labels[:, step] != IGNORED_LABEL for step in range(self._learned_steps)]
        next_rows = row * last_states.shape[1] + place + 1
        step_rows = [(next_rows + step)[mask] for step, mask in enumerate(is_learned)]
        unique_rows, index = torch.cat(step_rows).unique(return_inverse=True)
        next_states = last_states.flatten(0, 1)[unique_rows]
        p, is_known = self._compute_target_probs_and_in_vocabulary(next_states)
        indices = index.split([len(part) for part in step_rows])
        parts = []
        right = torch.zeros(self.guesses, dtype=torch.long, device=hidden_states.device)
        for step, output in enumerate(
            self.iter_outputs(features, embeddings, locations, self._learned_steps)
        ):
            logits = output[is_learned[step]]
            index = indices[step]
            losses, best = self._compute_losses_and_best(
                logits, next_states[index], p[index], is_known[index]
            )
            parts.append(losses.sum())
            right[step] = (best == labels[is_learned[step], step]).sum()
        padding = hidden_states.new_zeros(self.guesses - self._learned_steps)
        return GuessLosses(torch.cat([torch.stack(parts), padding]), right)

    @torch.no_grad()
    def _compute_target_probs_and_in_vocabulary(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the target's distributions [n, V'], and whether its best token is in the head's
        vocabulary [n].
        """
        logits = self._project(states)
        ids = self.heads.ids
        is_known = torch.ones_like(logits[:, 0], dtype=torch.bool)
        if ids is not None:
            is_known = torch.isin(logits.argmax(-1), ids)
            logits = logits[:, ids]
        return logits.float().softmax(dim=-1), is_known

    def _compute_losses_and_best(
        self,
        output: Tensor,
        next_states: Tensor,
        p: Tensor,
        is_known: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Computes the losses [n] and best tokens [n] of outputs [n, D], from the target's next
        states [n, D] and distributions p [n, V'].
        """
        head = self.heads
        logits = head.compute_own_logits(output, self._project)
        logits = logits[:, : p.shape[-1]]  # the last layer may be padded
        entropy = -(p * log_softmax(logits.float(), dim=-1)).sum(-1)
        best = logits.detach().argmax(-1)
        best = best if head.ids is None else head.ids[best]
        if head.regresses:
            distance = smooth_l1_loss(output, next_states, reduction="none").mean(-1)
            return distance + LOGITS_WEIGHT * entropy, best
        return torch.where(is_known, entropy, 0.0), best


def group_positions_by_dialogue(locations: Tensor, dialogue_count: int) -> tuple[Tensor, Tensor]:
    """Groups locations [N, 2] by dialogue. Returns positions [B, A], padded with 0, and a mask [B,
    A], False for padding.
    """
    counts = torch.bincount(locations[:, 0], minlength=dialogue_count)
    longest = int(counts.max()) if len(locations) else 0
    present = torch.arange(longest, device=locations.device) < counts.unsqueeze(1)
    rows = locations.new_zeros((dialogue_count, longest))
    rows[present] = locations[:, 1]
    return rows, present


def _repeat_kv_heads(q: Tensor, *parts: Tensor) -> list[Tensor]:
    """Repeats the heads of keys or values to match the number of the queries' heads."""
    return [part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in parts]


class UnrolledAttention:
    """Attention of each row over the step-0 keys of rows up to it, and over its own later keys."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows  # [B, A] rows of the later steps
        self._keys_values: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attends in one step of a layer, see ``draft.layers.AttentionFunction``. Step 0 has
        all T rows, later steps A.
        """
        k, v = _repeat_kv_heads(q, k, v)
        cache = self._keys_values.setdefault(layer, [])
        cache.append((k, v))
        keys, values = cache[0]
        later = cache[1:]
        scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
        places = torch.arange(keys.shape[2], device=q.device)
        rows = self._rows if later else places.unsqueeze(0)
        is_later = places > rows.unsqueeze(-1)  # [B, A, T] keys after each row
        scores = (q @ keys.transpose(-1, -2) * scale).masked_fill(is_later.unsqueeze(1), -torch.inf)
        if not later:
            return scores.softmax(dim=-1) @ values
        diagonal = [(q * key).sum(-1, keepdim=True) * scale for key, _ in later]
        weights = torch.cat([scores, *diagonal], dim=-1).softmax(dim=-1)
        output = weights[..., : len(places)] @ values
        for place, (_, value) in enumerate(later):
            output = output + weights[..., len(places) + place, None] * value
        return output


class TrainableUnrolledHead(TrainableSequenceHead):
    """An EAGLE or MTP head, whose steps continue from its own output; unrolled over sequences.

    In step k, row t takes its own output of step k - 1 (in step 0 the target's feature f_t) and the
    right token t + 1 + k. It attends to the step-0 keys of rows up to t, which come from the
    target, and to its own keys of steps 1..k, at position t + k, as does a tree node at depth k on
    the right path below row t (EAGLE-3, arXiv 2503.01840, section 3.2). A head with masks takes
    none of its outputs: every later step takes a mask token and its feature (P-EAGLE, arXiv
    2602.01469).
    """

    heads: FeatureHead

    def get_target_layers(self, blocks: int) -> Layers:
        """Returns the layers of the head's features, then the last layer."""
        if isinstance(self.heads, Eagle3Head):
            return (*self.heads.shape.find_hidden_state_indices(blocks), *LAST)
        return LAST

    def iter_outputs(
        self,
        features: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        steps: int,
    ) -> Iterator[Tensor]:
        """Yields the outputs of each step, see ``TrainableSequenceHead``."""
        count = features.shape[1] - self.guesses
        rows, present = group_positions_by_dialogue(locations, features.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        memory = UnrolledAttention(rows)
        positions = torch.arange(count, device=features.device).unsqueeze(0)
        feature = self.heads.fuse_hidden_states(features[:, :count])
        next_embeddings = embeddings[:, :count]
        blank: Any = getattr(self.heads, "mask_hidden", None)
        if blank is not None:  # P-EAGLE: later steps take a mask and its feature
            blank = self.heads.fuse_hidden_states(blank).expand(*rows.shape, -1)
            mask = self.mask.to(next_embeddings.dtype).expand(*rows.shape, -1)
        for step in range(steps):
            output = self.heads.compute_outputs(feature, next_embeddings, positions, memory)
            if step == 0:
                output = output[dialogue, rows]
            yield output[present]
            positions = rows + step + 1
            if blank is not None:
                feature = blank
                next_embeddings = mask
            else:
                feature = self.heads.to_next_feature(output)
                next_embeddings = embeddings[dialogue, positions]


class ContextBlockAttention:
    """Attention over a row's context and its own block.

    ``context`` has the keys and values [B, heads, T, d] of each layer; ``rows`` [B, A] is the last
    context entry that each block sees.
    """

    def __init__(self, context: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> None:
        self._context = context
        places = torch.arange(context[0][0].shape[2], device=rows.device)
        self._hidden = (places > rows.unsqueeze(-1))[:, :, None, None]  # [B, A, 1, 1, T]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        """Attends in a layer, see ``draft.layers.AttentionFunction``; the rows are B x A
        blocks.
        """
        shape = self._hidden.shape[:2]
        keys, values, k, v = _repeat_kv_heads(q, *self._context[layer], k, v)
        scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
        queries = q.unflatten(0, shape)  # [B, A, heads, S, d]
        context_scores = torch.einsum("bahsd,bhtd->bahst", queries, keys) * scale
        context_scores = context_scores.masked_fill(self._hidden, -torch.inf)
        block_scores = (q @ k.transpose(-1, -2)).unflatten(0, shape) * scale
        weights = torch.cat([context_scores, block_scores], dim=-1).softmax(dim=-1)
        block_output = weights[..., context_scores.shape[-1] :].flatten(0, 1) @ v
        context_weights = weights[..., : context_scores.shape[-1]]
        return (
            torch.einsum("bahst,bhtd->bahsd", context_weights, values).flatten(0, 1) + block_output
        )


class TrainableBlockHead(TrainableSequenceHead):
    """A head that guesses blocks (DFlash, arXiv 2602.06036), one after every learned row.

    Row t's block is token t + 1, which is known, and masks after it. It sees the context entries of
    tokens up to t and its own tokens, but no other block, as in decoding with t + 1 as the root.
    """

    heads: DFlashHead

    def get_target_layers(self, blocks: int) -> Layers:
        """Returns the layers of the head's context, then the last layer."""
        return (*self.heads.shape.find_hidden_state_indices(blocks), *LAST)

    def iter_outputs(
        self,
        features: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        steps: int,
    ) -> Iterator[Tensor]:
        """Yields the outputs of each step, see ``TrainableSequenceHead``."""
        head = self.heads
        size = self.heads.shape.block
        count = features.shape[1] - self.guesses
        rows, present = group_positions_by_dialogue(locations, features.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        places = torch.arange(max(count, size), device=rows.device)
        entries = head.project_context(features[:, :count])
        context = head.compute_context_keys_values(
            entries, head.compute_rotation(places[:count].unsqueeze(0))
        )
        known_embedding = embeddings[dialogue, rows].unsqueeze(2)
        masks = self.mask.to(known_embedding.dtype).expand(*rows.shape, size - 1, -1)
        block = torch.cat([known_embedding, masks], dim=2).flatten(0, 1)
        rotation = head.compute_rotation((rows.unsqueeze(-1) + 1 + places[:size]).flatten(0, 1))
        outputs = head.compute_block_outputs(block, rotation, ContextBlockAttention(context, rows))
        yield from outputs.unflatten(0, rows.shape)[present][:, :steps].unbind(1)
