"""Every rule by enumeration: the output's law is the target's for every draw of the children.

A node rule judges one node's children. A rule of whole paths judges trees, under models that forget
nothing: tables with a law of their own for every prefix, so a wrong ancestor shows as much as a
wrong ratio. All trees that a node count and a law of siblings allow are verified in one call, a row
each. Letters: R trees, N nodes, B draws of one node's C children, V vocabulary, L depth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.tree import Siblings, Tree, TreeShape
from spec_bench.records.types import Lossless
from spec_bench.verify.base import NodeVerifier, rule
from spec_bench.verify.path_rule import PathRule, Traversal
from spec_bench.verify.walk import NodeRule, Verdict

TOLERANCE = 1e-12
MOST_CHILDREN = 4  # of a node in a rule's cases
VOCABS = (3, 5)  # the larger one leaves the last child a choice

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


def list_rule_cases(mark: Lossless = "exact") -> Iterator[RuleCase]:
    """Every registered node rule of a mark, for each law that it is exact or meant for."""
    kind: Any
    for kind in rule.values():
        if issubclass(kind, NodeVerifier) and kind.declared == mark:
            for law, needed in kind.laws.items():
                for drawn in [{"sampled": 1}, {"sampled": 2}] if law == "top_and_sampled" else [{}]:
                    yield from expand_rule_cases(kind(**needed, **drawn), law)


def expand_rule_cases(verifier: Any, law: Siblings) -> Iterator[RuleCase]:
    """Yields a node rule with its settings, for a law that it claims to be exact for."""
    judge = verifier.judge(depth=1)
    sampled = getattr(verifier, "sampled", 1)
    more = f", {sampled} drawn" if law == "top_and_sampled" else ""
    yield RuleCase(f"{verifier.name}, {SAID[law]}{more}", judge, law, sampled)
    if law == "iid" and verifier.several_drafts:
        yield RuleCase(f"{verifier.name}, {SAID['several_drafts']}", judge, "several_drafts")


def adversarial_pairs(
    vocab: int, seed: int, random_pairs: int = 40
) -> Iterator[tuple[Tensor, Tensor]]:
    """(p [V], drafts [4, V]) in float64: random ones of several sharpnesses, and the corners:
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
        yield draw(sharpness), torch.stack([draw(sharpness) for _ in range(4)])
    hot = torch.eye(vocab, dtype=torch.float64)
    uniform = torch.full((vocab,), 1 / vocab, dtype=torch.float64)
    soft = draw(1.0)
    yield soft, soft.expand(4, -1)
    yield uniform, uniform.expand(4, -1)
    yield hot[0], hot[[0, 0, 0, 0]]
    yield hot[0], hot[[1, 1, 1, 1]]
    yield hot[0], torch.stack([soft, uniform, hot[1], soft])
    yield soft, hot[[0, 1, 2, 0]]
    half = torch.zeros(vocab, dtype=torch.float64)
    half[: vocab // 2] = 1 / (vocab // 2)
    yield half, (1 - half * (vocab // 2)).div(vocab - vocab // 2).expand(4, -1)
    tiny = torch.cat([torch.full((vocab - 1,), 1e-15, dtype=torch.float64), hot[0, :1]])
    yield tiny / tiny.sum(), uniform.expand(4, -1)
    yield uniform, (tiny / tiny.sum()).expand(4, -1)
    for keep in range(1, vocab):
        yield draw(1.0, keep), torch.stack([draw(1.0, vocab - keep) for _ in range(4)])


def child_distribution(
    q: Tensor, brothers: Tensor, child: int, width: int, law: Law, sampled: int = 1
) -> Tensor:
    """[B, V] what the child at a place among ``width`` siblings is drawn from, all zero where
    nothing is left; q is [B, 4, V], brothers [B, child] are tokens of the earlier siblings.
    """
    if law == "several_drafts":
        return q[:, child]
    rest = q[:, 0]
    vocab = q.shape[-1]
    ranked = rest.sort(dim=-1, descending=True, stable=True)
    if law == "deterministic":
        if child >= vocab:
            return torch.zeros_like(rest)
        return one_hot(ranked.indices[:, child], vocab).to(q.dtype)
    if law == "top_and_sampled":  # those drawn, from what the best leave, stand first
        sampled = min(sampled, width)
        if child >= sampled:
            best = one_hot(ranked.indices[:, child - sampled], vocab)
            return best * (ranked.values[:, child - sampled, None] > 0).to(q.dtype)
        brothers = ranked.indices[:, : width - sampled]
    if law in ("without_replacement", "top_and_sampled"):
        rest = rest.scatter(1, brothers, 0.0)
        total = rest.sum(dim=1, keepdim=True)
        rest = torch.where(total > 0, rest / total, 0.0)
    return rest


def _each_child(law: Tensor, there: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every next child of B draws: which of them it goes on from, its token, whether it exists, its
    chance; one that does not is token 0.
    """
    there = there & (law.sum(dim=1) > 0)
    law = torch.where(there[:, None], law, torch.eye(law.shape[1], dtype=law.dtype)[0])
    row, token = law.nonzero(as_tuple=True)
    return row, token, there[row], law[row, token]


def enumerate_children(
    q: Tensor, children: int, law: Law, sampled: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Every tuple of children that q [4, V] can give, with its probability: tokens [B, C], valid
    [B, C] and probability [B]; all laws but ``several_drafts`` use the first draft.
    """
    tokens = torch.empty((1, 0), dtype=torch.long)
    valid = tokens.bool()
    probability = q.new_ones(1)
    for child in range(children):
        rows = len(tokens)
        one_law = child_distribution(q.expand(rows, -1, -1), tokens, child, children, law, sampled)
        row, token, there, chance = _each_child(one_law, torch.ones(rows, dtype=torch.bool))
        tokens = torch.cat([tokens[row], token[:, None]], dim=1)
        valid = torch.cat([valid[row], there[:, None]], dim=1)
        probability = probability[row] * chance
    return tokens, valid, probability


class WrongVerdictError(ValueError):
    """What a rule returned is no verdict on the children that it was given."""


def check_verdict(verdict: object, tokens: Tensor, p: Tensor) -> Verdict:
    """Returns a rule's verdict on children [B, C] under p [B, V]. Raises WrongVerdictError: it is
    none, or has other shapes.
    """
    if not isinstance(verdict, Verdict):
        raise WrongVerdictError(f"must return a Verdict, got {type(verdict).__name__}")
    for name, like, columns in (("acceptance", tokens, "children"), ("residual", p, "tokens")):
        part = getattr(verdict, name)
        got = [*part.shape] if isinstance(part, Tensor) else type(part).__name__
        if got != [*like.shape]:
            wanted = f"must be {[*like.shape]}: rows x {columns}"
            raise WrongVerdictError(f"its Verdict's {name} is {got}, {wanted}")
    return verdict


def output_distribution(
    case: RuleCase,
    p: Tensor,
    q: Tensor,
    children: int,
    absent: int | None = None,
    each: bool = False,
) -> Tensor:
    """[V] the law of the token that comes out, summed over all draws of C children from q [4, V];
    equals p [V] if the rule is lossless. What a child that does not exist would give is lost.

    ``absent`` puts such a child in that place, with every token in turn. ``each`` says what each
    child was drawn from instead of the first one alone, as trees of distinct siblings do.
    """
    tokens, valid, probability = enumerate_children(q, children, case.law, case.sampled)
    drafts = max(children, 1) if case.law == "several_drafts" else 1
    laws = q[:drafts].expand(len(tokens), -1, -1)
    if each and children:
        laws = compute_sibling_distributions(q[0].log().expand(len(tokens), -1), tokens)
    if absent is not None:
        vocab = len(p)
        probability = probability.repeat_interleave(vocab) / vocab
        anything = torch.arange(vocab).repeat(len(tokens))[:, None]
        tokens = _insert_column(tokens, absent, anything)
        valid = _insert_column(valid, absent, anything < 0)
        own = laws.shape[1] > 1  # else all share one
        laws = _insert_column(
            laws, absent if own else 0, q[None, :own].expand(len(anything), -1, -1)
        )
    p_rows = p.expand(len(tokens), -1)
    p_lent = p_rows.clone()
    q_lent = laws.clone()
    verdict = case.rule(p_lent, None if case.law == "deterministic" else q_lent, tokens, valid)
    if not (torch.equal(p_rows, p_lent) and torch.equal(laws, q_lent)):
        raise WrongVerdictError("must not write into its arguments p and q")
    acceptance, residual = check_verdict(verdict, tokens, p_rows)
    law = torch.zeros_like(p)
    missed = probability
    for token, there, accept in zip(tokens.T, valid.T, acceptance.T, strict=True):
        law = law.index_add(0, token, missed * accept * there)
        missed = missed * (1 - accept)
    return law + (missed.unsqueeze(1) * residual).sum(dim=0)


def _insert_column(rows: Tensor, place: int, column: Tensor) -> Tensor:
    """Returns every row [B, C, ...] as often as the column [n B, 1, ...] says, with that put in."""
    rows = rows.repeat_interleave(len(column) // len(rows), dim=0)
    return torch.cat([rows[:, :place], column, rows[:, place:]], dim=1)


def audit_rule(
    case: RuleCase, *, vocabs: Sequence[int] = VOCABS, seed: int = 0
) -> tuple[float, int]:
    """Largest |output law - p| over all pairs and 1 to 4 children, one of up to 3 absent or none,
    and the number of cases.
    """
    # The place of an absent one says which of the others are drawn and which are the best.
    last = case.law == "top_and_sampled"
    children: list[tuple[int, int | None]] = [(n, None) for n in range(1, MOST_CHILDREN + 1)]
    children += [(n, place) for n in range(3) for place in range(n if last else 0, n + 1)]
    errors = [
        (output_distribution(case, p, q, *drawn, each) - p).abs().max().item()
        for vocab in vocabs
        for p, q in adversarial_pairs(vocab, seed)
        for drawn in children
        for each in ((False, True) if case.law == "without_replacement" else (False,))
    ]
    return float(np.max(errors)), len(errors)


# Rules of whole paths.

WIDTHS = ((1, 1, 1), (2, 1, 1), (2, 2, 1), (1, 2), (4, 1))


@dataclass(frozen=True)
class PrefixTables:
    """Target and drafts that look at the whole prefix of d tokens, read as a number."""

    p: Sequence[Tensor]  # per depth [V^d, V] the target's law behind each prefix
    q: Sequence[Tensor]  # per depth [V^d, 4, V] four drafts'

    @property
    def vocab(self) -> int:
        return self.p[0].shape[-1]


def random_tables(vocab: int, depth: int, seed: int) -> PrefixTables:
    """Laws of several sharpnesses, some of them cut to part of their support, float64."""
    generator = torch.Generator().manual_seed(seed)

    def laws(*shape: int) -> Tensor:
        logits = torch.randn((*shape, vocab), generator=generator, dtype=torch.float64)
        level = torch.randint(3, (*shape, 1), generator=generator)
        sharpness = torch.tensor([0.3, 1.0, 3.0])[level]
        cut = torch.rand(logits.shape, generator=generator) < 0.15
        cut &= logits < logits.amax(dim=-1, keepdim=True)
        return (logits * sharpness).masked_fill(cut, -torch.inf).softmax(dim=-1)

    p = [laws(vocab**d) for d in range(depth + 1)]
    return PrefixTables(p, [laws(vocab**d, 4) for d in range(depth)])


@dataclass(frozen=True)
class AllTrees:
    """Every tree that can be drawn."""

    tree: Tree  # a row each
    chance: Tensor  # [R] of drawing it
    prefix: Tensor  # [R, N] the tokens from below the root to each node, read as a number
    p: Tensor  # [R, N, V] the target's law at each node


def enumerate_trees(tables: PrefixTables, widths: Sequence[int], law: Law) -> AllTrees:
    """Returns every tree with ``widths[l]`` children a node of level l."""
    shape = TreeShape(tuple(accumulate(widths, mul)), tuple(widths))
    tokens = torch.zeros((1, 1), dtype=torch.long)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    prefix = torch.zeros_like(tokens)
    chance = torch.ones(1, dtype=torch.float64)
    for depth, width in enumerate(widths):
        for node in range(shape.size)[shape.level(depth)]:
            for child in range(width):
                brothers = tokens[:, tokens.shape[1] - child :]
                one_law = child_distribution(
                    tables.q[depth][prefix[:, node]], brothers, child, width, law
                )
                row, token, there, more = _each_child(one_law, valid[:, node])
                number = prefix[row, node] * tables.vocab + token
                chance = chance[row] * more
                tokens = torch.cat([tokens[row], token[:, None]], dim=1)
                valid = torch.cat([valid[row], there[:, None]], dim=1)
                prefix = torch.cat([prefix[row], number[:, None]], dim=1)
    tree = Tree(shape, tokens[:, 0], "iid" if law == "several_drafts" else law)
    for depth, width in enumerate(widths):  # with the drafts' laws
        above = shape.level(depth)
        below = shape.level(depth + 1)
        q = tables.q[depth][prefix[:, above]]  # [R, F, 4, V]
        q = q[:, :, :width] if law == "several_drafts" else q[:, :, :1]
        parent = torch.arange(q.shape[1]).repeat_interleave(width)
        if law == "top_and_sampled":  # what the best leave
            best = q.sort(dim=-1, descending=True, stable=True).indices[..., : width - 1]
            q = q.scatter(-1, best, 0.0)
            q = q / q.sum(dim=-1, keepdim=True).clamp(min=1e-300)
        logs = q[:, :, 0].log() if law == "without_replacement" else None
        given = None if law in ("without_replacement", "deterministic") else q
        tree.add_level(tokens[:, below], parent, valid[:, below], given, logs)
    p = torch.stack([tables.p[d][prefix[:, n]] for n, d in enumerate(shape.node_depth)], dim=1)
    return AllTrees(tree, chance, prefix, p)


def last_node_distribution(rule: PathRule, trees: AllTrees) -> tuple[Tensor, Tensor]:
    """P(each node is the last one accepted) [R, N], and the token's law behind it [R, N, V]."""
    order, success, residual = rule(trees.tree, trees.p)
    success = torch.cat([success, torch.ones_like(success[:, :1])], dim=1)
    missed = torch.cat([torch.ones_like(success[:, :1]), (1 - success).cumprod(1)[:, :-1]], dim=1)
    last = torch.zeros_like(success).scatter(1, order, missed * success)
    total = residual.sum(dim=-1, keepdim=True)
    return last, torch.where(total > 0, residual / total, trees.p)


def enumerate_path_error(
    rule: PathRule, tables: PrefixTables, widths: Sequence[int], law: Law
) -> float:
    """Largest |law of L + 1 tokens - target's|, blocks being continued by the target."""
    trees = enumerate_trees(tables, widths, law)
    last, token = last_node_distribution(rule, trees)
    depth = len(widths)
    vocab = tables.vocab
    wanted = continuation_distribution(tables, torch.zeros(1, dtype=torch.long), 0, depth + 1)[0]
    got = torch.zeros_like(wanted)
    for node, at in enumerate(trees.tree.shape.node_depth):
        weight = (trees.chance * last[:, node])[:, None] * token[:, node]  # [R, V]
        number = trees.prefix[:, node, None] * vocab + torch.arange(vocab)
        weight = weight.flatten()
        number = number.flatten()
        rest = continuation_distribution(tables, number, at + 1, depth - at)
        got.view(-1, rest.shape[1]).index_add_(0, number, weight[:, None] * rest)
    return (got - wanted).abs().max().item()


def continuation_distribution(
    tables: PrefixTables, prefix: Tensor, depth: int, length: int
) -> Tensor:
    """[B, V^length] the target's law of what follows prefixes [B] of ``depth`` tokens."""
    law = torch.ones((prefix.shape[0], 1), dtype=torch.float64)
    known = prefix[:, None]
    for step in range(length):
        law = (law.unsqueeze(-1) * tables.p[depth + step][known]).flatten(1)
        known = (known.unsqueeze(-1) * tables.vocab + torch.arange(tables.vocab)).flatten(1)
    return law


def list_path_cases() -> Iterator[tuple[str, PathRule, Law]]:
    """Every registered whole-path rule, for each law of siblings that it claims to be exact for."""
    for name, kind in rule.items():
        if issubclass(kind, Traversal) and kind.declared == "exact":
            several: tuple[Law, ...] = ("several_drafts",) if kind.several_drafts else ()
            yield from (
                (f"{name}, {SAID[law]}", kind().judge(0), law) for law in (*kind.laws, *several)
            )


def audit_path(rule: PathRule, law: Law, seeds: Sequence[int] = (0, 1, 2)) -> tuple[float, int]:
    """Largest error over trees of several widths and random models, and the number of cases."""
    errors = []
    for widths in WIDTHS:
        for seed in seeds:
            vocab = 2 if len(widths) == 3 else 3
            tables = random_tables(vocab, len(widths), 10 * seed + len(widths))
            errors.append(enumerate_path_error(rule, tables, widths, law))
    return float(np.max(errors)), len(errors)
