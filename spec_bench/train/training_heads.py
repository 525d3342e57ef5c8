"""Wraps heads for training: their guesses during training, and the loss of these.

Medusa and ReDrafter learn single positions by cross-entropy. EAGLE, MTP and DFlash heads learn the
target's distributions on whole sequences, and run as they do in decoding.

Letters: B dialogues, T tokens, A learned rows of a dialogue, N learned positions of all, S tokens
of a block, W width of the target's features, D width, K guesses, V tokens, V' those in the head's
vocabulary, d head width.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, log_softmax, smooth_l1_loss
from torch.nn.utils.rnn import pad_sequence
from transformers import MistralConfig, MistralForCausalLM

from spec_bench.draft.cached_head import CachedHead, FeatureHead
from spec_bench.draft.dflash import DFlashHead
from spec_bench.draft.eagle_network import Eagle3Head
from spec_bench.draft.heads import save_heads
from spec_bench.draft.network import DraftHeads, scatter_to_vocabulary
from spec_bench.engine.mapped_model import read_ids, vocabulary_map_of_ids, write_ids
from spec_bench.engine.model import LAST, Layers
from spec_bench.system.errors import UsageError
from spec_bench.train.batches import (
    IGNORED,
    Dialogue,
    DialogueBatches,
    SequenceBatch,
    SequenceBatches,
    count_answer_tokens,
)

if TYPE_CHECKING:
    from spec_bench.train.settings import HeadSettings

MASKED = 0.5  # share of an answer's positions, drawn in every step, with PARD's masks after them
LOGITS_WEIGHT = 0.1  # of EAGLE-1's cross-entropy, relative to its regression (section 3.2)


class GuessLosses(NamedTuple):
    """Sums over positions, per guess."""

    loss: Tensor  # [K] cross-entropy in nats
    right: Tensor  # [K] number of positions where the best guess was right


class TrainableHead(nn.Module):
    """Heads with their loss. The base class learns every guess at single positions."""

    batches: ClassVar[type[DialogueBatches]] = DialogueBatches

    def __init__(self, heads: DraftHeads, guesses: int) -> None:
        super().__init__()
        self.heads = heads
        self.guesses = guesses  # K; for Medusa the number of its heads

    def layers(self, blocks: int) -> Layers:
        """Returns the layers whose hidden states it learns from, of a target with ``blocks``."""
        return LAST

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes the heads and rounds them to what was written."""
        save_heads(self.heads.to(dtype), folder)
        self.heads.float()

    def logits(self, batch: Any) -> Iterator[Tensor]:
        """Yields the logits of guesses 1, 2, ..., K, each [N, V]."""
        for own_logits in self.heads.guesses(batch.x, batch.embedded):
            yield scatter_to_vocabulary(own_logits, self._ids, self.heads.shape.vocab)

    @property
    def _ids(self) -> Tensor | None:
        """Target ids of the heads' vocabulary, [V'] in increasing order; None if it is all."""
        ids: Tensor | None = getattr(self.heads, "ids", None)
        return ids

    def iter_target_logits(self, batch: Any) -> Iterator[Tensor] | None:
        """Yields the target's logits for guesses 1, 2, ..., K, each [N, V]; None if the batch lacks
        the hidden states for them.
        """
        return None

    def forward(self, x: Tensor, embeddings: Tensor, labels: Tensor) -> GuessLosses:
        """Sums the losses of a ``PositionBatch``."""
        losses = []
        right = []
        ids = self._ids
        sum_loss = partial(cross_entropy, ignore_index=IGNORED, reduction="sum")
        if ids is not None:  # as indices into the heads' vocabulary; other tokens are not learned
            places = torch.searchsorted(ids, labels.contiguous()).clamp(max=len(ids) - 1)
            labels = torch.where(ids[places] == labels, places, IGNORED)
        for logits, tokens in zip(self.heads.guesses(x, embeddings), labels.unbind(1), strict=True):
            losses.append(sum_loss(logits.float(), tokens))
            right.append((logits.detach().argmax(-1) == tokens).sum())
        return GuessLosses(torch.stack(losses), torch.stack(right))


def loss_weights(decay: float, guesses: int) -> Tensor:
    """Computes the weights [K] of the guesses in the loss: decay^k.

    The decay is 0.8 for Medusa (arXiv 2401.10774, section 2.2.1) and 1 for ReDrafter, whose
    authors' code adds up the guesses' mean losses.
    """
    return decay ** torch.arange(1, guesses + 1)


def weighted_loss(losses: Tensor, counts: Sequence[int], weights: Tensor) -> Tensor:
    """Computes the loss to minimise: the sum over guesses of weight times mean cross-entropy.
    ``losses`` [K] are sums over a part of the step, ``counts`` K numbers of labels of the whole
    step.
    """
    means = losses / torch.tensor(counts, device=losses.device).clamp(min=1)
    return (means * weights.to(losses.device)).sum()


class SequenceHead(TrainableHead):
    """A head with a cache, trained on whole sequences.

    ``project`` is the target's last layer. ``steps`` of the K guesses are learned (None: all).
    Uniform noise up to ``noise`` is added to the features. ``mask`` [D] is the target's embedding
    of the mask token, for heads that have one.
    """

    heads: CachedHead
    batches = SequenceBatches
    mask: Tensor

    def __init__(
        self,
        heads: CachedHead,
        guesses: int,
        project: Callable[[Tensor], Tensor],
        steps: int | None = None,
        noise: float = 0.0,
        mask: Tensor | None = None,
    ) -> None:
        super().__init__(heads, guesses)
        if mask is not None:
            self.register_buffer("mask", mask.detach().float(), persistent=False)
        self._project = project
        self._noise = noise
        self._steps = min(steps or guesses, guesses)

    @abstractmethod
    def outputs(
        self,
        features: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        steps: int,
    ) -> Iterator[Tensor]:
        """Yields the outputs [N, D] of guesses 0, 1, ..., ``steps - 1`` from features [B, T + K, W]
        and the other fields of a ``SequenceBatch``.
        """

    def logits(self, batch: SequenceBatch) -> Iterator[Tensor]:
        features = batch.hidden[..., : self.heads.features]
        for output in self.outputs(features, batch.embedded, batch.at, self.guesses):
            yield self.heads.logits(output, self._project, self.heads.shape.vocab)

    def iter_target_logits(self, batch: SequenceBatch) -> Iterator[Tensor]:
        last_states = batch.hidden[..., -self.heads.shape.hidden :]
        row, place = batch.at.unbind(1)
        for step in range(self.guesses):
            yield self._project(last_states[row, place + 1 + step])[:, : self.heads.shape.vocab]

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        labels: Tensor,
    ) -> GuessLosses:
        """Sums the losses of a ``SequenceBatch``; steps that are not learned add nothing."""
        width = self.heads.features
        row, place = locations.unbind(1)
        features = hidden_states[..., :width]
        last_states = hidden_states[..., -self.heads.shape.hidden :]
        if self._noise:
            features = features + (torch.rand_like(features) * 2 - 1) * self._noise
        is_learned = [labels[:, step] != IGNORED for step in range(self._steps)]
        next_rows = row * last_states.shape[1] + place + 1
        step_rows = [(next_rows + step)[mask] for step, mask in enumerate(is_learned)]
        unique_rows, index = torch.cat(step_rows).unique(return_inverse=True)
        next_states = last_states.flatten(0, 1)[unique_rows]
        p, is_known = self._target_distribution(next_states)
        indices = index.split([len(part) for part in step_rows])
        parts = []
        right = torch.zeros(self.guesses, dtype=torch.long, device=hidden_states.device)
        for step, output in enumerate(self.outputs(features, embeddings, locations, self._steps)):
            logits = output[is_learned[step]]
            index = indices[step]
            losses, best = self._loss(logits, next_states[index], p[index], is_known[index])
            parts.append(losses.sum())
            right[step] = (best == labels[is_learned[step], step]).sum()
        padding = hidden_states.new_zeros(self.guesses - self._steps)
        return GuessLosses(torch.cat([torch.stack(parts), padding]), right)

    @torch.no_grad()
    def _target_distribution(self, states: Tensor) -> tuple[Tensor, Tensor]:
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

    def _loss(
        self,
        output: Tensor,
        next_states: Tensor,
        p: Tensor,
        is_known: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Computes losses and best tokens [n] from outputs and next states [n, D], p [n, V']."""
        head = self.heads
        logits = head.compute_own_logits(output, self._project)[
            :, : p.shape[-1]
        ]  # padding is no token
        entropy = -(p * log_softmax(logits.float(), dim=-1)).sum(-1)
        best = logits.detach().argmax(-1)
        best = best if head.ids is None else head.ids[best]
        if head.regresses:
            distance = smooth_l1_loss(output, next_states, reduction="none").mean(-1)
            return distance + LOGITS_WEIGHT * entropy, best
        return torch.where(is_known, entropy, 0.0), best


def pad_rows(locations: Tensor, dialogues: int) -> tuple[Tensor, Tensor]:
    """Groups locations [N, 2] by dialogue: rows [B, A] padded with 0, and which are real."""
    counts = torch.bincount(locations[:, 0], minlength=dialogues)
    longest = int(counts.max()) if len(locations) else 0
    present = torch.arange(longest, device=locations.device) < counts.unsqueeze(1)
    rows = locations.new_zeros((dialogues, longest))
    rows[present] = locations[:, 1]
    return rows, present


def _repeat_kv_heads(q: Tensor, *parts: Tensor) -> list[Tensor]:
    """Repeats keys or values for each head of the queries."""
    return [part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in parts]


class TrainingAttention:
    """Attention over all rows' keys of step 0 and each row's own keys of later steps."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows  # [B, A] rows of the later steps
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None = None,
    ) -> Tensor:
        """See ``draft.cached_head.AttentionFunction``; step 0 has all T rows, later ones A."""
        k, v = _repeat_kv_heads(q, k, v)
        cache = self._kept.setdefault(layer, [])
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


class UnrolledHead(SequenceHead):
    """An EAGLE or MTP head, whose steps continue from its own output; unrolled over sequences.

    In step k row t feeds back its own output of step k - 1 (in step 0 the target's feature f_t)
    with the right token t + 1 + k. It sees the keys of step 0 of the rows up to t, which come from
    the target, and its own of the steps 1..k, at position t + k: what a node at depth k on the
    right path below row t sees (EAGLE-3, arXiv 2503.01840, section 3.2). A head with masks feeds
    back nothing: every later step takes a mask token and its feature (P-EAGLE, arXiv 2602.01469).
    """

    heads: FeatureHead

    def layers(self, blocks: int) -> Layers:
        """Returns the layers of its features, and the last one."""
        if isinstance(self.heads, Eagle3Head):
            return (*self.heads.shape.places(blocks), *LAST)
        return LAST

    def outputs(
        self,
        features: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        steps: int,
    ) -> Iterator[Tensor]:
        """See ``SequenceHead``."""
        count = features.shape[1] - self.guesses
        rows, present = pad_rows(locations, features.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        memory = TrainingAttention(rows)
        positions = torch.arange(count, device=features.device).unsqueeze(0)
        feature = self.heads.fuse(features[:, :count])
        next_embeddings = embeddings[:, :count]
        blank: Any = getattr(self.heads, "mask_hidden", None)
        if blank is not None:  # P-EAGLE: later steps take a mask and its feature
            blank = self.heads.fuse(blank).expand(*rows.shape, -1)
            mask = self.mask.to(next_embeddings.dtype).expand(*rows.shape, -1)
        for step in range(steps):
            output = self.heads.step(feature, next_embeddings, positions, memory)
            if step == 0:
                output = output[dialogue, rows]
            yield output[present]
            positions = rows + step + 1
            if blank is not None:
                feature = blank
                next_embeddings = mask
            else:
                feature = self.heads.next_feature(output)
                next_embeddings = embeddings[dialogue, positions]


class BlockAttention:
    """Attention over a row's context and its own block.

    ``context`` has the keys and values [B, heads, T, d] of each layer; ``rows`` [B, A] are the last
    entries that each block sees.
    """

    def __init__(self, context: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> None:
        self._context = context
        places = torch.arange(context[0][0].shape[2], device=rows.device)
        self._hidden = (places > rows.unsqueeze(-1))[:, :, None, None]  # [B, A, 1, 1, T]

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None = None,
    ) -> Tensor:
        """See ``draft.cached_head.AttentionFunction``; its rows are the B x A blocks."""
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


class BlockHead(SequenceHead):
    """A head that guesses blocks (DFlash, arXiv 2602.06036), one after every learned row.

    Row t's block is token t + 1, which is known, and masks after it. It sees the context entries of
    the tokens up to t and itself, no other block: what decoding runs with t + 1 as the root.
    """

    heads: DFlashHead

    def layers(self, blocks: int) -> Layers:
        """Returns the layers of its context, and the last one."""
        return (*self.heads.shape.places(blocks), *LAST)

    def outputs(
        self,
        features: Tensor,
        embeddings: Tensor,
        locations: Tensor,
        steps: int,
    ) -> Iterator[Tensor]:
        """See ``SequenceHead``."""
        head = self.heads
        size = self.heads.shape.block
        count = features.shape[1] - self.guesses
        rows, present = pad_rows(locations, features.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        places = torch.arange(max(count, size), device=rows.device)
        entries = head.context(features[:, :count])
        context = head.context_kept(entries, head.turn(places[:count].unsqueeze(0)))
        known_embedding = embeddings[dialogue, rows].unsqueeze(2)
        masks = self.mask.to(known_embedding.dtype).expand(*rows.shape, size - 1, -1)
        block = torch.cat([known_embedding, masks], dim=2).flatten(0, 1)
        turn = head.turn((rows.unsqueeze(-1) + 1 + places[:size]).flatten(0, 1))
        outputs = head.outputs(block, turn, BlockAttention(context, rows))
        yield from outputs.unflatten(0, rows.shape)[present][:, :steps].unbind(1)


# A small draft model with some of the target's tokens. At every position of an answer it learns the
# target's distribution of the next token, restricted to its own vocabulary: distillation on the
# target's answers (DistillSpec, arXiv 2310.08461), with EAGLE-3's smaller vocabulary.


class DraftModel(nn.Module):
    """A Mistral (a Llama with a window) over V' tokens and one for all others, made from ``shape``
    or loaded from a folder. With several guesses a mask token follows these.
    """

    ids: Tensor  # [V'] target ids of its vocabulary
    reads: Tensor

    def __init__(
        self,
        ids: Sequence[int],
        vocab: int,
        shape: dict[str, Any] | Path,
        guesses: int = 1,
    ) -> None:
        super().__init__()
        count = len(ids) + 1 + (guesses > 1)
        if isinstance(shape, Path):
            self.module = MistralForCausalLM.from_pretrained(shape, dtype=torch.float32)
            self.module.resize_token_embeddings(count, mean_resizing=False)
        else:
            shape = {"sliding_window": None, "tie_word_embeddings": True, "use_cache": True} | shape
            shape["num_key_value_heads"] = shape["num_attention_heads"]
            self.module = MistralForCausalLM(MistralConfig(vocab_size=count, **shape))
        self.module.config.pard_token = count - 1 if guesses > 1 else None
        self.vocab = vocab
        self.guesses = guesses
        self.parameter_count = self.module.num_parameters()  # shared ones once
        self.register_buffer("ids", torch.tensor(ids), persistent=False)
        self.register_buffer(
            "reads",
            torch.tensor(vocabulary_map_of_ids(ids, vocab).reads),
            persistent=False,
        )

    def forward(self, tokens: Tensor, locations: Tensor, starts: Tensor) -> Iterator[Tensor]:
        """Yields the logits [N, V'] after ``locations`` [N, 2] (dialogue and position) of tokens
        [B, T]; then [S, V'] of each of the K - 1 masks after ``starts`` [S, 2]. Masks do not see
        those after other starts.
        """
        count = tokens.shape[1]
        masks = self.guesses - 1
        ends = tokens.new_zeros(tokens.shape[1])
        rows, present = pad_rows(starts, len(tokens))  # [B, A]
        mask_index = torch.arange(rows.shape[1] * masks, device=tokens.device)
        # number of the start of each mask; 0: text
        chain = torch.cat([ends, 1 + mask_index // max(masks, 1)])
        mask_depth = torch.cat([ends, 1 + mask_index % max(masks, 1)])
        text = torch.arange(count, device=tokens.device).expand(len(tokens), -1)
        known_place = torch.cat([text, rows.repeat_interleave(masks, dim=1)], dim=1)
        places = known_place + mask_depth
        q = places.unsqueeze(2)
        k = places.unsqueeze(1)
        in_chain = (chain == chain.unsqueeze(1)) & (k <= q)
        visible = torch.where(chain == 0, k <= known_place.unsqueeze(2), in_chain)
        if (window := self.module.config.sliding_window) is not None:
            visible &= k > q - window
        input_ids = nn.functional.pad(
            self.reads[tokens],
            (0, len(mask_index)),
            value=len(self.ids) + 1,
        )
        hidden_states = self.module.model(
            input_ids=input_ids,
            position_ids=places,
            attention_mask=visible.unsqueeze(1),
            use_cache=False,
        )[0]
        mask_states = hidden_states[:, count:].unflatten(1, (rows.shape[1], masks))[present]
        for states in (hidden_states[locations[:, 0], locations[:, 1]], *mask_states.unbind(1)):
            yield linear(states, self.module.lm_head.weight[: len(self.ids)])


class TextBatch(NamedTuple):
    """Whole dialogues for one part of a step."""

    tokens: Tensor  # [B, T] whole dialogues, padded on the right
    at: Tensor  # [N, 2] dialogue and position t before each token of an answer
    x: Tensor  # [N, D] the target's last hidden states there
    guessed: Tensor  # [N, K] tokens t + 1..t + K, IGNORED past an answer's end


def find_answer_positions(dialogue: Dialogue) -> list[int]:
    """Finds the positions whose next token belongs to an answer."""
    return [t for t, is_answer in enumerate(dialogue.learned[1:]) if is_answer]


@dataclass(frozen=True)
class TextBatches(DialogueBatches):
    """Makes batches of tokens, with the hidden states before each token of an answer."""

    select_positions = select_starts = staticmethod(find_answer_positions)

    @torch.no_grad()
    def make_batch(self, indices: Sequence[int]) -> TextBatch:  # type: ignore[override]
        device = self.model.device
        dialogue_indices = indices or [0]  # a part of a step without dialogues learns nothing
        dialogues = [self.dialogues[index] for index in dialogue_indices]
        ids = pad_sequence([torch.tensor(dialogue.ids) for dialogue in dialogues], batch_first=True)
        locations = torch.tensor(
            [
                (row, t)
                for row, dialogue in enumerate(dialogues)
                for t in self.select_starts(dialogue)
            ]
        )
        position_count = len(locations) if indices else 0
        labels = self.get_labels(dialogue_indices)[:position_count].to(device)
        x = self.get_hidden_states(dialogue_indices)[:position_count]
        return TextBatch(ids.to(device), locations[:position_count].to(device), x, labels)

    def get_labels(self, indices: Sequence[int]) -> Tensor:
        return self.tokens(indices)[:, :-1]


class DraftModelHead(TrainableHead):
    """A draft model with its loss; ``output`` [V, D] is the target's last layer."""

    heads: DraftModel  # type: ignore[assignment]
    batches = TextBatches

    def __init__(self, draft: DraftModel, output: Tensor) -> None:
        super().__init__(draft, draft.guesses)  # type: ignore[arg-type]
        self._output = output  # neither trained nor saved
        self._known: Tensor | None = None

    def logits(self, batch: TextBatch) -> Iterator[Tensor]:
        """Yields logits [N, V], -inf for tokens outside of the draft's vocabulary."""
        for logits in self.heads(batch.tokens, batch.at, batch.at):
            yield scatter_to_vocabulary(logits, self.heads.ids, self.heads.vocab)

    def iter_target_logits(self, batch: TextBatch) -> Iterator[Tensor]:
        logits = linear(batch.x, self._output.to(batch.x.device))[:, : self.heads.vocab]
        yield from (logits.roll(-step, 0) for step in range(self.guesses))

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        locations: Tensor,
        x: Tensor,
        labels: Tensor,
    ) -> GuessLosses:
        """Sums the cross-entropy of a ``TextBatch`` with the target's distribution over V'. Masks
        follow a sample of the positions; their sums are scaled up to all positions.
        """
        with torch.no_grad():
            if self._known is None:
                self._known = self._output.to(x.device)[self.heads.ids]
            p = linear(x, self._known).softmax(dim=-1)
        all_rows = torch.arange(len(locations), device=locations.device)
        mask_rows = all_rows[
            torch.rand(len(locations), device=locations.device) < MASKED * (self.guesses > 1)
        ]
        losses = []
        right = []
        for step, logits in enumerate(self.heads(tokens, locations, locations[mask_rows])):
            rows = mask_rows if step else all_rows
            is_inside = labels[rows, step] != IGNORED
            rows = rows[is_inside]
            logits = logits[is_inside]
            weight = (labels[:, step] != IGNORED).sum() / max(len(rows), 1)
            entropy = -(p[rows + step] * log_softmax(logits.float(), dim=-1)).sum()
            best = self.heads.ids[logits.detach().argmax(-1)]
            losses.append(entropy * weight)
            right.append((best == labels[rows, step]).sum() * weight)
        return GuessLosses(torch.stack(losses), torch.stack(right))

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes a model folder with the ids of its vocabulary; its tokenizer is the target's."""
        folder.mkdir(parents=True, exist_ok=True)
        self.heads.to(dtype).module.save_pretrained(folder)
        write_ids(folder, self.heads.ids.tolist())
        self.heads.float()


def make_draft_head(
    head: HeadSettings,
    target: Any,
    output: Tensor,
    dialogues: Sequence[Dialogue],
) -> DraftModelHead:
    """Loads the draft model that ``head.init`` names, or makes an untrained one from the target's
    text config. ``output`` is the target's last layer ([V, D] float32).

    A new one has ``head.draft_vocab`` tokens (V'): the most frequent of the answers, and if these
    are too few the lowest ids, which a byte-pair vocabulary merged first. Raises UsageError if the
    target has fewer, or if the folder has no list of tokens.
    """
    from spec_bench.jobs.config.model_files import model_path  # late: scripts/gpu lack pydantic
    from spec_bench.train.settings import HEAD_WIDTH, RANDOM

    if head.init != RANDOM:
        folder = Path(model_path(head.init))
        if (ids := read_ids(folder)) is None:
            raise UsageError(f"head.init={head.init}: no draft that `head=draft_model` trained")
        return DraftModelHead(DraftModel(ids, len(output), folder, head.guesses), output)
    assert head.width is not None and head.draft_vocab is not None
    if head.draft_vocab > len(output):
        raise UsageError(
            f"head.draft_vocab={head.draft_vocab}: the target has {len(output)} tokens"
        )
    copied_names = ("max_position_embeddings", "rms_norm_eps")
    shape = {name: getattr(target, name) for name in copied_names if hasattr(target, name)}
    shape |= {f"{end}_token_id": None for end in ("bos", "eos", "pad")}
    shape |= {"hidden_size": head.width, "intermediate_size": head.inner}
    shape |= {"num_hidden_layers": head.blocks, "sliding_window": head.window}
    shape |= {"num_attention_heads": head.width // HEAD_WIDTH}
    ids = select_draft_vocabulary(dialogues, head.draft_vocab)
    return DraftModelHead(DraftModel(ids, len(output), shape, head.guesses), output)


def select_draft_vocabulary(dialogues: Sequence[Dialogue], count: int) -> tuple[int, ...]:
    """Selects tokens that occur twice or more in answers, the most frequent ones, then the lowest
    ids, in increasing order.
    """
    counts = count_answer_tokens(dialogues)
    frequent = sorted((t for t in counts if counts[t] > 1), key=lambda t: (-counts[t], t))
    return tuple(sorted(list(dict.fromkeys([*frequent, *range(2 * count)]))[:count]))
