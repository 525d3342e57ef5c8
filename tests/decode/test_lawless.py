"""Logits that are no numbers end a request by name; nothing is decoded from them."""

import copy
import itertools
from contextlib import nullcontext
from math import inf, nan

import pytest
import torch

from spec_bench.core.draws import inverse_cdf
from spec_bench.core.warp import SamplingSettings, is_distribution
from spec_bench.decode.verdict import VerdictLayout
from tests.families import GREEDY, built, random_requests, tiny_pair
from tests.said import naming

REQUESTS = random_requests(2, 40)


def broken(model, value):
    """The model, of whose last row after some passes a logit becomes NaN or +inf, or all -inf."""
    passes, changed = itertools.count(), copy.copy(model)

    def wrong(*args, **options):
        output = model.forward(*args, **options)
        if next(passes) >= 6:
            output.logits[-1, :, slice(None) if value == -torch.inf else slice(3, 4)] = value
        return output

    changed.forward = wrong
    return changed


CASES = [
    ("target", name, warm)
    for name in ("ar", "rsd_s", "spectr", "traversal", "dsbd", "beam_search")
    for warm in (False, True)
] + [("draft", name, True) for name in ("sd", "rsd_c", "spectr", "dsbd")]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("whose", "name", "warm"), CASES)
def test_a_model_without_laws_ends_the_request_by_name(whose, name, warm, bad):
    target, draft = tiny_pair("llama")
    pair = (broken(target, bad), draft) if whose == "target" else (target, broken(draft, bad))
    beams = name in ("dsbd", "beam_search")
    settings = SamplingSettings(top_p=0.9 if beams else 1.0) if warm or beams else GREEDY
    decoder = built(name, pair, settings, rows=2)
    with pytest.raises(ValueError, match=naming("p1", f"{whose}'s logits", "NaN")):
        decoder.generate(REQUESTS, seed=0)


def test_logits_make_a_law_unless_one_is_nan_or_infinite_or_all_are_nothing():
    rows = [[0.0, -inf], [nan, 0.0], [inf, 0.0], [-inf, -inf], [1e30, -1e30]]
    assert is_distribution(torch.tensor(rows)).tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("largest", "whose"),
    [((-inf, 1, 2, 3), ""), ((0, nan, 2, 3), "target"), ((0, 1, 2, inf), "draft")],
)
def test_every_nodes_largest_logit_of_both_models_must_be_a_number(largest, whose):
    """Two nodes of the target's and one of the draft's, behind what may be anything."""
    with pytest.raises(ValueError, match=naming("'p'", whose)) if whose else nullcontext():
        VerdictLayout(1, 1, (2, 1)).require_distributions("p", [*map(float, largest)])


def test_a_draw_from_no_law_is_still_a_token():
    probs = torch.tensor([[float("nan"), 0.5], [0.0, 0.0]])
    found = inverse_cdf(probs, torch.tensor([[0.5], [0.5]], dtype=torch.float64))
    assert ((found >= 0) & (found < 2)).all()
