"""Fresh heads for a target."""

from __future__ import annotations

import torch

from spec_bench.draft.base import HeadPlan, heads_class
from spec_bench.engine.model import HuggingFaceModel
from spec_bench.train.settings import HeadSettings
from spec_bench.train.trainee import Trainee


def fresh_heads(head: HeadSettings, model: HuggingFaceModel, seed: int) -> Trainee:
    """Heads that have learned nothing yet.

    Args:
        head: which.
        model: the target; gives width and vocabulary, and the last layer where heads start as
            the target's.
        seed: of random weights.

    Raises:
        ValueError: the target's embeddings are not as wide as its hidden states.
    """
    table = model.module.get_input_embeddings().weight
    vocab, width = table.shape
    if width != model.hidden_size:
        raise ValueError(
            f"embeddings are {width} wide and hidden states {model.hidden_size}: heads for such a "
            "target are not supported"
        )
    torch.manual_seed(seed)
    plan = HeadPlan(head.guesses, head.blocks, head.recurrent, head.inner, head.init)

    def output() -> torch.Tensor:
        last: torch.Tensor = model.module.get_output_embeddings().weight
        return last.detach().float().cpu()

    return Trainee(heads_class(head.kind).fresh(plan, width, vocab, output), head.guesses)
