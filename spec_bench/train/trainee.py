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

MASKED = 0.5  # of an answer's positions, drawn anew in every step, have PARD's masks behind them
LOGITS_WEIGHT = 0.1  # of EAGLE-1's cross-entropy beside its regression (section 3.2)


class GuessLosses(NamedTuple):
    """Sums over positions, per guess."""

    loss: Tensor  # [K] cross-entropy in nats
    right: Tensor  # [K] how often the best guess was the right token


class TrainableHead(nn.Module):
    """Heads of any kind behind one call; these learn every guess at single positions."""

    batches: ClassVar[type[DialogueBatches]] = DialogueBatches  # what makes batches of dialogues

    def __init__(self, heads: DraftHeads, guesses: int) -> None:
        super().__init__()
        # K; for Medusa the number of its heads
        self.heads = heads
        self.guesses = guesses

    def layers(self, blocks: int) -> Layers:
        """Returns the hidden states that it learns from, of a target of so many blocks."""
        return LAST

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes what was learned; from then on it is what was written, rounded."""
        save_heads(self.heads.to(dtype), folder)
        self.heads.float()

    def logits(self, batch: Any) -> Iterator[Tensor]:
        """Logits of guess 1, 2, ..., K, each [N, V]."""
        for known in self.heads.guesses(batch.x, batch.embedded):
            yield scatter_to_vocabulary(known, self._ids, self.heads.shape.vocab)

    @property
    def _ids(self) -> Tensor | None:
        """[V'] the target's tokens that the heads know, rising; None if they know all."""
        ids: Tensor | None = getattr(self.heads, "ids", None)
        return ids

    def wanted(self, batch: Any) -> Iterator[Tensor] | None:
        """The target's logits where guess 1, 2, ..., K are made, each [N, V]; None where the batch
        does not hold what they follow from.
        """
        return None

    def forward(self, x: Tensor, embedded: Tensor, guessed: Tensor) -> GuessLosses:
        """Summed losses; fields as in ``PositionBatch``."""
        losses = []
        right = []
        ids = self._ids
        summed = partial(cross_entropy, ignore_index=IGNORED, reduction="sum")
        if ids is not None:  # under the heads' own numbers; what they do not know is not learned
            places = torch.searchsorted(ids, guessed.contiguous()).clamp(max=len(ids) - 1)
            guessed = torch.where(ids[places] == guessed, places, IGNORED)
        for logits, tokens in zip(self.heads.guesses(x, embedded), guessed.unbind(1), strict=True):
            losses.append(summed(logits.float(), tokens))
            right.append((logits.detach().argmax(-1) == tokens).sum())
        return GuessLosses(torch.stack(losses), torch.stack(right))


def loss_weights(decay: float, guesses: int) -> Tensor:
    """[K] weights of the guesses in the loss: decay^k.

    0.8 for Medusa (arXiv 2401.10774, section 2.2.1); 1 for ReDrafter, whose authors' code adds up
    the guesses' mean losses as they are.
    """
    return decay ** torch.arange(1, guesses + 1)


def weighted_loss(losses: Tensor, counts: Sequence[int], weights: Tensor) -> Tensor:
    """The loss that is minimised: sum over guesses of weight [K] times mean cross-entropy, of sums
    [K] over some of a step's positions and K counts of what is to guess, over all of the step.
    """
    means = losses / torch.tensor(counts, device=losses.device).clamp(min=1)
    return (means * weights.to(losses.device)).sum()


class SequenceHead(TrainableHead):
    """A head that keeps what it saw of the past, behind the call of all heads.

    ``project`` is the target's last layer. Of the K guesses, whose accuracy is measured, ``steps``
    are learned (None: all); noise that is uniform up to ``noise`` is added to their features;
    ``mask`` [D] is the target's embedding of the mask token, if they have one.
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
    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """Outputs [N, D] of guess 0, 1, ..., ``steps - 1``, at most K + 1; of the features [B, T +
        K, W], else as in ``SequenceBatch``.
        """

    def logits(self, batch: SequenceBatch) -> Iterator[Tensor]:
        features = batch.hidden[..., : self.heads.features]
        for output in self.outputs(features, batch.embedded, batch.at, self.guesses):
            yield self.heads.logits(output, self._project, self.heads.shape.vocab)

    def wanted(self, batch: SequenceBatch) -> Iterator[Tensor]:
        last = batch.hidden[..., -self.heads.shape.hidden :]
        row, place = batch.at.unbind(1)
        for step in range(self.guesses):
            yield self._project(last[row, place + 1 + step])[:, : self.heads.shape.vocab]

    def forward(  # type: ignore[override]
        self, hidden: Tensor, embedded: Tensor, at: Tensor, guessed: Tensor
    ) -> GuessLosses:
        """Summed losses; fields as in ``SequenceBatch``. Steps that are not learned add nothing."""
        width = self.heads.features
        row, place = at.unbind(1)
        features = hidden[..., :width]
        last = hidden[..., -self.heads.shape.hidden :]
        if self._noise:
            features = features + (torch.rand_like(features) * 2 - 1) * self._noise
        asked = [guessed[:, step] != IGNORED for step in range(self._steps)]
        following = row * last.shape[1] + place + 1
        where = [(following + step)[there] for step, there in enumerate(asked)]
        needed, index = torch.cat(where).unique(return_inverse=True)
        following = last.flatten(0, 1)[needed]
        p, known = self._target_distribution(following)
        indices = index.split([len(part) for part in where])
        parts = []
        right = torch.zeros(self.guesses, dtype=torch.long, device=hidden.device)
        for step, output in enumerate(self.outputs(features, embedded, at, self._steps)):
            logits = output[asked[step]]
            index = indices[step]
            losses, best = self._loss(logits, following[index], p[index], known[index])
            parts.append(losses.sum())
            right[step] = (best == guessed[asked[step], step]).sum()
        unlearned = hidden.new_zeros(self.guesses - self._steps)
        return GuessLosses(torch.cat([torch.stack(parts), unlearned]), right)

    @torch.no_grad()
    def _target_distribution(self, following: Tensor) -> tuple[Tensor, Tensor]:
        """[n, V'] what the target says, and [n] whether its best token is one the head knows."""
        logits = self._project(following)
        ids = self.heads.ids
        known = torch.ones_like(logits[:, 0], dtype=torch.bool)
        if ids is not None:
            known = torch.isin(logits.argmax(-1), ids)
            logits = logits[:, ids]
        return logits.float().softmax(dim=-1), known

    def _loss(
        self, output: Tensor, following: Tensor, p: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Losses and best tokens [n] of outputs and next states [n, D], distributions [n, V']."""
        head = self.heads
        logits = head.compute_own_logits(output, self._project)[
            :, : p.shape[-1]
        ]  # padding is no token
        entropy = -(p * log_softmax(logits.float(), dim=-1)).sum(-1)
        best = logits.detach().argmax(-1)
        best = best if head.ids is None else head.ids[best]
        if head.regresses:
            distance = smooth_l1_loss(output, following, reduction="none").mean(-1)
            return distance + LOGITS_WEIGHT * entropy, best
        return torch.where(known, entropy, 0.0), best


def pad_rows(at: Tensor, dialogues: int) -> tuple[Tensor, Tensor]:
    """Each dialogue's rows side by side: [B, A] rows, and whether each is one; 0 stands in."""
    counts = torch.bincount(at[:, 0], minlength=dialogues)
    most = int(counts.max()) if len(at) else 0
    there = torch.arange(most, device=at.device) < counts.unsqueeze(1)
    rows = at.new_zeros((dialogues, most))
    rows[there] = at[:, 1]
    return rows, there


def _repeat_kv_heads(q: Tensor, *parts: Tensor) -> list[Tensor]:
    """Keys or values, one for each head of the queries."""
    return [part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in parts]


class TrainingAttention:
    """Attention over the rows' keys of step 0 and each row's own of later steps."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows  # [B, A] that later steps are run for
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
    ) -> Tensor:
        """See ``draft.cached_head.AttentionFunction``; step 0 has all T rows, later ones A."""
        k, v = _repeat_kv_heads(q, k, v)
        kept = self._kept.setdefault(layer, [])
        kept.append((k, v))
        first, values = kept[0]
        later = kept[1:]
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


class UnrolledHead(SequenceHead):
    """A head that goes on from its own output, EAGLE's or MTP's: steps unrolled over sequences.

    In step k row t feeds back its own output of step k - 1 (in step 0 the target's feature f_t)
    with the right token t + 1 + k. It sees the keys of step 0 of the rows up to t, which come from
    the target, and its own of the steps 1..k, at position t + k: what a node at depth k on the
    right path below row t sees (EAGLE-3, arXiv 2503.01840, section 3.2). A head with masks
    feeds back nothing: a mask token and its feature stand in every later step's place (P-EAGLE,
    arXiv 2602.01469).
    """

    heads: FeatureHead

    def layers(self, blocks: int) -> Layers:
        """Its features', and the last ones."""
        if isinstance(self.heads, Eagle3Head):
            return (*self.heads.shape.places(blocks), *LAST)
        return LAST

    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """See ``SequenceHead``."""
        count = hidden.shape[1] - self.guesses
        rows, there = pad_rows(at, hidden.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        memory = TrainingAttention(rows)
        positions = torch.arange(count, device=hidden.device).unsqueeze(0)
        feature = self.heads.fuse(hidden[:, :count])
        after = embedded[:, :count]
        blank: Any = getattr(self.heads, "mask_hidden", None)
        if blank is not None:  # P-EAGLE's: later steps read a mask and its feature
            blank = self.heads.fuse(blank).expand(*rows.shape, -1)
            mask = self.mask.to(after.dtype).expand(*rows.shape, -1)
        for step in range(steps):
            output = self.heads.step(feature, after, positions, memory)
            if step == 0:
                output = output[dialogue, rows]
            yield output[there]
            positions = rows + step + 1
            if blank is not None:
                feature = blank
                after = mask
            else:
                feature = self.heads.next_feature(output)
                after = embedded[dialogue, positions]


class BlockAttention:
    """Attention over a row's context and its own block.

    ``context`` has per layer the keys and values [B, heads, T, d] of the context entries, ``rows``
    [B, A] the last entry that each block sees.
    """

    def __init__(self, context: Sequence[tuple[Tensor, Tensor]], rows: Tensor) -> None:
        self._context = context
        places = torch.arange(context[0][0].shape[2], device=rows.device)
        self._hidden = (places > rows.unsqueeze(-1))[:, :, None, None]  # [B, A, 1, 1, T]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None
    ) -> Tensor:
        """See ``draft.cached_head.AttentionFunction``; its rows are the B x A blocks."""
        shape = self._hidden.shape[:2]
        keys, values, k, v = _repeat_kv_heads(q, *self._context[layer], k, v)
        scale = 1 / sqrt(q.shape[-1]) if scale is None else scale
        asked = q.unflatten(0, shape)  # [B, A, heads, S, d]
        before = torch.einsum("bahsd,bhtd->bahst", asked, keys) * scale
        before = before.masked_fill(self._hidden, -torch.inf)
        within = (q @ k.transpose(-1, -2)).unflatten(0, shape) * scale
        weights = torch.cat([before, within], dim=-1).softmax(dim=-1)
        own = weights[..., before.shape[-1] :].flatten(0, 1) @ v
        seen = weights[..., : before.shape[-1]]
        return torch.einsum("bahst,bhtd->bahsd", seen, values).flatten(0, 1) + own


class BlockHead(SequenceHead):
    """A head that guesses blocks: one after every row that is learned, each blind to the others.

    Row t's block begins with token t + 1, which is known, and has masks after it. It sees the
    context entries of the tokens up to t, and itself (DFlash, arXiv 2602.06036): what decoding runs
    with t + 1 as the root.
    """

    heads: DFlashHead

    def layers(self, blocks: int) -> Layers:
        """Returns what its context is made of, and the last ones."""
        return (*self.heads.shape.places(blocks), *LAST)

    def outputs(self, hidden: Tensor, embedded: Tensor, at: Tensor, steps: int) -> Iterator[Tensor]:
        """See ``SequenceHead``."""
        head = self.heads
        size = self.heads.shape.block
        count = hidden.shape[1] - self.guesses
        rows, there = pad_rows(at, hidden.shape[0])
        dialogue = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        places = torch.arange(max(count, size), device=rows.device)
        entries = head.context(hidden[:, :count])
        context = head.context_kept(entries, head.turn(places[:count].unsqueeze(0)))
        known = embedded[dialogue, rows].unsqueeze(2)
        masks = self.mask.to(known.dtype).expand(*rows.shape, size - 1, -1)
        block = torch.cat([known, masks], dim=2).flatten(0, 1)
        turn = head.turn((rows.unsqueeze(-1) + 1 + places[:size]).flatten(0, 1))
        made = head.outputs(block, turn, BlockAttention(context, rows))
        yield from made.unflatten(0, rows.shape)[there][:, :steps].unbind(1)


# A small draft model of some of the target's tokens, and how it learns the target's distribution.
#
# At every position of an answer it is given the tokens so far and learns the target's distribution
# of the next one, restricted to the tokens that it knows: distillation on the target's own answers
# (DistillSpec, arXiv 2310.08461), with EAGLE-3's smaller vocabulary.


class DraftModel(nn.Module):
    """A Mistral, a Llama with a window, over V' tokens and one that stands for all others; of
    ``shape``, or the one in a folder. One of several guesses has a mask token behind these.
    """

    ids: Tensor  # [V'] the target's tokens that it knows
    reads: Tensor

    def __init__(
        self, ids: Sequence[int], vocab: int, shape: dict[str, Any] | Path, guesses: int = 1
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
            "reads", torch.tensor(vocabulary_map_of_ids(ids, vocab).reads), persistent=False
        )

    def forward(self, tokens: Tensor, at: Tensor, starts: Tensor) -> Iterator[Tensor]:
        """Yields logits [N, V'] behind the tokens [B, T] at places [N, 2], dialogue and position;
        then [S, V'] of each of the K - 1 masks behind places [S, 2], blind to other places' masks.
        """
        count = tokens.shape[1]
        masks = self.guesses - 1
        ends = tokens.new_zeros(tokens.shape[1])
        rows, there = pad_rows(starts, len(tokens))  # [B, A]
        each = torch.arange(rows.shape[1] * masks, device=tokens.device)
        chain = torch.cat([ends, 1 + each // max(masks, 1)])  # which masks a row is one of; 0: none
        ahead = torch.cat([ends, 1 + each % max(masks, 1)])
        text = torch.arange(count, device=tokens.device).expand(len(tokens), -1)
        last = torch.cat([text, rows.repeat_interleave(masks, dim=1)], dim=1)  # token that is known
        places = last + ahead
        q = places.unsqueeze(2)
        k = places.unsqueeze(1)
        own = (chain == chain.unsqueeze(1)) & (k <= q)
        seen = torch.where(chain == 0, k <= last.unsqueeze(2), own)
        if (window := self.module.config.sliding_window) is not None:
            seen &= k > q - window
        read = nn.functional.pad(self.reads[tokens], (0, len(each)), value=len(self.ids) + 1)
        hidden = self.module.model(
            input_ids=read, position_ids=places, attention_mask=seen.unsqueeze(1), use_cache=False
        )[0]
        masked = hidden[:, count:].unflatten(1, (rows.shape[1], masks))[there]
        for states in (hidden[at[:, 0], at[:, 1]], *masked.unbind(1)):
            yield linear(states, self.module.lm_head.weight[: len(self.ids)])


class TextBatch(NamedTuple):
    """What one part of a step learns from."""

    tokens: Tensor  # [B, T] whole dialogues, padded on the right
    at: Tensor  # [N, 2] dialogue and position t before each token of an answer
    x: Tensor  # [N, D] the target's last hidden states there
    guessed: Tensor  # [N, K] tokens t + 1..t + K, IGNORED past an answer's end


def answer_positions(dialogue: Dialogue) -> list[int]:
    """Positions whose next token is an answer's."""
    return [t for t, learned in enumerate(dialogue.learned[1:]) if learned]


@dataclass(frozen=True)
class TextBatches(DialogueBatches):
    """Dialogues as batches of tokens, with hidden states before each token of an answer."""

    picked = starts = staticmethod(answer_positions)

    @torch.no_grad()
    def of(self, indices: Sequence[int]) -> TextBatch:  # type: ignore[override]
        device = self.model.device
        held = indices or [0]  # where no dialogue fell to a part of a step, nothing is learned
        chosen = [self.dialogues[index] for index in held]
        ids = pad_sequence([torch.tensor(each.ids) for each in chosen], batch_first=True)
        at = torch.tensor([(row, t) for row, each in enumerate(chosen) for t in self.starts(each)])
        learned = len(at) if indices else 0
        guessed = self.guessed(held)[:learned].to(device)
        x = self.hidden(held)[:learned]
        return TextBatch(ids.to(device), at[:learned].to(device), x, guessed)

    def guessed(self, indices: Sequence[int]) -> Tensor:
        return self.tokens(indices)[:, :-1]


class DraftModelHead(TrainableHead):
    """A draft model behind the call of all heads; ``output`` is the target's last layer, [V, D]."""

    heads: DraftModel  # type: ignore[assignment]
    batches = TextBatches

    def __init__(self, draft: DraftModel, output: Tensor) -> None:
        super().__init__(draft, draft.guesses)  # type: ignore[arg-type]
        self._output = output  # neither trained nor saved
        self._known: Tensor | None = None

    def logits(self, batch: TextBatch) -> Iterator[Tensor]:
        """Yields logits [N, V], -inf for tokens that the draft does not know."""
        for logits in self.heads(batch.tokens, batch.at, batch.at):
            yield scatter_to_vocabulary(logits, self.heads.ids, self.heads.vocab)

    def wanted(self, batch: TextBatch) -> Iterator[Tensor]:
        said = linear(batch.x, self._output.to(batch.x.device))[:, : self.heads.vocab]
        yield from (said.roll(-step, 0) for step in range(self.guesses))

    def forward(  # type: ignore[override]
        self, tokens: Tensor, at: Tensor, x: Tensor, guessed: Tensor
    ) -> GuessLosses:
        """Summed cross-entropy with the target's distribution over V'; fields as in
        ``TextBatch``. Masks follow a sample of the positions, which speaks for all of them.
        """
        with torch.no_grad():
            if self._known is None:
                self._known = self._output.to(x.device)[self.heads.ids]
            p = linear(x, self._known).softmax(dim=-1)
        every = torch.arange(len(at), device=at.device)
        some = every[torch.rand(len(at), device=at.device) < MASKED * (self.guesses > 1)]
        losses = []
        right = []
        for step, logits in enumerate(self.heads(tokens, at, at[some])):
            rows = some if step else every
            there = guessed[rows, step] != IGNORED
            rows = rows[there]
            logits = logits[there]
            weight = (guessed[:, step] != IGNORED).sum() / max(len(rows), 1)
            entropy = -(p[rows + step] * log_softmax(logits.float(), dim=-1)).sum()
            best = self.heads.ids[logits.detach().argmax(-1)]
            losses.append(entropy * weight)
            right.append((best == guessed[rows, step]).sum() * weight)
        return GuessLosses(torch.stack(losses), torch.stack(right))

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes a model folder with the tokens that it knows; its tokenizer is the target's."""
        folder.mkdir(parents=True, exist_ok=True)
        self.heads.to(dtype).module.save_pretrained(folder)
        write_ids(folder, self.heads.ids.tolist())
        self.heads.float()


def make_draft(
    head: HeadSettings, target: Any, output: Tensor, dialogues: Sequence[Dialogue]
) -> DraftModelHead:
    """A draft model that ``head.init`` names, or one that has learned nothing yet, places of a text
    as in the target's text config, and the target's last layer ([V, D] float32).

    A new one knows ``head.draft_vocab`` tokens (V'), the most frequent of the dialogues' answers;
    where these have too few, the lowest ids too, which a byte-pair vocabulary merged first. Raises
    ValueError: the target has fewer, or the folder names no tokens.
    """
    from spec_bench.jobs.config.model_files import model_path  # late: scripts/gpu lack pydantic
    from spec_bench.train.settings import HEAD_WIDTH, RANDOM

    if head.init != RANDOM:
        folder = Path(model_path(head.init))
        if (known := read_ids(folder)) is None:
            raise UsageError(f"head.init={head.init}: no draft that `head=draft_model` trained")
        return DraftModelHead(DraftModel(known, len(output), folder, head.guesses), output)
    assert head.width is not None and head.draft_vocab is not None
    if head.draft_vocab > len(output):
        raise UsageError(
            f"head.draft_vocab={head.draft_vocab}: the target has {len(output)} tokens"
        )
    taken = ("max_position_embeddings", "rms_norm_eps")
    shape = {name: getattr(target, name) for name in taken if hasattr(target, name)}
    shape |= {f"{end}_token_id": None for end in ("bos", "eos", "pad")}
    shape |= {"hidden_size": head.width, "intermediate_size": head.inner}
    shape |= {"num_hidden_layers": head.blocks, "sliding_window": head.window}
    shape |= {"num_attention_heads": head.width // HEAD_WIDTH}
    known = frequent_tokens(dialogues, head.draft_vocab)
    return DraftModelHead(DraftModel(known, len(output), shape, head.guesses), output)


def frequent_tokens(dialogues: Sequence[Dialogue], count: int) -> tuple[int, ...]:
    """The tokens that answers hold twice or more, most frequent first, then the lowest ids."""
    times = count_answer_tokens(dialogues)
    frequent = sorted((t for t in times if times[t] > 1), key=lambda t: (-times[t], t))
    return tuple(sorted(list(dict.fromkeys([*frequent, *range(2 * count)]))[:count]))
