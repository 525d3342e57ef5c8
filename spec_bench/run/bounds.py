"""A cell's bound over measured, on a GPU whose memory's bandwidth is known."""

from __future__ import annotations

from typing import Any

from spec_bench.decode.config import AnyDecoder
from spec_bench.engine import processes
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.measure.bound import bound_over_measured, moved_bytes
from spec_bench.measure.expected import known_gpu
from spec_bench.measure.pass_cost import ModelCost, model_cost
from spec_bench.records import Generation


def bound_columns(
    decoder: AnyDecoder,
    generations: list[Generation],
    prompt_tokens: dict[str, int],
    device_name: str,
) -> dict[str, Any]:
    """The column, or none where the device, or what its models read, is not known.

    Layers that are spread over several GPUs run one after another, at one GPU's bandwidth; a target
    that is split over processes is read by all of them at once.

    Args:
        decoder: the cell's.
        generations: in any order.
        prompt_tokens: of every prompt, by its id.
        device_name: as the driver tells it.
    """
    gpu, models = known_gpu(device_name), (decoder.target, *decoder.drafts)
    if gpu is None or not all(isinstance(model, HuggingFaceModel) for model in models):
        return {}
    target, *drafts = (_cost(model) for model in models)
    heads = getattr(decoder, "heads", None)
    head_bytes = float(sum(part.nbytes for part in heads.parameters())) if heads else 0.0
    moved = sum(
        moved_bytes(each, prompt_tokens[each.prompt_id], target, drafts, head_bytes, decoder.rows)
        for each in generations
    )
    bandwidth = gpu.bytes_per_s * max(1, processes.count())
    return {"bound_over_measured": bound_over_measured(moved, generations, bandwidth)}


def _cost(model: Any) -> ModelCost:
    return model_cost(model.module, model.bytes_per_slot)
