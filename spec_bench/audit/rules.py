"""Audits every node rule by enumeration: averaged over all draws, the output has the target's law.

A node rule judges the children of one node. Letters: B draws of one node's C children, V
vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spec_bench.core.gumbel import compute_sibling_distributions
from spec_bench.core.tree import Siblings
from spec_bench.records.types import Lossless
from spec_bench.verify.base import NodeVerifier, rule
from spec_bench.verify.walk import NodeRule, Verdict

TOLERANCE = 1e-12
MAX_CHILDREN = 4  # of a node in a rule's cases
VOCABS = (3, 5)  # in the larger vocabulary the last of 4 children has a choice

Law = Siblings | Literal["several_drafts"]
LAW_NAMES: dict[Law, str] = {
    "iid": "i.i.d.",
    "without_replacement": "without replacement",
    "deterministic": "ranked list",
    "several_drafts": "several drafts",
    "top_and_sampled": "top and sampled",
}


class EnumeratedError(NamedTuple):
    """Largest error over all enumerated cases, and the number of cases."""

    largest: float
    cases: int  # or outcomes, enumerated


@dataclass(frozen=True)
class RuleCase:
    """A node rule with a kind of siblings."""

    name: str  # for the table
    rule: NodeRule
    # kind of siblings; with ``several_drafts`` child j comes from draft j, with ``deterministic``
    # the children are the draft's best tokens
    law: Law
    sampled_count: int = 1  # number of drawn children among top-and-sampled ones


def iter_rule_cases(mark: Lossless = "exact") -> Iterator[RuleCase]:
    """Yields every registered node rule with a mark, for each kind of siblings that it declares."""
    kind: Any
    for kind in rule.values():
        if issubclass(kind, NodeVerifier) and kind.declared == mark:
            for law, settings in kind.laws.items():
                for counts in (
                    [{"sampled": 1}, {"sampled": 2}] if law == "top_and_sampled" else [{}]
                ):
                    yield from iter_cases_of_rule(kind(**settings, **counts), law)


def iter_cases_of_rule(verifier: NodeVerifier, law: Siblings) -> Iterator[RuleCase]:
    """Yields the cases of a node rule for one kind of siblings; i.i.d. siblings also from several
    drafts if the rule allows that.
    """
    judge = verifier.judge(depth=1)
    sampled_count = getattr(verifier, "sampled", 1)
    suffix = f", {sampled_count} drawn" if law == "top_and_sampled" else ""
    yield RuleCase(f"{verifier.name}, {LAW_NAMES[law]}{suffix}", judge, law, sampled_count)
    if law == "iid" and verifier.several_drafts:
        yield RuleCase(f"{verifier.name}, {LAW_NAMES['several_drafts']}", judge, "several_drafts")


def iter_random_and_adversarial_pairs(
    vocab: int,
    seed: int,
    random_pairs: int = 40,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields pairs of p [V] and drafts [4, V], float64: random ones of several sharpnesses, then
    corner cases (zeros, one-hot, equal, disjoint, different truncated supports, near-zero mass).
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(sharpness: float, keep: int = vocab) -> Tensor:
        logits = sharpness * torch.randn(vocab, generator=generator, dtype=torch.float64)
        kept_tokens = torch.randperm(vocab, generator=generator)[:keep]
        masked_logits = torch.full_like(logits, -torch.inf)
        masked_logits[kept_tokens] = logits[kept_tokens]
        return masked_logits.softmax(dim=-1)

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


def compute_child_law(
    q: Tensor,
    siblings: Tensor,
    child: int,
    width: int,
    law: Law,
    sampled_count: int = 1,
) -> Tensor:
    """Computes the law [B, V] from which child number ``child`` of ``width`` is drawn; all zero if
    no token remains. q is [B, 4, V]; siblings [B, child] are the tokens of the earlier children.
    """
    if law == "several_drafts":
        return q[:, child]
    child_q = q[:, 0]
    vocab = q.shape[-1]
    by_rank = child_q.sort(dim=-1, descending=True, stable=True)
    if law == "deterministic":
        if child >= vocab:
            return torch.zeros_like(child_q)
        return one_hot(by_rank.indices[:, child], vocab).to(q.dtype)
    if law == "top_and_sampled":  # the drawn children come first and exclude the best tokens
        sampled_count = min(sampled_count, width)
        if child >= sampled_count:
            best = one_hot(by_rank.indices[:, child - sampled_count], vocab)
            return best * (by_rank.values[:, child - sampled_count, None] > 0).to(q.dtype)
        siblings = by_rank.indices[:, : width - sampled_count]
    if law in ("without_replacement", "top_and_sampled"):
        child_q = child_q.scatter(1, siblings, 0.0)
        total = child_q.sum(dim=1, keepdim=True)
        child_q = torch.where(total > 0, child_q / total, 0.0)
    return child_q


def list_next_children(law: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lists every possible next child of B draws: the index of its draw, its token, whether it
    exists, and its probability. An absent child has token 0.
    """
    present = present & (law.sum(dim=1) > 0)
    law = torch.where(present[:, None], law, torch.eye(law.shape[1], dtype=law.dtype)[0])
    row, token = law.nonzero(as_tuple=True)
    return row, token, present[row], law[row, token]


class EnumeratedChildren(NamedTuple):
    """All draws of C children, one per row."""

    tokens: Tensor  # [B, C]
    valid: Tensor  # [B, C] whether they exist
    probability: Tensor  # [B]


def enumerate_children(
    q: Tensor,
    children: int,
    law: Law,
    sampled_count: int = 1,
) -> EnumeratedChildren:
    """Enumerates all draws of children from q [4, V]. Only ``several_drafts`` uses more than the
    first draft.
    """
    tokens = torch.empty((1, 0), dtype=torch.long)
    valid = tokens.bool()
    probability = q.new_ones(1)
    for child in range(children):
        rows = len(tokens)
        child_law = compute_child_law(
            q.expand(rows, -1, -1),
            tokens,
            child,
            children,
            law,
            sampled_count,
        )
        row, token, present, chance = list_next_children(
            child_law, torch.ones(rows, dtype=torch.bool)
        )
        tokens = torch.cat([tokens[row], token[:, None]], dim=1)
        valid = torch.cat([valid[row], present[:, None]], dim=1)
        probability = probability[row] * chance
    return EnumeratedChildren(tokens, valid, probability)


class WrongVerdictError(ValueError):
    """A rule returned no valid verdict."""


def check_verdict_shapes(verdict: object, tokens: Tensor, p: Tensor) -> Verdict:
    """Checks the type and shapes of a rule's verdict on children [B, C] under p [B, V], and returns
    the verdict. Raises WrongVerdictError if they are wrong.
    """
    if not isinstance(verdict, Verdict):
        raise WrongVerdictError(f"must return a Verdict, got {type(verdict).__name__}")
    for name, reference, columns in (("acceptance", tokens, "children"), ("residual", p, "tokens")):
        tensor = getattr(verdict, name)
        shape = [*tensor.shape] if isinstance(tensor, Tensor) else type(tensor).__name__
        if shape != [*reference.shape]:
            expectation = f"must be {[*reference.shape]}: rows x {columns}"
            raise WrongVerdictError(f"its Verdict's {name} is {shape}, {expectation}")
    return verdict


def compute_output_law(
    case: RuleCase,
    p: Tensor,
    q: Tensor,
    children: int,
    absent_place: int | None = None,
    has_child_laws: bool = False,
) -> Tensor:
    """Computes the law [V] of the output token, summed over all draws of C children from q [4, V].
    It equals p [V] if the rule is lossless.

    ``absent_place`` inserts an absent child at that place, once with each token. ``has_child_laws``
    gives the rule each child's own q instead of one q, as trees of distinct siblings do.
    """
    tokens, valid, probability = enumerate_children(q, children, case.law, case.sampled_count)
    drafts = max(children, 1) if case.law == "several_drafts" else 1
    laws = q[:drafts].expand(len(tokens), -1, -1)
    if has_child_laws and children:
        laws = compute_sibling_distributions(q[0].log().expand(len(tokens), -1), tokens)
    if absent_place is not None:
        vocab = len(p)
        probability = probability.repeat_interleave(vocab) / vocab
        every_token = torch.arange(vocab).repeat(len(tokens))[:, None]
        tokens = _repeat_rows_and_insert_column(tokens, absent_place, every_token)
        valid = _repeat_rows_and_insert_column(valid, absent_place, every_token < 0)
        has_own = laws.shape[1] > 1  # whether each child has its own q
        laws = _repeat_rows_and_insert_column(
            laws, absent_place if has_own else 0, q[None, :has_own].expand(len(every_token), -1, -1)
        )
    p_rows = p.expand(len(tokens), -1)
    p_argument = p_rows.clone()
    q_argument = laws.clone()
    verdict = case.rule(
        p_argument,
        None if case.law == "deterministic" else q_argument,
        tokens,
        valid,
    )
    if not (torch.equal(p_rows, p_argument) and torch.equal(laws, q_argument)):
        raise WrongVerdictError("must not write into its arguments p and q")
    acceptance, residual = check_verdict_shapes(verdict, tokens, p_rows)
    law = torch.zeros_like(p)
    reach_probs = probability
    for token, present, accept in zip(tokens.T, valid.T, acceptance.T, strict=True):
        law = law.index_add(0, token, reach_probs * accept * present)
        reach_probs = reach_probs * (1 - accept)
    return law + (reach_probs.unsqueeze(1) * residual).sum(dim=0)


def _repeat_rows_and_insert_column(rows: Tensor, place: int, column: Tensor) -> Tensor:
    """Repeats every row of [B, C, ...] n times and inserts a column [n B, 1, ...] at ``place``."""
    rows = rows.repeat_interleave(len(column) // len(rows), dim=0)
    return torch.cat([rows[:, :place], column, rows[:, place:]], dim=1)


def enumerate_rule_error(
    case: RuleCase,
    *,
    vocabs: Sequence[int] = VOCABS,
    seed: int = 0,
) -> EnumeratedError:
    """Computes the largest |output law - p| over all pairs, with 1 to 4 children, and with up to 2
    children and an absent one; counts the cases.
    """
    # For top-and-sampled children the place decides which are drawn and which are best tokens.
    absent_last = case.law == "top_and_sampled"
    children: list[tuple[int, int | None]] = [(n, None) for n in range(1, MAX_CHILDREN + 1)]
    children += [(n, place) for n in range(3) for place in range(n if absent_last else 0, n + 1)]
    errors = [
        (compute_output_law(case, p, q, *counts, has_child_laws) - p).abs().max().item()
        for vocab in vocabs
        for p, q in iter_random_and_adversarial_pairs(vocab, seed)
        for counts in children
        for has_child_laws in ((False, True) if case.law == "without_replacement" else (False,))
    ]
    return EnumeratedError(float(np.max(errors)), len(errors))
