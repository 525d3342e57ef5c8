"""Base classes of draft heads that cache keys and values of past tokens.

Such a head may know only a part of the vocabulary. Letters: R rows, T tokens, D width, W width of
the target's hidden states, V tokens, V' tokens that the head knows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from spec_bench.core.host_device import cached_arange
from spec_bench.draft.base import DraftResources, DraftState
from spec_bench.draft.layers import AttentionFunction, DecoderBlock, Rotation
from spec_bench.draft.network import DraftHeads, scatter_to_vocabulary
from spec_bench.engine.architectures import compute_rotary_frequencies
from spec_bench.engine.cache import LayerLayout, SlotCache
from spec_bench.engine.model import ForwardTimer

TensorFunction = Callable[[Tensor], Tensor]


class CachedHead(DraftHeads):
    """Base class of draft heads with a cache."""

    reads_target: bool = False  # whether the target's last layer makes its logits
    regresses: bool = False  # whether its training also regresses on the target's feature
    ids: Tensor | None  # [V'] target ids of the head's tokens; None if V' = V
    angles: Tensor
    embed_tokens: nn.Embedding  # only if the head does not use the target's embeddings

    def __init__(
        self, shape: Any, ids: Tensor | None = None, blocks: Sequence[DecoderBlock] = ()
    ) -> None:
        super().__init__()
        self.shape = shape
        # replaces the target's last layer, with some of its outputs; see ``cut_output_layers``
        self.cut_down: nn.Module | None = None
        self.register_buffer("ids", ids, persistent=False)
        if blocks:
            self.layers = nn.ModuleList(blocks)
            angles, self._factor = compute_rotary_frequencies(
                shape.rope, shape.head_dim, shape.max_positions
            )
            self.register_buffer("angles", angles, persistent=False)
            if shape.own_inputs:
                self.embed_tokens = nn.Embedding(shape.vocab, shape.width)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Converts the weights but keeps the precision of the angles: in 8 bits a position's angle
        is wrong by a radian after some hundred tokens.
        """
        exact = {
            name: tensor for name, tensor in self.named_buffers() if tensor.is_floating_point()
        }
        module_self = super()._apply(fn, recurse)
        for name, buffer in exact.items():
            owner, _, leaf = name.rpartition(".")
            module = self.get_submodule(owner)
            setattr(module, leaf, buffer.to(getattr(module, leaf).device))
        return module_self

    @property
    def hidden_input_width(self) -> int:
        """W: width of the target's hidden states that it reads."""
        return int(self.shape.hidden)

    @property
    def parameter_count(self) -> int:
        embedding_count = self.embed_tokens.weight.numel() if hasattr(self, "embed_tokens") else 0
        return super().parameter_count - embedding_count

    @property
    def cache_layouts(self) -> Sequence[LayerLayout]:
        """Layout of each layer's keys and values."""
        shape = self.shape
        return [self._make_layout(shape.kv_heads, shape.head_dim, shape.head_dim)] * shape.layers

    def _make_layout(self, heads: int, key_dim: int, value_dim: int) -> LayerLayout:
        like = self._first_parameter
        return LayerLayout(heads, key_dim, value_dim, like.dtype, like.device)

    def compute_rotation(self, positions: Tensor) -> Rotation:
        """Computes the rotation at positions [R, T]."""
        angle = positions.unsqueeze(-1) * self.angles
        angle = torch.cat([angle, angle], dim=-1).unsqueeze(1)
        return Rotation(angle.cos() * self._factor, angle.sin() * self._factor)

    def get_embeddings(self, tokens: Tensor, embed: TensorFunction) -> Tensor:
        """Embeds tokens [...] with the head's own embeddings, or with the
        target's if it has none.
        """
        vectors = self.embed_tokens(tokens) if hasattr(self, "embed_tokens") else embed(tokens)
        return vectors.to(self._first_parameter.dtype)

    @property
    def _first_parameter(self) -> Tensor:
        return next(self.parameters())

    @property
    def bytes_per_slot(self) -> int:  # type: ignore[override]
        return sum(layout.bytes_per_slot for layout in self.cache_layouts)

    def allocate(self, rows: int, slots: int) -> SlotCache:
        return SlotCache(self.cache_layouts, rows, slots)

    def compute_own_logits(self, output: Tensor, project: TensorFunction) -> Tensor:
        """Computes logits [..., V'] from outputs [..., D]; ``project`` is the
        target's last layer.
        """
        return project(output) if self.cut_down is None else self.cut_down(output)

    def compute_logits(self, output: Tensor, project: TensorFunction, vocab: int) -> Tensor:
        """Computes logits [..., V] from outputs [..., D], -inf for tokens that the head does not
        know.
        """
        return self.scatter_own_values(self.compute_own_logits(output, project), vocab, -torch.inf)

    def scatter_own_values(self, values: Tensor, vocab: int, fill: float) -> Tensor:
        """Scatters ``values`` [..., V'] of the head's tokens to [..., V]; others get ``fill``."""
        return scatter_to_vocabulary(values, self.ids, max(vocab, self.shape.vocab), fill)[
            ..., :vocab
        ]


class FeatureHead(CachedHead):
    """A head that continues from its own output.

    From a feature and the next token's embedding it computes an output, which gives the logits of
    the token after that and is the feature of the next step. EAGLE's heads and multi-token
    prediction (MTP) are such heads; `eagle.EagleDraftState` drafts with them,
    `train.training_heads` trains them.
    """

    def fuse_hidden_states(self, hidden: Tensor) -> Tensor:
        """Fuses the target's hidden states [..., W] into a feature [..., D]."""
        return hidden

    def compute_outputs(
        self,
        feature: Tensor,
        embeddings: Tensor,
        positions: Tensor,
        attend: AttentionFunction,
    ) -> Tensor:
        """Computes outputs [R, T, D] at positions [R, T] from features [R, T, D] and the embeddings
        of the next tokens [R, T, D]. A feature is the target's, fused, or an earlier output. Only
        differences between positions matter.
        """
        raise NotImplementedError

    def to_next_feature(self, output: Tensor) -> Tensor:
        """Turns an output [..., D] into the feature of the next step."""
        return output


class LastHiddenDraftState(DraftState):
    """State that drafts from the target's last hidden state at the token before the root."""

    recordable = True

    def __init__(self, resources: DraftResources) -> None:
        self._heads = resources.heads
        self._vocab = resources.target.vocab_size
        like = next(resources.heads.parameters())
        # [rows, D]; zeros after a prompt of one token, which gives no hidden state
        self._hidden = like.new_zeros((resources.rows, resources.heads.shape.hidden))
        self._timer = ForwardTimer(like.device)

    def start_row(self, row: int, prompt: Sequence[int]) -> None:
        self._hidden[row] = 0

    def observe_prompt(self, row: int, start: int, hidden: Tensor) -> None:
        self._hidden[row] = hidden[-1]

    def observe_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows = cached_arange(path.shape[0], hidden.device)
        self._hidden[: len(path)] = hidden[rows, path[rows, accepted]]

    def move_row(self, source: int, target: int) -> None:
        self._hidden[target] = self._hidden[source]


def make_cache_attention(cache: SlotCache, mask: Tensor) -> AttentionFunction:
    """Makes an attention function over the cache slots that ``mask`` shows. Its calls follow
    ``SlotCache.begin_pass``.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
        keys, values = cache.layers[layer].update(k, v)
        gqa = q.shape[1] != keys.shape[1]
        return scaled_dot_product_attention(q, keys, values, mask, scale=scale, enable_gqa=gqa)

    return attend


class HeadCacheDraftState(DraftState):
    """State of a head that caches an entry for each token that the target has run.

    The first pass of the next tree writes the entries of an iteration's path. Letters: P pending
    entries, W width of the target's hidden states.
    """

    recordable = True

    def __init__(self, resources: DraftResources) -> None:
        head = resources.heads
        rows = resources.rows
        self._target = resources.target
        self._cache = resources.heads_cache
        self._head = head
        like = next(head.parameters())
        # [rows, P, W] not yet cached
        self._pending_hidden = like.new_zeros((rows, 1, head.hidden_input_width))
        self._pending_counts = [1] * rows
        self._cached_counts = [0] * rows  # entries of each row made from the target's hidden states
        self._outputs = like.new_empty(0)  # the head's outputs
        self._timer = ForwardTimer(like.device)

    def observe_path(self, hidden: Tensor, path: Tensor, accepted: Tensor) -> None:
        rows, count = path.shape
        buffer = self._pending_hidden
        if count > buffer.shape[1]:
            self._pending_hidden = buffer.new_zeros((buffer.shape[0], count, buffer.shape[2]))
            for pending in range(1, count + 1):  # caches the constants of later passes
                cached_arange(pending, buffer.device)
        path_states = hidden.gather(1, path.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        self._pending_hidden[:rows, :count] = path_states.to(buffer.dtype)

    def update_cached_counts(
        self, lengths: Sequence[int], kept_counts: Sequence[int], cached_levels: int
    ) -> None:
        for row, (length, committed_count) in enumerate(zip(lengths, kept_counts, strict=True)):
            self._cached_counts[row] = length
            self._pending_counts[row] = committed_count

    def finish_pass(self, outputs: Tensor) -> Tensor:
        """Computes the logits [..., V] of a pass's outputs [..., D] and stops the timer."""
        logits = self._head.compute_logits(outputs, self._target.project, self._target.vocab_size)
        self._timer.stop()
        return logits

    def count_max_pending(self, rows: int, fixed: bool) -> int:
        """Returns P, the largest number of pending entries of the first ``rows`` rows, or of any
        row if ``fixed``.
        """
        return self._pending_hidden.shape[1] if fixed else max(self._pending_counts[:rows])

    def move_row(self, source: int, target: int) -> None:
        self._cache.move_row(source, target, self._cached_counts[source])
        self._pending_hidden[target] = self._pending_hidden[source]
        self._cached_counts[target] = self._cached_counts[source]
        self._pending_counts[target] = self._pending_counts[source]
