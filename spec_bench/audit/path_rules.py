"""Audits every whole-path rule by enumeration: over all draws, the output has the target's law.

A whole-path rule judges trees, and the models have a different law for every prefix, so that a
wrong ancestor shows as clearly as a wrong ratio. All trees of one shape and kind of siblings are
verified in one call, a row each. Letters: R trees, N nodes, V vocabulary, L depth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import numpy as np
import torch
from torch import Tensor

from spec_bench.audit.rules import (
    LAW_NAMES,
    EnumeratedError,
    Law,
    compute_child_law,
    list_next_children,
)
from spec_bench.core.tree import Tree, TreeShape
from spec_bench.verify.base import rule
from spec_bench.verify.path_rule import PathRule, Traversal

WIDTHS = ((1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2), (4, 1))


@dataclass(frozen=True)
class PrefixLaws:
    """Laws of the target and the drafts for every prefix of d tokens; prefixes are numbered in base
    V.
    """

    p: Sequence[Tensor]  # per depth [V^d, V] the target's law after each prefix
    q: Sequence[Tensor]  # per depth [V^d, 4, V] the laws of four drafts

    @property
    def vocab(self) -> int:
        return self.p[0].shape[-1]


def make_random_prefix_laws(vocab: int, depth: int, seed: int) -> PrefixLaws:
    """Makes random laws of several sharpnesses, some with truncated support, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def laws(*shape: int) -> Tensor:
        logits = torch.randn((*shape, vocab), generator=generator, dtype=torch.float64)
        level = torch.randint(3, (*shape, 1), generator=generator)
        sharpness = torch.tensor([0.3, 1.0, 3.0])[level]
        cut = torch.rand(logits.shape, generator=generator) < 0.15
        cut &= logits < logits.amax(dim=-1, keepdim=True)
        return (logits * sharpness).masked_fill(cut, -torch.inf).softmax(dim=-1)

    p = [laws(vocab**d) for d in range(depth + 1)]
    return PrefixLaws(p, [laws(vocab**d, 4) for d in range(depth)])


@dataclass(frozen=True)
class EnumeratedTrees:
    """All trees that can be drawn, one per row."""

    tree: Tree
    probability: Tensor  # [R] probability of each tree
    prefix_number: Tensor  # [R, N] number of the path from below the root to each node
    p: Tensor  # [R, N, V] the target's law at each node


def enumerate_trees(prefix_laws: PrefixLaws, widths: Sequence[int], law: Law) -> EnumeratedTrees:
    """Enumerates every tree with ``widths[l]`` children per node of level l."""
    shape = TreeShape(tuple(accumulate(widths, mul)), tuple(widths))
    tokens = torch.zeros((1, 1), dtype=torch.long)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    prefix = torch.zeros_like(tokens)
    chance = torch.ones(1, dtype=torch.float64)
    for depth, width in enumerate(widths):
        for node in range(shape.size)[shape.level(depth)]:
            for child in range(width):
                siblings = tokens[:, tokens.shape[1] - child :]
                child_law = compute_child_law(
                    prefix_laws.q[depth][prefix[:, node]],
                    siblings,
                    child,
                    width,
                    law,
                )
                row, token, present, child_chance = list_next_children(child_law, valid[:, node])
                number = prefix[row, node] * prefix_laws.vocab + token
                chance = chance[row] * child_chance
                tokens = torch.cat([tokens[row], token[:, None]], dim=1)
                valid = torch.cat([valid[row], present[:, None]], dim=1)
                prefix = torch.cat([prefix[row], number[:, None]], dim=1)
    tree = Tree(shape, tokens[:, 0], "iid" if law == "several_drafts" else law)
    for depth, width in enumerate(widths):  # adds the drafts' laws
        parents = shape.level(depth)
        nodes = shape.level(depth + 1)
        q = prefix_laws.q[depth][prefix[:, parents]]  # [R, F, 4, V]
        q = q[:, :, :width] if law == "several_drafts" else q[:, :, :1]
        parent = torch.arange(q.shape[1]).repeat_interleave(width)
        if law == "top_and_sampled":  # without the best
            best = q.sort(dim=-1, descending=True, stable=True).indices[..., : width - 1]
            q = q.scatter(-1, best, 0.0)
            q = q / q.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        log_q = q[:, :, 0].log() if law == "without_replacement" else None
        tree_q = None if law in ("without_replacement", "deterministic") else q
        tree.add_level(tokens[:, nodes], parent, valid[:, nodes], tree_q, log_q)
    p = torch.stack(
        [prefix_laws.p[d][prefix[:, n]] for n, d in enumerate(shape.node_depths)], dim=1
    )
    return EnumeratedTrees(tree, chance, prefix, p)


def compute_last_node_and_token_laws(
    rule: PathRule, trees: EnumeratedTrees
) -> tuple[Tensor, Tensor]:
    """Computes the probability that each node is the last accepted one [R, N], and the law of the
    token after it [R, N, V].
    """
    order, success, residual = rule(trees.tree, trees.p)
    success = torch.cat([success, torch.ones_like(success[:, :1])], dim=1)
    reach_probs = torch.cat(
        [torch.ones_like(success[:, :1]), (1 - success).cumprod(1)[:, :-1]], dim=1
    )
    last_probs = torch.zeros_like(success).scatter(1, order, reach_probs * success)
    total = residual.sum(dim=-1, keepdim=True)
    return last_probs, torch.where(total > 0, residual / total, trees.p)


def compute_path_rule_error(
    rule: PathRule,
    prefix_laws: PrefixLaws,
    widths: Sequence[int],
    law: Law,
) -> float:
    """Computes the largest |law - target's law| of L + 1 tokens; the target continues shorter
    blocks.
    """
    trees = enumerate_trees(prefix_laws, widths, law)
    last_probs, token = compute_last_node_and_token_laws(rule, trees)
    depth = len(widths)
    vocab = prefix_laws.vocab
    expected_law = compute_continuation_law(
        prefix_laws, torch.zeros(1, dtype=torch.long), 0, depth + 1
    )[0]
    output_law = torch.zeros_like(expected_law)
    for node, node_depth in enumerate(trees.tree.shape.node_depths):
        weight = (trees.probability * last_probs[:, node])[:, None] * token[:, node]  # [R, V]
        number = trees.prefix_number[:, node, None] * vocab + torch.arange(vocab)
        weight = weight.flatten()
        number = number.flatten()
        continuation_law = compute_continuation_law(
            prefix_laws,
            number,
            node_depth + 1,
            depth - node_depth,
        )
        output_law.view(-1, continuation_law.shape[1]).index_add_(
            0, number, weight[:, None] * continuation_law
        )
    return (output_law - expected_law).abs().max().item()


def compute_continuation_law(
    prefix_laws: PrefixLaws,
    prefix: Tensor,
    depth: int,
    length: int,
) -> Tensor:
    """Computes the target's law [B, V^length] of ``length`` tokens after prefixes [B] of ``depth``
    tokens.
    """
    law = torch.ones((prefix.shape[0], 1), dtype=torch.float64)
    prefixes = prefix[:, None]
    for step in range(length):
        law = (law.unsqueeze(-1) * prefix_laws.p[depth + step][prefixes]).flatten(1)
        prefixes = (
            prefixes.unsqueeze(-1) * prefix_laws.vocab + torch.arange(prefix_laws.vocab)
        ).flatten(1)
    return law


def iter_path_rule_cases() -> Iterator[tuple[str, PathRule, Law]]:
    """Yields the name, rule and kind of siblings of every exact whole-path rule, for each kind that
    it declares.
    """
    for name, kind in rule.items():
        if issubclass(kind, Traversal) and kind.declared == "exact":
            extra_laws: tuple[Law, ...] = ("several_drafts",) if kind.several_drafts else ()
            yield from (
                (f"{name}, {LAW_NAMES[law]}", kind().judge(0), law)
                for law in (*kind.laws, *extra_laws)
            )


def enumerate_path_rule_error(
    rule: PathRule, law: Law, seeds: Sequence[int] = (0, 1, 2)
) -> EnumeratedError:
    """Computes the largest error over trees of several widths and random models, and counts the
    cases.
    """
    errors = []
    for widths in WIDTHS:
        for seed in seeds:
            vocab = 2 if len(widths) == 3 else 3
            prefix_laws = make_random_prefix_laws(vocab, len(widths), 10 * seed + len(widths))
            errors.append(compute_path_rule_error(rule, prefix_laws, widths, law))
    return EnumeratedError(float(np.max(errors)), len(errors))
