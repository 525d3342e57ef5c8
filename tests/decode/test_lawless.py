"""Logits that are no numbers end a request by name; nothing is decoded from them."""

import copy

import pytest
import torch

from spec_bench.core.draws import inverse_cdf
from spec_bench.core.warp import SamplingSettings, is_distribution
from spec_bench.decode.config import build_decoder
from tests.families import decoder_settings, random_requests, tiny_pair
from tests.said import naming

BAD = {"NaN": float("nan"), "inf": float("inf"), "nothing": -float("inf")}
REQUESTS = random_requests(2, 40)


def broken(model, value):
    """The model, whose logits of the last row go wrong after some passes.

    Args:
        model: the model.
        value: one logit becomes NaN or +inf, or all become -inf.
    """
    passes, forward = 0, model.forward

    def wrong(*args, **options):
        nonlocal passes
        passes += 1
        output = forward(*args, **options)
        if passes > 6:
            which = slice(None) if value == -float("inf") else slice(3, 4)
            output.logits[-1, :, which] = value
        return output

    changed = copy.copy(model)
    changed.forward = wrong
    return changed


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["ar", "rsd_s", "spectr", "traversal", "dsbd", "beam_search"])
def test_a_target_without_laws_ends_the_request_by_name(name, temperature, bad):
    target, draft = tiny_pair("llama")
    settings = SamplingSettings(temperature=temperature)
    if name in ("dsbd", "beam_search") and temperature == 0:
        settings = SamplingSettings(temperature=1.0, top_p=0.9)
    decoder = build_decoder(
        decoder_settings(name), broken(target, BAD[bad]), [draft], settings, rows=2
    )
    with pytest.raises(ValueError, match=naming("p1", "target's logits", "NaN")):
        decoder.generate(REQUESTS, seed=0)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["sd", "rsd_c", "spectr", "dsbd"])
def test_a_draft_without_laws_ends_the_request_by_name(name, bad):
    target, draft = tiny_pair("llama")
    decoder = build_decoder(
        decoder_settings(name), target, [broken(draft, BAD[bad])], SamplingSettings(), rows=2
    )
    with pytest.raises(ValueError, match=naming("p1", "draft's logits", "NaN")):
        decoder.generate(REQUESTS, seed=0)


def test_logits_make_a_law_unless_one_is_nan_or_infinite_or_all_are_nothing():
    nan, inf = float("nan"), float("inf")
    rows = [[0.0, -inf], [nan, 0.0], [inf, 0.0], [-inf, -inf], [1e30, -1e30]]
    assert is_distribution(torch.tensor(rows)).tolist() == [True, False, False, False, True]


def test_a_draw_from_no_law_is_still_a_token():
    probs = torch.tensor([[float("nan"), 0.5], [0.0, 0.0]])
    found = inverse_cdf(probs, torch.tensor([[0.5], [0.5]], dtype=torch.float64))
    assert ((found >= 0) & (found < 2)).all()
