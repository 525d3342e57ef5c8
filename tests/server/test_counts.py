"""Target calls of a served answer: from counts, from counters, from chunks."""

from itertools import product

import pytest

from spec_bench.records.types import StepRecord
from spec_bench.server.counts import (
    Counts,
    counts_between,
    counts_of_request,
    of_histogram,
    parse,
    steps_of,
)

REAL = {  # of vLLM 0.32.0 with a draft model
    "num_spec_steps": 13,
    "num_accepted_draft_tokens": 18,
    "num_draft_tokens": 52,
    "num_spec_tokens": 4,
    "acceptance_histogram": [6, 2, 2, 0, 3],
    "per_step_accepted": [0, 0, 2, 4, 1, 0, 0, 0, 4, 2, 1, 0, 4],
    "per_step_drafted": [4] * 13,
}
REAL_CHUNKS = [1, 1, 1, 3, 5, 2, 1, 1, 1, 5, 3, 2, 1, 2]


def told(own):
    found = counts_of_request({"speculative_decoding": own})
    assert found is not None
    return found


def test_every_call_of_a_real_answer_is_known_and_the_cut_of_the_last_one():
    found = steps_of(REAL_CHUNKS, [told(REAL)])
    assert (found.counted, found.proposed, len(found.records)) == ("requests", True, 13)
    assert [step.accepted for step in found.records] == REAL["per_step_accepted"]
    assert [step.delivered for step in found.records] == REAL_CHUNKS[1:]
    assert found.records[-1] == StepRecord(nodes=4, depth=4, accepted=4, delivered=2)


def test_without_counts_a_chunk_is_a_call():
    found = steps_of([1, 3, 1], [])
    assert (found.counted, found.proposed) == ("stream", False)
    assert found.records == (StepRecord(2, 2, 2, 3), StepRecord(0, 0, 0, 1))


def test_calls_between_drafts_are_counted():
    found = steps_of([1, 1, 1, 3, 1], [Counts("requests", (2,), (4,))])
    assert len(found.records) == 4
    assert sum(step.accepted + 1 for step in found.records) == 6
    assert sum(step.delivered for step in found.records) == 6


def served(calls, drafted, cut):
    """Chunks of calls that accepted so many tokens, the last cut."""
    sizes = [1, *(accepted + 1 for accepted in calls)]
    sizes[-1] -= cut
    return tuple(sizes)


def test_counts_give_the_true_calls_whatever_was_drafted_or_cut():
    seen = 0
    for calls in product(range(3), repeat=3):
        for drafted in product((True, False), repeat=3):
            if any(accepted and not own for accepted, own in zip(calls, drafted, strict=True)):
                continue
            for cut in range(calls[-1] + 1):
                own = tuple(a for a, has in zip(calls, drafted, strict=True) if has)
                counts = Counts("requests", own, (2,) * len(own))
                found = steps_of(served(calls, drafted, cut), [counts])
                assert found.counted == "requests"
                assert len(found.records) == 3
                assert sum(step.accepted for step in found.records) == sum(calls)
                assert sum(step.delivered for step in found.records) == sum(calls) + 3 - cut
                seen += 1
    assert seen == 112


def test_calls_that_came_in_one_chunk_are_told_apart_by_counts_alone():
    counts = Counts("requests", (1, 0, 2), (2, 2, 2))
    assert len(steps_of([1, 3, 3], [counts]).records) == 3
    assert len(steps_of([1, 3, 3], []).records) == 2


def test_a_call_within_the_first_chunk_delivers_nothing_after_it():
    found = steps_of([3, 1, 3], [Counts("requests", (1, 0, 2), (2, 2, 2))])
    assert [step.accepted for step in found.records] == [1, 0, 2]
    assert [step.delivered for step in found.records] == [0, 1, 3]


@pytest.mark.parametrize(
    "counts",
    [
        Counts("requests", (4, 4, 4), (4, 4, 4)),  # more tokens than came
        Counts("requests", (0,), (4,), calls=1),  # fewer calls than chunks
        Counts("counters", (), (), calls=9),  # more calls than tokens
    ],
)
def test_counts_that_cannot_have_made_the_chunks_are_not_used(counts):
    assert steps_of([1, 2, 1, 1], [counts]).counted == "stream"


def test_a_histogram_is_calls_whose_order_is_not_known():
    summary = {k: v for k, v in REAL.items() if not k.startswith("per_step")}
    found = told(summary)
    assert found.accepted == (0,) * 6 + (1, 1, 2, 2, 4, 4, 4)
    assert found.proposed
    assert sum(s.accepted for s in steps_of(REAL_CHUNKS, [found]).records) == 18


def test_of_drafts_of_unlike_length_only_the_sum_is_known():
    found = of_histogram("requests", [1, 1], proposed=5, most=4)
    assert not found.proposed
    records = steps_of([1, 1, 2], [found]).records
    assert [step.accepted for step in records] == [0, 1]


@pytest.mark.parametrize("own", [None, [], {"per_step_accepted": ["a"]}, {"num_spec_steps": 3}])
def test_what_is_no_count_is_nothing(own):
    assert counts_of_request({"speculative_decoding": own}) is None


def page(tokens, drafts, proposed, places, calls):
    """Counters as vLLM writes them."""
    label = 'engine="0",model_name="target"'
    lines = [
        "# HELP vllm:generation_tokens_total Number of generation tokens processed.",
        f"vllm:generation_tokens_total{{{label}}} {tokens}",
        f"vllm:generation_tokens_created{{{label}}} 1.7e+09",
        f"vllm:inter_token_latency_seconds_count{{{label}}} {calls}",
        f"vllm:spec_decode_num_drafts_total{{{label}}} {drafts}",
        f"vllm:spec_decode_num_draft_tokens_total{{{label}}} {proposed}",
    ]
    named = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{named}{{{label},position="{i}"}} {each}' for i, each in enumerate(places)]
    return "\n".join(lines)


def test_counters_of_a_real_answer_say_what_its_counts_say():
    before = parse(page(100, 5, 20, [2, 1, 1, 0], 40))
    after = parse(page(129, 18, 72, [9, 6, 4, 3], 53))
    found = counts_between(before, after, 29)
    assert found == Counts(
        "counters", told(REAL).accepted and (0,) * 6 + (1, 1, 2, 2, 4, 4, 4), (4,) * 13, 13
    )
    assert len(steps_of(REAL_CHUNKS, [found]).records) == 13


def test_counters_that_heard_of_other_requests_are_not_used():
    before, after = parse(page(100, 0, 0, [], 0)), parse(page(130, 0, 0, [], 29))
    assert counts_between(before, after, 29) is None
    assert counts_between({}, parse("vllm:generation_tokens_total 29"), 29) is None


def test_a_plain_servers_calls_are_its_gaps():
    text = "vllm:generation_tokens_total 5\nvllm:inter_token_latency_seconds_count 4"
    found = counts_between({}, parse(text), 5)
    assert found == Counts("counters", (), (), 4)
    assert steps_of([1, 1, 1, 1, 1], [found]).records == (StepRecord(0, 0, 0, 1),) * 4
