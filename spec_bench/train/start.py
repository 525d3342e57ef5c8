"""Fresh heads for a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from spec_bench.draft.base import heads_class
from spec_bench.draft.dflash_network import DFlashHead
from spec_bench.draft.feature_head import FeatureHead
from spec_bench.draft.network import HeadPlan, Heads
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.packed_products import dense_weight
from spec_bench.train.blocks import BlockTrainee
from spec_bench.train.dialogues import Dialogue
from spec_bench.train.draft_model import fresh_draft
from spec_bench.train.settings import DRAFT_MODEL, HEAD_WIDTH, HeadSettings
from spec_bench.train.trainee import Trainee
from spec_bench.train.unrolled import EagleTrainee


def fresh_heads(
    head: HeadSettings,
    model: HuggingFaceModel,
    seed: int,
    dialogues: Sequence[Dialogue] = (),
) -> Trainee:
    """Heads that have learned nothing yet.

    Args:
        head: which.
        model: the target; gives width and vocabulary, and the last layer where heads start as
            the target's.
        seed: of random weights.
        dialogues: whose answers' most frequent tokens heads of a smaller vocabulary know.

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

    def output() -> torch.Tensor:
        return dense_weight(model.module.get_output_embeddings()).detach().float().cpu()

    config = model.module.config.get_text_config()
    if head.kind == DRAFT_MODEL:
        assert head.width is not None and head.draft_vocab is not None
        shape = {
            "hidden_size": head.width,
            "intermediate_size": head.inner,
            "num_hidden_layers": head.blocks,
            "num_attention_heads": head.width // HEAD_WIDTH,
        }
        return fresh_draft(shape, head.draft_vocab, config, output, dialogues)
    plan = HeadPlan(
        head.guesses,
        head.blocks,
        head.recurrent,
        head.inner,
        head.init,
        config.to_dict(),
        frequent(dialogues, head.draft_vocab) if (head.draft_vocab or vocab) < vocab else None,
        head.fc_norm,
    )
    made = heads_class(head.kind).fresh(plan, width, vocab, output)
    return trainee_of(made, model, head.guesses, head.steps, head.noise)


def trainee_of(
    heads: Heads,
    model: HuggingFaceModel,
    guesses: int,
    steps: int | None = None,
    noise: float = 0.0,
) -> Trainee:
    """What makes heads of a kind learn; arguments as ``SequenceTrainee``'s, the target for its
    last layer and its embeddings.
    """
    given = (guesses, model.project, steps, noise)
    if isinstance(heads, FeatureHead):
        return EagleTrainee(heads, *given)
    if isinstance(heads, DFlashHead):
        mask = model.embed(torch.tensor([heads.shape.mask_token], device=model.device))[0]
        return BlockTrainee(heads, mask.clone(), *given)
    return Trainee(heads, guesses)


def frequent(dialogues: Sequence[Dialogue], count: int | None) -> tuple[int, ...]:
    """The target ids of the answers' most frequent tokens, in increasing order."""
    counts = Counter(
        token
        for each in dialogues
        for token, learned in zip(each.ids, each.learned, strict=True)
        if learned
    )
    best = sorted(counts, key=lambda token: (-counts[token], token))[:count]
    return tuple(sorted(best))
