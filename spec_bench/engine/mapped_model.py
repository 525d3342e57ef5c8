"""A draft with a vocabulary of its own, behind the target's.

Tokens of the target go in and logits over the target's tokens come out, so that nobody else knows
of the map. Logits of tokens that the draft cannot propose are -inf *before* temperature, top-k and
top-p are applied, so that the law reported is the law drawn from; several of the draft's tokens
that mean one of the target's add up their probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spec_bench.engine.model import ForwardOutput, LanguageModel
from spec_bench.engine.vocabulary_map import VocabularyMap, of_ids, of_outputs, read_ids

STRETCH = 2  # most of the draft's tokens for one of the target's, on average over a context


class MappedModel:
    """A draft behind a target's tokens; all else is the draft's own.

    Ids from V on are the draft's tokens themselves: ``respelled`` writes them where the draft has a
    token of the target in several parts.

    Args:
        model: the draft.
        vocabulary: its tokens and the target's.
        vocab_size: V.
    """

    def __init__(self, model: LanguageModel, vocabulary: VocabularyMap, vocab_size: int) -> None:
        self.inner = model
        self.vocab_size = self.embedded = vocab_size
        self.pieces = {
            token: tuple(vocab_size + part for part in parts)
            for token, parts in vocabulary.pieces.items()
        }
        self.stretch = STRETCH if self.pieces else 1
        self.max_positions = model.max_positions and model.max_positions // self.stretch
        ids = torch.tensor(vocabulary.proposes[: model.embedded])
        kept = ((ids >= 0) & (ids < vocab_size)).nonzero().flatten()
        whole = torch.arange(model.embedded)
        self._reads = torch.cat([torch.tensor(vocabulary.reads[:vocab_size]), whole])
        self._reads = self._reads.to(model.device)
        self._from, self._to = kept.to(model.device), ids[kept].to(model.device)
        self._repeats = len(ids[kept].unique()) < len(kept)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while it is copied, say
            raise AttributeError(name)
        return getattr(self.inner, name)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.inner.embed(self._reads[tokens.to(self._reads.device)])

    def project(self, hidden: Tensor) -> Tensor:
        return self._spread(self.inner.project(hidden))

    def allocate(self, rows: int, slots: int) -> Any:
        return self.inner.allocate(rows, slots)

    def forward(
        self,
        cache: Any,
        rows: slice,
        starts: list[int],
        tokens: Tensor,
        *given: Tensor,
        **options: Any,
    ) -> ForwardOutput:
        output = self.inner.forward(cache, rows, starts, self._reads[tokens], *given, **options)
        return ForwardOutput(self._spread(output.logits), output.hidden)

    def _spread(self, logits: Tensor) -> Tensor:
        """Logits [..., V'] as [..., V]."""
        known = logits[..., self._from]
        shape = (*logits.shape[:-1], self.vocab_size)
        if not self._repeats:
            return known.new_full(shape, -torch.inf).index_copy_(-1, self._to, known)
        top = known.amax(dim=-1, keepdim=True)
        return known.new_zeros(shape).index_add_(-1, self._to, (known - top).exp()).log() + top

    def respelled(self, tokens: Sequence[int]) -> list[int]:
        """Tokens of the target in the draft's parts.

        As long as the result stays within ``stretch`` times the tokens so far: beyond, a token is
        read as its last part. What comes later never changes what came before.
        """
        out: list[int] = []
        for count, token in enumerate(tokens, start=1):
            parts = self.pieces.get(token, (token,))
            fits = len(out) + len(parts) <= self.stretch * count
            out += parts if fits else (token,)
        return out


def keep_outputs(module: PreTrainedModel, ids: Sequence[int]) -> None:
    """Cuts a model's last layer down to some tokens; it reads all of them as before.

    Raises:
        ValueError: a token that the model does not have.
    """
    last = module.get_output_embeddings()
    if max(ids) >= last.weight.shape[0]:
        raise ValueError(
            f"pair.draft_vocabulary: the draft has {last.weight.shape[0]} tokens, got {max(ids)}"
        )
    at = torch.tensor(ids, device=last.weight.device)
    bias = last.bias is not None
    cut = nn.Linear(last.weight.shape[1], len(ids), bias, last.weight.device, last.weight.dtype)
    cut.weight.data.copy_(last.weight.data[at])
    if bias:
        cut.bias.data.copy_(last.bias.data[at])
    module.set_output_embeddings(cut)


def behind(
    model: LanguageModel, path: str, count: int, kept: Sequence[int] | None = None
) -> LanguageModel:
    """A draft behind the target's tokens, where it does not have all of them itself.

    Args:
        model: the draft.
        path: its folder, which may say which tokens it knows.
        count: V.
        kept: the tokens that its last layer was cut down to.

    Raises:
        ValueError: tokens that the target does not have.
    """
    if kept is not None:
        return MappedModel(model, of_outputs(kept, count), count)
    ids = read_ids(Path(path))
    if ids is None:
        model.vocab_size = count
        return model
    if len(ids) + 1 != model.embedded:
        raise ValueError(
            f"{path}: it knows {len(ids)} tokens, so {len(ids) + 1} must be embedded, got "
            f"{model.embedded}"
        )
    return MappedModel(model, of_ids(ids, count), count)
