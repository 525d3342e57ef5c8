"""Every node rule by enumeration: the output's law equals p for every draw of the children."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from spec_bench.core.tree import Siblings
from spec_bench.verify.base import NodeVerifier, rule
from spec_bench.verify.walk import NodeRule

TOLERANCE = 1e-12

Law = Siblings | Literal["several_drafts"]
SAID: dict[Law, str] = {
    "iid": "i.i.d.",
    "without_replacement": "without replacement",
    "deterministic": "ranked list",
    "several_drafts": "several drafts",
    "top_and_sampled": "top and sampled",
}


@dataclass(frozen=True)
class RuleCase:
    """A rule and how its children are drawn."""

    name: str  # for the table
    rule: NodeRule
    # How the children of a node are drawn; ``several_drafts`` is child j from draft j,
    # ``deterministic`` a fixed list: the draft's best tokens.
    law: Law
    sampled: int = 1  # of top-and-sampled children how many are drawn


def rule_cases() -> Iterator[RuleCase]:
    """Every registered node rule that claims to be exact, for each law that it claims it for."""
    kind: Any
    for kind in rule.values():
        if issubclass(kind, NodeVerifier) and kind.declared == "exact":
            for law, needed in kind.laws.items():
                for drawn in (
                    ({"sampled": 1}, {"sampled": 2}) if law == "top_and_sampled" else ({},)
                ):
                    yield from cases_of(kind(**needed, **drawn), law)


def cases_of(verifier: Any, law: Siblings) -> Iterator[RuleCase]:
    """A node rule with its settings, for a law that it claims to be exact for."""
    judge, sampled = verifier.judge(depth=1), getattr(verifier, "sampled", 1)
    more = f", {sampled} drawn" if law == "top_and_sampled" else ""
    yield RuleCase(f"{verifier.name}, {SAID[law]}{more}", judge, law, sampled)
    if law == "iid" and verifier.several_drafts:
        yield RuleCase(f"{verifier.name}, {SAID['several_drafts']}", judge, "several_drafts")


def adversarial_pairs(
    vocab: int, seed: int, random_pairs: int = 40
) -> Iterator[tuple[Tensor, Tensor]]:
    """(p [V], drafts [3, V]) in float64: random ones of several sharpnesses, and the corners:
    zeros, one-hots, equal, disjoint, truncated supports that differ, near-zero mass.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(sharpness: float, keep: int = vocab) -> Tensor:
        logits = sharpness * torch.randn(vocab, generator=generator, dtype=torch.float64)
        kept = torch.randperm(vocab, generator=generator)[:keep]
        masked = torch.full_like(logits, -torch.inf)
        masked[kept] = logits[kept]
        return masked.softmax(dim=-1)

    for index in range(random_pairs):
        sharpness = (0.1, 1.0, 3.0, 10.0)[index % 4]
        yield draw(sharpness), torch.stack([draw(sharpness) for _ in range(3)])
    one_hot = torch.eye(vocab, dtype=torch.float64)
    uniform = torch.full((vocab,), 1 / vocab, dtype=torch.float64)
    soft = draw(1.0)
    yield soft, soft.expand(3, -1)
    yield uniform, uniform.expand(3, -1)
    yield one_hot[0], one_hot[[0, 0, 0]]
    yield one_hot[0], one_hot[[1, 1, 1]]
    yield one_hot[0], torch.stack([soft, uniform, one_hot[1]])
    yield soft, one_hot[[0, 1, 2]]
    half = torch.zeros(vocab, dtype=torch.float64)
    half[: vocab // 2] = 1 / (vocab // 2)
    yield half, (1 - half * (vocab // 2)).div(vocab - vocab // 2).expand(3, -1)
    tiny = torch.cat([torch.full((vocab - 1,), 1e-15, dtype=torch.float64), one_hot[0, :1]])
    yield tiny / tiny.sum(), uniform.expand(3, -1)
    yield uniform, (tiny / tiny.sum()).expand(3, -1)
    for keep in range(1, vocab):
        yield draw(1.0, keep), torch.stack([draw(1.0, vocab - keep) for _ in range(3)])


def children_law(
    q: Tensor, children: int, law: Law, sampled: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Every tuple of children with its probability.

    Args:
        q: [3, V] drafts; all but ``several_drafts`` use the first.
        children: C.
        law: as in ``RuleCase``.
        sampled: as in ``RuleCase``.

    Returns:
        tokens [B, C], valid [B, C], probability [B].
    """
    vocab = q.shape[1]
    if law == "top_and_sampled":
        return _top_and_sampled(q[0], children, min(sampled, children))
    if law == "deterministic":
        tokens = q[0].sort(descending=True, stable=True).indices[None, :children]
        return tokens, torch.ones_like(tokens, dtype=torch.bool), q.new_ones(1)
    tokens = torch.tensor(list(itertools.product(range(vocab), repeat=children)))
    valid = torch.ones_like(tokens, dtype=torch.bool)
    probability = q.new_ones(tokens.shape[0])
    current = q[0].expand(tokens.shape[0], -1)
    support = int((q[0] > 0).sum())
    for child in range(children):
        token = tokens[:, child : child + 1]
        if law == "without_replacement" and child >= support:
            # The support is used up: the child does not exist. One stand-in tuple carries it.
            valid[:, child] = False
            probability = probability * (token.squeeze(1) == 0)
            continue
        if law == "several_drafts":
            current = q[child].expand(tokens.shape[0], -1)
        probability = probability * current.gather(1, token).squeeze(1)
        if law == "without_replacement":
            current = current.scatter(1, token, 0.0)
            total = current.sum(dim=1, keepdim=True)
            current = current / torch.where(total > 0, total, 1.0)
    possible = probability > 0
    return tokens[possible], valid[possible], probability[possible]


def _top_and_sampled(q: Tensor, children: int, sampled: int) -> tuple[Tensor, Tensor, Tensor]:
    """Children drawn beside the best of q [V], then the best; as ``children_law`` returns them."""
    values, best = q.sort(descending=True, stable=True)
    best, there = best[: children - sampled], values[: children - sampled] > 0
    rest = q.clone()
    rest[best] = 0.0
    some = bool(rest.sum() > 0)
    w = rest / rest.sum() if some else torch.eye(len(q), dtype=q.dtype)[0]
    drawn = torch.tensor(list(itertools.product(range(len(q)), repeat=sampled)))
    probability = w[drawn].prod(dim=1)
    drawn, probability = drawn[probability > 0], probability[probability > 0]
    tokens = torch.cat([drawn, best.expand(len(drawn), -1)], dim=1)
    valid = torch.cat(
        [torch.full_like(drawn, some, dtype=torch.bool), there.expand(len(drawn), -1)], dim=1
    )
    return tokens, valid, probability


def output_law(case: RuleCase, p: Tensor, q: Tensor, children: int) -> Tensor:
    """The law of the token that comes out, summed over all draws of the children.

    Args:
        case: rule and how its children are drawn.
        p: [V].
        q: [3, V].
        children: C.

    Returns:
        [V]; equals p if the rule is lossless.
    """
    tokens, valid, probability = children_law(q, children, case.law, case.sampled)
    tuples = tokens.shape[0]
    law_q = q[:children] if case.law == "several_drafts" else q[:1]
    proposals = None if case.law == "deterministic" else law_q.expand(tuples, -1, -1)
    verdict = case.rule(p.expand(tuples, -1), proposals, tokens, valid)
    law, missed = torch.zeros_like(p), probability
    for child in range(tokens.shape[1]):
        accept = verdict.acceptance[:, child]
        law = law.index_add(0, tokens[:, child], missed * accept)
        missed = missed * (1 - accept)
    return law + (missed.unsqueeze(1) * verdict.residual).sum(dim=0)


def audit_rule(case: RuleCase, *, vocab: int = 4, seed: int = 0) -> tuple[float, int]:
    """Largest |output law - p| over all pairs and 1 to 3 children, and the number of cases."""
    worst, cases = 0.0, 0
    for p, q in adversarial_pairs(vocab, seed):
        for children in (1, 2, 3):
            error = (output_law(case, p, q, children) - p).abs().max().item()
            worst, cases = max(worst, error), cases + 1
    return worst, cases
