"""Beam verification: numbers by hand, exactness by enumeration; broken rules are caught."""

import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from spec_bench.audit import beams
from spec_bench.audit.beams import (
    THRESHOLDS,
    compute_accepted_count_error,
    compute_layer_error,
    enumerate_accepted_counts_error,
    enumerate_beam_layers_error,
    iter_layer_cases,
)
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.warp import SamplingSettings, raw_next_log_probs, warped_beam_probs
from spec_bench.verify.beams import (
    LayerVerdict,
    compute_acceptances_after_rejections,
    compute_accepted_count_probs,
    compute_layer_width,
    compute_missing_beam_probs_and_counts,
    compute_residual_chain,
    verify_layer,
)

TWO = [[0.5, 0.5], [0.2, 0.8]]
EVEN = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("likelihood", "laws", "top_k", "law"),
    [
        ([0.75, 0.25], TWO, 0, [0.375, 0.375, 0.05, 0.2]),
        ([0.75, 0.25], TWO, 2, [0.5, 0.5, 0, 0]),  # truncation acts on all beams together
        # equal parents count twice
        ([1, 1, 1], [[1, 0], [1, 0], [0, 1]], 0, [1 / 3, 0, 1 / 3, 0, 0, 1 / 3]),
        ([1, 0], EVEN, 0, [0.5, 0.5, 0, 0]),
        ([0, 0], EVEN, 0, [0] * 4),  # nobody is there
    ],
)
def test_the_beam_law_weighs_each_parent_by_its_likelihood(likelihood, laws, top_k, law):
    settings = SamplingSettings(top_k=top_k, probability_dtype="float64")
    given = (torch.tensor([part], dtype=torch.float64).log() for part in (likelihood, laws))
    assert warped_beam_probs(*given, settings).tolist() == [pytest.approx(law)]


def test_beams_are_weighed_against_each_other_however_unlikely_all_are():
    likelihood = torch.tensor([[-1e8, -1e8 + math.log(3)]], dtype=torch.float64)
    log_p = torch.tensor([[[0.0, -torch.inf]] * 2])  # of float32, whose steps are 8 there
    law = warped_beam_probs(likelihood, log_p, SamplingSettings())
    assert law[0].tolist() == pytest.approx([0.25, 0, 0.75, 0])


def test_a_stopped_beam_repeats_its_stop_token_and_keeps_its_likelihood():
    logits = torch.zeros((1, 2, 3), dtype=torch.float64)
    log_p = raw_next_log_probs(logits, torch.tensor([[True, False]]), torch.tensor([[2, 1]]))
    assert log_p[0, 0].exp().tolist() == [0, 0, 1]
    assert log_p[0, 1].exp().tolist() == pytest.approx([1 / 3] * 3)


def test_the_residual_chain_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.25, 0.0, 0.5]], dtype=torch.float64)
    chain = compute_residual_chain(p, q, 2)
    # p - q = (1/4, 0, 1/4, -1/2); then (1/2, 0, 1/2, 0) - q = (1/4, -1/4, 1/2, -1/2).
    assert chain[0, 1].tolist() == pytest.approx([0.5, 0, 0.5, 0])
    assert chain[0, 2].tolist() == pytest.approx([1 / 3, 0, 2 / 3, 0])
    assert compute_acceptances_after_rejections(chain, q).tolist() == [pytest.approx([0.5, 0.25])]


def test_the_count_law_by_hand():
    alpha = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    # None: 1/2 * 3/4. Two: 1/2 * 1/2, the second after an acceptance. One: the rest.
    assert compute_accepted_count_probs(alpha).tolist() == [pytest.approx([0.375, 0.375, 0.25])]


@pytest.mark.parametrize(
    ("threshold", "least", "width"),
    [(0.0, 1, 2), (0.25, 1, 2), (0.26, 1, 1), (0.625, 1, 1), (0.63, 1, 1), (0.63, 2, 2)],
)
def test_the_width_is_the_largest_that_is_reached_often_enough(threshold, least, width):
    alpha = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    assert compute_layer_width(alpha, threshold, least).item() == width


def test_a_draft_beyond_the_width_is_no_rejection():
    """Of two drafts for one place the first is accepted, so what follows is drawn from p itself."""
    p = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    sure = SimpleNamespace(succeeds=lambda _, chance: chance > 0)
    for width, accepted, in_a_row in ((1, [True, False], 0), (0, [False, False], 0)):
        verdict = verify_layer(
            compute_residual_chain(p, p, 2),
            p,
            torch.tensor([[0, 1]]),
            torch.tensor([width]),
            sure,
            0,
        )
        assert verdict.accepted.tolist() == [accepted]
        assert verdict.rejected_in_a_row.tolist() == [in_a_row]


def test_a_layer_is_filled_up_from_the_residual_and_then_from_p():
    """Two of three are wanted after one rejection: one from p', one from p, none of the last."""
    p, q = (
        torch.tensor([each], dtype=torch.float64) for each in ([0.5, 0.25, 0.25], [0.5, 0.5, 0])
    )
    chain = compute_residual_chain(p, q, 3)
    verdict = LayerVerdict(torch.zeros(1, 3, dtype=torch.bool), torch.tensor([1]))
    laws, wanted = compute_missing_beam_probs_and_counts(chain, verdict, torch.tensor([2]))
    assert wanted.tolist() == [2]
    assert laws[0].tolist() == [[0, 0, 1], [0.5, 0.25, 0.25], [1, 0, 0]]


def test_a_layers_beams_are_independent_draws_from_the_beam_law():
    error, cases = enumerate_beam_layers_error()
    assert error <= TOLERANCE
    assert cases > 500


@pytest.mark.parametrize("width", [1, 2])
def test_a_layer_of_a_given_width_is_exact(width, monkeypatch):
    monkeypatch.setattr(beams, "compute_layer_width", lambda *_: torch.tensor([width]))
    assert compute_layer_error(next(iter_layer_cases(seed=5)), 2, 0.0) <= TOLERANCE


def test_the_width_recursion_counts_as_the_trials_do():
    error, _ = enumerate_accepted_counts_error()
    assert error <= TOLERANCE


def _sorted_drafts(chain, q, cells, width, trials, first):
    """Likeliest drafts first instead of in drawing order."""
    order = q.gather(1, cells).argsort(dim=1, descending=True, stable=True)
    verdict = verify_layer(chain, q, cells.gather(1, order), width, trials, first)
    accepted = torch.zeros_like(verdict.accepted).scatter(1, order, verdict.accepted)
    return LayerVerdict(accepted, verdict.rejected_in_a_row)


def _dropped_orphans(p, q, trials):
    """Drafts below rejected parents dropped as printed: q renormalised over what stands."""
    return compute_residual_chain(p, q / q.sum(dim=-1, keepdim=True).clamp(min=1e-300), trials)


@pytest.mark.parametrize(
    ("part", "broken"),
    [("verify_layer", _sorted_drafts), ("compute_residual_chain", _dropped_orphans)],
)
def test_a_broken_verification_is_caught(part, broken, monkeypatch):
    monkeypatch.setattr(beams, part, broken)
    settings = product(iter_layer_cases(), (1, 2, 3), THRESHOLDS)
    assert any(compute_layer_error(*each) > 0.01 for each in settings)


def _forgets_nobody(alpha):
    """The recursion without its base P(m, 0) = prod (1 - alpha): the mass ends at one accepted."""
    law = compute_accepted_count_probs(alpha)
    law[:, 1] += law[:, 0]
    law[:, 0] = 0
    return law


def _subtracts_twice(alpha):
    """Acceptance after j rejections taken from the residual after 2 j."""
    return compute_accepted_count_probs(alpha[:, [0, 2, 2]])


@pytest.mark.parametrize("broken", [_forgets_nobody, _subtracts_twice])
def test_a_wrong_width_recursion_is_caught(broken):
    errors = (compute_accepted_count_error(case, 3, broken) for case in iter_layer_cases())
    assert any(error > 0.01 for error in errors)


def test_cases_cover_rejected_parents():
    assert {bool(case.has_accepted_parent.all()) for case in iter_layer_cases()} == {True, False}
