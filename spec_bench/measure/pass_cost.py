"""What a forward pass must move and compute, counted from the model itself: pure functions.

Knows torch's modules and the records; nothing about devices, decoders or how a tree is grown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class ModelCost:
    """What one forward pass of a model moves and computes, by what it depends on.

    Attributes:
        weight_bytes: of the parameters that every pass reads in full: all but ``lookup`` tables.
        lookup_bytes: a token's rows of embedding tables (tokens, learned positions). A table that
            is the lm head too is read in full anyway and counts in ``weight_bytes`` alone.
        slot_bytes: a token's keys and values over all layers.
        logit_bytes: one position's logits.
        matmul_parameters: of the matrices that every token is multiplied with, except the lm head.
        head_parameters: of the lm head, used only for positions that need logits.
        pair_flop: attention's operations for one token and one slot that it sees: two products of
            a head's width, keys and values, over all heads and layers.
    """

    weight_bytes: int
    lookup_bytes: int
    slot_bytes: int
    logit_bytes: int
    matmul_parameters: int
    head_parameters: int
    pair_flop: int


@dataclass(frozen=True)
class Pass:
    """One forward pass; numbers are sums over the batch's rows, or means over many passes.

    Attributes:
        tokens: run; their keys and values are written.
        context: slots written by earlier passes that attention reads.
        visible: (token, slot) pairs that the mask shows, a token and itself included.
        logits: positions whose logits are written.
    """

    tokens: float
    context: float
    visible: float
    logits: float


def model_cost(module: Any, slot_bytes: int) -> ModelCost:
    """Counts a transformers causal LM; one on the ``meta`` device will do.

    Args:
        module: the model; its weights are of one dtype, which its keys, values and logits share.
        slot_bytes: bytes that one token's keys and values take (``bytes_per_slot``).
    """
    head, size = module.get_output_embeddings().weight, module.dtype.itemsize
    tables = [
        part.weight
        for part in module.modules()
        if isinstance(part, nn.Embedding) and part.weight is not head
    ]
    looked_up = {id(table) for table in tables}
    read = [weight for weight in module.parameters() if id(weight) not in looked_up]
    config = module.config
    groups = config.num_attention_heads // (
        getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    )
    return ModelCost(
        weight_bytes=sum(_bytes(weight) for weight in read),
        lookup_bytes=sum(_bytes(table) // table.shape[0] for table in tables),
        slot_bytes=slot_bytes,
        logit_bytes=head.shape[0] * size,
        matmul_parameters=sum(w.numel() for w in read if w.dim() > 1 and w is not head),
        head_parameters=head.numel(),
        pair_flop=2 * (slot_bytes // size) * groups,
    )


def _bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()


def bytes_moved(cost: ModelCost, one: Pass) -> float:
    """Bytes between memory and the chip that a pass cannot do without.

    Counted: every weight read once, but only the rows looked up of an embedding table that is not
    the lm head; keys and values of the context read once; those of the tokens run, written; logits
    written. Not counted: activations between layers and masks, which caches can hold, and whatever
    sampling does with the logits. Weights that a cache holds from one pass to the next are still
    counted, so a model that small can be faster than its bound.
    """
    return (
        cost.weight_bytes
        + one.tokens * (cost.lookup_bytes + cost.slot_bytes)
        + one.context * cost.slot_bytes
        + one.logits * cost.logit_bytes
    )
