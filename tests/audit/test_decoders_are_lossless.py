"""Decoders end to end on a Markov chain; broken ones are caught."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spec_bench.audit.catalogue import (
    AUDIT_CASES,
    HEAD_CASES,
    SETTINGS,
    TYPICAL_CASES,
    AuditCase,
)
from spec_bench.audit.decoders import (
    FALSE_ALARM_RATE,
    chi_square,
    enumerated_error,
    total_variation,
)
from spec_bench.audit.enumeration import outcomes
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.draws import Draws
from spec_bench.core.tree import Tree
from spec_bench.decode.decoder import Decoder
from spec_bench.tree.stochastic_beam import StochasticBeam
from spec_bench.verify.verdict import Verdict

WARM = SETTINGS["temperature 1"]
CASES = {case.decoder["name"]: case for case in AUDIT_CASES}
FAST = [case for case in AUDIT_CASES if case.enumerable and case.decoder["name"] != "rsd_c"]


def test_enumeration_visits_every_outcome_once_with_its_probability() -> None:
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    found = list(outcomes(lambda draws: (draws.token(probs).item(), draws.token(probs).item())))
    assert found == [
        (0.0625, (0, 0)),
        (0.1875, (0, 1)),
        (0.1875, (1, 0)),
        (0.5625, (1, 1)),
    ]


@pytest.mark.parametrize("label", SETTINGS)
@pytest.mark.parametrize("case", FAST, ids=lambda case: case.decoder["name"])
def test_one_iteration_has_exactly_the_chains_law(case: AuditCase, label: str) -> None:
    error, count = enumerated_error(case.decoder, SETTINGS[label])
    assert error <= TOLERANCE
    assert count >= 1


@pytest.mark.parametrize("case", AUDIT_CASES, ids=lambda case: case.decoder["name"])
def test_several_iterations_in_a_batch_follow_the_chain(case: AuditCase) -> None:
    assert chi_square(case.decoder, WARM, samples=4000, seed=1) >= FALSE_ALARM_RATE


@pytest.mark.parametrize("label", SETTINGS)
@pytest.mark.parametrize("case", HEAD_CASES, ids=lambda case: case.decoder["name"])
def test_draft_heads_have_exactly_the_chains_law(case: AuditCase, label: str) -> None:
    error, count = enumerated_error(case.decoder, SETTINGS[label])
    assert error <= TOLERANCE
    assert count > 1


@pytest.mark.parametrize("case", HEAD_CASES, ids=lambda case: case.decoder["name"])
def test_draft_heads_follow_the_chain_over_several_iterations(case: AuditCase) -> None:
    assert chi_square(case.decoder, WARM, samples=4000, seed=1) >= FALSE_ALARM_RATE


@pytest.mark.parametrize("case", TYPICAL_CASES, ids=lambda case: case.decoder["name"])
def test_typical_acceptance_is_off_by_a_distance_that_is_measured(case: AuditCase) -> None:
    assert 0.01 < total_variation(case.decoder, WARM) < 1


@pytest.mark.parametrize("label", SETTINGS)
def test_stochastic_beam_search_follows_the_chain(label: str) -> None:
    p_value = chi_square(CASES["rsd_s"].decoder, SETTINGS[label], samples=20_000, seed=2)
    assert p_value >= FALSE_ALARM_RATE


def test_a_stochastic_beam_with_a_deterministic_draft_is_exact_by_enumeration() -> None:
    error, _ = enumerated_error(CASES["rsd_s"].decoder, SETTINGS["temperature 1, draft at 0"])
    assert error <= TOLERANCE


def test_siblings_tested_in_another_order_than_decreasing_psi_are_caught() -> None:
    def reverse_order(decoder: Decoder) -> None:
        class Reversed(StochasticBeam):
            def grow(self, tree: Tree, scores: Tensor, draws: Draws) -> None:
                super().grow(tree, scores, draws)
                reverse(tree)

        def reverse(tree: Tree) -> None:
            nodes = tree.frontier
            for block in (tree.tokens, tree.parent, tree.valid):
                block[:, nodes] = block[:, nodes].flip(1)
            tree.ancestors[:, nodes] = tree.ancestors[:, nodes].flip(1)
            eye = torch.eye(tree.shape.size, dtype=torch.bool)[nodes]
            path = tree.ancestors.gather(
                1, tree.parent[:, nodes].unsqueeze(-1).expand(-1, -1, tree.shape.size)
            )
            tree.ancestors[:, nodes] = path | eye
            tree.carried = tuple(part.flip(1) for part in tree.carried)

        decoder.policy = Reversed(3, 2)

    assert chi_square(CASES["rsd_s"].decoder, WARM, alter=reverse_order) < FALSE_ALARM_RATE


def test_a_bonus_token_from_the_level_above_the_leaf_is_caught() -> None:
    def shift_positions(decoder: Decoder) -> None:
        forward = decoder.target.forward

        def shifted(cache, rows, starts, tokens, positions, visible, **kwargs):
            last = positions == positions.amax(dim=1, keepdim=True)
            return forward(cache, rows, starts, tokens, positions - last.int(), visible, **kwargs)

        decoder.target.forward = shifted  # type: ignore[method-assign]

    error, _ = enumerated_error(CASES["sd"].decoder, WARM, alter=shift_positions)
    assert error > 0.01


def test_a_rule_that_keeps_p_after_a_rejection_is_caught_end_to_end() -> None:
    def wrong_residual(decoder: Decoder) -> None:
        rule = decoder.rule
        decoder.rule = lambda p, q, tokens, valid: rule(p, q, tokens, valid)._replace(residual=p)

    error, _ = enumerated_error(CASES["mcsd_wor"].decoder, WARM, alter=wrong_residual)
    assert error > 0.01


def test_k_seq_with_duplicate_candidates_counted_once_is_caught() -> None:
    def count_once(decoder: Decoder) -> None:
        rule = decoder.rule

        def deduplicated(p: Tensor, q: Tensor | None, tokens: Tensor, valid: Tensor) -> Verdict:
            same = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & valid.unsqueeze(1)
            earlier = same.tril(diagonal=-1).any(dim=2)
            return rule(p, q, tokens, valid & ~earlier)

        decoder.rule = deduplicated

    error, _ = enumerated_error(CASES["spectr"].decoder, WARM, alter=count_once)
    assert error > 1e-3
