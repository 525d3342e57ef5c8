"""Probabilities and what is drawn from them: warps, seeds, draws without replacement."""

import math
from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from spec_bench.core.draws import (
    SeededSource,
    _inverse_cdf_in_blocks,
    choose_likeliest,
    derive_row_seed,
    inverse_cdf,
    make_row_generator,
)
from spec_bench.core.gumbel import compute_sibling_distributions, condition_on_maximum, gumbel_top_k
from spec_bench.core.predrawn import PredrawnSource
from spec_bench.core.warp import (
    SamplingSettings,
    first_argmax,
    raw_token_log_probs,
    warped_log_probs,
)


@pytest.mark.parametrize(
    ("probs", "uniforms", "tokens"),
    [
        ([0.2, 0.0, 0.5, 0.3], [0.0, 0.19, 0.21, 0.69, 0.71, 0.999], [0, 0, 2, 2, 3, 3]),
        ([0.0, 1.0, 0.0], [0.0, 1.0 - 2**-53], [1, 1]),  # never one of probability zero
    ],
)
def test_inverse_cdf_picks_the_interval_of_the_uniform(probs, uniforms, tokens):
    found = inverse_cdf(torch.tensor(probs), torch.tensor(uniforms, dtype=torch.float64))
    assert found.tolist() == tokens


def laws(vocab):
    """[4, V] even, sharp, sparse and one-hot distributions."""
    generator = torch.Generator().manual_seed(vocab)
    even = torch.rand(vocab, generator=generator)
    sharp = (8 * torch.randn(vocab, generator=generator)).softmax(dim=-1)
    sparse = even * (torch.arange(vocab) % 97 == 3)
    one_hot = torch.zeros(vocab)
    one_hot[vocab // 2] = 1
    return torch.stack([even, sharp, sparse, one_hot])


@pytest.mark.parametrize("vocab", [5, 255, 256, 257, 49152])
def test_a_gpus_draws_by_blocks_are_the_tokens_of_a_scan(vocab):
    probs = laws(vocab)
    uniforms = torch.rand((4, 50), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    uniforms[:, 0], uniforms[:, 1] = 0, 1 - 2**-53
    found = _inverse_cdf_in_blocks(probs, uniforms)
    assert torch.equal(found, inverse_cdf(probs, uniforms))
    assert (probs.gather(-1, found) > 0).all()
    assert torch.equal(choose_likeliest(probs, uniforms)[3], found[3])


def test_seeds_differ_by_seed_and_by_prompt_and_do_not_run_into_each_other():
    assert len({derive_row_seed(s, p) for s in (1, 2, 12) for p in ("x", "2x", "22x")}) == 9


def test_a_probability_of_zero_is_rejected_when_the_uniform_is_zero():
    class Zero(SeededSource):
        def _draw_uniforms(self, *shape):
            return torch.zeros((1, *shape), dtype=torch.float64)

    first = Zero([]).verdict([2]).first_accepted(0, torch.tensor([[0.0, 0.5]]))
    assert first.tolist() == [1]
    assert Zero([]).verdict([3]).first_accepted(0, torch.zeros(1, 3)).tolist() == [3]
    for tests in (torch.tensor([[0, 1]]), torch.tensor([[[0, 1]]])):
        passed = Zero([]).verdict([2]).passes(tests, torch.tensor([[[0.0, 0.5]]]))
        assert passed.tolist() == [[[False, True]]]


def test_a_rows_draws_do_not_depend_on_its_neighbours():
    probs = torch.full((1, 2, 5), 0.2)

    def draw(prompts):
        draws = SeededSource(
            [make_row_generator(7, prompt, torch.device("cpu")) for prompt in prompts]
        )
        tokens = draws.categorical(probs.expand(len(prompts), -1, -1), 3)
        noise = draws.gumbel(probs.expand(len(prompts), -1, -1))
        return {p: [tokens[i].tolist(), noise[i].tolist()] for i, p in enumerate(prompts)}

    alone, together = draw(["x"]), draw(["y", "x", "z"])
    assert alone["x"] == together["x"]


def test_numbers_drawn_beforehand_are_drawn_in_as_few_calls_as_positions_allow(monkeypatch):
    """On a GPU a large call gives other numbers than a small one and then the rest."""
    sizes = []
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda part, **_: sizes.append(part.numel()))
    before = PredrawnSource([make_row_generator(0, "a", torch.device("cpu"))], (1, 11))
    before.draw_requested([(False, 2), (False, 3), (True, 2), (False, 4)])
    assert sizes == [5, 1, 1, 4]


def test_noise_is_finite_whatever_the_uniform():
    draws = SeededSource([])
    draws._draw_uniforms = lambda *shape: torch.tensor(
        [[[0.0, 0.5, 1 - 2**-53]]], dtype=torch.float64
    )
    assert draws.gumbel(torch.zeros(1, 1, 3, dtype=torch.float64)).isfinite().all()


def test_an_answers_likelihood_is_of_single_precision_whatever_the_models():
    logits, node = torch.zeros(1, 2, 3, dtype=torch.bfloat16), torch.tensor([[0, 1]])
    found = raw_token_log_probs(logits, node, node)
    assert found[0].tolist() == pytest.approx([math.log(1 / 3)] * 2, rel=1e-6)


def noise_for(log_q, seed):
    generator = torch.Generator().manual_seed(seed)
    return SeededSource([generator]).gumbel(log_q.unsqueeze(0))[0]


def test_gumbel_top_k_draws_in_the_order_of_sequential_sampling_without_replacement():
    q = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    count = 20_000
    log_q = q.log().expand(count, -1)
    tokens, _ = gumbel_top_k(log_q, noise_for(log_q, 0), 2)
    seen = Counter(map(tuple, tokens.tolist()))
    pairs = list(permutations(range(4), 2))
    expected = [count * (q[a] * q[b] / (1 - q[a])).item() for a, b in pairs]
    assert chisquare([seen[pair] for pair in pairs], expected).pvalue > 1e-6


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
    assert torch.allclose(condition_on_maximum(phi, bound), textbook, atol=1e-12)


@pytest.mark.parametrize("shift", [-500.0, -88.0, 0.0, 200.0])
def test_truncation_stays_finite_and_below_its_bound_in_float32(shift):
    phi = torch.randn(50, 9) * 20 + shift
    bound = torch.randn(50) * 5 + shift
    psi = condition_on_maximum(phi, bound)
    assert torch.isfinite(psi).all()
    assert (psi <= bound.unsqueeze(-1)).all()
    assert torch.allclose(psi.amax(-1), bound)


def test_truncation_keeps_unsupported_tokens_unsupported():
    phi = torch.tensor([[0.0, -torch.inf, 1.0]])
    assert condition_on_maximum(phi, torch.tensor([0.5]))[0, 1] == -torch.inf
    assert torch.isneginf(condition_on_maximum(phi, torch.tensor([-torch.inf]))).all()


def test_the_law_behind_drawn_tokens_is_known_where_float32_has_no_probability():
    logits = torch.tensor([[3.0, 2.0, 1.7, 1.0, 0.0]]) / 0.01
    tokens = torch.tensor([[0, 2, 1]])
    found = compute_sibling_distributions(logits.log_softmax(dim=-1), tokens)[0].double()
    left, law = logits.double(), []
    for token in tokens[0]:
        law.append(left.softmax(dim=-1))
        left = left.index_fill(-1, token, -torch.inf)
    assert torch.allclose(found, torch.cat(law), atol=1e-6)
    # The second and third tokens were nearly sure to be drawn or to be left.
    assert min(found[0, 0], found[1, 1], found[2, 1]) > 0.999


def test_a_law_without_anything_left_is_no_nan():
    log_q = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    assert compute_sibling_distributions(log_q, torch.tensor([[0, 0, 0]])).isfinite().all()


FALLING, HALVES, TIED = [0.4, 0.3, 0.2, 0.1], [0.5, 0.25, 0.125, 0.125], [0.1, 0.3, 0.3, 0.3]


@pytest.mark.parametrize(
    ("settings", "law", "probs"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1], FALLING),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30], FALLING),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0], FALLING),
        ({"top_k": 1}, [1, 0, 0, 0], FALLING),
        ({"top_k": 4}, [0.4, 0.3, 0.2, 0.1], FALLING),
        ({"top_p": 0.6}, [4 / 7, 3 / 7, 0, 0], FALLING),  # the smallest set with at least that mass
        ({"top_p": 0.71}, [4 / 9, 3 / 9, 2 / 9, 0], FALLING),
        ({"top_p": 0.1}, [1, 0, 0, 0], FALLING),
        # After top-k 2 the first token has 4/7 = 0.571 of the mass.
        ({"top_k": 2, "top_p": 0.57}, [1, 0, 0, 0], FALLING),
        ({"top_k": 2, "top_p": 0.58}, [4 / 7, 3 / 7, 0, 0], FALLING),
        ({"top_p": 0.5}, [1, 0, 0, 0], HALVES),  # a mass that equals top-p reaches it
        ({"top_p": 0.75}, [2 / 3, 1 / 3, 0, 0], HALVES),
        ({"top_k": 2}, [0, 1 / 3, 1 / 3, 1 / 3], TIED),  # all that tie at the k-th place stay
        ({"min_p": 0.3}, [4 / 9, 3 / 9, 2 / 9, 0], FALLING),  # 0.1 is less than 0.3 of 0.4
        ({"min_p": 1.0}, [0, 1 / 3, 1 / 3, 1 / 3], TIED),  # all that tie with the likeliest stay
        # At temperature 0.5 the shares of the likeliest are 9/16, 4/16 and 1/16.
        ({"temperature": 0.5, "min_p": 0.3}, [16 / 25, 9 / 25, 0, 0], FALLING),
        ({"top_p": 0.75, "min_p": 0.3}, [4 / 9, 3 / 9, 2 / 9, 0], FALLING),  # min-p first: two
    ],
)
def test_temperature_comes_first_then_top_k_then_top_p_then_min_p(settings, law, probs):
    logits = torch.tensor(probs, dtype=torch.float64).log()
    chosen = SamplingSettings(probability_dtype="float64", **settings)
    assert warped_log_probs(logits, chosen).exp().tolist() == pytest.approx(law)


def test_temperature_zero_is_one_hot_at_the_lowest_of_tied_maxima():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    assert first_argmax(logits).tolist() == [1, 0]
    probs = warped_log_probs(logits, SamplingSettings(temperature=0)).exp()
    assert probs.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    cold = warped_log_probs(torch.tensor([0.0, -10.0]), SamplingSettings(temperature=0.05))
    assert cold[1].item() == pytest.approx(-200)  # in log space the support stays


@pytest.mark.parametrize(
    "more", [{"temperature": 0}, {"temperature": 0.5, "top_k": 3, "top_p": 0.7, "min_p": 0.1}]
)
def test_logits_are_not_written_to(more):
    logits = torch.randn(3, 7)
    before = logits.clone()
    warped_log_probs(logits, SamplingSettings(**more))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": -1.0}, "temperature must be a number >= 1e-06, or 0, got -1.0"),
        ({"temperature": 1e-308}, "temperature must be a number .*, got 1e-308"),
        ({"draft_temperature": float("inf")}, "draft_temperature"),
        ({"top_k": -3}, "top_k must be a whole number >= 0"),
        ({"top_k": 2.0}, "top_k must be a whole number >= 0, got 2.0"),
        ({"top_p": 0.0}, "top_p must be a number > 0 and <= 1, got 0.0"),
        ({"min_p": 1.5}, "min_p must be a number from 0 to 1, got 1.5"),
        ({"probability_dtype": "float16"}, "float32, float64"),
    ],
)
def test_values_out_of_range_are_refused_by_name(settings, named):
    with pytest.raises(ValueError, match=named):
        SamplingSettings(**settings)


def test_a_draft_temperature_leaves_the_drafts_truncation_as_the_targets():
    chosen = SamplingSettings(0.7, 5, 0.9, draft_temperature=0.3, probability_dtype="float64")
    assert chosen.get_draft_settings() == SamplingSettings(0.3, 5, 0.9, None, "float64")
