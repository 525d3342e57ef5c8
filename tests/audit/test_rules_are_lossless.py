"""Every rule by enumeration; the ways to break one that papers misprint are in mutants.yaml."""

import pytest
import torch

from spec_bench.audit.rules import (
    TOLERANCE,
    adversarial_pairs,
    audit_rule,
    children_law,
    rule_cases,
)


@pytest.mark.parametrize("case", rule_cases(), ids=lambda case: case.name)
def test_the_output_has_the_targets_law(case):
    for vocab in (3, 4):
        error, cases = audit_rule(case, vocab=vocab, seed=vocab)
        assert error <= TOLERANCE
        assert cases > 100


@pytest.mark.parametrize("case", rule_cases(), ids=lambda case: case.name)
def test_children_that_are_not_there_are_not_accepted_and_change_nothing(case):
    for p, drafts in adversarial_pairs(4, seed=1, random_pairs=12):
        tokens, valid, _ = children_law(drafts, 2, case.law, case.sampled)
        rows = len(tokens)
        q = None if case.law == "deterministic" else drafts[:1].expand(rows, -1, -1)
        wider = q
        if case.law == "several_drafts":
            q, wider = (drafts[:count].expand(rows, -1, -1) for count in (2, 3))
        p = p.expand(rows, -1)
        alone = case.rule(p, q, tokens, valid)
        for absent in range(4):
            more = torch.cat([tokens, torch.full_like(tokens[:, :1], absent)], dim=1)
            there = torch.cat([valid, torch.zeros_like(valid[:, :1])], dim=1)
            verdict = case.rule(p, wider, more, there)
            torch.testing.assert_close(verdict.acceptance[:, :2], alone.acceptance)
            torch.testing.assert_close(verdict.residual, alone.residual)
            assert not verdict.acceptance[:, 2].any()
        nothing = case.rule(p, q, tokens, torch.zeros_like(valid))
        assert not nothing.acceptance.any()
        torch.testing.assert_close(nothing.residual, p)
