"""Medusa (arXiv 2401.10774, section 2.1): head k guesses the token k positions after the next
token.

From the hidden state x of position t the target predicts token t + 1; head 1 predicts token t + 2,
head 2 token t + 3, and so on, each without the others' guesses. So one pass of the heads guesses
all levels.

Files are as in the public checkpoints (FasterDecoding/medusa-vicuna-*): ``config.json`` with
``medusa_num_layers``, the weights in ``medusa_lm_head.pt`` or ``.safetensors`` under
``HEAD.BLOCK.linear.weight`` and ``HEAD.BLOCKS.weight``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from spec_bench.core.host_device import CommittedTokens
from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.cached_head import LastHiddenDraftState
from spec_bench.draft.levels import OnePassDraftState
from spec_bench.draft.network import (
    CheckpointConfig,
    DraftHeads,
    HeadPlan,
    PublicCheckpoint,
    ResidualBlock,
    TensorsByName,
    load_weights,
)
from spec_bench.system.errors import UsageError

_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")


@dataclass(frozen=True)
class MedusaShape:
    """Sizes of the heads."""

    hidden: int  # D, the target's
    vocab: int  # V
    heads: int  # K
    blocks: int = 1  # residual blocks per head


class MedusaHeads(DraftHeads):
    """K independent heads, each of residual blocks and a linear layer."""

    starts_as_target = True

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = nn.ModuleList(
            nn.Sequential(
                *(ResidualBlock(shape.hidden) for _ in range(shape.blocks)),
                nn.Linear(shape.hidden, shape.vocab, bias=False),
            )
            for _ in range(shape.heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Computes logits [..., K, V] from the target's last hidden states [..., D]."""
        return torch.stack([head(x) for head in self.heads], dim=-2)

    def iter_guess_logits(self, hidden: Tensor, embeddings: Tensor) -> Iterator[Tensor]:
        """Yields each head's logits [N, V]; they do not depend on the tokens in between."""
        for head in self.heads:
            yield head(hidden)

    @classmethod
    def make_untrained(cls, plan: HeadPlan) -> MedusaHeads:
        """Makes heads with blocks that start as the identity. ``init: target`` copies the target's
        last layer to each head, as Medusa's authors do.
        """
        heads = cls(MedusaShape(plan.hidden, plan.vocab, plan.guesses, plan.blocks))
        if plan.init == "target":
            weight = plan.get_known_output_weight()
            with torch.no_grad():
                for name, parameter in heads.named_parameters():
                    if name.endswith(f".{plan.blocks}.weight"):
                        parameter.copy_(weight)
        return heads

    @classmethod
    def make_smallest(cls, hidden: int, vocab: int) -> MedusaHeads:
        return cls(MedusaShape(hidden, vocab, heads=2))

    @classmethod
    def find_weights_file(cls, folder: Path, config: CheckpointConfig) -> Path | None:
        return next((folder / name for name in _FILES if (folder / name).is_file()), None)

    @classmethod
    def from_weights(cls, weights: TensorsByName, config: CheckpointConfig) -> MedusaHeads:
        """Makes heads from a checkpoint. Counts the heads in the weights, because published configs
        understate their number. Raises UsageError if weights and config do not fit.
        """
        weights = {re.sub(r"^medusa_head\.", "", name): value for name, value in weights.items()}
        names = [re.fullmatch(r"(\d+)\.(\d+)\.weight", name) for name in weights]
        matches = [match for match in names if match]
        if not matches:
            raise UsageError(
                f"no Medusa head among the weights {', '.join(sorted(weights)[:4])}, ..."
            )
        blocks = int(matches[0][2])
        config_blocks = config.get("medusa_num_layers", blocks)
        if config_blocks != blocks:
            raise UsageError(
                f"medusa_num_layers is {config_blocks}, the weights have {blocks} blocks a head"
            )
        vocab, hidden = weights[f"0.{blocks}.weight"].shape
        heads = cls(MedusaShape(hidden, vocab, len(matches), blocks))
        return load_weights(heads, {f"heads.{name}": value for name, value in weights.items()})

    def to_public_checkpoint(self) -> PublicCheckpoint:
        weights = {name.removeprefix("heads."): value for name, value in self.state_dict().items()}
        config = {"medusa_num_heads": self.shape.heads, "medusa_num_layers": self.shape.blocks}
        return PublicCheckpoint(_FILES[0], weights, config)


class MedusaDraftState(OnePassDraftState, LastHiddenDraftState):
    """State of K heads; all nodes of a level get the logits of the level's head."""

    def compute_level_logits(self, committed: CommittedTokens) -> Tensor:
        self._timer.start()
        logits = self._heads(self._hidden[: len(committed)])[..., : self._vocab]
        self._timer.stop()
        return logits


@drafter("medusa")
@dataclass(frozen=True)
class Medusa(Drafter):
    """Medusa's heads; they all work at once, so L is 1."""

    policies = ("node_list",)
    heads = MedusaHeads
    passes = 1

    def find_max_depth(self, heads: DraftHeads | None) -> int:
        assert heads is not None
        return int(heads.shape.heads)

    def make_state(self, resources: DraftResources) -> DraftState:
        return MedusaDraftState(resources)
