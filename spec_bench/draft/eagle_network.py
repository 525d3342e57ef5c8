"""EAGLE's network (EAGLE-1 arXiv 2401.15077, EAGLE-2 2406.16858, EAGLE-3 2503.01840).

At step t the head reads the target's feature f_t and the embedding of token t + 1, and predicts
token t + 2. Deeper steps read the head's own output in place of a feature. EAGLE-1's feature is the
last hidden state after the final norm, and the target's last layer computes logits from the output;
its first block has no input norm. EAGLE-3 fuses three hidden states with `fc` and has its own last
layer over V' <= V tokens; its first block reads embedding and feature concatenated.

Letters: R rows, T tokens, D width, W width of the target's hidden states that it reads, V and V'
vocabularies.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from spec_bench.draft import eagle_files
from spec_bench.draft.cached_head import FeatureHead, TensorFunction
from spec_bench.draft.eagle_files import EagleShape, read_eagle_shape
from spec_bench.draft.layers import AttentionFunction, DecoderBlock, RMSNorm, get_sizes_like_target
from spec_bench.draft.network import (
    CheckpointConfig,
    HeadPlan,
    PublicCheckpoint,
    TensorsByName,
    load_weights,
)
from spec_bench.system.errors import UsageError


class FirstBlockInputs(NamedTuple):
    """Inputs of a head's first block."""

    residual: Tensor  # [R, T, D]
    attention: Tensor | None  # [R, T, inputs] input of its attention; None: the normed residual


class EagleHead(FeatureHead):
    """Base class of EAGLE-1's and EAGLE-3's heads."""

    version: ClassVar[int]
    shape: EagleShape
    lm_head: nn.Linear  # EAGLE-3's

    def compute_outputs(
        self,
        feature: Tensor,
        embeddings: Tensor,
        positions: Tensor,
        attend: AttentionFunction,
    ) -> Tensor:
        rotation = self.compute_rotation(positions)
        x, attention_input = self.join_inputs(feature, embeddings)
        for block in self.layers:
            x = block(x, rotation, attend, attention_input)
            attention_input = None
        return x

    def join_inputs(self, feature: Tensor, embeddings: Tensor) -> FirstBlockInputs:
        """Joins features and embeddings [R, T, D] into the inputs of the first block."""
        raise NotImplementedError

    @classmethod
    def make_untrained(cls, plan: HeadPlan) -> EagleHead:
        """Makes a block of the target's sizes. EAGLE-3's last layer can be initialised from the
        target's.
        """
        sizes = get_sizes_like_target(plan)
        sizes |= {"fc_bias": True} if cls.version == 1 else {"fc_norm": plan.fc_norm}
        if plan.masks:
            sizes["mask_token"] = plan.mask_token
        head = cls(EagleShape(**sizes), plan.ids_tensor)
        if plan.init == "target" and cls.version == 3:
            with torch.no_grad():
                head.lm_head.weight.copy_(plan.get_known_output_weight())
        return head

    @classmethod
    def find_weights_file(cls, folder: Path, config: CheckpointConfig) -> Path | None:
        if "num_draft_layers" in config:  # ReDrafter's
            return None
        return eagle_files.find_eagle_weights_file(folder, cls.version)

    @classmethod
    def from_weights(cls, weights: TensorsByName, config: CheckpointConfig) -> EagleHead:
        our_weights, ids = eagle_files.rename_weights_and_read_ids(weights)
        shape = read_eagle_shape(cls.version, our_weights, config)
        if ids is not None and int(ids.max()) >= shape.vocab:
            shape = replace(shape, vocab=int(ids.max()) + 1)
        if not shape.own_inputs:
            our_weights.pop("embed_tokens.weight", None)  # the target's own is used
        elif "embed_tokens.weight" not in our_weights:
            raise UsageError(
                f"EAGLE head of width {shape.width} on hidden states of {shape.hidden}: its file "
                "must hold embed_tokens.weight"
            )
        return load_weights(cls(shape, ids), our_weights)

    def to_public_checkpoint(self) -> PublicCheckpoint:
        return eagle_files.build_eagle_checkpoint(
            self.version, self.shape, self.state_dict(), self.ids
        )


class Eagle1Head(EagleHead):
    """The head of EAGLE-1 and EAGLE-2."""

    version = 1
    reads_target = regresses = True

    def __init__(self, shape: EagleShape, ids: Tensor | None = None) -> None:
        blocks = [DecoderBlock(shape, place, normed=place > 0) for place in range(shape.layers)]
        super().__init__(shape, ids, blocks)
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=shape.fc_bias)

    def join_inputs(self, feature: Tensor, embeddings: Tensor) -> FirstBlockInputs:
        projected = self.fc(torch.cat([embeddings, feature], dim=-1))
        return FirstBlockInputs(projected, projected)

    @classmethod
    def make_smallest(cls, hidden: int, vocab: int) -> EagleHead:
        return cls(EagleShape(hidden, hidden, vocab, vocab, 1, 1, 2, 2, fc_bias=True))


class Eagle3Head(EagleHead):
    """The head of EAGLE-3."""

    version = 3
    starts_as_target = True

    def __init__(self, shape: EagleShape, ids: Tensor | None = None) -> None:
        wide = 2 * shape.width
        blocks = [DecoderBlock(shape, place, 0 if place else wide) for place in range(shape.layers)]
        super().__init__(shape, ids, blocks)
        blocks[0].hidden_norm = RMSNorm(shape.width, shape.eps)
        self.fc = nn.Linear(3 * shape.hidden, shape.width, bias=shape.fc_bias)
        if shape.norm_before_fc:
            self.input_norm = RMSNorm(3 * shape.hidden, shape.eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(shape.hidden, shape.eps) for _ in range(3))
        self.norm = RMSNorm(shape.width, shape.eps)
        self.lm_head = nn.Linear(shape.width, shape.draft_vocab, bias=False)
        if shape.mask_token is not None:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, 3 * shape.hidden))

    @property
    def hidden_input_width(self) -> int:
        return 3 * self.shape.hidden

    def join_inputs(self, feature: Tensor, embeddings: Tensor) -> FirstBlockInputs:
        first_block: Any = self.layers[0]
        normed_feature = first_block.hidden_norm(feature)
        z = torch.cat([first_block.input_layernorm(embeddings), normed_feature], dim=-1)
        return FirstBlockInputs(normed_feature if self.shape.norm_before_residual else feature, z)

    def fuse_hidden_states(self, hidden: Tensor) -> Tensor:
        if self.shape.norm_before_fc:
            hidden = self.input_norm(hidden)
        if self.shape.fc_norm:
            parts = zip(self.fc_norm, hidden.chunk(3, dim=-1), strict=True)
            hidden = torch.cat([norm(part) for norm, part in parts], dim=-1)
        return self.fc(hidden)

    def to_next_feature(self, output: Tensor) -> Tensor:
        return self.norm(output) if self.shape.norm_output else output

    def compute_own_logits(self, output: Tensor, project: TensorFunction) -> Tensor:
        return self.lm_head(self.norm(output))

    @classmethod
    def make_smallest(cls, hidden: int, vocab: int) -> EagleHead:
        """Makes the smallest head; it does not know token 1, so V' = V - 1."""
        ids = torch.tensor([token for token in range(vocab) if token != 1])
        return cls(EagleShape(hidden, hidden, vocab, len(ids), 1, 1, 2, 2), ids)
