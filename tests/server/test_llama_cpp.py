"""llama.cpp's stream: calls by its own clock, drafts by its counts, lost tokens asked for again."""

import json

import pytest

from spec_bench.server.counts import counts_of_request, steps_of
from spec_bench.server.stream import BadStreamError, LlamaReader

Line = tuple[list[int], int, float, int, int]  # ids, tokens so far, clock, drafted, accepted


def event(line, finish=None):
    ids, tokens, clock, drafted, accepted = line
    timings = {"predicted_n": tokens, "predicted_ms": clock}
    if drafted:
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted}
    choice = {"text": "x" * len(ids), "finish_reason": finish}
    body = {"choices": [choice], "__verbose": {"tokens": ids}, "timings": timings}
    return b"data: " + json.dumps(body).encode()


def reader(lines):
    made = LlamaReader()
    for place, line in enumerate(lines):
        made.take(event(line), float(place))
    _, tokens, *counts = lines[-1]
    made.take(event(([], tokens, *counts), "length"), float(len(lines)))
    made.take(b"data: [DONE]", float(len(lines)))
    return made


PLAIN = [([7], 1, 0.001, 0, 0), ([8], 2, 5.0, 0, 0), ([9], 3, 9.0, 0, 0)]
# The prompt's token, a call that keeps two of four, a plain one, one that is cut at the limit.
DRAFTED = [
    ([7], 1, 0.001, 0, 0),
    ([8], 2, 5.0, 4, 2), ([9], 3, 5.0, 4, 2), ([1], 4, 5.0, 4, 2),
    ([2], 5, 8.0, 4, 2),
    ([3], 6, 11.0, 8, 6), ([4], 7, 11.0, 8, 6),
]  # fmt: skip


def test_plain_decoding_is_a_call_a_token():
    served = reader(PLAIN).served()
    assert [chunk.tokens for chunk in served.chunks] == [(7,), (8,), (9,)]
    assert counts_of_request(served.metrics) is None


def test_tokens_of_one_clock_are_one_call_and_counts_say_what_it_verified():
    served = reader(DRAFTED).served()
    assert [chunk.tokens for chunk in served.chunks] == [(7,), (8, 9, 1), (2,), (3, 4)]
    assert [chunk.seconds for chunk in served.chunks] == [0.0, 1.0, 4.0, 5.0]
    counts = counts_of_request(served.metrics)
    assert counts is not None
    assert (counts.accepted, counts.drafted) == ((2, 4), (4, 4))
    sizes = [len(chunk.tokens) for chunk in served.chunks]
    steps = steps_of(sizes, [counts])
    assert sorted((step.accepted, step.delivered) for step in steps.records) == [
        (0, 1), (2, 3), (4, 2)
    ]  # fmt: skip
    assert steps.counted == "requests"


def test_tokens_within_an_unfinished_letter_are_asked_for_again():
    # As a real server sent it: seven of sixteen tokens had an event.
    lines = [
        ([238], 3, 87.3, 6, 6), ([246], 6, 87.3, 6, 6), ([236], 9, 167.1, 12, 9),
        ([238], 12, 167.1, 12, 9), ([246], 15, 218.8, 15, 12), ([], 16, 218.8, 15, 12),
    ]  # fmt: skip
    made = reader(lines)
    assert made.lost == 11
    served = made.served(range(16))
    assert [len(chunk.tokens) for chunk in served.chunks] == [1, 7, 4, 4]
    assert served.tokens == tuple(range(16))
    with pytest.raises(BadStreamError, match="another one"):
        reader(lines).served(range(15))


def test_plain_calls_within_an_unfinished_letter_are_calls():
    lines = [([7], 1, 0.001, 0, 0), ([8], 4, 12.0, 0, 0), ([9], 5, 15.0, 0, 0)]
    served = reader(lines).served([7, 1, 2, 8, 9])
    assert [chunk.tokens for chunk in served.chunks] == [(7,), (1,), (2,), (8,), (9,)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'data: {"choices": [{"text": "x", "finish_reason": null}]}', "not llama.cpp's server"),
        (event(([3], -1, 5.0, 0, 0)), "no numbers from 0"),
    ],
)
def test_another_servers_stream_is_refused(line, said):
    with pytest.raises(BadStreamError, match=said):
        LlamaReader().take(line, 0.0)


def test_counts_that_go_back_are_refused():
    lines = [*DRAFTED[:4], ([2], 5, 8.0, 3, 2)]
    with pytest.raises(BadStreamError, match="go back"):
        reader(lines).served()
