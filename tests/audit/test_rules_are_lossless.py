"""Every rule by enumeration; the ways to break one that the papers misprint are caught."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from spec_bench.audit.rules import TOLERANCE, RuleCase, audit_rule, rule_cases
from spec_bench.verify.rules import Verdict, recursive_rejection


@pytest.mark.parametrize("case", rule_cases(), ids=lambda case: case.name)
def test_the_output_has_the_targets_law(case: RuleCase) -> None:
    for vocab in (3, 4):
        error, cases = audit_rule(case, vocab=vocab, seed=vocab)
        assert error <= TOLERANCE
        assert cases > 100


def without_replacement() -> RuleCase:
    cases = {case.name: case for case in rule_cases()}
    return cases["recursive_rejection, without replacement"]


def test_a_wrong_residual_is_caught() -> None:
    def wrong(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
        right = recursive_rejection(p, q, tokens, valid, replacement=False)
        return Verdict(right.acceptance, p)

    assert audit_rule(dataclasses.replace(without_replacement(), rule=wrong))[0] > 0.01


def test_a_ratio_with_the_original_draft_distribution_is_caught() -> None:
    def wrong(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
        return recursive_rejection(p, q, tokens, valid, replacement=True)

    assert audit_rule(dataclasses.replace(without_replacement(), rule=wrong))[0] > 0.01


def test_an_inverted_ratio_is_caught() -> None:
    def wrong(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
        right = recursive_rejection(p, q, tokens, valid, replacement=False)
        ratio = q[:, 0].gather(1, tokens) / p.gather(1, tokens).clamp(min=1e-300)
        return Verdict(ratio.clamp(max=1.0) * valid, right.residual)

    assert audit_rule(dataclasses.replace(without_replacement(), rule=wrong))[0] > 0.01


def test_k_seq_with_rho_one_is_caught() -> None:
    def wrong(p: Tensor, q: Tensor, tokens: Tensor, valid: Tensor) -> Verdict:
        kept = torch.minimum(p, q[:, 0])
        beta = kept.sum(-1, keepdim=True).clamp(min=1e-300)
        count = valid.sum(-1, keepdim=True)
        residual = (p - kept * (1 - (1 - beta) ** count) / beta).clamp(min=0)
        residual = residual / residual.sum(-1, keepdim=True).clamp(min=1e-300)
        ratio = p.gather(1, tokens) / q[:, 0].gather(1, tokens).clamp(min=1e-300)
        return Verdict(ratio.clamp(max=1.0) * valid, residual)

    case = next(case for case in rule_cases() if case.name == "k_seq, i.i.d.")
    assert audit_rule(dataclasses.replace(case, rule=wrong))[0] > 0.01
