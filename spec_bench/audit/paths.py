"""Whole-path rules by enumeration: every tree that can be drawn, under models that forget nothing.

The models are tables with a law of their own for every prefix, so a wrong ancestor shows as much
as a wrong ratio. All trees that a node count and a law of siblings allow are verified in one call,
a row each. Letters: R trees, N nodes, V vocabulary, L depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from spec_bench.audit.rules import SAID, Law
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.verify.base import rule
from spec_bench.verify.path_rule import PathRule, Traversal

WIDTHS = ((1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2), (3, 1))


@dataclass(frozen=True)
class Tables:
    """Target and drafts that look at the whole prefix of d tokens, read as a number."""

    p: Sequence[Tensor]  # per depth [V^d, V] the target's law behind each prefix
    q: Sequence[Tensor]  # per depth [V^d, 3, V] three drafts'

    @property
    def vocab(self) -> int:
        return self.p[0].shape[-1]


def random_tables(vocab: int, depth: int, seed: int) -> Tables:
    """Laws of several sharpnesses, some of them cut to part of their support, float64."""
    generator = torch.Generator().manual_seed(seed)

    def laws(*shape: int) -> Tensor:
        logits = torch.randn((*shape, vocab), generator=generator, dtype=torch.float64)
        sharpness = torch.tensor([0.3, 1.0, 3.0])[
            torch.randint(3, (*shape, 1), generator=generator)
        ]
        cut = torch.rand(logits.shape, generator=generator) < 0.15
        cut &= logits < logits.amax(dim=-1, keepdim=True)
        return (logits * sharpness).masked_fill(cut, -torch.inf).softmax(dim=-1)

    return Tables(
        [laws(vocab**d) for d in range(depth + 1)], [laws(vocab**d, 3) for d in range(depth)]
    )


@dataclass(frozen=True)
class AllTrees:
    """Every tree that can be drawn."""

    tree: Tree  # a row each
    chance: Tensor  # [R] of drawing it
    prefix: Tensor  # [R, N] the tokens from below the root to each node, read as a number
    p: Tensor  # [R, N, V] the target's law at each node


def all_trees(tables: Tables, widths: Sequence[int], law: Law) -> AllTrees:
    """Every tree with ``widths[l]`` children a node of level l; by the law of siblings
    ``several_drafts`` child j is from draft j.
    """
    vocab, levels = tables.vocab, list(accumulate(widths, mul))
    tokens = torch.zeros((1, 1), dtype=torch.long)
    valid, prefix = torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens)
    chance = torch.ones(1, dtype=torch.float64)
    start, above = 0, 1
    for depth, width in enumerate(widths):
        for node in range(start, start + above):
            for child in range(width):
                brothers = tokens[:, tokens.shape[1] - child :]
                q = tables.q[depth][prefix[:, node]]
                node_law = _law(q, brothers, child, width, law)
                there = valid[:, node] & (node_law.sum(dim=1) > 0)
                node_law = torch.where(
                    there[:, None], node_law, torch.eye(vocab, dtype=node_law.dtype)[0]
                )
                row, token = node_law.nonzero(as_tuple=True)
                chance = chance[row] * node_law[row, token]
                tokens = torch.cat([tokens[row], token[:, None]], dim=1)
                valid = torch.cat([valid[row], there[row, None]], dim=1)
                number = prefix[row, node] * vocab + token
                prefix = torch.cat([prefix[row], number[:, None]], dim=1)
        start, above = start + above, levels[depth]
    tree = _grown(tables, tuple(widths), tokens, valid, prefix, law)
    depths = tree.shape.node_depth
    p = torch.stack([tables.p[d][prefix[:, n]] for n, d in enumerate(depths)], dim=1)
    return AllTrees(tree, chance, prefix, p)


def _law(q: Tensor, brothers: Tensor, child: int, width: int, law: Law) -> Tensor:
    """[R, V] what the child at a place among ``width`` siblings is drawn from, all zero where
    nothing is left; q is [R, 3, V], brothers [R, child] are tokens of the earlier siblings.
    """
    if law == "several_drafts":
        return q[:, child]
    if law == "deterministic":
        best = q[:, 0].sort(dim=-1, descending=True, stable=True).indices
        if child >= q.shape[-1]:
            return torch.zeros_like(q[:, 0])
        return torch.nn.functional.one_hot(best[:, child], q.shape[-1]).to(q.dtype)
    rest = q[:, 0]
    if law == "top_and_sampled":
        brothers = rest.sort(dim=-1, descending=True, stable=True).indices[:, : width - 1]
        if child:
            best = torch.nn.functional.one_hot(brothers[:, child - 1], q.shape[-1])
            return best * (rest.gather(1, brothers[:, child - 1, None]) > 0).to(q.dtype)
    if law in ("without_replacement", "top_and_sampled"):
        rest = rest.scatter(1, brothers, 0.0)
        total = rest.sum(dim=1, keepdim=True)
        rest = torch.where(total > 0, rest / total, 0.0)
    return rest


def _grown(
    tables: Tables, widths: tuple[int, ...], tokens: Tensor, valid: Tensor, prefix: Tensor, law: Law
) -> Tree:
    """Trees of given tokens [R, N] with the drafts' laws."""
    siblings: Siblings = "iid" if law == "several_drafts" else law
    shape = TreeShape(tuple(accumulate(widths, mul)), widths)
    tree = Tree(shape, tokens[:, 0], siblings)
    for depth, width in enumerate(widths):
        above, below = shape.level(depth), shape.level(depth + 1)
        q = tables.q[depth][prefix[:, above]]  # [R, F, 3, V]
        q = q[:, :, :width] if law == "several_drafts" else q[:, :, :1]
        parent = torch.arange(q.shape[1]).repeat_interleave(width)
        if law == "top_and_sampled":  # what the best leave
            best = q.sort(dim=-1, descending=True, stable=True).indices[..., : width - 1]
            q = q.scatter(-1, best, 0.0)
            q = q / q.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        logs = q[:, :, 0].log() if law == "without_replacement" else None
        given = None if law in ("without_replacement", "deterministic") else q
        tree.add_level(tokens[:, below], parent, valid[:, below], given, logs)
    return tree


def last_node(rule: PathRule, trees: AllTrees) -> tuple[Tensor, Tensor]:
    """P(each node is the last one accepted) [R, N], and the token's law behind it [R, N, V]."""
    order, success, residual = rule(trees.tree, trees.p)
    success = torch.cat([success, torch.ones_like(success[:, :1])], dim=1)
    missed = torch.cat([torch.ones_like(success[:, :1]), (1 - success).cumprod(1)[:, :-1]], dim=1)
    last = torch.zeros_like(success).scatter(1, order, missed * success)
    total = residual.sum(dim=-1, keepdim=True)
    return last, torch.where(total > 0, residual / total, trees.p)


def path_error(rule: PathRule, tables: Tables, widths: Sequence[int], law: Law) -> float:
    """Largest |law of L + 1 tokens - target's|, blocks being continued by the target."""
    trees = all_trees(tables, widths, law)
    last, token = last_node(rule, trees)
    depth, vocab = len(widths), tables.vocab
    wanted = continued(tables, torch.zeros(1, dtype=torch.long), 0, depth + 1)[0]
    got = torch.zeros_like(wanted)
    for node, at in enumerate(trees.tree.shape.node_depth):
        weight = (trees.chance * last[:, node])[:, None] * token[:, node]  # [R, V]
        number = trees.prefix[:, node, None] * vocab + torch.arange(vocab)
        weight, number = weight.flatten(), number.flatten()
        rest = continued(tables, number, at + 1, depth - at)
        got.view(-1, rest.shape[1]).index_add_(0, number, weight[:, None] * rest)
    return (got - wanted).abs().max().item()


def continued(tables: Tables, prefix: Tensor, depth: int, length: int) -> Tensor:
    """[B, V^length] the target's law of what follows prefixes [B] of ``depth`` tokens."""
    law = torch.ones((prefix.shape[0], 1), dtype=torch.float64)
    known = prefix[:, None]
    for step in range(length):
        law = (law.unsqueeze(-1) * tables.p[depth + step][known]).flatten(1)
        known = (known.unsqueeze(-1) * tables.vocab + torch.arange(tables.vocab)).flatten(1)
    return law


def accepted_tokens(rule: PathRule, tables: Tables, widths: Sequence[int], law: Law) -> float:
    """E[accepted draft tokens] of a whole-path rule."""
    trees = all_trees(tables, widths, law)
    depth = torch.tensor(trees.tree.shape.node_depth, dtype=torch.float64)
    return float(trees.chance @ (last_node(rule, trees)[0] @ depth))


def path_cases() -> Iterator[tuple[str, PathRule, Law]]:
    """Every registered whole-path rule, for each law of siblings that it claims to be exact for."""
    for name, kind in rule.items():
        if issubclass(kind, Traversal) and kind.declared == "exact":
            laws: list[Law] = [*kind.laws]
            if kind.several_drafts:
                laws.append("several_drafts")
            yield from ((f"{name}, {SAID[law]}", kind().judge(0), law) for law in laws)


def audit_path(rule: PathRule, law: Law, seeds: Sequence[int] = (0, 1, 2)) -> tuple[float, int]:
    """Largest error over trees of several widths and random models, and the number of cases."""
    worst, cases = 0.0, 0
    for widths in WIDTHS:
        for seed in seeds:
            vocab = 2 if len(widths) == 3 else 3
            tables = random_tables(vocab, len(widths), 10 * seed + len(widths))
            worst = max(worst, path_error(rule, tables, widths, law))
            cases += 1
    return worst, cases
