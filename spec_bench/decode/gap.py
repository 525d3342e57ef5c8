"""How far a node rule stays below the most that any rule could accept, on a decoder's own nodes.

A watched decoder decodes as before and keeps what its rule was given. The bound is computed
afterwards, off the clock. What the rule accepts is taken as its chance over its own uniforms,
1 - prod (1 - a), for the children that were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.core.tree import Siblings
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import DecoderConfig
from spec_bench.decode.decoder import Decoder
from spec_bench.tree.base import GrownTree
from spec_bench.tree.chain import Chain
from spec_bench.tree.iid_paths import IidPaths
from spec_bench.tree.sizes import Branching
from spec_bench.tree.top_and_sample import TopAndSample
from spec_bench.verify.base import NodeVerifier
from spec_bench.verify.bound import STEP, bound_iid, bound_without_replacement
from spec_bench.verify.verdict import NodeRule, Verdict
from spec_bench.verify.walk import walk_down


class Visit(NamedTuple):
    """One node that a walk visited.

    Attributes:
        level: of the node; 0 is the root.
        p: [1, V].
        q: [1, 1, V] of the first child, None for one-hot proposals.
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
    """Means over the nodes of one level.

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


class Law(NamedTuple):
    """How the children of a node are drawn.

    Attributes:
        siblings: as rules know it.
        sampled: of top-and-sampled ones how many are drawn; all, if there are fewer.
    """

    siblings: Siblings
    sampled: int = 0


def why_no_bound(config: DecoderConfig) -> str | None:
    """Why there is no bound for a decoder's nodes; None if there is one."""
    tree, verifier = config.tree, config.verifier
    if verifier.mark != "exact":
        return (
            f"the bound is of exact rules, {verifier.name!r} is {verifier.mark.replace('_', ' ')}"
        )
    if not isinstance(verifier, NodeVerifier):
        return f"rule {verifier.name!r} does not decide node by node"
    if config.drafts != 1 or config.drafter.kind != "language_model":
        return "the bound is of candidates of one draft model"
    if not isinstance(tree, Chain | Branching | IidPaths) or tree.varies:
        return f"with tree policy {tree.name!r} the number of a node's children hangs on the draws"
    return None


def levels_bounded(config: DecoderConfig) -> int:
    """How many levels' nodes have a fixed number of children; for independent paths, the root's."""
    assert isinstance(config.tree, GrownTree)
    return 1 if isinstance(config.tree, IidPaths) else config.tree.shape.depth


def law_of(config: DecoderConfig, settings: SamplingSettings) -> Law:
    """How the children of those nodes are drawn."""
    tree = config.tree
    assert isinstance(tree, GrownTree)
    if isinstance(tree, IidPaths):  # merged ones are the same candidates: a set of K i.i.d. draws
        return Law("iid")
    sampled = tree.sampled if isinstance(tree, TopAndSample) else 0
    return Law(tree.siblings(settings), sampled)


def watch(decoder: Decoder, most: int) -> list[Visit]:
    """Makes a decoder keep the first nodes that it visits, one row at a time.

    Args:
        decoder: with a node rule, alike on all levels.
        most: nodes kept per level.

    Returns:
        A list that fills while the decoder decodes.

    Raises:
        ValueError: no node rule.
    """
    if not callable(decoder.rule) or decoder.depth == 0:
        raise ValueError(f"{decoder.name}: only a node rule can be watched")
    visits: list[Visit] = []
    decoder.rule = [_watched(decoder.rule, level, visits, most) for level in range(decoder.depth)]
    decoder.walk = walk_down  # other walks would judge nodes that are never visited
    return visits


def _watched(rule: NodeRule, level: int, visits: list[Visit], most: int) -> NodeRule:
    def kept(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
        verdict = rule(p, q, tokens, valid)
        if sum(visit.level == level for visit in visits) < most:
            if len(p) != 1:
                raise ValueError(f"nodes are watched one row at a time, got {len(p)}")
            accepted = 1 - float((1 - verdict.acceptance.double()).prod())
            there = p, q if q is None else q[:, :1], tokens, valid
            visits.append(Visit(level, *there, accepted))
        return verdict

    return kept


def gaps(visits: Sequence[Visit], law: Law) -> list[Gap]:
    """What was accepted and what could have been, by level, of a decoder whose number of children
    does not depend on what was drawn.
    """
    per_level = []
    for level in sorted({visit.level for visit in visits}):
        at_level = [visit for visit in visits if visit.level == level]
        bounds = bounds_of(at_level, law)
        accepted = sum(visit.accepted for visit in at_level) / len(at_level)
        per_level.append(Gap(level, len(at_level), accepted, sum(bounds) / len(at_level)))
    return per_level


def bounds_of(visits: Sequence[Visit], law: Law, step: float = STEP) -> list[float]:
    """The most that any rule could accept at each node of one level, all with equally many
    children, on the CPU.
    """
    p = torch.cat([visit.p for visit in visits]).cpu()
    tokens = torch.cat([visit.tokens for visit in visits]).cpu()
    valid = torch.cat([visit.valid for visit in visits]).cpu()
    laws = [visit.q[:, 0] for visit in visits if visit.q is not None]
    assert laws or law.siblings == "deterministic"
    q, count = torch.cat(laws).cpu() if laws else torch.zeros_like(p), tokens.shape[1]
    if law.siblings == "iid" or (law.siblings == "without_replacement" and count == 1):
        return bound_iid(p, q, count).tolist()
    if law.siblings == "without_replacement":
        return bound_without_replacement(p, q, count, step).tolist()
    drawn = min(law.sampled, count) if law.siblings == "top_and_sampled" else 0
    best, there = tokens[:, drawn:], valid[:, drawn:]
    listed = torch.zeros_like(p).scatter_add(-1, best, there.to(p.dtype)) > 0
    sure = torch.where(listed, p, 0.0).double().sum(dim=-1)
    # Where the best are all of the draft's support, nothing was drawn.
    some = valid[:, :drawn].any(dim=-1)
    return torch.where(some, bound_iid(p, q, max(drawn, 1), sure), sure).tolist()
