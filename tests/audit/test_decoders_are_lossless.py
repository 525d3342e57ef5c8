"""Decoders end to end on a Markov chain; broken ones are caught."""

import pytest
import torch

from spec_bench.audit.catalogue import SETTINGS, WARM, beam_cases, tree_cases
from spec_bench.audit.decoders import (
    FALSE_ALARM_RATE,
    chi_square,
    enumerated_error,
    outcomes,
    total_variation,
)
from spec_bench.audit.rules import TOLERANCE
from spec_bench.draft.base import drafter
from spec_bench.tree.base import GrownTree, policy
from spec_bench.tree.widths import StochasticBeam
from spec_bench.verify import at_once
from spec_bench.verify.base import rule

CASES = {case.name: case for case in tree_cases("exact")}
SD = CASES["chain 2 + recursive_rejection with replacement: false"].config
SPECTR = CASES["iid_paths 2x2, i.i.d. + k_seq"].config
MCSD = CASES["widths 2-1, without replacement + recursive_rejection with replacement: false"].config
RSD_S = CASES[
    "stochastic_beam 3x2, without replacement + recursive_rejection with replacement: false"
].config
# RSD-C's tree has most outcomes: the command line enumerates it.
# Rules that are enumerated on deeper trees beside this, on trees of many outcomes.
MANY = ("2-1, i.i.d.", "2-1, without", "iid_paths", "sampled_list")
AGAIN = ("traversal", "optimal", "naive")
ELSEWHERE = ("eagle",)  # tests.decode.test_eagle
FAST = [
    pytest.param(case, marks=pytest.mark.slow)
    if (case.config.verifier.name in AGAIN and any(part in name for part in MANY))
    or "best_slots 2x2" in name
    or ("best_slots" in name and "naive" in name)
    else case
    for name, case in CASES.items()
    if case.tree.enumerable and "3-1" not in name and not name.startswith(ELSEWHERE)
]
ONE_PER_TREE = {
    (case.tree, case.config.drafter): case
    for case in reversed(CASES.values())
    if not case.name.startswith(ELSEWHERE)
}


def test_enumeration_visits_every_outcome_once_with_its_probability():
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    found = list(outcomes(lambda draws: (draws.token(probs).item(), draws.token(probs).item())))
    assert found == [(0.0625, (0, 0)), (0.1875, (0, 1)), (0.1875, (1, 0)), (0.5625, (1, 1))]


@pytest.mark.parametrize("case", FAST, ids=lambda case: case.name)
def test_one_iteration_has_exactly_the_chains_law(case):
    labels = []
    for label, settings in case.settings():
        error, count = enumerated_error(
            case.config, settings, vocab=case.tree.vocab, prompt=case.tree.prompt
        )
        assert error <= TOLERANCE, label
        assert count >= 1
        labels.append(label)
    assert labels == list(SETTINGS)


@pytest.mark.parametrize("config", [SD, SPECTR, MCSD], ids=["chain", "paths", "widths"])
def test_the_walk_of_several_rows_has_the_law_of_a_single_rows(config, monkeypatch):
    monkeypatch.setattr(at_once, "walk_one_row", at_once.walk_down)
    for settings in SETTINGS.values():
        error, count = enumerated_error(config, settings)
        assert error <= TOLERANCE
        assert count >= 1


@pytest.mark.parametrize("case", ONE_PER_TREE.values(), ids=lambda case: case.name)
def test_several_iterations_in_a_batch_follow_the_chain(case):
    assert (
        chi_square(case.config, WARM, samples=4000, seed=1, prompt=case.tree.prompt)
        >= FALSE_ALARM_RATE
    )


APPROXIMATE = [c for c in tree_cases("approximate") if not c.name.startswith(ELSEWHERE)]


@pytest.mark.parametrize("case", APPROXIMATE, ids=lambda case: case.name)
def test_an_approximate_rule_is_off_by_a_distance_that_is_measured(case):
    distance = total_variation(case.config, WARM, vocab=case.tree.vocab, prompt=case.tree.prompt)
    if "guessed 1x1" in case.name:  # nothing is guessed, so nothing can be accepted wrongly
        assert distance <= TOLERANCE
    else:
        assert 0.01 < distance < 1


def test_every_policy_and_every_exact_rule_is_audited():
    trees = {case.config.tree.name for case in CASES.values()}
    assert trees == {name for name, kind in policy.items() if issubclass(kind, GrownTree)}
    rules = {case.config.verifier.name for case in CASES.values()}
    assert rules == {name for name, kind in rule.items() if kind.declared == "exact"}
    drafters = {case.config.drafter.kind for case in CASES.values()}
    # A target's own blocks are a draft model; a chain has none.
    assert drafters == set(drafter) - {"own_blocks"}
    assert {case.config.tree.name for case in beam_cases()} == set(policy) - trees


@pytest.mark.parametrize("samples", [6000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("label", SETTINGS)
def test_stochastic_beam_search_follows_the_chain(label, samples):
    p_value = chi_square(RSD_S, SETTINGS[label], samples=samples, seed=2)
    assert p_value >= FALSE_ALARM_RATE


@pytest.mark.parametrize(
    ("label", "samples"),
    [
        ("temperature 1", 4000),
        *(pytest.param(label, 20_000, marks=pytest.mark.slow) for label in SETTINGS),
    ],
)
def test_stochastic_beams_verified_as_whole_paths_follow_the_chain(label, samples):
    beams = CASES["stochastic_beam 3x2, without replacement + traversal"].config
    assert chi_square(beams, SETTINGS[label], samples=samples, seed=2) >= FALSE_ALARM_RATE


def test_a_stochastic_beam_with_a_deterministic_draft_is_exact_by_enumeration():
    error, _ = enumerated_error(RSD_S, SETTINGS["temperature 1, draft at 0"])
    assert error <= TOLERANCE


def test_siblings_tested_in_another_order_than_decreasing_psi_are_caught():
    def reverse_order(decoder):
        class Reversed(StochasticBeam):
            def grow(self, tree, scores, draws):
                super().grow(tree, scores, draws)
                reverse(tree)

        def reverse(tree):
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

    assert chi_square(RSD_S, WARM, alter=reverse_order) < FALSE_ALARM_RATE


def test_a_bonus_token_from_the_level_above_the_leaf_is_caught():
    def shift_positions(decoder):
        forward = decoder.target.forward

        def shifted(cache, rows, starts, tokens, positions, visible, **kwargs):
            last = positions == positions.amax(dim=1, keepdim=True)
            return forward(cache, rows, starts, tokens, positions - last.int(), visible, **kwargs)

        decoder.target.forward = shifted  # type: ignore[method-assign]

    error, _ = enumerated_error(SD, WARM, alter=shift_positions)
    assert error > 0.01


def test_a_rule_that_keeps_p_after_a_rejection_is_caught_end_to_end():
    def wrong_residual(decoder):
        rule = decoder.rule
        decoder.rule = lambda p, q, tokens, valid: rule(p, q, tokens, valid)._replace(residual=p)

    error, _ = enumerated_error(MCSD, WARM, alter=wrong_residual)
    assert error > 0.01


def test_k_seq_with_duplicate_candidates_counted_once_is_caught():
    def count_once(decoder):
        rule = decoder.rule

        def deduplicated(p, q, tokens, valid):
            same = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & valid.unsqueeze(1)
            earlier = same.tril(diagonal=-1).any(dim=2)
            return rule(p, q, tokens, valid & ~earlier)

        decoder.rule = deduplicated

    error, _ = enumerated_error(SPECTR, WARM, alter=count_once)
    assert error > 1e-3
