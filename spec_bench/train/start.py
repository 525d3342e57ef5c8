"""Fresh heads for a target."""

from __future__ import annotations

import torch

from spec_bench.draft.heads import MedusaHeads, RecurrentHead
from spec_bench.draft.heads.medusa import MedusaShape
from spec_bench.draft.heads.recurrent import RecurrentShape
from spec_bench.engine.model import HuggingFaceModel
from spec_bench.train.settings import HeadSettings
from spec_bench.train.trainee import Trainee


def fresh_heads(head: HeadSettings, model: HuggingFaceModel, seed: int) -> Trainee:
    """Heads that have learned nothing yet.

    Args:
        head: which.
        model: the target; gives width and vocabulary, and Medusa's last layers where
            ``init`` is ``target``, as its authors start theirs.
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
    if head.kind == "redrafter":
        shape = RecurrentShape(width, vocab, head.blocks, head.recurrent, head.inner)
        return Trainee(RecurrentHead(shape), head.guesses)
    heads = MedusaHeads(MedusaShape(width, vocab, head.guesses, head.blocks))
    if head.init == "target":
        output = model.module.get_output_embeddings().weight.detach().float().cpu()
        with torch.no_grad():
            for name, parameter in heads.named_parameters():
                if name.endswith(f".{head.blocks}.weight"):
                    parameter.copy_(output[:vocab])
    return Trainee(heads, head.guesses)
