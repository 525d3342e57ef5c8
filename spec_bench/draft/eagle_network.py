"""The decoder block of an EAGLE head: a Llama block whose attention may read twice the width.

Letters: R rows, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from spec_bench.draft import eagle_files
from spec_bench.draft.cached_head import Attend, Embed, FeatureHead, Kept
from spec_bench.draft.eagle_files import THETA, EagleShape, shape_of
from spec_bench.draft.layers import MLP, Attention, RMSNorm, Turn, turn_at
from spec_bench.draft.network import HeadPlan
from spec_bench.engine.architectures import frequencies


class Block(nn.Module):
    """One decoder block: the first has no input norm in EAGLE-1, and reads embedding and feature
    side by side in EAGLE-3.
    """

    def __init__(self, shape: EagleShape, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.pairs = layer == 0 and shape.version == 3
        self.normed_residual = shape.norm_before_residual
        self.self_attn = Attention(shape, 2 * shape.width if self.pairs else shape.width)
        self.mlp = MLP(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)
        if self.pairs:
            self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self.bare = layer == 0 and shape.version == 1
        if not self.bare:
            self.input_layernorm = RMSNorm(shape.width, shape.eps)

    def forward(self, x: Tensor, embedded: Tensor, turn: Turn, attend: Attend) -> Tensor:
        """x [R, T, D], features or the block before, and embeddings [R, T, D] beside them -> [R, T,
        D].
        """
        if self.pairs:
            normed = self.hidden_norm(x)
            z = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
            x = normed if self.normed_residual else x
        else:
            z = x if self.bare else self.input_layernorm(x)
        x = x + self.self_attn(z, turn, self.layer, attend)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


# EAGLE's network (EAGLE-1 arXiv 2401.15077, EAGLE-2 2406.16858, EAGLE-3 2503.01840).
#
# At step t it takes the target's feature f_t and the embedding of token t + 1 and predicts token t
# + 2. Deeper steps take its own output in place of a feature. EAGLE-1's feature is the last hidden
# state after the final norm, and the target's own last layer reads the output; EAGLE-3 fuses three
# hidden states by `fc` and has a last layer of its own over V' <= V tokens.
#
# Letters: R rows, T tokens, D width, W width of what the target hands over, V and V' vocabularies.


class EagleHead(FeatureHead):
    """What EAGLE-1 and EAGLE-3 share; ``ids``: V' target ids of the head's tokens, None where V' =
    V.
    """

    version: ClassVar[Literal[1, 3]]
    shape: EagleShape
    angles: Tensor
    embed_tokens: nn.Embedding
    lm_head: nn.Linear

    def __init__(self, shape: EagleShape, ids: Tensor | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(Block(shape, layer) for layer in range(shape.layers))
        angles, self._factor = frequencies(shape.rope, shape.head_dim, shape.max_positions)
        self.register_buffer("angles", angles, persistent=False)
        self.register_buffer("ids", ids, persistent=False)
        if shape.own_inputs:
            self.embed_tokens = nn.Embedding(shape.vocab, shape.width)

    @property
    def features(self) -> int:
        """W: the width of what the target hands over."""
        return self.shape.hidden * (3 if self.version == 3 else 1)

    @property
    def parameter_count(self) -> int:
        count = super().parameter_count
        return count - (self.embed_tokens.weight.numel() if hasattr(self, "embed_tokens") else 0)

    @property
    def kept(self) -> Sequence[Kept]:
        shape = self.shape
        return [Kept(shape.kv_heads, shape.head_dim, shape.head_dim)] * shape.layers

    def embedded(self, tokens: Tensor, embed: Embed) -> Tensor:
        vectors = self.embed_tokens(tokens) if hasattr(self, "embed_tokens") else embed(tokens)
        return vectors.to(self._like.dtype)

    def step(self, feature: Tensor, embedded: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        turn = turn_at(positions, self.angles, self._factor)
        x = self.joined(feature, embedded)
        for block in self.layers:
            x = block(x, embedded, turn, attend)
        return x

    def joined(self, feature: Tensor, embedded: Tensor) -> Tensor:
        """What the first block reads."""
        return feature

    @classmethod
    def fresh(
        cls, plan: HeadPlan, hidden: int, vocab: int, output: Callable[[], Tensor]
    ) -> EagleHead:
        """A block of the target's sizes; EAGLE-3's last layer can start as the target's."""
        shape = _fresh_shape(cls.version, plan, hidden, vocab)
        ids = None if plan.ids is None else torch.tensor(plan.ids)
        head = cls(shape, ids)
        if plan.init == "target" and cls.version == 3:
            with torch.no_grad():
                last = output()[:vocab]
                head.lm_head.weight.copy_(last if ids is None else last[ids])
        return head

    @classmethod
    def weights_file(cls, folder: Path, config: Mapping[str, Any]) -> Path | None:
        if "num_draft_layers" in config:  # ReDrafter's
            return None
        return eagle_files.weights_file(folder, cls.version)

    @classmethod
    def of_weights(cls, weights: dict[str, Tensor], config: Mapping[str, Any]) -> EagleHead:
        from spec_bench.draft.heads import filled

        named, ids = eagle_files.canonical(weights)
        shape = shape_of(cls.version, named, config)
        if ids is not None and int(ids.max()) >= shape.vocab:
            shape = replace(shape, vocab=int(ids.max()) + 1)
        if not shape.own_inputs:
            named.pop("embed_tokens.weight", None)  # the target's own is used
        elif "embed_tokens.weight" not in named:
            raise ValueError(
                f"EAGLE head of width {shape.width} on hidden states of {shape.hidden}"
                f"{', with masks' if shape.mask_token is not None else ''}: its file must hold "
                "embed_tokens.weight"
            )
        return filled(cls(shape, ids), named)

    def to_files(self) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
        return eagle_files.FILE, *eagle_files.written(self.shape, self.state_dict(), self.ids)


class Eagle1Head(EagleHead):
    """EAGLE-1's and EAGLE-2's."""

    version = 1
    reads_target = regresses = True

    def __init__(self, shape: EagleShape, ids: Tensor | None = None) -> None:
        super().__init__(shape, ids)
        self.fc = nn.Linear(2 * shape.width, shape.width, bias=shape.fc_bias)

    def joined(self, feature: Tensor, embedded: Tensor) -> Tensor:
        joined: Tensor = self.fc(torch.cat([embedded, feature], dim=-1))
        return joined

    def own_logits(self, output: Tensor, project: Embed) -> Tensor:
        logits: Tensor = project(output) if self.cut_down is None else self.cut_down(output)
        return logits

    @classmethod
    def smallest(cls, hidden: int, vocab: int) -> EagleHead:
        return cls(EagleShape(1, hidden, hidden, vocab, vocab, 1, 1, 2, 2, fc_bias=True))


class Eagle3Head(EagleHead):
    """EAGLE-3's."""

    version = 3
    starts_as_target = True

    def __init__(self, shape: EagleShape, ids: Tensor | None = None) -> None:
        super().__init__(shape, ids)
        self.fc = nn.Linear(3 * shape.hidden, shape.width, bias=shape.fc_bias)
        if shape.norm_before_fc:
            self.input_norm = RMSNorm(3 * shape.hidden, shape.eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(shape.hidden, shape.eps) for _ in range(3))
        self.norm = RMSNorm(shape.width, shape.eps)
        self.lm_head = nn.Linear(shape.width, shape.draft_vocab, bias=False)
        if shape.mask_token is not None:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, 3 * shape.hidden))

    def places(self, blocks: int, ids_name: str = "auto") -> tuple[int, ...]:
        """The ``hidden_states`` it reads: 2, L / 2 and L - 3 unless its config says otherwise.

        Args:
            blocks: L, of the target.
            ids_name: ``input`` or ``output`` of a block, overriding the file's family.

        Raises:
            ValueError: a place that no forward pass returns.
        """
        ids = self.shape.layer_ids
        if ids is None:
            ids = (2, blocks // 2, blocks - 3)
        elif ids_name != "auto":
            ids = tuple(each - self.shape.id_shift + (ids_name == "output") for each in ids)
        for each in ids:
            if not 0 <= each < blocks:
                raise ValueError(
                    f"EAGLE-3 head: hidden state {each} is not among 0 to {blocks - 1} of a target "
                    f"of {blocks} blocks"
                )
        return ids

    def fuse(self, hidden: Tensor) -> Tensor:
        if self.shape.norm_before_fc:
            hidden = self.input_norm(hidden)
        if self.shape.fc_norm:
            parts = zip(self.fc_norm, hidden.chunk(3, dim=-1), strict=True)
            hidden = torch.cat([norm(part) for norm, part in parts], dim=-1)
        fused: Tensor = self.fc(hidden)
        return fused

    def fed_back(self, output: Tensor) -> Tensor:
        return self.norm(output) if self.shape.norm_output else output

    def own_logits(self, output: Tensor, project: Embed) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(output))
        return logits

    @classmethod
    def smallest(cls, hidden: int, vocab: int) -> EagleHead:
        """It lacks one token: V' = V - 1."""
        ids = torch.tensor([each for each in range(vocab) if each != 1])
        return cls(EagleShape(3, hidden, hidden, vocab, len(ids), 1, 1, 2, 2), ids)


def _fresh_shape(version: Literal[1, 3], plan: HeadPlan, hidden: int, vocab: int) -> EagleShape:
    """A block as wide as the target's own."""
    like = plan.target
    heads = int(like.get("num_attention_heads", 1))
    rope = {"rope_type": "default", "rope_theta": THETA, **(like.get("rope_parameters") or {})}
    return EagleShape(
        version,
        hidden,
        hidden,
        vocab,
        vocab if plan.ids is None else len(plan.ids),
        heads,
        int(like.get("num_key_value_heads") or heads),
        int(like.get("head_dim") or hidden // heads),
        plan.inner or int(like.get("intermediate_size") or 4 * hidden),
        plan.blocks,
        eps=float(like.get("rms_norm_eps") or 1e-6),
        rope=rope,
        max_positions=int(like.get("max_position_embeddings") or 2048),
        fc_bias=version == 1,
        fc_norm=version == 3 and plan.fc_norm,
    )
