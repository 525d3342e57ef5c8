"""Every kind of model answers as ``generate`` does, whatever its layers attend to."""

import functools

import pytest

from spec_bench.core.warp import SamplingSettings
from tests.families import GREEDY, built
from tests.kinds import (
    CORE,
    KINDS,
    core_first,
    generated,
    log_likelihood,
    long_requests,
    tiny_module,
    tiny_pair_of,
)

REQUESTS = long_requests(6, 20)
WARM = SamplingSettings(temperature=1.5, top_p=0.95, probability_dtype="float64")
QUICK = [("ar", 4), ("rsd_s", 1), ("rsd_s", 4)]
CASES = [
    pytest.param(name, *case, marks=[] if name in CORE and case in QUICK else pytest.mark.slow)
    for name in KINDS
    for case in ((d, n) for d in ("ar", "sd", "rsd_c", "rsd_s", "spectr", "mcsd") for n in (1, 4))
]


@functools.cache
def expected(name):
    """Greedy answers of a module that no decoder has touched."""
    return generated(tiny_module(name), REQUESTS)


def answers(name, decoder, batch, spec=None, settings=GREEDY):
    made = built(decoder, tiny_pair_of(name), settings, batch, spec)
    batches = (REQUESTS[start : start + batch] for start in range(0, len(REQUESTS), batch))
    return [answer for requests in batches for answer in made.generate(requests, seed=0)]


def tokens(generations):
    return [list(generation.tokens) for generation in generations]


@pytest.mark.parametrize(("name", "decoder", "batch"), CASES)
def test_every_kind_of_model_answers_as_generate_does(name, decoder, batch):
    assert tokens(answers(name, decoder, batch)) == expected(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_beam_search_answers_as_generate_does(name):
    found = tokens(answers(name, "beam_search", 4, "3"))
    assert found == generated(tiny_module(name), REQUESTS, num_beams=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_beams_keep_their_law_and_do_not_depend_on_the_batch(name):
    """A likelihood is that of a plain pass only if every node saw its own path and window."""
    found = answers(name, "dsbd", 1, "4x2@0.5", WARM)
    for request, answer in zip(REQUESTS, found, strict=True):
        plain = log_likelihood(tiny_module(name), request, answer.tokens)
        assert answer.log_likelihood == pytest.approx(plain, abs=1e-4)
    assert tokens(answers(name, "dsbd", 4, "4x2@0.5", WARM)) == tokens(found)


@pytest.mark.parametrize("name", core_first(KINDS))
def test_the_answers_are_not_trivial(name):
    found = expected(name)
    assert len({tuple(answer) for answer in found}) == len(found)
    assert sum(len(set(answer)) > 3 for answer in found) > len(found) / 2
    steps = [step for answer in answers(name, "rsd_s", 4) for step in answer.steps]
    # Some tokens are accepted below and beside rejected ones, so caches are really compacted.
    assert {step.accepted for step in steps} >= {0, 1, 2, 3}


@pytest.mark.parametrize("name", core_first(name for name, kind in KINDS.items() if kind.open))
def test_a_window_changes_most_answers(name):
    whole = generated(tiny_module(name, **KINDS[name].open), REQUESTS)
    changed = [a != b for a, b in zip(whole, expected(name), strict=True)]
    assert sum(changed) > len(changed) / 2
