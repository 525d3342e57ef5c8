"""What a cell's calls must read, what the memory gives, and on a known GPU the share attained."""

from __future__ import annotations

from typing import Any

from spec_bench.core import processes
from spec_bench.decode.config import AnyDecoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.measure.bandwidth import measured_bandwidth
from spec_bench.measure.bound import (
    ModelCost,
    bound_over_measured,
    model_cost,
    moved_bytes,
    nominal_bandwidth,
)
from spec_bench.records.types import Generation


def bound_columns(
    decoder: AnyDecoder,
    generations: list[Generation],
    prompt_tokens: dict[str, int],
    device_name: str,
) -> dict[str, Any]:
    """Columns of the roofline; none if what the models read is unknown.

    Layers spread over several GPUs run one after another, at one GPU's bandwidth; a target split
    over processes is read by all of them at once. The bandwidth is measured after all decoding, so
    it costs no cell any time.
    """
    models = (decoder.target, *decoder.drafts)
    calls = sum(len(each.steps) for each in generations)
    known = [model for model in models if isinstance(model, HuggingFaceModel)]
    if not calls or len(known) < len(models):
        return {}
    target, *drafts = map(_cost, known)
    heads = getattr(decoder, "heads", None)
    head_bytes = float(sum(part.nbytes for part in heads.parameters())) if heads else 0.0
    moved = sum(
        moved_bytes(each, prompt_tokens[each.prompt_id], target, drafts, head_bytes, decoder.rows)
        for each in generations
    )
    at_once = max(1, processes.count())
    columns: dict[str, Any] = {"moved_bytes": round(moved / calls)}
    if (measured := measured_bandwidth(known[0].module)) is not None:
        columns["bandwidth_bytes_per_s"] = round(measured * at_once)
    if (nominal := nominal_bandwidth(device_name)) is not None:
        share = bound_over_measured(moved, generations, nominal * at_once)
        columns["bound_over_measured"] = share
    return columns


def _cost(model: HuggingFaceModel) -> ModelCost:
    return model_cost(model.module, model.bytes_per_slot)
