"""Maps between a target's tokens and those of a draft with a different vocabulary.

A draft may know only some of the target's tokens (EAGLE-3's ``d2t``; FR-Spec, arXiv 2502.14856,
keeps the most frequent), or have its own tokenizer (TLI, arXiv 2502.05202, proposes the tokens that
both tokenizers have, compared as strings). Either way it never proposes other tokens, and the
output keeps the target's distribution, because acceptance and residuals supply these tokens.

Letters: V tokens of the target, V' of the draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import PreTrainedModel

from spec_bench.engine.model import ForwardOutput, LanguageModel
from spec_bench.records.ends import find_end_token_ids
from spec_bench.system import files
from spec_bench.system.errors import UsageError

FILE = "draft_vocabulary.safetensors"
_NONE = -1
_SPACES = ("\u0120", "\u2581")  # how byte-level and sentencepiece tokenizers write a space


@dataclass(frozen=True)
class VocabularyMap:
    """Map between a draft's tokens and the target's."""

    # [V] the draft's token for each token of the target in a context
    draft_ids: tuple[int, ...]
    target_ids: tuple[int, ...]  # [V'] the target's token for each token of the draft; -1: none
    # for each token of the target that has several parts in the draft's tokenizer, these parts
    pieces: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def proposable_count(self) -> int:
        """Number of the target's tokens that the draft can propose."""
        return len({token for token in self.target_ids if token != _NONE})


def map_reduced_vocabulary(ids: Sequence[int], target_vocab_size: int) -> VocabularyMap:
    """Maps a draft with an embedding and an output for each of the target's tokens ``ids``. Its
    token ``len(ids)`` is read for any other token and never proposed. Raises UsageError if a token
    is listed twice or unknown to the target.
    """
    if len(set(ids)) < len(ids) or not all(0 <= token < target_vocab_size for token in ids):
        raise UsageError(f"a draft's tokens must be distinct and of 0 to {target_vocab_size - 1}")
    place_of = {token: place for place, token in enumerate(ids)}
    reads = tuple(place_of.get(token, len(ids)) for token in range(target_vocab_size))
    return VocabularyMap(reads, (*ids, _NONE))


def map_reduced_outputs(ids: Sequence[int], target_vocab_size: int) -> VocabularyMap:
    """Maps a draft that reads all of the target's tokens and has outputs for the tokens ``ids``."""
    return VocabularyMap(
        tuple(range(target_vocab_size)),
        map_reduced_vocabulary(ids, target_vocab_size).target_ids[:-1],
    )


def map_tokenizers(target: Any, draft: Any, target_vocab_size: int) -> VocabularyMap:
    """Maps two tokenizers by the strings of their tokens; all ends of text count as the same token.
    The target's other tokens are split by the draft's tokenizer. Raises UsageError if they share no
    token.
    """
    ours = _group_ids_by_text(target)
    theirs = _group_ids_by_text(draft)
    first_ids = {text: ids[0] for text, ids in theirs.items()}
    reads = [0] * target_vocab_size
    pieces = {}
    for text, ids in ours.items():
        for token in ids:
            if token >= target_vocab_size:
                continue
            if text in first_ids:
                reads[token] = first_ids[text]
                continue
            plain = target.decode([token])
            parts = draft(plain, add_special_tokens=False)["input_ids"]
            reads[token] = parts[-1] if parts else 0
            if len(parts) > 1:
                pieces[token] = tuple(parts)
    size = 1 + max(id_ for ids in theirs.values() for id_ in ids)
    proposes = [_NONE] * size
    for text, ids in theirs.items():
        if text in ours and ours[text][0] < target_vocab_size:
            for token in ids:
                proposes[token] = ours[text][0]
    for our_end in find_end_token_ids(target)[:1]:
        for place, end in enumerate(find_end_token_ids(draft)):
            if place == 0:
                reads[our_end] = end
                pieces.pop(our_end, None)
            if place == 0 or proposes[end] == _NONE:
                proposes[end] = our_end
    if all(token == _NONE for token in proposes):
        raise UsageError("the draft's tokenizer has no token in common with the target's")
    return VocabularyMap(tuple(reads), tuple(proposes), pieces)


def read_known_ids(folder: Path) -> tuple[int, ...] | None:
    """Reads the target's tokens that a draft's folder lists as known; None if it lists none. As in
    EAGLE-3, ``d2t`` holds each known token minus its index. Raises UsageError if the file cannot be
    read.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        offsets = load_file(file)["d2t"]
    except (SafetensorError, KeyError, OSError) as error:
        raise UsageError(f"cannot read {str(file)!r}: {error}") from error
    return tuple((offsets + torch.arange(len(offsets))).tolist())


def write_known_ids(folder: Path, ids: Sequence[int]) -> None:
    """Writes the target's tokens that a draft knows to its folder."""
    files.write_bytes(folder / FILE, save({"d2t": torch.tensor(ids) - torch.arange(len(ids))}))


def _group_ids_by_text(tokenizer: Any) -> dict[str, list[int]]:
    """Groups token ids by their string, with plain spaces, in order of ids."""
    probe = tokenizer.convert_ids_to_tokens(tokenizer(" a", add_special_tokens=False)["input_ids"])
    sign = next((sign for sign in _SPACES if probe and sign in probe[0]), None)
    ids: dict[str, list[int]] = {}
    for token, id_ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        ids.setdefault(token.replace(sign, " ") if sign else token, []).append(id_)
    return ids


STRETCH = 2  # most draft tokens per target token, on average over a context


class VocabularyMappedModel:
    """A draft wrapped to read and propose the target's V = ``vocab_size`` tokens.

    Callers pass tokens of the target and get logits over the target's tokens. Logits of tokens that
    the draft cannot propose are -inf *before* temperature, top-k and top-p are applied, so that the
    reported distribution is the one drawn from. The probabilities of draft tokens with the same
    target token add up.

    Ids from V on are the draft's own tokens; ``retokenise`` uses them for tokens of the target that
    have several parts.
    """

    def __init__(self, model: LanguageModel, vocabulary: VocabularyMap, vocab_size: int) -> None:
        self.inner = model
        self.vocab_size = self.embedding_rows = vocab_size
        self.pieces = {
            token: tuple(vocab_size + part for part in parts)
            for token, parts in vocabulary.pieces.items()
        }
        self.stretch = STRETCH if self.pieces else 1
        self.max_positions = model.max_positions and model.max_positions // self.stretch
        ids = torch.tensor(vocabulary.target_ids[: model.embedding_rows])
        proposable = ((ids >= 0) & (ids < vocab_size)).nonzero().flatten()
        own_ids = torch.arange(model.embedding_rows)
        self._draft_ids = torch.cat([torch.tensor(vocabulary.draft_ids[:vocab_size]), own_ids])
        self._draft_ids = self._draft_ids.to(model.device)
        self._from_draft_ids = proposable.to(model.device)
        self._to_target_ids = ids[proposable].to(model.device)
        self._has_shared_target_ids = len(ids[proposable].unique()) < len(proposable)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet, for example while the object is copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.inner.embed(self._draft_ids[tokens.to(self._draft_ids.device)])

    def project(self, hidden: Tensor) -> Tensor:
        return self._scatter_logits(self.inner.project(hidden))

    def forward(
        self,
        cache: Any,
        starts: Sequence[int],
        tokens: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> ForwardOutput:
        output = self.inner.forward(cache, starts, self._draft_ids[tokens], *args, **kwargs)
        return ForwardOutput(self._scatter_logits(output.logits), output.hidden)

    def _scatter_logits(self, logits: Tensor) -> Tensor:
        """Scatters logits [..., V'] to [..., V]."""
        values = logits[..., self._from_draft_ids]
        shape = (*logits.shape[:-1], self.vocab_size)
        if not self._has_shared_target_ids:
            return values.new_full(shape, -torch.inf).index_copy_(-1, self._to_target_ids, values)
        top = values.amax(dim=-1, keepdim=True)
        sums = values.new_zeros(shape).index_add_(-1, self._to_target_ids, (values - top).exp())
        return sums.log() + top

    def retokenise(self, tokens: Sequence[int]) -> list[int]:
        """Splits tokens of the target into the draft's parts.

        If the result would exceed ``stretch`` times the number of tokens so far, only the last part
        of a token is used. Later tokens never change the parts of earlier tokens.
        """
        respelled: list[int] = []
        for count, token in enumerate(tokens, start=1):
            parts = self.pieces.get(token, (token,))
            fits = len(respelled) + len(parts) <= self.stretch * count
            respelled += parts if fits else (token,)
        return respelled


def cut_output_layer(module: PreTrainedModel, ids: Sequence[int]) -> None:
    """Cuts a model's last layer down to the tokens ``ids``; it reads all tokens as before. Raises
    UsageError if the model lacks a token.
    """
    output_layer = module.get_output_embeddings()
    if max(ids) >= output_layer.weight.shape[0]:
        raise UsageError(
            f"pair.draft_vocabulary: the draft has {output_layer.weight.shape[0]} tokens, "
            f"got {max(ids)}"
        )
    index = torch.tensor(ids, device=output_layer.weight.device)
    output_layer.out_features = len(ids)
    for name, parameter in [*output_layer.named_parameters()]:  # weight, and bias if it has one
        setattr(output_layer, name, nn.Parameter(parameter.data[index]))


def fit_draft_to_vocabulary(
    model: LanguageModel,
    path: str,
    target_vocab_size: int,
    kept_ids: Sequence[int] | None = None,
) -> LanguageModel:
    """Wraps a draft that lacks some of the target's tokens; sets ``vocab_size`` of any other. The
    draft's folder may list its tokens; ``kept_ids`` are those to which its last layer was cut.
    Raises UsageError if the target lacks a token.
    """
    if kept_ids is not None:
        return VocabularyMappedModel(
            model, map_reduced_outputs(kept_ids, target_vocab_size), target_vocab_size
        )
    ids = read_known_ids(Path(path))
    if ids is None:
        model.vocab_size = target_vocab_size
        return model
    embedding_rows = len(ids) + 1 + (getattr(model, "mask_token", None) is not None)
    if embedding_rows != model.embedding_rows:
        raise UsageError(
            f"{path}: it knows {len(ids)} tokens, so {embedding_rows} must be embedded, got "
            f"{model.embedding_rows}"
        )
    return VocabularyMappedModel(
        model, map_reduced_vocabulary(ids, target_vocab_size), target_vocab_size
    )
