"""Children of which some are drawn and the others are the draft's best; drawn ones tested first.

"Greedy" drafting of arXiv 2502.18779; with two children SpecHub (arXiv 2411.05289), whose pairs
have the same distribution. With Top the draft's K - S best tokens and w = q without them,
renormalised, S children are drawn from w and the best follow as one-hot proposals. For S = 1 a node
accepts p(Top) + sum over the rest of min(p, w), which is the optimum for such candidates.
Letters: B nodes, C children, S of them drawn, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spec_bench.settings.fields import Count
from spec_bench.verify.base import rule
from spec_bench.verify.optimal import optimal
from spec_bench.verify.rules import normalised, ranked_list, recursive_rejection
from spec_bench.verify.walk import Verdict


@rule("top_and_sample", siblings=("top_and_sampled", "deterministic"), mark="exact")
def top_and_sample(
    p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor, *, sampled: Count = 1
) -> Verdict:
    """The drawn children by the optimal rule for i.i.d. ones, then the best as one-hot proposals.

    Args:
        p: [B, V].
        q: [B, 1, V] the draft's distribution, or what is left of it beside the best; None where all
            children are one-hot proposals.
        tokens: [B, C] the drawn ones first, then the best.
        valid: [B, C]; a drawn child is absent where the best are all of q's support.
        sampled: S, how many are drawn; all of them if there are fewer children.
    """
    if q is None:
        return ranked_list(p, None, tokens, valid)
    assert q.shape[1] == 1, "the best are those of one draft"
    drawn, best = tokens[:, :sampled], tokens[:, sampled:]
    w = beside_the_best(q[:, 0], best, valid[:, sampled:]).unsqueeze(1)
    if drawn.shape[1] == 1:
        first = recursive_rejection(p, w, drawn, valid[:, :1], replacement=True)
    else:
        first = optimal(p, w, drawn, valid[:, :sampled])
    then = ranked_list(first.residual, None, best, valid[:, sampled:])
    return Verdict(torch.cat([first.acceptance, then.acceptance], dim=-1), then.residual)


def beside_the_best(q: Tensor, best: Tensor, there: Tensor) -> Tensor:
    """w [B, V]: q without its ``best`` tokens that are ``there`` [B, K - S], renormalised; all zero
    where nothing is left.
    """
    gone = torch.zeros_like(q).scatter_add_(-1, best, there.to(q.dtype))
    rest = torch.where(gone > 0, 0.0, q)
    return normalised(rest, torch.zeros_like(rest))
