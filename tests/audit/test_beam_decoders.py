"""Beam decoders on a Markov chain: the joint law of all beams, exactly and by chi-square."""

import pytest
import torch

from spec_bench.audit.beams import beam_chi_square, enumerated_beam_error
from spec_bench.audit.catalogue import BEAM_SETTINGS, WARM, beam_cases
from spec_bench.audit.decoders import FALSE_ALARM_RATE, markov_decoder, outcomes
from spec_bench.audit.rules import TOLERANCE
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.decode.config import read_decoder
from spec_bench.records.types import Request


def dsbd(width, depth):
    """DSBD with threshold 0, where every layer has its full width."""
    tree = {"policy": "beams", "width": width, "depth": depth, "threshold": 0.0, "least": 1}
    return read_decoder(
        {
            "name": "dsbd",
            "drafter": {"kind": "language_model"},
            "tree": tree,
            "verifier": {"rule": "beam_rejection"},
        }
    )


@pytest.mark.parametrize("case", beam_cases(), ids=lambda case: case.name)
def test_one_iteration_has_the_law_of_beam_sampling(case):
    for label, (settings, stop_ids, vocab) in BEAM_SETTINGS.items():
        error, count = enumerated_beam_error(
            case.config, settings, vocab=vocab or case.tree.vocab, stop_ids=stop_ids
        )
        assert error <= TOLERANCE, label
        assert count > 1


@pytest.mark.parametrize("case", [*beam_cases()][:2], ids=lambda case: case.name)
def test_several_iterations_in_a_batch_have_the_law_of_beam_sampling(case):
    assert beam_chi_square(case.config, WARM, samples=3000, seed=4) >= FALSE_ALARM_RATE


@pytest.mark.parametrize("depth", [1, 3])
def test_one_draft_beam_accepts_as_speculative_decoding_does(depth):
    """W_S = W_L = 1 and gamma = L: the same law of (accepted, tokens) in one iteration."""
    chain = read_decoder(
        {
            "name": "sd",
            "drafter": {"kind": "language_model"},
            "tree": {"policy": "chain", "depth": depth},
            "verifier": {"rule": "recursive_rejection", "replacement": False},
        }
    )
    request = Request("audit", (1, 0), depth + 3)

    def law_of(built):
        def one(draws):
            built.make_draws = lambda generators: draws
            (row,) = built.begin([request], seed=0)
            built.step([row])
            tokens = row.generated(0) if isinstance(built, BeamDecoder) else row.tokens[2:]
            return row.steps[0].accepted, tuple(tokens)

        law = {}
        for probability, outcome in outcomes(one):
            law[outcome] = law.get(outcome, 0.0) + probability
        return law

    ours = law_of(markov_decoder(dsbd(1, depth), WARM, vocab=2, seed=1)[0])
    theirs = law_of(markov_decoder(chain, WARM, vocab=2, seed=1)[0])
    assert ours == {key: pytest.approx(value) for key, value in theirs.items()}


def test_at_temperature_zero_all_beams_are_the_greedy_sequence():
    built, target = markov_decoder(dsbd(3, 2), SamplingSettings(temperature=0.0), vocab=5, seed=2)
    (answer,) = built.generate([Request("audit", (1, 0), 12)], seed=0)
    last, expected = 0, []
    for position in range(1, 13):
        last = int(target.logits[position % 2, last].argmax())
        expected.append(last)
    assert list(answer.tokens) == expected
    assert torch.isfinite(torch.tensor(answer.log_likelihood))
