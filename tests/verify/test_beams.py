"""Beam verification: numbers by hand, exactness by enumeration; broken rules are caught."""

from itertools import product

import pytest
import torch

from spec_bench.audit import beams
from spec_bench.audit.beams import (
    THRESHOLDS,
    audit_counts,
    audit_layers,
    count_error,
    layer_cases,
    layer_error,
)
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.warp import SamplingSettings, beam_probs, next_token_log_probs
from spec_bench.verify.beams import (
    LayerVerdict,
    acceptance_in_a_row,
    accepted_count_law,
    layer_width,
    residual_chain,
    verify_layer,
)
from spec_bench.verify.rules import recursive_rejection

P = torch.tensor([[0.5, 0.25, 0.25, 0.0]], dtype=torch.float64)
Q = torch.tensor([[0.25, 0.25, 0.0, 0.5]], dtype=torch.float64)


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
    assert beam_probs(*given, settings).tolist() == [pytest.approx(law)]


def test_a_stopped_beam_repeats_its_stop_token_and_keeps_its_likelihood():
    logits = torch.zeros((1, 2, 3), dtype=torch.float64)
    log_p = next_token_log_probs(logits, torch.tensor([[True, False]]), torch.tensor([[2, 1]]))
    assert log_p[0, 0].exp().tolist() == [0, 0, 1]
    assert log_p[0, 1].exp().tolist() == pytest.approx([1 / 3] * 3)


def test_the_residual_chain_by_hand():
    chain = residual_chain(P, Q, 2)
    # p - q = (1/4, 0, 1/4, -1/2); then (1/2, 0, 1/2, 0) - q = (1/4, -1/4, 1/2, -1/2).
    assert chain[0, 1].tolist() == pytest.approx([0.5, 0, 0.5, 0])
    assert chain[0, 2].tolist() == pytest.approx([1 / 3, 0, 2 / 3, 0])
    assert acceptance_in_a_row(chain, Q).tolist() == [pytest.approx([0.5, 0.25])]


def test_the_count_law_by_hand():
    alpha = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    # None: 1/2 * 3/4. Two: 1/2 * 1/2, the second after an acceptance. One: the rest.
    assert accepted_count_law(alpha).tolist() == [pytest.approx([0.375, 0.375, 0.25])]


@pytest.mark.parametrize(
    ("threshold", "least", "width"),
    [(0.0, 1, 2), (0.25, 1, 2), (0.26, 1, 1), (0.625, 1, 1), (0.63, 1, 1), (0.63, 2, 2)],
)
def test_the_width_is_the_largest_that_is_reached_often_enough(threshold, least, width):
    alpha = torch.tensor([[0.5, 0.25]], dtype=torch.float64)
    assert layer_width(alpha, threshold, least).item() == width


def test_a_layers_beams_are_independent_draws_from_the_beam_law():
    error, cases = audit_layers()
    assert error <= TOLERANCE
    assert cases > 500


def test_the_width_recursion_counts_as_the_trials_do():
    error, _ = audit_counts()
    assert error <= TOLERANCE


def test_one_draft_is_judged_as_in_speculative_decoding():
    for case in layer_cases(seed=3):
        chain = residual_chain(case.p[None], case.q[None], 1)
        for cell in range(4):
            token, there = torch.tensor([[cell]]), torch.tensor([[True]])
            rule = recursive_rejection(
                case.p[None], case.q[None, None], token, there, replacement=True
            )
            asked = ChanceOnly()
            verify_layer(chain, case.q[None], token, torch.tensor([1]), asked, 0)
            assert asked.chances == [pytest.approx(rule.acceptance.item(), abs=1e-15)]
            torch.testing.assert_close(chain[:, 1], rule.residual)


class ChanceOnly:
    """Trials that all fail and keep what they were asked."""

    def __init__(self):
        self.chances = []

    def succeeds(self, index, probability):
        self.chances.append(probability.item())
        return torch.tensor([False])


def _inverted(chain, q, cells, width, trials, first):
    """Algorithm 1 line 16 as printed: q / p'."""
    swapped = torch.where(chain > 0, q.unsqueeze(1) ** 2 / chain, 0.0)
    return verify_layer(swapped, q, cells, width, trials, first)


def _without_reset(chain, q, cells, width, trials, first):
    """p' stays where it was after an acceptance."""
    rows, rejected = torch.arange(len(cells)), torch.zeros(len(cells), dtype=torch.long)
    accepted = []
    for draft in range(cells.shape[1]):
        cell = cells[:, draft]
        there = sum(accepted, torch.zeros_like(rejected)) < width
        ratio = (chain[rows, rejected, cell] / q[rows, cell].clamp(min=1e-300)).clamp(max=1)
        hit = trials.succeeds(first + draft, torch.where(there & (q[rows, cell] > 0), ratio, 0.0))
        rejected = torch.where(there & ~hit, rejected + 1, rejected)
        accepted.append(hit)
    return LayerVerdict(torch.stack(accepted, dim=1), rejected)


def _sorted_drafts(chain, q, cells, width, trials, first):
    """Likeliest drafts first instead of in drawing order."""
    order = q.gather(1, cells).argsort(dim=1, descending=True, stable=True)
    verdict = verify_layer(chain, q, cells.gather(1, order), width, trials, first)
    accepted = torch.zeros_like(verdict.accepted).scatter(1, order, verdict.accepted)
    return LayerVerdict(accepted, verdict.rejected_in_a_row)


def _dropped_orphans(p, q, trials):
    """Drafts below rejected parents dropped as printed: q renormalised over what stands."""
    return residual_chain(p, q / q.sum(dim=-1, keepdim=True).clamp(min=1e-300), trials)


@pytest.mark.parametrize(
    ("part", "broken"),
    [
        ("verify_layer", _inverted),
        ("verify_layer", _without_reset),
        ("verify_layer", _sorted_drafts),
        ("residual_chain", _dropped_orphans),
    ],
)
def test_a_broken_verification_is_caught(part, broken, monkeypatch):
    monkeypatch.setattr(beams, part, broken)
    settings = product(layer_cases(), (1, 2, 3), THRESHOLDS)
    assert any(layer_error(*each) > 0.01 for each in settings)


def test_a_width_that_follows_the_acceptances_is_caught(monkeypatch):
    """W = what was accepted: the law of one beam, given one, is not p."""
    case = next(layer_cases(seed=5))
    for width in (1, 2):
        monkeypatch.setattr(beams, "layer_width", lambda *_, w=width: torch.tensor([w]))
        assert layer_error(case, 2, 0.0) <= TOLERANCE
    count = accepted_count_law(
        acceptance_in_a_row(residual_chain(case.p[None], case.q[None], 2), case.q[None])
    )[0]
    first_if_two = torch.zeros(4, dtype=torch.float64)
    for cells in ((a, b) for a in range(4) for b in range(4)):
        chance = case.q[list(cells)].prod()
        for cell in cells:
            chance = chance * (case.p[cell] / case.q[cell]).clamp(max=1)
        first_if_two[cells[0]] += chance
    assert (first_if_two / count[2] - case.p).abs().max() > 0.01


def _forgets_nobody(alpha):
    """The recursion without its base P(m, 0) = prod (1 - alpha): the mass ends at one accepted."""
    law = accepted_count_law(alpha)
    law[:, 1] += law[:, 0]
    law[:, 0] = 0
    return law


def _subtracts_twice(alpha):
    """Acceptance after j rejections taken from the residual after 2 j."""
    return accepted_count_law(alpha[:, [0, 2, 2]])


@pytest.mark.parametrize("broken", [_forgets_nobody, _subtracts_twice])
def test_a_wrong_width_recursion_is_caught(broken):
    errors = (count_error(case, 3, broken) for case in layer_cases())  # type: ignore[arg-type]
    assert any(error > 0.01 for error in errors)


def test_cases_cover_rejected_parents():
    cases = list(layer_cases())
    assert any(not case.stands.all() for case in cases)
    assert any(case.stands.all() for case in cases)
