"""At temperature 0 every decoder and kind of model answers as transformers' own generation."""

import functools
from itertools import product

import pytest

from spec_bench.audit.models import find_first_difference
from spec_bench.core.draws import SeededSource, choose_likeliest, inverse_cdf
from spec_bench.core.warp import SamplingSettings
from tests.families import ARCHITECTURES, GREEDY, NEWER, PAPERS, built, random_requests, tiny_pair
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

REQUESTS = random_requests(12, 24)
HEADS = ("medusa", "redrafter", "redrafter apart")
OTHER_HEADS = (
    "eagle", "eagle2", "eagle3", "eagle_rsd_s", "eagle_traversal", "mtp", "dflash", "dflash_ddtree",
    "p_eagle",
)  # fmt: skip
NAMES = (*PAPERS, *NEWER, *HEADS, *OTHER_HEADS)
CASES = {("llama", name, batch) for name in PAPERS for batch in (1, 4)}
CASES |= {("llama", name, 4) for name in NEWER} | {("llama", "eagle", 4), ("opt", "eagle3", 1)}
CASES |= {(architecture, "rsd_s", 4) for architecture in ARCHITECTURES}
CASES |= {(architecture, name, 1) for architecture in ARCHITECTURES for name in HEADS}
CASES.add(("llama", "dflash_ddtree", 4))


def asked(batch):
    """All requests in batches; some of all lengths one by one, where a pass is for one row."""
    return REQUESTS if batch > 1 else REQUESTS[::3]


@functools.cache
def expected(architecture):
    answers = generated(tiny_pair(architecture)[0].module, REQUESTS)
    return {request.prompt_id: answer for request, answer in zip(REQUESTS, answers, strict=True)}


@pytest.mark.parametrize(
    ("name", "temperature", "draft", "chosen"),
    [
        ("sd", 0.0, None, choose_likeliest), ("sd", 0.0, 1.0, inverse_cdf),
        ("sd", 1.0, 0.0, inverse_cdf), ("sd", 1.0, None, inverse_cdf),
    ],
)  # fmt: skip
def test_the_likeliest_token_is_chosen_where_every_law_is_one_hot(name, temperature, draft, chosen):
    sampling = SamplingSettings(temperature, draft_temperature=draft)
    decoder = built(name, tiny_pair("llama"), sampling)
    assert decoder.make_greedy_if_cold(SeededSource([])).choose is chosen


def differences_from_generate(decoder, architecture, batch):
    requests, theirs = asked(batch), expected(architecture)
    answers = [
        list(generation.tokens)
        for start in range(0, len(requests), batch)
        for generation in decoder.generate(requests[start : start + batch], seed=0)
    ]
    found = [
        find_first_difference(decoder.target, request, theirs[request.prompt_id], answer)
        for request, answer in zip(requests, answers, strict=True)
    ]
    return [difference for difference in found if difference]


@pytest.mark.parametrize(
    ("architecture", "name", "batch"),
    [
        pytest.param(*case, marks=[] if case in CASES else pytest.mark.slow)
        for case in product(ARCHITECTURES, NAMES, (1, 4))
    ],
)
def test_greedy_output_equals_generate(architecture, name, batch):
    decoder = built(name, tiny_pair(architecture), GREEDY, batch)
    differences = differences_from_generate(decoder, architecture, batch)
    # A difference is only excused where a plain pass puts both logits within rounding of each
    # other, and such a thing is rare.
    assert all(difference.near_tie for difference in differences), differences
    assert len(differences) <= 1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_answers_are_not_trivial(architecture):
    answers = expected(architecture).values()
    assert len({token for answer in answers for token in answer}) > 5
    assert len({tuple(answer) for answer in answers}) >= 9


@pytest.mark.parametrize("name", ["rsd_c", "rsd_s"])
def test_trees_are_accepted_at_temperature_zero(name):
    decoder = built(name, tiny_pair("llama"), GREEDY, 4)
    steps = [s for g in decoder.generate(REQUESTS[:4], seed=0) for s in g.steps]
    assert sum(step.accepted for step in steps) / len(steps) > 0.5


LONG = long_requests(6, 20)
WARM = SamplingSettings(temperature=1.5, top_p=0.95, probability_dtype="float64")
QUICK = [("ar", 4), ("rsd_s", 1), ("rsd_s", 4)]
KIND_CASES = [
    pytest.param(name, *case, marks=[] if name in CORE and case in QUICK else pytest.mark.slow)
    for name in KINDS
    for case in ((d, n) for d in ("ar", "sd", "rsd_c", "rsd_s", "spectr", "mcsd") for n in (1, 4))
]


@functools.cache
def untouched(name):
    return generated(tiny_module(name), LONG)


def answers(name, decoder, batch, spec=None, settings=GREEDY):
    made = built(decoder, tiny_pair_of(name), settings, batch, spec)
    batches = (LONG[start : start + batch] for start in range(0, len(LONG), batch))
    return [answer for requests in batches for answer in made.generate(requests, seed=0)]


def tokens(generations):
    return [list(generation.tokens) for generation in generations]


@pytest.mark.parametrize(("name", "decoder", "batch"), KIND_CASES)
def test_every_kind_of_model_answers_as_generate_does(name, decoder, batch):
    assert tokens(answers(name, decoder, batch)) == untouched(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_beam_search_answers_as_generate_does(name):
    found = tokens(answers(name, "beam_search", 4, "3"))
    assert found == generated(tiny_module(name), LONG, num_beams=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_beams_keep_their_law_and_do_not_depend_on_the_batch(name):
    found = answers(name, "dsbd", 1, "4x2@0.5", WARM)
    for request, answer in zip(LONG, found, strict=True):
        plain = log_likelihood(tiny_module(name), request, answer.tokens)
        assert answer.log_likelihood == pytest.approx(plain, abs=1e-4)
    assert tokens(answers(name, "dsbd", 4, "4x2@0.5", WARM)) == tokens(found)


@pytest.mark.parametrize("name", core_first(KINDS))
def test_the_answers_of_a_kind_are_not_trivial(name):
    found = untouched(name)
    assert len({tuple(answer) for answer in found}) == len(found)
    assert sum(len(set(answer)) > 3 for answer in found) > len(found) / 2
    steps = [step for answer in answers(name, "rsd_s", 4) for step in answer.steps]
    # Some tokens are accepted below and beside rejected ones, so caches are really compacted.
    assert {step.accepted for step in steps} >= {0, 1, 2, 3}


@pytest.mark.parametrize("name", core_first(name for name, kind in KINDS.items() if kind.open))
def test_a_window_changes_most_answers(name):
    whole = generated(tiny_module(name, **KINDS[name].open), LONG)
    changed = [a != b for a, b in zip(whole, untouched(name), strict=True)]
    assert sum(changed) > len(changed) / 2
