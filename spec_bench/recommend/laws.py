"""Both models' laws at every token of a text that is there already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spec_bench.core.warp import SamplingSettings, probs
from spec_bench.engine.model import LanguageModel
from spec_bench.engine.tree_pass import run_pending


@torch.inference_mode()
def laws_of(
    target: LanguageModel,
    draft: LanguageModel,
    prompt: Sequence[int],
    answer: Sequence[int],
    settings: SamplingSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """One teacher-forced pass of each model.

    Args:
        target: the target.
        draft: the draft.
        prompt: token ids.
        answer: the T tokens that followed.
        settings: sampling settings; the draft's own temperature applies.

    Returns:
        The target's and the draft's laws, [T, V] each, and the draft's probability of each token
        of the answer at temperature 1, nothing truncated, [T]; on the CPU.
    """
    ids = [*prompt, *answer]
    p, q = (_logits(model, ids, len(answer)) for model in (target, draft))
    at = torch.tensor(answer, device=q.device).unsqueeze(1)
    sure = q.to(settings.dtype).softmax(dim=-1).gather(1, at).squeeze(1)
    return probs(p, settings).cpu(), probs(q, settings.for_draft()).cpu(), sure.cpu()


def _logits(model: LanguageModel, ids: Sequence[int], count: int) -> Tensor:
    """Logits [count, V] that foretell the last ``count`` tokens of a text."""
    cache = model.allocate(1, len(ids))
    tokens = torch.tensor([ids[:-1]], device=model.device)
    return run_pending(model, cache, [0], tokens, logits_to_keep=count).logits[0]
