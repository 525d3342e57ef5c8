"""The most that any exact rule could accept of K candidates of a pair's draft.

    python scripts/check/acceptance_bound.py --temperature 1 --target FOLDER --draft FOLDER

The target samples an answer to each prompt; at some of its positions target and draft give p and q,
and the bounds are averaged over them: K candidates drawn independently, or without replacement.
Without ``--target`` it is the embedded pair.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.family.embedded_pair import EMBEDDED
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import apply_tree_shorthand, build_decoder
from spec_bench.engine.loading import ModelSpec, load_model, load_tokenizer
from spec_bench.records.types import Request
from spec_bench.verify.optimal import sort_by_rising_p_over_q

STEP = 0.5  # of log time: the error is still below 1e-6, at a fifth of the work of 0.1
PLAIN = {"name": "ar", "drafter": {"kind": "none"}, "tree": {"policy": "root"},
         "verifier": {"rule": "recursive_rejection", "replacement": False}}  # fmt: skip
_REACH = 45.0  # log time on either side of 0

# For candidates of a known distribution the optimum over all rules is
# 1 + min_H (p(H) - P(all in H)) over token sets H (arXiv 2502.18779). For K draws from q, with or
# without replacement, the minimum is at a prefix of the tokens sorted by rising p/q; tokens outside
# q's support are in none.
# Letters: B nodes, V vocabulary, T points in time.


def bound_iid(p: Tensor, q: Tensor, count: int, beside: Tensor | float = 0.0) -> Tensor:
    """Returns the most for K = ``count`` i.i.d. candidates drawn from q [B, V], [B] float64:
    1 - max(0, max_i (t_i^K - R_i) - beside), t and R the running sums of q and p.

    ``beside`` [B] is p's mass on tokens that are candidates whatever is drawn; q has none there.
    All candidates are in H only where these are, so they cost their mass in any set that counts.
    """
    own_p, own_q = sort_by_rising_p_over_q(p, q)
    missing = own_q.cumsum(dim=-1) ** count - own_p.cumsum(dim=-1)
    return 1 - (missing.amax(dim=-1) - beside).clamp(min=0.0)


def bound_without_replacement(p: Tensor, q: Tensor, count: int, step: float = 0.1) -> Tensor:
    """Returns the most, [B] float64, for K = ``count`` candidates drawn from q [B, V] without
    replacement, or all of q's support if it has fewer.

    P(the first K draws fall into H): let a clock ring at rate q(x) for every token x of H, one at
    rate r = 1 - q(H) for all others together; K of H's must ring before it. This is the integral
    of r exp(-r t) P(at least K of H's rang by t), taken over log t with even steps, whose error is
    below 1e-12; the distribution of min(rang, K) is carried along while H grows.
    """
    own_p, own_q = sort_by_rising_p_over_q(p, q)
    support = (own_q > 0).sum(dim=-1, keepdim=True)
    wanted = support.clamp(max=count)  # [B, 1]
    most = int(support.max())  # tokens outside the support come last
    own_p, own_q = own_p[:, :most], own_q[:, :most]
    steps = round(_REACH / step)
    time = torch.arange(-steps, steps + 1, dtype=torch.float64, device=p.device).mul(step).exp()
    rang = own_q.new_zeros((p.shape[0], time.shape[0], count + 1))
    rang[..., 0] = 1.0  # [B, T, K + 1] distribution of how many of H's rang, K or more being one
    # What is outside H, summed from the far end: 1 - q(H) would lose a small rest.
    outside = own_q.flip(-1).cumsum(dim=-1).flip(-1) - own_q
    inside_p = own_p.cumsum(dim=-1)
    worst = torch.zeros_like(inside_p[:, 0])
    each = torch.arange(count + 1, device=p.device)
    for token in range(own_q.shape[1]):
        chance = -torch.expm1(-own_q[:, token, None] * time).unsqueeze(-1)  # [B, T, 1]
        moved = rang * chance
        rang = rang - moved
        rang[..., 1:] += moved[..., :-1]
        rang[..., -1] += moved[..., -1]
        enough = (rang * (each >= wanted.unsqueeze(-1))).sum(dim=-1)  # [B, T]
        rate = outside[:, token, None] * time
        inside = step * (rate * (-rate).exp() * enough).sum(dim=-1)
        inside = torch.where(outside[:, token] > 0, inside, 1.0)
        worst = worst.minimum(inside_p[:, token] - inside)
    return 1 + worst


@torch.inference_mode()
def main() -> None:
    """Decodes, and prints a line for each number of candidates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default=str(EMBEDDED / "models" / "target"))
    parser.add_argument("--draft", default=str(EMBEDDED / "models" / "draft_distilled"))
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--positions", type=int, default=4, help="of each answer")
    parser.add_argument("--temperature", type=float, default=1.0, help="above 0")
    parser.add_argument("--candidates", type=int, nargs="+", default=[1, 2, 3, 4, 8])
    options = parser.parse_args()
    if options.temperature <= 0:
        parser.error(f"--temperature must be above 0, got {options.temperature:g}")
    target, draft = (load_model(ModelSpec(each)) for each in (options.target, options.draft))
    if target.vocab_size != draft.vocab_size:
        parser.error(f"vocabularies differ: {target.vocab_size} and {draft.vocab_size} tokens")
    tokenizer = load_tokenizer(options.target)
    lines = (EMBEDDED / "tasks" / "xsum.jsonl").read_text(encoding="utf-8").splitlines()
    sampling = SamplingSettings(temperature=options.temperature)
    plain = build_decoder(apply_tree_shorthand(PLAIN, None), target, [], sampling)
    p, q = [], []
    for line in lines[: options.prompts]:
        prompt = tokenizer(f"Article: {json.loads(line)['document']}\nSummary:")["input_ids"]
        answer = plain.generate([Request(line, tuple(prompt), 32)], seed=0)[0].tokens
        ids = torch.tensor([[*prompt, *answer]])
        for model, found in ((target, p), (draft, q)):
            logits = model.module(ids).logits[0, len(prompt) - 1 : -1]
            some = logits[:: max(1, len(logits) // options.positions)]
            found.append((some.double() / options.temperature).softmax(dim=-1))
    both = torch.cat(p), torch.cat(q)
    print(f"means over {len(both[0])} positions\nK  independent  without replacement")
    for count in options.candidates:
        iid, without = bound_iid(*both, count), bound_without_replacement(*both, count, STEP)
        print(f"{count:<2} {iid.mean():>11.4f}  {without.mean():>19.4f}")


if __name__ == "__main__":
    main()
