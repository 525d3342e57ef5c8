"""Decoders, of beams too, end to end on a Markov chain; broken ones are caught."""

from functools import partial

import pytest
import torch

from spec_bench.audit.beams import enumerate_beam_error, sample_beam_p_value
from spec_bench.audit.catalogue import BEAM_SETTINGS, SETTINGS, WARM, iter_audit_cases
from spec_bench.audit.decoders import (
    FALSE_ALARM_RATE,
    EnumeratedDraws,
    enumerate_decoder_error,
    enumerate_iteration_law,
    enumerate_outcomes,
    enumerate_total_variation,
    make_markov_decoder,
    sample_decoder_p_value,
)
from spec_bench.audit.rules import TOLERANCE
from spec_bench.audit.toys import make_random_markov_model
from spec_bench.core.warp import SamplingSettings, warped_log_probs
from spec_bench.decode.config import read_decoder
from spec_bench.draft.base import drafter
from spec_bench.records.types import Request
from spec_bench.tree.base import GrownTree, policy
from spec_bench.tree.widths import StochasticBeam
from spec_bench.verify.base import rule
from tests.simcuda import DEVICE, SimCuda

CASES = {case.name: case for case in iter_audit_cases("exact")}
SD = CASES["chain 2 + recursive_rejection with replacement: false"].config
SPECTR = CASES["iid_paths 2x2, i.i.d. + k_seq"].config
MCSD = CASES["widths 2-1, without replacement + recursive_rejection with replacement: false"].config
RSD_S = CASES[
    "stochastic_beam 3x2, without replacement + recursive_rejection with replacement: false"
].config
BEAMS = CASES["stochastic_beam 3x2, without replacement + traversal"].config
# RSD-C's tree has most outcomes: the command line enumerates it.
# Rules that are enumerated on deeper trees beside this, on trees of many outcomes.
MANY = ("2-1, i.i.d.", "2-1, without", "iid_paths", "sampled_list")
AGAIN = ("traversal", "optimal", "naive")
HEADS = ("eagle", "mtp", "dflash", "pard")  # of these a few cases are quick
QUICK = (
    "eagle3: chain 2 + recursive",
    "eagle3: widths 2-1, without replacement + recursive",
    "eagle: chain 2 + traversal",
    "mtp: chain 2 + recursive",
    "dflash: chain 2 + traversal",
    "pard: chain 2 + recursive",
)
ENUMERATED = [
    pytest.param(case, marks=pytest.mark.slow)
    if (case.config.verifier.name in AGAIN and any(part in name for part in MANY))
    or "best_slots 2x2" in name
    or ("best_slots" in name and "naive" in name)
    or (name.startswith(HEADS) and not name.startswith(QUICK))
    else case
    for name, case in CASES.items()
    if case.tree.enumerable and "3-1" not in name
]
SAMPLED = [
    pytest.param(case, marks=pytest.mark.slow)
    if case.name.startswith((*HEADS, "suffix")) and not case.name.startswith("mtp: chain 2")
    else case
    for case in {
        (case.tree, case.config.drafter): case for case in reversed(CASES.values())
    }.values()
]


def test_enumeration_visits_every_outcome_once_with_its_probability():
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    found = list(
        enumerate_outcomes(lambda draws: (draws.token(probs).item(), draws.token(probs).item()))
    )
    assert found == [(0.0625, (0, 0)), (0.1875, (0, 1)), (0.1875, (1, 0)), (0.5625, (1, 1))]


ALL = (0, 1.0, 0.0)  # tokens kept
TRUNCATED = [name for name, each in SETTINGS.items() if (each.top_k, each.top_p, each.min_p) != ALL]


@pytest.mark.parametrize("name", TRUNCATED)
def test_a_truncated_setting_of_the_audit_leaves_tokens_out_and_a_choice(name):
    support = (
        warped_log_probs(make_random_markov_model(3, 0).logits, SETTINGS[name])
        .isfinite()
        .sum(dim=-1)
    )
    assert (support < 3).any() and (support > 1).any()


@pytest.mark.parametrize("case", ENUMERATED, ids=lambda case: case.name)
def test_one_iteration_has_exactly_the_chains_law(case):
    labels = []
    for label, settings in case.iter_fitting_settings():
        error, count = enumerate_decoder_error(case.config, settings, **case.markov_chain_options)
        assert error <= TOLERANCE, label
        assert count >= 1
        labels.append(label)
    assert labels == list(SETTINGS)


def test_of_an_order_no_more_is_enumerated_than_is_looked_at():
    # Two children of the root in order, then one of each: 6 x 3 x 3 trees instead of 6 x 6 x 6.
    noise = partial(EnumeratedDraws.gumbel, like=torch.zeros(1, 3, 3, dtype=torch.float64))
    assert len([*enumerate_outcomes(lambda draws: noise(draws, best=1))]) == 27
    assert len([*enumerate_outcomes(noise)]) == 216


@pytest.mark.parametrize("case", SAMPLED, ids=lambda case: case.name)
def test_several_iterations_in_a_batch_follow_the_chain(case):
    p_value = sample_decoder_p_value(
        case.config, WARM, samples=4000, seed=1, prompt=case.tree.prompt
    )
    assert p_value >= FALSE_ALARM_RATE


APPROXIMATE = [c for c in iter_audit_cases("approximate") if not c.name.startswith("eagle")]


@pytest.mark.parametrize("case", APPROXIMATE, ids=lambda case: case.name)
def test_an_approximate_rule_is_off_by_a_distance_that_is_measured(case):
    distance = enumerate_total_variation(case.config, WARM, **case.markov_chain_options)
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
    assert {case.config.tree.name for case in iter_audit_cases("exact_beam")} == set(policy) - trees


SLOWLY = [
    pytest.param(config, label, 20_000, marks=pytest.mark.slow)
    for config in (RSD_S, BEAMS)
    for label in SETTINGS
]


@pytest.mark.parametrize(("config", "label", "samples"), [(RSD_S, "temperature 1", 6000), *SLOWLY])
def test_stochastic_beam_search_follows_the_chain(config, label, samples):
    assert (
        sample_decoder_p_value(config, SETTINGS[label], samples=samples, seed=2) >= FALSE_ALARM_RATE
    )


@pytest.mark.slow
def test_samples_follow_the_chain_on_a_gpu_too():
    with SimCuda():
        assert sample_decoder_p_value(SD, WARM, samples=500, device=DEVICE) >= FALSE_ALARM_RATE


def test_a_stochastic_beam_with_a_deterministic_draft_is_exact_by_enumeration():
    error, _ = enumerate_decoder_error(RSD_S, SETTINGS["temperature 1, draft at 0"])
    assert error <= TOLERANCE


def test_siblings_tested_in_another_order_than_decreasing_psi_are_caught():
    class Reversed(StochasticBeam):
        def grow_level(self, tree, scores, draws):
            super().grow_level(tree, scores, draws)
            nodes, size = tree.frontier, tree.shape.size
            for block in (tree.tokens, tree.parent, tree.valid, tree.ancestors):
                block[:, nodes] = block[:, nodes].flip(1)
            above = tree.parent[:, nodes].unsqueeze(-1).expand(-1, -1, size)
            path = tree.ancestors.gather(1, above)
            tree.ancestors[:, nodes] = path | torch.eye(size, dtype=torch.bool)[nodes]
            tree.carried = tuple(part.flip(1) for part in tree.carried)

    def alter(decoder):
        decoder.policy = Reversed(3, 2)

    assert sample_decoder_p_value(RSD_S, WARM, modify_decoder=alter) < FALSE_ALARM_RATE


def shift_positions(decoder):
    """The bonus token is from the level above the leaf."""
    forward = decoder.target.forward

    def shifted(cache, starts, tokens, positions, visible, **kwargs):
        last = positions == positions.amax(dim=1, keepdim=True)
        return forward(cache, starts, tokens, positions - last.int(), visible, **kwargs)

    decoder.target.forward = shifted


def keep_p(decoder):
    """p stays after a rejection."""
    rule = decoder.rule
    decoder.rule = lambda p, q, tokens, valid: rule(p, q, tokens, valid)._replace(residual=p)


def count_once(decoder):
    """Duplicate candidates are counted once."""
    rule = decoder.rule

    def deduplicated(p, q, tokens, valid):
        same = (tokens.unsqueeze(1) == tokens.unsqueeze(2)) & valid.unsqueeze(1)
        earlier = same.tril(diagonal=-1).any(dim=2)
        return rule(p, q, tokens, valid & ~earlier)

    decoder.rule = deduplicated


@pytest.mark.parametrize(
    ("config", "alter", "least"),
    [(SD, shift_positions, 0.01), (MCSD, keep_p, 0.01), (SPECTR, count_once, 1e-3)],
)
def test_a_broken_decoder_is_caught(config, alter, least):
    assert enumerate_decoder_error(config, WARM, modify_decoder=alter)[0] > least


# Beam decoders: the joint law of all beams, exactly and by chi-square.


def dsbd(width, depth):
    """DSBD with threshold 0, where every layer has its full width."""
    tree = {"policy": "beams", "width": width, "depth": depth, "threshold": 0.0, "least": 1}
    return made(tree, {"rule": "beam_rejection"})


def made(tree, verifier):
    drafter = {"kind": "language_model"}
    return read_decoder({"name": "x", "drafter": drafter, "tree": tree, "verifier": verifier})


@pytest.mark.parametrize("case", iter_audit_cases("exact_beam"), ids=lambda case: case.name)
def test_one_iteration_has_the_law_of_beam_sampling(case):
    for label, (settings, stop_ids, vocab) in BEAM_SETTINGS.items():
        error, count = enumerate_beam_error(
            case.config, settings, vocab=vocab or case.tree.vocab, stop_ids=stop_ids
        )
        assert error <= TOLERANCE, label
        assert count > 1


@pytest.mark.parametrize("case", [*iter_audit_cases("exact_beam")][:2], ids=lambda case: case.name)
def test_several_iterations_in_a_batch_have_the_law_of_beam_sampling(case):
    assert sample_beam_p_value(case.config, WARM, samples=3000, seed=4) >= FALSE_ALARM_RATE


@pytest.mark.parametrize("depth", [1, 3])
def test_one_draft_beam_accepts_as_speculative_decoding_does(depth):
    rule = {"rule": "recursive_rejection", "replacement": False}
    request = Request("audit", (1, 0), depth + 3)

    def law_of(config, tokens):
        built, _ = make_markov_decoder(config, WARM, vocab=2, seed=1)

        def reached(row):
            return row.steps[0].accepted, tuple(tokens(row))

        return enumerate_iteration_law(built, request, reached, lambda result: {result: 1.0})[0]

    ours = law_of(dsbd(1, depth), lambda row: row.get_generated_tokens(0))
    theirs = law_of(made({"policy": "chain", "depth": depth}, rule), lambda row: row.tokens[2:])
    assert ours == {key: pytest.approx(value) for key, value in theirs.items()}


def test_at_temperature_zero_all_beams_are_the_greedy_sequence():
    built, target = make_markov_decoder(
        dsbd(3, 2), SamplingSettings(temperature=0.0), vocab=5, seed=2
    )
    (answer,) = built.generate([Request("audit", (1, 0), 12)], seed=0)
    last, expected = 0, []
    for position in range(1, 13):
        last = int(target.logits[position % 2, last].argmax())
        expected.append(last)
    assert list(answer.tokens) == expected
    assert torch.isfinite(torch.tensor(answer.log_likelihood))
