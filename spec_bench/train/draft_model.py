"""A small draft model of some of the target's tokens, and how it learns the target's distribution.

At every position of an answer it is given the tokens so far and learns the target's distribution of
the next one, restricted to the tokens that it knows: distillation on the target's own answers
(DistillSpec, arXiv 2310.08461), with EAGLE-3's smaller vocabulary.

Letters: B dialogues, T tokens of the longest, N positions that are learned, D the target's width,
V tokens of the target, V' of the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, log_softmax
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from spec_bench.engine.mapped_model import of_ids, write_ids
from spec_bench.train.batches import Batches
from spec_bench.train.dialogues import Dialogue, answered_tokens
from spec_bench.train.trainee import Losses, TrainableHead


class DraftModel(nn.Module):
    """A Llama with tied embeddings of V' tokens and of one that stands for all others.

    Args:
        ids: [V'] the target's tokens that it knows.
        vocab: V.
        shape: of the Llama, as its config names them.
    """

    ids: Tensor
    reads: Tensor

    def __init__(self, ids: Sequence[int], vocab: int, shape: dict[str, Any]) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=len(ids) + 1, tie_word_embeddings=True, use_cache=True, **shape
        )
        self.module = LlamaForCausalLM(config)
        self.vocab = vocab
        self.register_buffer("ids", torch.tensor(ids), persistent=False)
        reads = torch.tensor(of_ids(ids, vocab).reads)
        self.register_buffer("reads", reads, persistent=False)

    @property
    def parameter_count(self) -> int:
        """Its parameters, shared ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Logits [N, V'] behind the tokens [B, T] at some places [N, 2], dialogue and position."""
        hidden = self.module.model(input_ids=self.reads[tokens], use_cache=False)[0]
        states = hidden[at[:, 0], at[:, 1]]
        return linear(states, self.module.lm_head.weight[:-1])


class TextBatch(NamedTuple):
    """What one part of a step learns from."""

    tokens: Tensor  # [B, T] whole dialogues, padded on the right
    at: Tensor  # [N, 2] dialogue and position t before each token of an answer
    x: Tensor  # [N, D] the target's last hidden states there
    guessed: Tensor  # [N, 1] tokens t + 1


def before_answers(dialogue: Dialogue) -> list[int]:
    """Positions whose next token is an answer's."""
    return [t for t, learned in enumerate(dialogue.learned[1:]) if learned]


@dataclass(frozen=True)
class TextBatches(Batches):
    """Dialogues as batches of tokens, with hidden states before each token of an answer."""

    picked = staticmethod(before_answers)

    @torch.no_grad()
    def of(self, indices: Sequence[int]) -> TextBatch:  # type: ignore[override]
        device = self.model.device
        if not indices:
            nothing = torch.zeros((0, 2), dtype=torch.long, device=device)
            x = torch.zeros((0, self.model.hidden_size), device=device)
            return TextBatch(nothing.new_zeros((1, 1)), nothing, x, nothing[:, :1])
        chosen = [self.dialogues[index] for index in indices]
        tokens = pad_sequence([torch.tensor(each.ids) for each in chosen], batch_first=True)
        at = [(row, t) for row, each in enumerate(chosen) for t in before_answers(each)]
        guessed = torch.tensor([[chosen[row].ids[t + 1]] for row, t in at], device=device)
        places = torch.tensor(at, device=device)
        return TextBatch(tokens.to(device), places, self.hidden(indices), guessed)

    def counts(self, indices: Sequence[int]) -> list[int]:
        return [sum(len(before_answers(self.dialogues[index])) for index in indices)]


class DraftTrainee(TrainableHead):
    """A draft model behind the call of all heads.

    Args:
        draft: the model.
        output: the target's last layer, [V, D].
    """

    heads: DraftModel  # type: ignore[assignment]
    batches = TextBatches

    def __init__(self, draft: DraftModel, output: Tensor) -> None:
        super().__init__(draft, 1)  # type: ignore[arg-type]
        self._output = output  # neither trained nor saved
        self._known: Tensor | None = None

    def logits(self, batch: TextBatch) -> Iterator[Tensor]:
        """Logits [N, V], -inf for tokens that the draft does not know."""
        known = self.heads(batch.tokens, batch.at)
        whole = known.new_full((len(known), self.heads.vocab), -torch.inf)
        whole[:, self.heads.ids] = known
        yield whole

    def wanted(self, batch: TextBatch) -> Iterator[Tensor]:
        yield linear(batch.x, self._output.to(batch.x.device))[:, : self.heads.vocab]

    def forward(  # type: ignore[override]
        self, tokens: Tensor, at: Tensor, x: Tensor, guessed: Tensor
    ) -> Losses:
        """Summed cross-entropy with the target's distribution over V'; fields as in
        ``TextBatch``.
        """
        logits = self.heads(tokens, at)
        with torch.no_grad():
            if self._known is None:
                self._known = self._output.to(x.device)[self.heads.ids]
            law = linear(x, self._known).softmax(dim=-1)
        loss = -(law * log_softmax(logits.float(), dim=-1)).sum()
        best = self.heads.ids[logits.detach().argmax(-1)]
        return Losses(loss.unsqueeze(0), (best == guessed[:, 0]).sum().unsqueeze(0))

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Writes a model folder with the tokens that it knows; its tokenizer is the target's."""
        folder.mkdir(parents=True, exist_ok=True)
        self.heads.to(dtype).module.save_pretrained(folder)
        write_ids(folder, self.heads.ids.tolist())
        self.heads.float()


def fresh_draft(
    shape: dict[str, Any],
    count: int,
    target: Any,
    output: Callable[[], Tensor],
    dialogues: Sequence[Dialogue],
) -> DraftTrainee:
    """A draft model that has learned nothing yet.

    Args:
        shape: layers, width, heads and MLP as ``LlamaConfig`` names them.
        count: V'.
        target: the target's text config, whose places of a text are taken.
        output: gives the target's last layer, [V, D] float32.
        dialogues: whose answers' most frequent tokens the draft knows; where they have too few,
            the lowest ids too, which a byte-pair vocabulary merged first.

    Raises:
        ValueError: the target has fewer tokens than that.
    """
    last = output()
    vocab = len(last)
    if count > vocab:
        raise ValueError(f"head.draft_vocab={count}: the target has {vocab} tokens")
    ids = known_tokens(dialogues, count)
    places = {
        name: getattr(target, name)
        for name in ("max_position_embeddings", "rms_norm_eps")
        if hasattr(target, name)
    }
    ends = {f"{end}_token_id": None for end in ("bos", "eos", "pad")}
    return DraftTrainee(DraftModel(ids, vocab, {**places, **ends, **shape}), last)


def known_tokens(dialogues: Sequence[Dialogue], count: int) -> tuple[int, ...]:
    """The tokens that answers hold twice or more, most frequent first, then the lowest ids."""
    times = answered_tokens(dialogues)
    frequent = sorted((t for t in times if times[t] > 1), key=lambda t: (-times[t], t))
    return tuple(sorted(list(dict.fromkeys([*frequent, *range(2 * count)]))[:count]))
