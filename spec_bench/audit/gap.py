"""How far a node rule stays below the most that any rule could accept, on a decoder's own nodes.

A watched decoder decodes as before and keeps what its rule was given. The bound is worked out
afterwards, so nothing of it is on the clock. What the rule accepts is taken as its chance over its
own uniforms, 1 - prod (1 - a), for the children that were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.core.tree import Siblings
from spec_bench.decode.decoder import Decoder
from spec_bench.verify.bound import bound_iid, bound_without_replacement
from spec_bench.verify.verdict import NodeRule, Verdict


class Visit(NamedTuple):
    """One node that a walk came to.

    Attributes:
        level: of the node; 0 is the root.
        p: [1, V].
        q: [1, 1 or C, V], None for one-hot proposals.
        tokens: [1, C].
        valid: [1, C].
        accepted: P(one of these children is accepted).
    """

    level: int
    p: Tensor
    q: Tensor | None
    tokens: Tensor
    valid: Tensor
    accepted: float


class Gap(NamedTuple):
    """Of the nodes of one level.

    Attributes:
        level: 0 is the root.
        nodes: how many were looked at.
        accepted: mean P(one of the children is accepted).
        bound: mean of the most that any rule could.
    """

    level: int
    nodes: int
    accepted: float
    bound: float


def watch(decoder: Decoder, most: int) -> list[Visit]:
    """Has a decoder of one row keep the first nodes that it comes to.

    Args:
        decoder: with a node rule, alike on all levels.
        most: nodes kept of each level.

    Returns:
        A list that fills while the decoder decodes.

    Raises:
        ValueError: several rows, or no node rule.
    """
    if decoder.rows != 1 or not callable(decoder.rule) or decoder.depth == 0:
        raise ValueError(f"{decoder.name}: a node rule is watched on a tree, one row at a time")
    visits: list[Visit] = []
    decoder.rule = [_watched(decoder.rule, level, visits, most) for level in range(decoder.depth)]
    return visits


def _watched(rule: NodeRule, level: int, visits: list[Visit], most: int) -> NodeRule:
    def kept(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
        verdict = rule(p, q, tokens, valid)
        if sum(visit.level == level for visit in visits) < most:
            accepted = 1 - float((1 - verdict.acceptance.double()).prod())
            visits.append(Visit(level, p, q, tokens, valid, accepted))
        return verdict

    return kept


def gaps(visits: Sequence[Visit], siblings: Siblings) -> list[Gap]:
    """What was accepted and could have been, by level.

    Args:
        visits: of a decoder whose number of children does not depend on what was drawn.
        siblings: how they are drawn.
    """
    found = []
    for level in sorted({visit.level for visit in visits}):
        own = [visit for visit in visits if visit.level == level]
        bounds = [bound(visit, siblings) for visit in own]
        accepted = sum(visit.accepted for visit in own) / len(own)
        found.append(Gap(level, len(own), accepted, sum(bounds) / len(own)))
    return found


def bound(visit: Visit, siblings: Siblings) -> float:
    """The most that any rule could accept at a node of children drawn so."""
    p, q, count = visit.p, visit.q, visit.tokens.shape[1]
    if siblings == "iid":
        assert q is not None
        return bound_iid(p, q[:, 0], count).item()
    if siblings == "without_replacement":
        assert q is not None
        return bound_without_replacement(p, q[:, 0], count).item()
    best = visit.tokens if q is None else visit.tokens[:, 1:]
    there = visit.valid if q is None else visit.valid[:, 1:]
    listed = torch.zeros_like(p).scatter_add(-1, best, there.to(p.dtype)) > 0
    beside = torch.zeros_like(p) if q is None else torch.minimum(p, q[:, 0])
    return float(torch.where(listed, p, beside).double().sum())
