"""What makes heads of a kind learn: what they guess during training, and the loss of it.

Medusa and ReDrafter learn single positions by cross-entropy. EAGLE, MTP and DFlash heads learn from
whole sequences, held against what the target says there, each run as decoding runs it.

Letters: B dialogues, T tokens, A rows of a dialogue that are learned, N positions of all, S tokens
of a block, W width of what the target hands over, D width, K guesses, V tokens, V' those that the
head knows, d head width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, smooth_l1_loss

from spec_bench.draft.cached_head import CachedHead, FeatureHead
from spec_bench.draft.dflash_network import DFlashHead
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.heads import save_heads
from spec_bench.draft.network import Heads
from spec_bench.engine.model import LAST, Layers
from spec_bench.train.batches import Batches, SequenceBatch, SequenceBatches
from spec_bench.train.dialogues import IGNORED

LOGITS_WEIGHT = 0.1  # of EAGLE-1's cross-entropy beside its regression (section 3.2)


class Losses(NamedTuple):
    """Sums over positions, per guess."""

    loss: Tensor  # [K] cross-entropy in nats
    right: Tensor  # [K] how often the best guess was the right token


class TrainableHead(nn.Module):
    """Heads of any kind behind one call; these learn every guess at single positions."""

    batches: ClassVar[type[Batches]] = Batches  # what makes batches of dialogues

    def __init__(self, heads: Heads, guesses: int) -> None:
        super().__init__()
        self.heads, self.guesses = heads, guesses  # K; for Medusa the number of its heads

    def layers(self, blocks: int) -> Layers:
        """The hidden states that it learns from, of a target of so many blocks."""
        return LAST

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes what was learned; from then on it is what was written, rounded."""
        save_heads(self.heads.to(dtype), folder)
        self.heads.float()

    def logits(self, batch: Any) -> Iterator[Tensor]:
        """Logits of guess 1, 2, ..., K, each [N, V].

        Args:
            batch: ``x`` [N, D], the target's last hidden states; ``embedded`` [N, K, D], its
                embeddings of the right tokens t + 1..t + K.
        """
        return self.heads.guesses(batch.x, batch.embedded)

    def wanted(self, batch: Any) -> Iterator[Tensor] | None:
        """The target's logits where guess 1, 2, ..., K are made, each [N, V]; None where the batch
        does not hold what they follow from.
        """
        return None

    def forward(self, x: Tensor, embedded: Tensor, guessed: Tensor) -> Losses:
        """Summed losses.

        Args:
            x: [N, D].
            embedded: [N, K, D].
            guessed: [N, K] the right tokens, IGNORED where there is nothing to guess.
        """
        losses, right = [], []
        for guess, logits in enumerate(self.heads.guesses(x, embedded)):
            tokens = guessed[:, guess]
            losses.append(
                nn.functional.cross_entropy(
                    logits.float(), tokens, ignore_index=IGNORED, reduction="sum"
                )
            )
            right.append((logits.detach().argmax(-1) == tokens).sum())
        return Losses(torch.stack(losses), torch.stack(right))


def weights_of(decay: float, guesses: int) -> Tensor:
    """[K] weights of the guesses in the loss: decay^k.

    0.8 for Medusa (arXiv 2401.10774, section 2.2.1); 1 for ReDrafter, whose authors' code adds up
    the guesses' mean losses as they are.
    """
    return decay ** torch.arange(1, guesses + 1)


def weighted(losses: Tensor, counts: Sequence[int], weights: Tensor) -> Tensor:
    """The loss that is minimised: sum over guesses of weight times mean cross-entropy.

    Args:
        losses: [K] sums over some of a step's positions.
        counts: K numbers of positions with something to guess, over all of the step.
        weights: [K].
    """
    means = losses / torch.tensor(counts, device=losses.device).clamp(min=1)
    return (means * weights.to(losses.device)).sum()


class SequenceTrainee(TrainableHead):
    """A head that keeps what it saw of the past, behind the call of all heads.

    Args:
        heads: the head.
        guesses: K, guesses whose accuracy is measured.
        project: the target's last layer.
        steps: guesses that are learned; None: all K.
        noise: what is added to features in training is uniform up to it.
    """

    heads: CachedHead
    batches = SequenceBatches

    def __init__(
        self,
        heads: CachedHead,
        guesses: int,
        project: Callable[[Tensor], Tensor],
        steps: int | None = None,
        noise: float = 0.0,
    ) -> None:
        super().__init__(heads, guesses)
        self._project, self._noise = project, noise
        self._steps = min(steps or guesses, guesses)

    @abstractmethod
    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """Outputs [N, D] of guess 0, 1, ..., ``steps - 1``.

        Args:
            hidden: [B, T + K, W] the target's features.
            embedded: [B, T + K, D] of the tokens t + 1.
            at: [N, 2] dialogue and row of what is learned, in order.
            steps: how many, at most K + 1.
        """

    def logits(self, batch: SequenceBatch) -> Iterator[Tensor]:
        features = batch.hidden[..., : self.heads.features]
        for output in self.outputs(features, batch.embedded, batch.at, self.guesses):
            yield self.heads.logits(output, self._project, self.heads.shape.vocab)

    def wanted(self, batch: SequenceBatch) -> Iterator[Tensor]:
        last, (row, place) = batch.hidden[..., -self.heads.shape.hidden :], batch.at.unbind(1)
        for step in range(self.guesses):
            yield self._project(last[row, place + 1 + step])[:, : self.heads.shape.vocab]

    def forward(  # type: ignore[override]
        self, hidden: Tensor, embedded: Tensor, at: Tensor, guessed: Tensor
    ) -> Losses:
        """Summed losses; fields as in ``SequenceBatch``. Steps that are not learned add nothing."""
        width, (row, place) = self.heads.features, at.unbind(1)
        features, last = hidden[..., :width], hidden[..., -self.heads.shape.hidden :]
        if self._noise:
            features = features + (torch.rand_like(features) * 2 - 1) * self._noise
        asked = [guessed[:, step] != IGNORED for step in range(self._steps)]
        where = [
            (row * last.shape[1] + place + 1 + step)[there] for step, there in enumerate(asked)
        ]
        needed, index = torch.cat(where).unique(return_inverse=True)
        following = last.flatten(0, 1)[needed]
        law, known = self._target_law(following)
        indices = index.split([len(part) for part in where])
        parts, right = [], torch.zeros(self.guesses, dtype=torch.long, device=hidden.device)
        for step, output in enumerate(self.outputs(features, embedded, at, self._steps)):
            logits, index = output[asked[step]], indices[step]
            losses, best = self._loss(logits, following[index], law[index], known[index])
            parts.append(losses.sum())
            right[step] = (best == guessed[asked[step], step]).sum()
        unlearned = hidden.new_zeros(self.guesses - self._steps)
        return Losses(torch.cat([torch.stack(parts), unlearned]), right)

    @torch.no_grad()
    def _target_law(self, following: Tensor) -> tuple[Tensor, Tensor]:
        """[n, V'] what the target says, and [n] whether its best token is one the head knows."""
        logits, ids = self._project(following), self.heads.ids
        if ids is None:
            known = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        else:
            known, logits = torch.isin(logits.argmax(-1), ids), logits[:, ids]
        return logits.float().softmax(dim=-1), known

    def _loss(
        self, output: Tensor, following: Tensor, law: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[n] losses and [n] best tokens of outputs [n, D], before states [n, D], distributions [n,
        V'].
        """
        head = self.heads
        logits = head.own_logits(output, self._project)
        logits = logits[:, : law.shape[-1]]  # padded rows are no tokens
        entropy = -(law * log_softmax(logits.float(), dim=-1)).sum(-1)
        best = logits.detach().argmax(-1)
        best = best if head.ids is None else head.ids[best]
        if head.regresses:
            distance = smooth_l1_loss(output, following, reduction="none").mean(-1)
            return distance + LOGITS_WEIGHT * entropy, best
        return torch.where(known, entropy, 0.0), best


def padded(at: Tensor, dialogues: int) -> tuple[Tensor, Tensor]:
    """Each dialogue's rows side by side: [B, A] rows, and whether each is one; 0 stands in."""
    counts = torch.bincount(at[:, 0], minlength=dialogues)
    most = int(counts.max()) if len(at) else 0
    there = torch.arange(most, device=at.device) < counts.unsqueeze(1)
    rows = at.new_zeros((dialogues, most))
    rows[there] = at[:, 1]
    return rows, there


class Memory:
    """Attention over the rows' keys of step 0 and each row's own of later steps.

    Args:
        rows: [B, A] the rows that later steps are run for.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
    ) -> Tensor:
        """See ``draft.cached_head.Attend``; step 0 has all T rows, later ones A."""
        groups = q.shape[1] // k.shape[1]
        if groups > 1:
            k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        kept = self._kept.setdefault(layer, [])
        kept.append((k, v))
        (first, values), later = kept[0], kept[1:]
        scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
        places = torch.arange(first.shape[2], device=q.device)
        rows = self._rows if later else places.unsqueeze(0)
        hidden = places > rows.unsqueeze(-1)  # [B, A, T] what comes after a row
        scores = (q @ first.transpose(-1, -2) * scale).masked_fill(hidden.unsqueeze(1), -torch.inf)
        if not later:
            return scores.softmax(dim=-1) @ values
        diagonal = [(q * key).sum(-1, keepdim=True) * scale for key, _ in later]
        weights = torch.cat([scores, *diagonal], dim=-1).softmax(dim=-1)
        mixed = weights[..., : len(places)] @ values
        for place, (_, value) in enumerate(later):
            mixed = mixed + weights[..., len(places) + place, None] * value
        return mixed


class EagleTrainee(SequenceTrainee):
    """A head that goes on from its own output, EAGLE's or MTP's: steps unrolled over sequences.

    In step k row t feeds back its own output of step k - 1 (in step 0 the target's feature f_t)
    with the right token t + 1 + k. It sees the keys of step 0 of the rows up to t, which come from
    the target, and its own of the steps 1..k, at position t + k: what a node at depth k on the
    right path below row t sees (EAGLE-3, arXiv 2503.01840, section 3.2).
    """

    heads: FeatureHead

    def layers(self, blocks: int) -> Layers:
        """Its features', and the last ones."""
        if isinstance(self.heads, Eagle3Head):
            return (*self.heads.places(blocks), *LAST)
        return LAST

    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """See ``SequenceTrainee``."""
        count = hidden.shape[1] - self.guesses
        rows, there = padded(at, hidden.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        memory = Memory(rows)
        positions = torch.arange(count, device=hidden.device).unsqueeze(0)
        feature, after = self.heads.fuse(hidden[:, :count]), embedded[:, :count]
        for step in range(steps):
            output = self.heads.step(feature, after, positions, memory)
            if step == 0:
                output = output[dialogue, rows]
            yield output[there]
            positions = rows + step + 1
            feature, after = self.heads.fed_back(output), embedded[dialogue, positions]


class BlockMemory:
    """Attention over a row's context and its own block.

    Args:
        context: per layer the keys and values [B, heads, T, d] of the context entries.
        rows: [B, A] the last entry that each block sees.
    """

    def __init__(self, context: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> None:
        self._context = context
        places = torch.arange(context[0][0].shape[2], device=rows.device)
        self._hidden = (places > rows.unsqueeze(-1))[:, :, None, None]  # [B, A, 1, 1, T]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
    ) -> Tensor:
        """See ``draft.cached_head.Attend``; its rows are the B x A blocks."""
        shape = self._hidden.shape[:2]
        groups = q.shape[1] // k.shape[1]
        keys, values = (part.repeat_interleave(groups, dim=1) for part in self._context[layer])
        k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
        scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
        asked = q.unflatten(0, shape)  # [B, A, heads, S, d]
        before = torch.einsum("bahsd,bhtd->bahst", asked, keys) * scale
        before = before.masked_fill(self._hidden, -torch.inf)
        within = (q @ k.transpose(-1, -2)).unflatten(0, shape) * scale
        weights = torch.cat([before, within], dim=-1).softmax(dim=-1)
        own = weights[..., before.shape[-1] :].flatten(0, 1) @ v
        seen = weights[..., : before.shape[-1]]
        return torch.einsum("bahst,bhtd->bahsd", seen, values).flatten(0, 1) + own


class BlockTrainee(SequenceTrainee):
    """A head that guesses blocks: one after every row that is learned, each blind to the others.

    Row t's block begins with token t + 1, which is known, and has masks after it. It sees the
    context entries of the tokens up to t, and itself (DFlash, arXiv 2602.06036): what decoding runs
    with t + 1 as the root.

    Args:
        heads: the head.
        mask: [D] the target's embedding of the mask token.
        given: as ``SequenceTrainee``'s, after the head.
    """

    heads: DFlashHead
    mask: Tensor

    def __init__(self, heads: DFlashHead, mask: Tensor, *given: Any) -> None:
        super().__init__(heads, *given)
        self.register_buffer("mask", mask.detach().float(), persistent=False)

    def layers(self, blocks: int) -> Layers:
        """What its context is made of, and the last ones."""
        return (*self.heads.shape.places(blocks, "auto"), *LAST)

    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """See ``SequenceTrainee``."""
        head, size = self.heads, self.heads.shape.block
        count = hidden.shape[1] - self.guesses
        rows, there = padded(at, hidden.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        places = torch.arange(max(count, size), device=rows.device)
        entries = head.context(hidden[:, :count])
        context = head.context_kept(entries, head.turn(places[:count].unsqueeze(0)))
        known = embedded[dialogue, rows].unsqueeze(2)
        masks = self.mask.to(known.dtype).expand(*rows.shape, size - 1, -1)
        block = torch.cat([known, masks], dim=2).flatten(0, 1)
        turn = head.turn((rows.unsqueeze(-1) + 1 + places[:size]).flatten(0, 1))
        made = head.outputs(block, turn, BlockMemory(context, rows))
        yield from made.unflatten(0, rows.shape)[there][:, :steps].unbind(1)
