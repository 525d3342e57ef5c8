"""An answer's target calls, read from what a server streams and counts."""

import json
from itertools import product

import pytest

from spec_bench.records.types import StepRecord
from spec_bench.server.calls import (
    CallCounts,
    build_answer_steps,
    build_counts_from_histogram,
    count_calls_between,
    count_generated_tokens,
    parse_prometheus_counters,
    parse_request_counts,
)
from spec_bench.server.stream import (
    BadStreamError,
    LlamaCppStreamReader,
    StreamedAnswer,
    TokenChunk,
    retokenise_answer,
)

SUMMED = {  # of vLLM 0.32.0 with a draft model
    "num_spec_steps": 13, "num_accepted_draft_tokens": 18, "num_draft_tokens": 52,
    "num_spec_tokens": 4, "acceptance_histogram": [6, 2, 2, 0, 3],
}  # fmt: skip
ACCEPTED = [0, 0, 2, 4, 1, 0, 0, 0, 4, 2, 1, 0, 4]
REAL = SUMMED | {"per_step_accepted": ACCEPTED, "per_step_drafted": [4] * 13}
REAL_CHUNKS = [1, 1, 1, 3, 5, 2, 1, 1, 1, 5, 3, 2, 1, 2]


def told(own):
    return parse_request_counts({"speculative_decoding": own}, 29)


def test_every_call_of_a_real_answer_is_known_and_the_cut_of_the_last_one():
    found = build_answer_steps(REAL_CHUNKS, [told(REAL)])
    assert (found.count_source, found.knows_drafted_by_call, len(found.records)) == (
        "requests",
        True,
        13,
    )
    assert [step.accepted for step in found.records] == ACCEPTED
    assert [step.delivered for step in found.records] == REAL_CHUNKS[1:]
    assert found.records[-1] == StepRecord(nodes=4, depth=4, accepted=4, delivered=2)


CHAIN = CallCounts("requests", (1, 0, 2), (2, 2, 2))


@pytest.mark.parametrize(
    ("chunks", "sources", "counted", "accepted", "delivered"),
    [
        ([1, 3, 1], [], "stream", [2, 0], [3, 1]),  # without counts a chunk is a call
        # Calls between drafts are counted; their places nobody tells.
        (
            [1, 1, 1, 3, 1],
            [CallCounts("requests", (2,), (4,))],
            "requests",
            [0, 0, 0, 2],
            [1, 1, 1, 3],
        ),
        ([1, 3, 3], [CHAIN], "requests", [1, 0, 2], [2, 1, 3]),  # two came in one chunk
        ([3, 1, 3], [CHAIN], "requests", [1, 0, 2], [0, 1, 3]),  # one within the first chunk
        ([1] * 5, [CallCounts("counters", (), (), 4)], "counters", [0] * 4, [1] * 4),
        # More tokens than came, fewer calls than chunks, more calls than tokens: not used.
        (
            [1, 2, 1, 1],
            [CallCounts("requests", (4,) * 3, (4,) * 3)],
            "stream",
            [1, 0, 0],
            [2, 1, 1],
        ),
        ([1, 2, 1, 1], [CallCounts("requests", (0,), (4,), 1)], "stream", [1, 0, 0], [2, 1, 1]),
        ([1, 2, 1, 1], [CallCounts("counters", (), (), 9)], "stream", [1, 0, 0], [2, 1, 1]),
    ],
)
def test_calls_are_by_the_counts_that_fit_the_chunks(chunks, sources, counted, accepted, delivered):
    found = build_answer_steps(chunks, sources)
    assert found.count_source == counted
    assert found.knows_drafted_by_call == (counted != "stream")
    assert [step.accepted for step in found.records] == accepted
    assert [step.delivered for step in found.records] == delivered


def test_counts_give_the_true_calls_whatever_was_drafted_or_cut():
    seen = 0
    for calls in product(range(3), repeat=3):
        for drafted in product((True, False), repeat=3):
            if any(accepted and not own for accepted, own in zip(calls, drafted, strict=True)):
                continue
            for cut in range(calls[-1] + 1):
                own = tuple(a for a, has in zip(calls, drafted, strict=True) if has)
                counts = CallCounts("requests", own, (2,) * len(own))
                *sizes, last = [1, *(accepted + 1 for accepted in calls)]
                found = build_answer_steps([*sizes, last - cut], [counts])
                assert found.count_source == "requests"
                assert len(found.records) == 3
                assert sum(step.accepted for step in found.records) == sum(calls)
                assert sum(step.delivered for step in found.records) == sum(calls) + 3 - cut
                seen += 1
    assert seen == 112


def test_a_histogram_is_calls_whose_order_is_not_known():
    found = told(SUMMED)
    assert found.accepted_by_call == tuple(sorted(ACCEPTED))
    assert found.knows_drafted_by_call
    assert sum(s.accepted for s in build_answer_steps(REAL_CHUNKS, [found]).records) == 18
    # Of drafts of unlike length only the sum is known.
    found = build_counts_from_histogram("requests", [1, 1], 4, drafted_total=5, max_drafted=4)
    assert not found.knows_drafted_by_call
    assert [step.accepted for step in build_answer_steps([1, 1, 2], [found]).records] == [
        0,
        1,
    ]


def test_no_number_of_a_server_makes_more_calls_than_its_answer_has_tokens():
    for histogram in ([10**7, 3], [0, 10**7], [28, 2]):
        assert told({"acceptance_histogram": histogram}) is None
    assert told({"acceptance_histogram": [26, 3]}).accepted_by_call == (0,) * 26 + (1,) * 3
    most = {"acceptance_histogram": [1], "num_draft_tokens": 10**9, "num_spec_tokens": 10**9}
    assert told(most) is None
    numbers = (29, 10**7, 10**7, [10**7], 10**7)
    after = parse_prometheus_counters(page(*numbers))
    assert count_calls_between(parse_prometheus_counters(page(0, 0, 0, [0], 0)), after, 29) is None
    calls = CallCounts("counters", (), (), 10**7)
    assert build_answer_steps([1, 28], [calls]).count_source == "stream"
    huge = parse_prometheus_counters("vllm:generation_tokens_total 1e308\n" * 2)
    assert count_generated_tokens({}, huge) is None


@pytest.mark.parametrize("own", [None, [], {"per_step_accepted": ["a"]}, {"num_spec_steps": 3}])
def test_what_is_no_count_is_nothing(own):
    assert told(own) is None


def page(tokens, drafts, proposed, places, calls):
    """Counters as vLLM writes them."""
    label = 'engine="0",model_name="target"'
    numbers = {
        "generation_tokens_total": tokens, "generation_tokens_created": "1.7e+09",
        "inter_token_latency_seconds_count": calls, "spec_decode_num_drafts_total": drafts,
        "spec_decode_num_draft_tokens_total": proposed,
    }  # fmt: skip
    lines = ["# HELP vllm:generation_tokens_total Number of generation tokens processed."]
    lines += [f"vllm:{name}{{{label}}} {each}" for name, each in numbers.items()]
    named = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{named}{{{label},position="{i}"}} {each}' for i, each in enumerate(places)]
    return "\n".join(lines)


def test_counters_of_a_real_answer_say_what_its_counts_say():
    before = parse_prometheus_counters(page(100, 5, 20, [2, 1, 1, 0], 40))
    after = parse_prometheus_counters(page(129, 18, 72, [9, 6, 4, 3], 53))
    found = count_calls_between(before, after, 29)
    assert found == CallCounts("counters", tuple(sorted(ACCEPTED)), (4,) * 13, 13)
    assert len(build_answer_steps(REAL_CHUNKS, [found]).records) == 13


def test_counters_that_heard_of_other_requests_are_not_used():
    before, after = (
        parse_prometheus_counters(page(100, 0, 0, [], 0)),
        parse_prometheus_counters(page(130, 0, 0, [], 29)),
    )
    assert count_calls_between(before, after, 29) is None
    assert (
        count_calls_between({}, parse_prometheus_counters("vllm:generation_tokens_total 29"), 29)
        is None
    )
    plain = "vllm:generation_tokens_total 5\nvllm:inter_token_latency_seconds_count 4"
    assert count_calls_between({}, parse_prometheus_counters(plain), 5) == CallCounts(
        "counters", (), (), 4
    )
    wrong = "vllm:generation_tokens_total 1.2.3\nvllm:generation_tokens_total NaN\n"
    assert parse_prometheus_counters(wrong) == {}


def event(line, finish=None):
    ids, tokens, clock, drafted, accepted = line
    timings = {"predicted_n": tokens, "predicted_ms": clock}
    if drafted:
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    choice = {"text": "x" * len(ids), "finish_reason": finish}
    body = {"choices": [choice], "__verbose": {"tokens": ids}, "timings": timings}
    return b"data: " + json.dumps(body).encode()


def reader(lines):
    made = LlamaCppStreamReader()
    for place, line in enumerate(lines):
        made.parse_line(event(line), float(place))
    _, tokens, *counts = lines[-1]
    made.parse_line(event(([], tokens, *counts), "length"), float(len(lines)))
    made.parse_line(b"data: [DONE]", float(len(lines)))
    return made


PLAIN = [([7], 1, 0.001, 0, 0), ([8], 2, 5.0, 0, 0), ([9], 3, 9.0, 0, 0)]
# The prompt's token, a call that keeps two of four, a plain one, one that is cut at the limit.
DRAFTED = [
    ([7], 1, 0.001, 0, 0),
    ([8], 2, 5.0, 4, 2), ([9], 3, 5.0, 4, 2), ([1], 4, 5.0, 4, 2),
    ([2], 5, 8.0, 4, 2),
    ([3], 6, 11.0, 8, 6), ([4], 7, 11.0, 8, 6),
]  # fmt: skip


def test_plain_decoding_is_a_call_a_token_within_an_unfinished_letter_too():
    served = reader(PLAIN).build_answer()
    assert [chunk.tokens for chunk in served.chunks] == [(7,), (8,), (9,)]
    assert parse_request_counts(served.metrics, 9) is None
    lines = [([7], 1, 0.001, 0, 0), ([8], 4, 12.0, 0, 0), ([9], 5, 15.0, 0, 0)]
    served = reader(lines).build_answer([7, 1, 2, 8, 9])
    assert [chunk.tokens for chunk in served.chunks] == [(7,), (1,), (2,), (8,), (9,)]


def test_tokens_of_one_clock_are_one_call_and_counts_say_what_it_verified():
    served = reader(DRAFTED).build_answer()
    assert [chunk.tokens for chunk in served.chunks] == [(7,), (8, 9, 1), (2,), (3, 4)]
    assert [chunk.seconds for chunk in served.chunks] == [0.0, 1.0, 4.0, 5.0]
    counts = parse_request_counts(served.metrics, 9)
    assert (counts.accepted_by_call, counts.drafted_by_call) == ((2, 4), (4, 4))
    steps = build_answer_steps([len(chunk.tokens) for chunk in served.chunks], [counts])
    calls = sorted((step.accepted, step.delivered) for step in steps.records)
    assert (calls, steps.count_source) == ([(0, 1), (2, 3), (4, 2)], "requests")


def test_tokens_within_an_unfinished_letter_are_asked_for_again():
    # As a real server sent it: seven of sixteen tokens had an event.
    lines = [
        ([238], 3, 87.3, 6, 6), ([246], 6, 87.3, 6, 6), ([236], 9, 167.1, 12, 9),
        ([238], 12, 167.1, 12, 9), ([246], 15, 218.8, 15, 12), ([], 16, 218.8, 15, 12),
    ]  # fmt: skip
    made = reader(lines)
    assert made.missing_id_count == 11
    served = made.build_answer(range(16))
    assert [len(chunk.tokens) for chunk in served.chunks] == [1, 7, 4, 4]
    assert served.tokens == tuple(range(16))
    with pytest.raises(BadStreamError, match="another one"):
        reader(lines).build_answer(range(15))


def test_another_servers_stream_is_refused():
    with pytest.raises(BadStreamError, match="not llama"):
        LlamaCppStreamReader().parse_line(
            b'data: {"choices": [{"text": "x", "finish_reason": null}]}', 0.0
        )
    with pytest.raises(BadStreamError, match="no numbers from 0"):
        LlamaCppStreamReader().parse_line(event(([3], -1, 5.0, 0, 0)), 0.0)
    with pytest.raises(BadStreamError, match="go back"):
        reader([*DRAFTED[:4], ([2], 5, 8.0, 3, 2)]).build_answer()


def came(*texts, finish="length", counted=None):
    chunks = tuple(TokenChunk(float(place), (), text) for place, text in enumerate(texts))
    return StreamedAnswer(chunks, finish, {} if counted is None else {"completion_tokens": counted})


def tokenise(text):
    """A letter a token, but for "th"."""
    return [ord(each) for each in text.replace("th", "T")]


@pytest.mark.parametrize(
    ("answer", "stops", "chunks"),
    [
        (came("a", "bc", "d"), (), [(97,), (98, 99), (100,)]),  # what the text gains with each
        (came("at", "h", "e"), (), [(97, 84), (101,)]),  # one that completes a token adds none
        # The end that is no text is counted by the server.
        (came("a", finish="stop", counted=2), (2, 9), [(97, 2)]),
        (came("a", finish="stop", counted=1), (2, 9), [(97,)]),
        (came("a", counted=2), (2,), [(97,)]),
    ],
)
def test_answers_that_came_as_text_have_tokens_again_by_chunk(answer, stops, chunks):
    found = retokenise_answer(answer, tokenise, stops)
    assert [chunk.tokens for chunk in found.chunks] == chunks
    assert found.chunks[-1].seconds == answer.chunks[-1].seconds
    with pytest.raises(BadStreamError, match="without a token"):
        retokenise_answer(came("x"), lambda _: [], ())
