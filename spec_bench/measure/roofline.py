"""A roofline: the time that the memory's bandwidth allows for the bytes that decoding must move.

The ratio of bound to measured time is the share of the decoding time that memory traffic alone
explains. Forward passes are timed by two events on the device, which include idle time between
them: if the host launches kernels more slowly than the GPU runs them, the GPU's waiting counts as
time of the pass, and the host's share does not show it. No implementation can save the time of the
bytes that the passes must move, at the nominal bandwidth of the GPU's memory; the rest of the
measured time is launches, arithmetic and everything else.

Knows torch's modules and the records; nothing about decoders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from spec_bench.records.types import Generation


@dataclass(frozen=True)
class ForwardPassByteCounts:
    """Bytes that a forward pass of a model moves: per pass, and per token."""

    weight_bytes: int  # parameters that every pass reads in full: all except looked-up tables
    # A token's rows of embedding tables (tokens, learned positions). A table that is also the lm
    # head is read in full anyway and counts only in ``weight_bytes``.
    lookup_bytes: int
    slot_bytes: int  # a token's keys and values over all layers
    logit_bytes: int  # one position's logits


def count_model_bytes(module: Any, slot_bytes: int) -> ForwardPassByteCounts:
    """Counts the bytes of a transformers causal LM of one dtype, which may be on ``meta``."""
    head = module.get_output_embeddings().weight
    tables = [
        layer.weight
        for layer in module.modules()
        if isinstance(layer, nn.Embedding) and layer.weight is not head
    ]
    table_ids = {id(table) for table in tables}
    return ForwardPassByteCounts(
        weight_bytes=sum(
            weight.nbytes for weight in module.parameters() if id(weight) not in table_ids
        ),
        lookup_bytes=sum(table.nbytes // table.shape[0] for table in tables),
        slot_bytes=slot_bytes,
        logit_bytes=head.shape[0] * module.dtype.itemsize,
    )


def count_pass_bytes(
    byte_counts: ForwardPassByteCounts,
    new_tokens: float,
    context_tokens: float,
    logit_positions: float,
) -> float:
    """Computes a lower bound of the bytes between memory and chip in a pass over ``new_tokens``
    tokens after ``context_tokens`` tokens that writes the logits of ``logit_positions`` positions.

    Counted: every weight read once (of an embedding table that is not the lm head only the rows
    looked up); keys and values read for the context and written for the tokens; logits written. Not
    counted: activations and masks, which caches can hold, and sampling. Weights that a cache keeps
    between passes are counted, so a model that small can be faster than its bound.
    """
    token_bytes = (
        new_tokens * (byte_counts.lookup_bytes + byte_counts.slot_bytes)
        + context_tokens * byte_counts.slot_bytes
    )
    return byte_counts.weight_bytes + token_bytes + logit_positions * byte_counts.logit_bytes


def count_decode_bytes(
    generation: Generation,
    prompt_tokens: int,
    target: ForwardPassByteCounts,
    drafts: Sequence[ForwardPassByteCounts],
    head_bytes: float = 0.0,
    batch_size: int = 1,
) -> float:
    """Computes a lower bound of the bytes that a prompt's target and draft calls move, without
    prefill.

    Draft models run once per level, draft heads are read once per iteration. ``batch_size`` rows
    share one reading of the weights per pass; rows end at different times, so fewer rows share it
    in fact, and this stays a lower bound.
    """

    def count_row_bytes(byte_counts: ForwardPassByteCounts, tokens: int) -> float:
        return count_pass_bytes(byte_counts, tokens, context, tokens) - byte_counts.weight_bytes * (
            1 - 1 / batch_size
        )

    total = 0.0
    context = float(prompt_tokens - 1)
    for step in generation.steps:
        draft_bytes = sum(step.depth * count_row_bytes(draft, 1) for draft in drafts)
        total += count_row_bytes(target, step.nodes + 1) + draft_bytes + head_bytes / batch_size
        context += step.accepted + 1
    return total


def compute_bound_over_measured_time(
    moved_bytes: float,
    generations: Sequence[Generation],
    bytes_per_s: float,
) -> float | None:
    """Computes the seconds that ``moved_bytes`` take at this bandwidth, divided by the seconds of
    decoding of all generations; None if nothing was decoded.
    """
    seconds = sum(generation.decode_s for generation in generations)
    return moved_bytes / bytes_per_s / seconds if seconds else None
