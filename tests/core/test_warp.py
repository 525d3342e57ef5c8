"""Temperature, top-k, top-p and the limit at temperature 0, on literal tensors."""

import pytest
import torch

from spec_bench.core.warp import SamplingSettings, argmax_lowest, log_probs

LOGITS = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64).log()


def warped(**settings):
    chosen = SamplingSettings(probability_dtype="float64", **settings)
    return log_probs(LOGITS, chosen).exp().tolist()


@pytest.mark.parametrize(
    ("settings", "law"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),  # the smallest set with at least that mass
        ({"top_p": 0.71}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"top_p": 0.1}, [1, 0, 0, 0]),
        # After top-k 2 the first token has 4/7 = 0.571 of the mass.
        ({"top_k": 2, "top_p": 0.57}, [1, 0, 0, 0]),
        ({"top_k": 2, "top_p": 0.58}, [4 / 7, 3 / 7, 0, 0]),
    ],
)
def test_temperature_comes_first_then_top_k_then_top_p(settings, law):
    assert warped(**settings) == pytest.approx(law)


def test_temperature_zero_is_one_hot_at_the_lowest_of_tied_maxima():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    assert argmax_lowest(logits).tolist() == [1, 0]
    probs = log_probs(logits, SamplingSettings(temperature=0)).exp()
    assert probs.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


def test_low_temperature_keeps_the_support_in_log_space():
    log_q = log_probs(torch.tensor([0.0, -10.0]), SamplingSettings(temperature=0.05))
    assert log_q[1].item() == pytest.approx(-200)


def test_logits_are_not_written_to():
    logits = torch.randn(3, 7)
    before = logits.clone()
    for settings in (
        SamplingSettings(temperature=0),
        SamplingSettings(temperature=0.5, top_k=3, top_p=0.7),
    ):
        log_probs(logits, settings)
    assert torch.equal(logits, before)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"temperature": -1.0}, "temperature must be 0 or .*, got -1.0"),
        ({"temperature": 1e-308}, "temperature must be 0 or .*, got 1e-308"),
        ({"draft_temperature": float("inf")}, "draft_temperature"),
        ({"top_k": -3}, "top_k must be >= 0"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0.0"),
        ({"probability_dtype": "float16"}, "float32, float64"),
    ],
)
def test_values_out_of_range_are_refused_by_name(settings, named):
    with pytest.raises(ValueError, match=named):
        SamplingSettings(**settings)


def test_top_p_is_reached_by_a_mass_that_equals_it():
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125], dtype=torch.float64).log()
    for top_p, kept in ((0.5, 1), (0.75, 2)):
        chosen = SamplingSettings(top_p=top_p, probability_dtype="float64")
        assert (log_probs(logits, chosen) > -torch.inf).sum() == kept


def test_top_k_keeps_all_that_tie_at_the_k_th_place():
    logits = torch.tensor([0.1, 0.3, 0.3, 0.3], dtype=torch.float64).log()
    chosen = SamplingSettings(top_k=2, probability_dtype="float64")
    assert log_probs(logits, chosen).exp().tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])


def test_a_draft_temperature_leaves_the_drafts_truncation_as_the_targets():
    chosen = SamplingSettings(0.7, 5, 0.9, draft_temperature=0.3, probability_dtype="float64")
    assert chosen.for_draft() == SamplingSettings(0.3, 5, 0.9, None, "float64")
