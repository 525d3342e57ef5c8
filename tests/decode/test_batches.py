"""Batches: rows come and go, tokens stay; seconds add up, and a row's calls count whole."""

from types import SimpleNamespace

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.decode.rows import BatchClock, Row
from spec_bench.records.types import Request
from tests.decode.test_eagle import decoder_of as eagle_decoder
from tests.decode.test_heads import decoder_of
from tests.families import NEWER, decoder_settings, random_requests, tiny_pair
from tests.said import naming

WARM = SamplingSettings(temperature=0.9, top_p=0.95, probability_dtype="float64")
SINGLE = ("ar", "sd", "spectr", "rsd_c", "rsd_s", *NEWER)
BEAMS = ("beam_sampling", "dsbd", "beam_search")
HEADS = ("medusa", "redrafter", "redrafter apart")
EAGLE = {"eagle": "chain_5", "eagle2": "3x3@6", "eagle3": "3x3@6", "eagle_rsd_s": "2x3"}
EAGLE |= {"eagle_traversal": "chain_5"}
SOME_EAGLE = [
    pytest.param(name, marks=pytest.mark.slow) if spec == "chain_5" else name
    for name, spec in EAGLE.items()
]
REQUESTS = [
    Request(r.prompt_id, r.prompt_ids, 3 + 6 * (index % 4))
    for index, r in enumerate(random_requests(10, 1))
]


def answers(name, rows, queue):
    """Decodes in batches of ``queue`` requests, ``rows`` at a time."""
    if name in HEADS:
        decoder = decoder_of(name, WARM, dtype=torch.float64, rows=rows)
    elif name in EAGLE:
        tree = decoder_settings(name, EAGLE[name])["tree"]
        decoder = eagle_decoder(name, WARM, dtype=torch.float64, rows=rows, tree=tree)
    else:
        target, draft = tiny_pair("llama", torch.float64)
        decoder = build_decoder(decoder_settings(name), target, [draft], WARM, rows)
    return [
        generation
        for start in range(0, len(REQUESTS), queue)
        for generation in decoder.generate(REQUESTS[start : start + queue], 3)
    ]


@pytest.mark.parametrize("name", [*SINGLE, *BEAMS, *HEADS, *SOME_EAGLE])
def test_a_continuous_batch_decodes_every_prompt_as_alone(name):
    alone = answers(name, 1, 1)
    continuous = answers(name, 3, len(REQUESTS))
    assert [g.prompt_id for g in continuous] == [r.prompt_id for r in REQUESTS]
    assert [g.tokens for g in continuous] == [g.tokens for g in alone]
    assert [g.steps for g in continuous] == [g.steps for g in alone]


@pytest.mark.parametrize("rows", [1, 3])
def test_nodes_of_merged_paths_are_those_verified_without_copies(rows):
    target, draft = tiny_pair("llama")
    greedy = SamplingSettings(temperature=0)  # all paths are copies of the first
    decoder = build_decoder(decoder_settings("traversal_paths"), target, [draft], greedy, rows)
    steps = [step for each in decoder.generate(REQUESTS[:3], 0) for step in each.steps]
    assert {step.nodes for step in steps} == {decoder.depth}


def test_a_continuous_batch_needs_fewer_target_passes_than_a_static_one():
    """A static batch waits for its longest answer; rows of a continuous one are never idle."""
    passes = {}
    for label, queue in (("static", 3), ("continuous", len(REQUESTS))):
        target, _ = tiny_pair("llama")
        decoder = build_decoder(decoder_settings("ar"), target, [], WARM, 3)
        count = 0

        def progress(calls, tokens):
            nonlocal count
            count += 1

        for start in range(0, len(REQUESTS), queue):
            decoder.generate(REQUESTS[start : start + queue], 3, progress)
        passes[label] = count
    assert passes["continuous"] < 0.8 * passes["static"]


@pytest.mark.parametrize("queue", [4, len(REQUESTS)])
def test_seconds_add_up_and_no_request_is_faster_than_its_own_share(queue):
    generations = answers("sd", 4, queue)
    for generation in generations:
        assert generation.latency_s is not None
        own = generation.prefill_s + generation.decode_s
        assert generation.latency_s >= 0.9 * own, "a row shares the seconds, it waits for all"
        assert generation.draft_s + generation.target_s <= generation.decode_s * 1.001
    longest = max(generations, key=lambda g: len(g.steps))
    assert longest.latency_s > min(g.latency_s for g in generations)  # type: ignore[type-var, operator]


def test_no_requests_are_no_generations():
    target, _ = tiny_pair("llama")
    assert build_decoder(decoder_settings("ar"), target, [], WARM, 2).generate([], 0) == []


def test_a_request_that_does_not_fit_is_refused_before_anything_is_decoded():
    target, _ = tiny_pair("llama")
    decoder = build_decoder(decoder_settings("ar"), target, [], WARM, 2)
    long = Request("long", tuple(range(50)) * 3, 10)
    with pytest.raises(ValueError, match=naming("'long'", "160 positions")):
        decoder.generate([REQUESTS[0], REQUESTS[1], long], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar", "sd", "rsd_s", "dsbd", "medusa", "redrafter"])
def test_two_hundred_prompts_decode_alike_at_every_batch_size(name):
    requests = random_requests(200, 12, seed=7)

    def tokens(rows):
        if name in HEADS:
            decoder = decoder_of(name, WARM, dtype=torch.float64, rows=rows)
        else:
            target, draft = tiny_pair("llama", torch.float64)
            decoder = build_decoder(decoder_settings(name), target, [draft], WARM, rows)
        queue = requests if rows > 1 else []
        alone = [decoder.generate([request], 3)[0] for request in requests] if rows == 1 else []
        return [g.tokens for g in [*alone, *decoder.generate(queue, 3)]]

    one = tokens(1)
    assert len(set(one)) > 150
    assert tokens(8) == one
    assert tokens(32) == one


def test_rows_share_a_prefill_and_the_iterations_that_they_take_part_in():
    """Seconds on the clock: a prefill of two, one of one row; 3 s of decoding in all."""
    readings = iter([0.0, 6.0, 6.0, 8.0, 9.0, 10.0])
    clock = BatchClock(lambda: next(readings), lambda: (0.5, 1.0))
    rows = [SimpleNamespace(finish=None) for _ in range(3)]
    clock.joined(rows[:2])
    clock.start()
    clock.stepped(rows[:2])
    clock.pause()
    clock.joined(rows[2:])
    clock.stepped(rows)
    clock.pause()
    found = [clock.seconds(row) for row in rows]
    assert [prefill_s for prefill_s, *_ in found] == [3.0, 3.0, 1.0]
    sums = [sum(seconds) for seconds in zip(*found, strict=True)]
    assert sums == pytest.approx([7.0, 3.0, 1.0, 2.0])


def row(limit, stop=()):
    request = Request("p", (1, 2), limit, stop)
    return Row(request, torch.Generator(), [1, 2])


def test_accepted_counts_what_the_call_emitted_and_delivered_what_the_limit_left():
    short = row(3)
    short.commit([7, 8, 9, 7, 8], [-1.0] * 5, nodes=6, depth=4)
    (step,) = short.steps
    assert (step.accepted, step.delivered) == (4, 3)
    assert short.delivered == [7, 8, 9]
    assert (short.finish, short.log_likelihood) == ("length", -3.0)


def test_a_stop_token_is_the_last_that_is_delivered_and_the_block_counts_whole():
    stopped = row(10, (8,))
    stopped.commit([7, 8, 9], [-1.0] * 3, nodes=4, depth=2)
    (step,) = stopped.steps
    assert (step.accepted, step.delivered) == (2, 2)
    assert (stopped.delivered, stopped.finish) == ([7, 8], "stop")
