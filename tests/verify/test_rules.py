"""Node rules on numbers one can check by hand; the proofs are in tests/audit."""

import pytest
import torch

from spec_bench.core.gumbel import laws_without_replacement
from spec_bench.verify.rules import k_seq, optimal_rho, ranked_list, recursive_rejection

P = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
Q = torch.tensor([[[0.2, 0.2, 0.6]]], dtype=torch.float64)
THERE = torch.ones(1, 2, dtype=torch.bool)


def test_recursive_rejection_uses_the_updated_draft_distribution():
    tokens = torch.tensor([[2, 1]])
    verdict = recursive_rejection(P, Q, tokens, THERE, replacement=False)
    # First: 0.2/0.6. Then p = norm(0.3, 0.1, 0) = (0.75, 0.25, 0), q = (0.5, 0.5, 0).
    assert verdict.acceptance[0].tolist() == pytest.approx([1 / 3, 0.5])
    # Residual: norm(max(0, (0.25, -0.25, 0))).
    assert verdict.residual[0].tolist() == pytest.approx([1, 0, 0])


def test_k_seq_with_one_child_is_speculative_sampling():
    tokens, there = torch.tensor([[2]]), torch.ones(1, 1, dtype=torch.bool)
    ours = k_seq(P, Q, tokens, there)
    plain = recursive_rejection(P, Q, tokens, there, replacement=True)
    assert torch.allclose(ours.acceptance, plain.acceptance)
    assert torch.allclose(ours.residual, plain.residual)


def test_rho_solves_its_equation_and_lies_between_one_and_k():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 64, 10, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    count = torch.full((64, 1), 4.0, dtype=torch.float64)
    rho = optimal_rho(p, q, count, rounds=10)
    beta = torch.minimum(q, p / rho).sum(-1, keepdim=True)
    assert torch.allclose(1 - (1 - beta) ** 4, rho * beta, atol=1e-9)
    assert ((rho >= 1) & (rho <= 4)).all()


def test_rho_one_would_make_the_residual_negative():
    # Why "rho in [1, K]" of the papers is not enough.
    p = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.4, 0.3, 0.3]], dtype=torch.float64)
    beta = torch.minimum(p, q).sum()
    assert (p - torch.minimum(q, p) * (1 - (1 - beta) ** 3) / beta).min() < -0.01
    rho = optimal_rho(p, q, torch.tensor([[3.0]], dtype=torch.float64))
    kept = torch.minimum(q, p / rho)
    assert (p - kept * (1 - (1 - kept.sum()) ** 3) / kept.sum()).min() >= -1e-12


def test_a_draft_without_mass_left_accepts_nothing_and_leaves_the_residual():
    # Below the smallest normal number a share of what is left means nothing.
    q = torch.tensor([[[0.0, -95.0, -95.0]]]).softmax(-1)
    assert 0 < q[0, 0, 1] < torch.finfo(torch.float32).tiny
    p = torch.tensor([[0.5, 0.3, 0.2]])
    verdict = recursive_rejection(p, q, torch.tensor([[0, 1]]), THERE, replacement=False)
    assert verdict.acceptance[0].tolist() == [0.5, 0.0]
    assert verdict.residual[0].tolist() == pytest.approx([0.0, 0.6, 0.4])


def test_rules_do_not_write_to_their_arguments():
    tokens = torch.tensor([[2, 1]])
    p, q = P.clone(), Q.clone()
    for replacement in (True, False):
        recursive_rejection(p, q, tokens, THERE, replacement=replacement)
    ranked_list(p, q, tokens, THERE)
    k_seq(p, q, tokens, THERE)
    assert torch.equal(p, P)
    assert torch.equal(q, Q)


def test_each_childs_own_law_gives_the_verdict_that_the_first_childs_gives():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 64, 10, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    tokens = torch.rand(64, 10, generator=generator).argsort(dim=-1)[:, :3]
    there = torch.ones(64, 3, dtype=torch.bool)
    own = laws_without_replacement(q.log(), tokens)
    each = recursive_rejection(p, own, tokens, there, replacement=False)
    first = recursive_rejection(p, q.unsqueeze(1), tokens, there, replacement=False)
    assert torch.allclose(each.acceptance, first.acceptance, atol=1e-12)
    assert torch.allclose(each.residual, first.residual, atol=1e-12)


def test_a_child_whose_probability_underflows_is_accepted_once_it_is_likeliest():
    # The draft is sure of token 0 and next of token 1, the target is sure of token 1.
    log_q = (torch.tensor([[3.0, 2.0, 0.0]]) / 0.01).log_softmax(dim=-1)
    p = torch.tensor([[0.0, 1.0, 0.0]])
    tokens = torch.tensor([[0, 1]])
    own = laws_without_replacement(log_q, tokens)
    verdict = recursive_rejection(p, own, tokens, THERE, replacement=False)
    assert verdict.acceptance.tolist() == [[0.0, 1.0]]
    assert log_q.exp()[0, 1] < 1e-38
