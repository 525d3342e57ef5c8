"""Trees of fixed widths: their shorthands and shapes, and how each level is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import Annotated, NamedTuple

import torch
from annotated_types import MinLen
from torch import Tensor
from torch.nn.functional import pad

from spec_bench.core.draws import RandomSource
from spec_bench.core.gumbel import condition_on_maximum, gumbel_top_k
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.core.warp import SamplingSettings
from spec_bench.settings.fields import Count
from spec_bench.tree.base import (
    AuditTree,
    GrownTree,
    get_distinct_siblings,
    policy,
    refuse_too_many_nodes,
)
from spec_bench.vocabulary.spec import Spec


@dataclass(frozen=True)
class RectangularTree(GrownTree):
    """W nodes on each of L levels, ``WxL``."""

    width: Count  # W
    depth: Count  # L

    def __post_init__(self) -> None:
        refuse_too_many_nodes("width", self.width * self.depth)

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"width": spec.width, "depth": spec.depth}

    @property
    def spec(self) -> str:
        return f"{self.width}x{self.depth}"

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((self.width,) * self.depth, (self.width,) * self.depth)


@dataclass(frozen=True)
class BranchingTree(GrownTree):
    """``widths[l]`` children for every node of level l, ``2-2-1``."""

    widths: Annotated[tuple[Count, ...], MinLen(1)]  # children per node at each level

    has_fixed_parents = True

    def __post_init__(self) -> None:
        refuse_too_many_nodes("widths", sum(accumulate(self.widths, mul)))

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"widths": list(spec.numbers)}

    @property
    def spec(self) -> str:
        return "-".join(map(str, self.widths))

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape(tuple(accumulate(self.widths, mul)), self.widths)


@policy("widths", forms=("number", "levels"), takes="children per level such as 2-2-1")
@dataclass(frozen=True)
class WidthsPolicy(BranchingTree):
    """``widths[l]`` children for every node of level l.

    Without replacement this is RSD-C (RSD Algorithm 3, Gumbel-top-k) and MCSD's sampling without
    replacement; with replacement it is SpecInfer's and MCSD's tree.
    """

    # true: a node's children are i.i.d. draws, from several drafts in turn; false: distinct draws
    replacement: bool

    @property
    def allows_several_drafts(self) -> bool:
        return self.replacement

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "iid" if self.replacement else get_distinct_siblings(settings)

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        width = self.widths[tree.grown]
        if tree.siblings == "iid":
            grow_iid_level(tree, scores, draws, width)
            return
        tokens, valid, proposal = draw_distinct_children(tree, scores.squeeze(2), draws, width)
        tree.add_level(tokens.flatten(1), None, valid.flatten(1), None, proposal)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (
            AuditTree(cls((2, 1), replacement=True)),
            AuditTree(cls((3,), replacement=True)),
            AuditTree(cls((2,), replacement=True), drafts=2),
            AuditTree(cls((2, 1), replacement=False)),
            AuditTree(cls((3, 1), replacement=False)),
        )


class DrawnChildren(NamedTuple):
    """Children drawn below each of F frontier nodes."""

    tokens: Tensor  # [R, F, C]
    valid: Tensor  # [R, F, C] whether they exist
    log_q: Tensor | None  # [R, F, V] distributions they were drawn from; None if one-hot


def draw_distinct_children(
    tree: Tree,
    log_q: Tensor,
    draws: RandomSource,
    count: int,
    counts: Sequence[int] | None = None,
) -> DrawnChildren:
    """Draws ``count`` distinct children of each node from log-probabilities [R, F, V]; takes the
    best tokens if siblings are deterministic. ``counts``: see ``RandomSource.gumbel``.
    """
    proposal = None if tree.siblings == "deterministic" else log_q
    noise = torch.zeros_like(log_q) if proposal is None else draws.gumbel(log_q, counts, count)
    tokens, valid = gumbel_top_k(log_q, noise, count)
    padding = (0, count - tokens.shape[-1])  # more children than tokens
    return DrawnChildren(pad(tokens, padding), pad(valid, padding), proposal)


def grow_iid_level(tree: Tree, scores: Tensor, draws: RandomSource, width: int) -> None:
    """Adds a level of ``width`` i.i.d. children per node to a tree of constant parents, from scores
    [R, F, D, V].

    Child j of a node comes from draft j mod D, so that drafts take turns.
    """
    rows, nodes, drafts, _ = scores.shape
    q = scores.exp()
    samples = draws.categorical(q.flatten(1, 2), -(-width // drafts))
    samples = samples.view(rows, nodes, drafts, -1).transpose(2, 3)
    tokens = samples.reshape(rows, nodes, -1)[..., :width].flatten(1)
    tree.add_level(tokens, None, None, q)


@policy("iid_paths", forms=("product",), takes="KxL: K paths of length L, such as 4x3")
@dataclass(frozen=True)
class IidPaths(GrownTree):
    """K i.i.d. paths of length L (SpecTr, arXiv 2310.15141; RSD section 5).

    Equal prefixes stay separate nodes; the walk treats nodes with equal prefixes as one node, with
    the next tokens of all these paths as its candidates, with multiplicity. With ``merged``, nodes
    with equal prefixes become one node and their copies are absent. A node's children are then
    drawn without replacement, because the presence of a further distinct token does not depend on
    which token it is.
    """

    paths: Count  # K
    depth: Count  # L
    merged: bool = False  # whether equal prefixes become one node

    def __post_init__(self) -> None:
        refuse_too_many_nodes("paths", self.paths * self.depth)

    @classmethod
    def parse_spec(cls, spec: Spec) -> dict[str, object] | None:
        return {"paths": spec.width, "depth": spec.depth}

    @property
    def spec(self) -> str:
        return f"{self.paths}x{self.depth}"

    @cached_property
    def shape(self) -> TreeShape:
        return TreeShape((self.paths,) * self.depth, (self.paths,) * self.depth)

    @property
    def walk_merges_copies(self) -> bool:  # type: ignore[override]
        return not self.merged

    @property
    def has_fixed_parents(self) -> bool:  # type: ignore[override]
        return not self.merged

    @property
    def revision(self) -> int:
        return int(self.merged)  # 1: children of a copy on level 2 are kept too

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return "without_replacement" if self.merged else "iid"

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        q = scores.exp()
        is_first_level = tree.grown == 0
        tokens = draws.categorical(q.squeeze(2), self.paths if is_first_level else 1).flatten(1)
        if not self.merged:
            tree.add_level(tokens, None, None, q)
            return
        path = torch.arange(self.paths, device=q.device)
        parent = torch.zeros_like(path) if is_first_level else path
        # Each path continues below the first path with the same prefix: [R, K].
        merged_parent = parent.expand_as(tokens) if is_first_level else tree.carried[0]
        equal_prefix = (tokens.unsqueeze(2) == tokens.unsqueeze(1)) & (
            merged_parent.unsqueeze(2) == merged_parent.unsqueeze(1)
        )
        earliest = equal_prefix.byte().argmax(dim=2)  # the first of equals
        tree.carried = (earliest,)
        tree.add_level(tokens, merged_parent, earliest == path, None, scores.squeeze(2))

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (
            AuditTree(cls(2, 2)),
            AuditTree(cls(2, 2, merged=True)),
            AuditTree(cls(3, 1, merged=True)),
        )


@policy("top_and_sample", forms=("number", "levels"), takes="children per level such as 3-2-1")
@dataclass(frozen=True)
class TopAndSample(BranchingTree):
    """``widths[l]`` children for every node of level l: drawn ones first, then the draft's best.

    Drawn children come from the draft's distribution without the best tokens (arXiv 2502.18779;
    SpecHub, arXiv 2411.05289, with two children). At draft temperature 0 all children are the best
    tokens.
    """

    sampled: Count = 1  # number of children drawn; all children if a node has fewer

    shared = ("sampled",)

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return (
            "deterministic" if settings.get_draft_settings().temperature == 0 else "top_and_sampled"
        )

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        log_q = scores.squeeze(2)
        width = self.widths[tree.grown]
        rows, nodes, vocab = log_q.shape
        sample_count = 0 if tree.siblings == "deterministic" else min(self.sampled, width)
        values, best = log_q.topk(min(width - sample_count, vocab), dim=-1)
        token_parts = [best]
        valid_parts = [values > -torch.inf]
        if missing_count := width - sample_count - best.shape[-1]:  # more children than tokens
            token_parts.append(best.new_zeros((rows, nodes, missing_count)))
            valid_parts.append(torch.zeros_like(token_parts[-1], dtype=torch.bool))
        rest_q: Tensor | None = None
        if sample_count:
            # In log space, because the mass of the best tokens may round to 1.
            rest_log_q = log_q.scatter(-1, best, -torch.inf)
            has_rest = rest_log_q.amax(dim=-1, keepdim=True) > -torch.inf
            rest_q = torch.where(has_rest, rest_log_q, 0.0).softmax(dim=-1)
            token_parts.insert(0, draws.categorical(rest_q, sample_count))
            valid_parts.insert(0, has_rest.expand(-1, -1, sample_count))
            rest_q = torch.where(has_rest, rest_q, 0.0).unsqueeze(2)
        tokens = torch.cat(token_parts, dim=-1).flatten(1)
        valid = torch.cat(valid_parts, dim=-1).flatten(1)
        tree.sampled = self.sampled
        tree.add_level(tokens, None, valid, rest_q)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        return (AuditTree(cls((2, 1))), AuditTree(cls((3,), sampled=2)))


@policy("stochastic_beam", forms=("product",), takes="KxL: beam width K, length L, such as 4x3")
@dataclass(frozen=True)
class StochasticBeam(RectangularTree):
    """The W sequences with the largest perturbed log-probability at every level.

    RSD-S, RSD Algorithm 8 with its Algorithm 9 corrected: the beam keeps the best (parent, token)
    pairs by the *truncated* value psi. A level's nodes are in decreasing psi, so siblings are
    tested in decreasing psi, the only order for which recursive rejection is exact. Later steps
    must not depend on how many children a node got.

    At temperature 0 (deterministic siblings) it is a beam search whose score is the sum of
    (logit - largest logit) along the path, which is the limit of the stochastic beam.
    """

    def siblings(self, settings: SamplingSettings) -> Siblings:
        return get_distinct_siblings(settings)

    def grow_level(self, tree: Tree, scores: Tensor, draws: RandomSource) -> None:
        log_q = scores.squeeze(2)
        deterministic = tree.siblings == "deterministic"
        rows, _, vocab = log_q.shape
        if tree.grown == 0:
            tree.carried = (log_q.new_zeros((rows, 1)),) * 2
        # [R, F] sum of log q (or of scores) along each frontier node's path, and its truncated
        # perturbed value; -inf if absent
        phi_above, psi_above = tree.carried
        phi = phi_above.unsqueeze(-1) + log_q
        noisy = phi if deterministic else phi + draws.gumbel(log_q)
        # Only a parent's W best can enter the beam. psi increases with the perturbed value, so
        # its order is known before truncation, which in floating point can make ties.
        best, tokens = noisy.topk(min(self.width, vocab), dim=-1)
        psi = best if deterministic else condition_on_maximum(best, psi_above)
        phi = phi.gather(-1, tokens)
        by_psi = psi.flatten(1).sort(dim=-1, descending=True, stable=True)
        psi = by_psi.values[:, : self.width]
        beam_index = by_psi.indices[:, : self.width]
        parent = beam_index // tokens.shape[-1]
        tokens = tokens.flatten(1).gather(1, beam_index)
        phi = phi.flatten(1).gather(1, beam_index)
        missing_count = self.width - beam_index.shape[1]
        if missing_count:  # the vocabulary is smaller than the beam
            parent = pad(parent, (0, missing_count))
            tokens = pad(tokens, (0, missing_count))
            phi, psi = (pad(part, (0, missing_count), value=-torch.inf) for part in (phi, psi))
        tree.carried = (phi, psi)
        tree.add_level(tokens, parent, psi > -torch.inf, None, None if deterministic else log_q)

    @classmethod
    def audit_cases(cls) -> tuple[AuditTree, ...]:
        # Its trees depend on the Gumbel values, not only on their order.
        return (AuditTree(cls(3, 2), enumerable=False),)
