"""Sampling without replacement: its law, and the truncation of stochastic beam search."""

from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from spec_bench.core.draws import SeededDraws
from spec_bench.core.gumbel import gumbel_top_k, laws_without_replacement, truncated_gumbel


def noise_for(log_q, seed):
    generator = torch.Generator().manual_seed(seed)
    return SeededDraws([generator]).gumbel(log_q.unsqueeze(0))[0]


def test_gumbel_top_k_draws_in_the_order_of_sequential_sampling_without_replacement():
    q = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    count = 20_000
    log_q = q.log().expand(count, -1)
    tokens, _ = gumbel_top_k(log_q, noise_for(log_q, 0), 2)
    seen = Counter(map(tuple, tokens.tolist()))
    pairs = list(permutations(range(4), 2))
    expected = [count * (q[a] * q[b] / (1 - q[a])).item() for a, b in pairs]
    assert chisquare([seen[pair] for pair in pairs], expected).pvalue > 1e-6


def test_siblings_without_replacement_are_distinct():
    log_q = torch.randn(200, 6).log_softmax(-1)
    tokens, valid = gumbel_top_k(log_q, noise_for(log_q, 1), 4)
    assert valid.all()
    assert all(len(set(row)) == 4 for row in tokens.tolist())


def test_tokens_outside_the_support_are_not_valid():
    log_q = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    tokens, valid = gumbel_top_k(log_q, noise_for(log_q, 2), 3)
    assert tokens[0, 0] == 0
    assert valid.tolist() == [[True, False, False]]


def test_truncation_agrees_with_the_textbook_form_where_that_is_finite():
    phi = torch.randn(50, 9, dtype=torch.float64) * 3
    bound = torch.randn(50, dtype=torch.float64)
    top = phi.amax(-1, keepdim=True)
    textbook = -torch.log(torch.exp(-bound.unsqueeze(-1)) - torch.exp(-top) + torch.exp(-phi))
    assert torch.allclose(truncated_gumbel(phi, bound), textbook, atol=1e-12)


@pytest.mark.parametrize("shift", [-500.0, -88.0, 0.0, 200.0])
def test_truncation_stays_finite_and_below_its_bound_in_float32(shift):
    phi = torch.randn(50, 9) * 20 + shift
    bound = torch.randn(50) * 5 + shift
    psi = truncated_gumbel(phi, bound)
    assert torch.isfinite(psi).all()
    assert (psi <= bound.unsqueeze(-1)).all()
    assert torch.allclose(psi.amax(-1), bound)


def test_truncation_keeps_unsupported_tokens_unsupported():
    phi = torch.tensor([[0.0, -torch.inf, 1.0]])
    assert truncated_gumbel(phi, torch.tensor([0.5]))[0, 1] == -torch.inf
    assert torch.isneginf(truncated_gumbel(phi, torch.tensor([-torch.inf]))).all()


def test_truncation_keeps_the_order_within_a_parent():
    phi = torch.randn(30, 8, dtype=torch.float64)
    psi = truncated_gumbel(phi, torch.zeros(30, dtype=torch.float64))
    assert torch.equal(phi.argsort(-1), psi.argsort(-1))


def test_the_law_behind_drawn_tokens_is_known_where_float32_has_no_probability():
    logits = torch.tensor([[3.0, 2.0, 1.7, 1.0, 0.0]]) / 0.01
    tokens = torch.tensor([[0, 2, 1]])
    found = laws_without_replacement(logits.log_softmax(dim=-1), tokens)[0].double()
    left, law = logits.double(), []
    for token in tokens[0]:
        law.append(left.softmax(dim=-1))
        left = left.index_fill(-1, token, -torch.inf)
    assert torch.allclose(found, torch.cat(law), atol=1e-6)
    # The second and third tokens were nearly sure to be drawn or to be left.
    assert found[0, 0] > 0.999
    assert found[1, 1] > 0.999
    assert found[2, 1] > 0.999


def test_a_law_without_anything_left_is_no_nan():
    log_q = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert laws_without_replacement(log_q, torch.tensor([[0, 0, 0]])).isfinite().all()
