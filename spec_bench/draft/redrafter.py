"""ReDrafter (arXiv 2403.09919, section 2): a recurrent head, applied once per drafted token.

The head's state reads the embedding of each guessed token, so that the guess for t + 3 depends on
the guess for t + 2. The first update reads the last *known* token, which the target has just
emitted. As in the authors' code the state starts at zero and the head reads [x, s]. Drafting is a
beam search with the head.

Files are as in recurrent-drafter: ``config.json`` with ``num_draft_layers``, ``rnn`` and
``exit_dim``, the weights in ``model.safetensors`` under ``lm_head``, ``rnn_u``, ``rnn_w`` and
``input_proj``. A head with fewer tokens than the target also has EAGLE-3's maps ``d2t`` and
``t2d``.

Letters: R rows, W beams, L tokens per beam, V vocabulary, V' the head's vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from spec_bench.core.host_device import HostDeviceInts
from spec_bench.draft.base import Drafter, DraftResources, DraftState, drafter
from spec_bench.draft.cached_head import LastHiddenDraftState
from spec_bench.draft.eagle_files import add_vocabulary_maps, rename_weights_and_read_ids
from spec_bench.draft.network import (
    CheckpointConfig,
    DraftHeads,
    HeadPlan,
    PublicCheckpoint,
    ResidualBlock,
    TensorsByName,
    load_weights,
)

_FILE = "model.safetensors"


@dataclass(frozen=True)
class RecurrentShape:
    """Sizes of the head."""

    hidden: int  # D, the target's
    vocab: int  # V
    blocks: int = 2  # residual blocks
    # False: the state is the sum of the embeddings, U = W = I, b = 0, f the identity (the paper's
    # ablation, Figure 4)
    recurrent: bool = True
    inner: int | None = None  # width of the residual blocks; 2 D unless a projection narrows them

    @property
    def residual_width(self) -> int:
        """Width of the residual blocks."""
        return 2 * self.hidden if self.inner is None else self.inner


class RecurrentHead(DraftHeads):
    """A recurrent state, with residual blocks and a last layer shared by all positions."""

    ids: Tensor | None  # [V'] target ids of the head's tokens; None if V' = V

    def __init__(self, shape: RecurrentShape, ids: Tensor | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("ids", ids, persistent=False)
        if shape.residual_width != 2 * shape.hidden:
            self.input_proj = nn.Linear(2 * shape.hidden, shape.residual_width)
        self.lm_head = nn.Sequential(
            *(ResidualBlock(shape.residual_width) for _ in range(shape.blocks)),
            nn.Linear(shape.residual_width, shape.vocab if ids is None else len(ids), bias=False),
        )
        if shape.recurrent:
            self.rnn_u = nn.Linear(shape.hidden, shape.hidden)
            self.rnn_w = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def update_state(self, state: Tensor, embedding: Tensor) -> Tensor:
        """Updates the state with a token's embedding: s' = SiLU(U s + W e + b), all [..., D]; s is
        0 at first.
        """
        if not self.shape.recurrent:
            return state + embedding
        return nn.functional.silu(self.rnn_u(state) + self.rnn_w(embedding))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """Computes logits [..., V'] of the next token from the target's last hidden state and the
        recurrent state, [..., D] each.
        """
        features = torch.cat([x, state], dim=-1)
        if self.shape.residual_width != 2 * self.shape.hidden:
            features = self.input_proj(features)
        return self.lm_head(features)

    def iter_guess_logits(self, hidden: Tensor, embeddings: Tensor) -> Iterator[Tensor]:
        """Yields each guess's logits; the state reads the right tokens instead of the head's own
        guesses (teacher forcing).
        """
        state = torch.zeros_like(hidden)
        for guess in range(embeddings.shape[1]):
            state = self.update_state(state, embeddings[:, guess])
            yield self(hidden, state)

    @classmethod
    def make_untrained(cls, plan: HeadPlan) -> RecurrentHead:
        """Makes a head with random weights, except for the blocks, which start as the identity."""
        sizes = (plan.hidden, plan.vocab, plan.blocks, plan.recurrent, plan.inner)
        return cls(RecurrentShape(*sizes), plan.ids_tensor)

    @classmethod
    def make_smallest(cls, hidden: int, vocab: int) -> RecurrentHead:
        return cls(RecurrentShape(hidden, vocab, blocks=1))

    @classmethod
    def find_weights_file(cls, folder: Path, config: CheckpointConfig) -> Path | None:
        is_ours = (folder / _FILE).is_file() and "num_draft_layers" in config
        return folder / _FILE if is_ours else None

    @classmethod
    def from_weights(cls, weights: TensorsByName, config: CheckpointConfig) -> RecurrentHead:
        width = config.get("exit_dim", 2 * config["hidden_size"])
        shape = RecurrentShape(
            config["hidden_size"],
            config["vocab_size"],
            config["num_draft_layers"],
            bool(config.get("rnn", False)),
            None if width == 2 * config["hidden_size"] else width,
        )
        our_weights, ids = rename_weights_and_read_ids(weights)
        return load_weights(cls(shape, ids), our_weights)

    def to_public_checkpoint(self) -> PublicCheckpoint:
        config = {
            "model_type": "recurrent_drafting_drafter",
            "hidden_size": self.shape.hidden,
            "vocab_size": self.shape.vocab,
            "exit_dim": self.shape.residual_width,
            "num_draft_layers": self.shape.blocks,
            "rnn": self.shape.recurrent,
        }
        weights = add_vocabulary_maps(self.state_dict(), self.ids, self.shape.vocab)
        return PublicCheckpoint(_FILE, weights, config)


class RecurrentDraftState(LastHiddenDraftState):
    """State that searches beams of equal length with a recurrent head."""

    def __init__(self, resources: DraftResources) -> None:
        super().__init__(resources)
        self._embed = resources.target.embed

    def search_beams(self, roots: Sequence[int], width: int, length: int) -> Tensor:
        """Searches for the W likeliest continuations of each of R roots; returns their tokens [R,
        W, L], best first.

        A root is the last committed token, which the head's first update reads.
        """
        self._timer.start()
        rows = len(roots)
        x = self._hidden[:rows].unsqueeze(1)  # [R, 1, D]
        tokens = HostDeviceInts.wrap(roots).get_tensor(x.device).unsqueeze(1)  # [R, 1]
        state = torch.zeros_like(x)
        score = torch.zeros((rows, 1), dtype=torch.float32, device=x.device)
        beams = tokens.new_zeros((rows, 1, 0))
        for _ in range(length):
            state = self._heads.update_state(state, self._embed(tokens).to(state.dtype))
            logits = self._heads(x.expand_as(state), state)[..., : self._vocab]
            joint = (score.unsqueeze(-1) + logits.float().log_softmax(dim=-1)).flatten(1)
            score, cell = joint.topk(min(width, joint.shape[1]), dim=-1)
            vocab = logits.shape[-1]
            parent = cell // vocab
            tokens = cell % vocab
            tokens = tokens if self._heads.ids is None else self._heads.ids[tokens]
            state = state.gather(1, parent.unsqueeze(-1).expand(-1, -1, state.shape[-1]))
            parent_beams = beams.gather(1, parent.unsqueeze(-1).expand(-1, -1, beams.shape[-1]))
            beams = torch.cat([parent_beams, tokens.unsqueeze(-1)], dim=-1)
        self._timer.stop()
        return beams


@drafter("redrafter")
@dataclass(frozen=True)
class ReDrafter(Drafter):
    """ReDrafter's head, which gives whole beams."""

    policies = ("head_beams",)
    heads = RecurrentHead

    def make_state(self, resources: DraftResources) -> DraftState:
        return RecurrentDraftState(resources)
