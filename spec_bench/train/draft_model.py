"""Trains a small draft model that has only part of the target's vocabulary.

At every position of an answer it learns the target's distribution of the next token, restricted to
its own vocabulary: distillation on the target's answers (DistillSpec, arXiv 2310.08461), with
EAGLE-3's smaller vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, log_softmax
from torch.nn.utils.rnn import pad_sequence
from transformers import MistralConfig, MistralForCausalLM

from spec_bench.draft.network import scatter_to_vocabulary
from spec_bench.engine.mapped_model import map_reduced_vocabulary, read_known_ids, write_known_ids
from spec_bench.system.errors import UsageError
from spec_bench.train.batches import (
    IGNORED_LABEL,
    Dialogue,
    DialogueBatches,
    count_answer_tokens,
)
from spec_bench.train.training_heads import GuessLosses, TrainableHead, group_positions_by_dialogue

if TYPE_CHECKING:
    from spec_bench.train.settings import HeadSettings

# share of the answers' positions that get PARD's masks; they are drawn in every step
MASKED_SHARE = 0.5


class MistralDraftModel(nn.Module):
    """Mistral model (a Llama with a window) over V' target tokens and one token for all others;
    with several guesses there is also a mask token. Made from a shape or loaded from a folder.
    """

    ids: Tensor  # [V'] target ids of its vocabulary
    reads: Tensor

    def __init__(
        self,
        ids: Sequence[int],
        vocab: int,
        shape_or_folder: dict[str, Any] | Path,
        guesses: int = 1,
    ) -> None:
        super().__init__()
        count = len(ids) + 1 + (guesses > 1)
        if isinstance(shape_or_folder, Path):
            self.module = MistralForCausalLM.from_pretrained(shape_or_folder, dtype=torch.float32)
            self.module.resize_token_embeddings(count, mean_resizing=False)
        else:
            shape = {
                "sliding_window": None,
                "tie_word_embeddings": True,
                "use_cache": True,
            } | shape_or_folder
            shape["num_key_value_heads"] = shape["num_attention_heads"]
            self.module = MistralForCausalLM(MistralConfig(vocab_size=count, **shape))
        self.module.config.pard_token = count - 1 if guesses > 1 else None
        self.vocab = vocab
        self.guesses = guesses
        self.parameter_count = self.module.num_parameters()  # tied weights count once
        self.register_buffer("ids", torch.tensor(ids), persistent=False)
        self.register_buffer(
            "reads",
            torch.tensor(map_reduced_vocabulary(ids, vocab).draft_ids),
            persistent=False,
        )

    def forward(self, tokens: Tensor, locations: Tensor, starts: Tensor) -> Iterator[Tensor]:
        """Yields logits [N, V'] at ``locations`` [N, 2] (dialogue and position) of ``tokens`` [B,
        T], then [S, V'] for each of the K - 1 masks after ``starts`` [S, 2]. A mask sees the text
        up to its start and that start's earlier masks.
        """
        count = tokens.shape[1]
        masks = self.guesses - 1
        ends = tokens.new_zeros(tokens.shape[1])
        rows, present = group_positions_by_dialogue(starts, len(tokens))  # [B, A]
        mask_index = torch.arange(rows.shape[1] * masks, device=tokens.device)
        # 0 for text, else 1 + the index of the start that the mask follows
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
    """Whole dialogues of one gradient-accumulation part of a step."""

    tokens: Tensor  # [B, T] whole dialogues, padded on the right
    locations: Tensor  # [N, 2] dialogue and position t before each token of an answer
    hidden_states: Tensor  # [N, D] the target's last hidden states at ``locations``
    labels: Tensor  # [N, K] tokens t + 1..t + K, IGNORED_LABEL past an answer's end


def find_positions_before_answer_tokens(dialogue: Dialogue) -> list[int]:
    """Finds the positions whose next token belongs to an answer."""
    return [t for t, is_answer in enumerate(dialogue.loss_mask[1:]) if is_answer]


@dataclass(frozen=True)
class TextBatches(DialogueBatches):
    """Batches of token sequences, with the hidden states before each token of an answer."""

    select_positions = select_starts = staticmethod(find_positions_before_answer_tokens)

    @torch.no_grad()
    def make_batch(self, indices: Sequence[int]) -> TextBatch:  # type: ignore[override]
        device = self.model.device
        dialogue_indices = indices or [0]  # an empty part runs dialogue 0 and learns nothing
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
        return self.get_known_and_next_tokens(indices)[:, :-1]


class TrainableDraftModel(TrainableHead):
    """A draft model with its loss; ``output_weight`` [V, D] is the target's last layer."""

    heads: MistralDraftModel  # type: ignore[assignment]
    batches_class = TextBatches

    def __init__(self, draft: MistralDraftModel, output_weight: Tensor) -> None:
        super().__init__(draft, draft.guesses)  # type: ignore[arg-type]
        self._output_weight = output_weight  # neither trained nor saved
        self._own_output_weight: Tensor | None = None

    def iter_guess_logits(self, batch: TextBatch) -> Iterator[Tensor]:
        """Yields each guess's logits [N, V]; -inf for tokens outside of the draft's vocabulary."""
        for logits in self.heads(batch.tokens, batch.locations, batch.locations):
            yield scatter_to_vocabulary(logits, self.heads.ids, self.heads.vocab)

    def iter_target_logits(self, batch: TextBatch) -> Iterator[Tensor]:
        logits = linear(batch.hidden_states, self._output_weight.to(batch.hidden_states.device))[
            :, : self.heads.vocab
        ]
        yield from (logits.roll(-step, 0) for step in range(self.guesses))

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        locations: Tensor,
        hidden_states: Tensor,
        labels: Tensor,
    ) -> GuessLosses:
        """Sums each guess's cross-entropy with the target's distribution over V'. The masks run
        only after a random sample of the positions; their sums are scaled up to all positions.
        """
        with torch.no_grad():
            if self._own_output_weight is None:
                self._own_output_weight = self._output_weight.to(hidden_states.device)[
                    self.heads.ids
                ]
            p = linear(hidden_states, self._own_output_weight).softmax(dim=-1)
        all_rows = torch.arange(len(locations), device=locations.device)
        mask_rows = all_rows[
            torch.rand(len(locations), device=locations.device) < MASKED_SHARE * (self.guesses > 1)
        ]
        losses = []
        right = []
        for step, logits in enumerate(self.heads(tokens, locations, locations[mask_rows])):
            rows = mask_rows if step else all_rows
            is_inside = labels[rows, step] != IGNORED_LABEL
            rows = rows[is_inside]
            logits = logits[is_inside]
            weight = (labels[:, step] != IGNORED_LABEL).sum() / max(len(rows), 1)
            entropy = -(p[rows + step] * log_softmax(logits.float(), dim=-1)).sum()
            best = self.heads.ids[logits.detach().argmax(-1)]
            losses.append(entropy * weight)
            right.append((best == labels[rows, step]).sum() * weight)
        return GuessLosses(torch.stack(losses), torch.stack(right))

    def round_and_save(self, folder: Path, dtype: torch.dtype) -> None:
        """Rounds the model to ``dtype`` and writes its folder, with the target ids of its
        vocabulary but without a tokenizer, which is the target's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.heads.to(dtype).module.save_pretrained(folder)
        write_known_ids(folder, self.heads.ids.tolist())
        self.heads.float()


def load_or_make_draft_model(
    head: HeadSettings,
    target_config: Any,
    output_weight: Tensor,
    dialogues: Sequence[Dialogue],
) -> TrainableDraftModel:
    """Loads the draft model that ``head.init`` names, or makes an untrained one from the target's
    text config. ``output_weight`` is the target's last layer ([V, D] float32).

    A new model has ``head.draft_vocab`` tokens (V'): the most frequent tokens of the answers,
    filled up with the lowest ids, which a byte-pair vocabulary merged first. Raises UsageError if
    the target has fewer tokens, or if the folder has no list of token ids.
    """
    from spec_bench.jobs.config.model_files import (
        resolve_or_convert_model,  # late: scripts/gpu lack pydantic
    )
    from spec_bench.train.settings import HEAD_WIDTH, RANDOM

    if head.init != RANDOM:
        folder = Path(resolve_or_convert_model(head.init))
        if (ids := read_known_ids(folder)) is None:
            raise UsageError(f"head.init={head.init}: no draft that `head=draft_model` trained")
        return TrainableDraftModel(
            MistralDraftModel(ids, len(output_weight), folder, head.guesses), output_weight
        )
    assert head.width is not None and head.draft_vocab is not None
    if head.draft_vocab > len(output_weight):
        raise UsageError(
            f"head.draft_vocab={head.draft_vocab}: the target has {len(output_weight)} tokens"
        )
    copied_names = ("max_position_embeddings", "rms_norm_eps")
    shape = {
        name: getattr(target_config, name) for name in copied_names if hasattr(target_config, name)
    }
    shape |= {f"{end}_token_id": None for end in ("bos", "eos", "pad")}
    shape |= {"hidden_size": head.width, "intermediate_size": head.inner}
    shape |= {"num_hidden_layers": head.blocks, "sliding_window": head.window}
    shape |= {"num_attention_heads": head.width // HEAD_WIDTH}
    ids = select_draft_vocabulary(dialogues, head.draft_vocab)
    return TrainableDraftModel(
        MistralDraftModel(ids, len(output_weight), shape, head.guesses), output_weight
    )


def select_draft_vocabulary(dialogues: Sequence[Dialogue], count: int) -> tuple[int, ...]:
    """Selects ``count`` tokens: the most frequent of those that occur at least twice in answers,
    then the lowest other ids. Returns them in increasing order.
    """
    counts = count_answer_tokens(dialogues)
    frequent = sorted((t for t in counts if counts[t] > 1), key=lambda t: (-counts[t], t))
    return tuple(sorted(list(dict.fromkeys([*frequent, *range(2 * count)]))[:count]))
