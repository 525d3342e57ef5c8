"""Requests to servers: answers, energy and shares; stalls, drips, floods, lies and leaks."""

import base64
import fcntl
import statistics
import time
from contextlib import nullcontext, suppress
from itertools import pairwise
from socketserver import BaseRequestHandler
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from scripts.check import server_faults
from spec_bench.metrics.latencies import are_most_chunks_simultaneous
from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import Generation, Request, ServerChunks
from spec_bench.server import decoder, endpoint
from spec_bench.server.decoder import RequestOptions, RequestSpan, ServedDecoder, UnansweredError
from spec_bench.server.endpoint import RequestRefusedError, ServerClient, ServerError
from spec_bench.server.settings import ServerSettings
from spec_bench.server.stream import BadStreamError, StreamedAnswer, TokenChunk
from spec_bench.settings.validation import read_settings
from spec_bench.system.redaction import redact
from tests.listening import listening
from tests.server.completions import Completions, serving

KEY = "sk-0123456789abcdef"
STEPS = [[5], [6, 7, 8], [9]]


def asked(url, **more):
    """A client that does not wait."""
    patience = {"sleep": lambda _: None, "timeout_s": 5.0, "answer_timeout_s": 5.0, "attempts": 1}
    return ServerClient(url, "target", KEY, **{**patience, **more})


def answering(*faults, **more):
    return serving(Completions(lambda _: STEPS, list(faults), **more))


def test_an_answer_is_its_chunks_with_times_that_rise():
    with answering() as served:
        answer = asked(served.url).complete([1, 2], 5, SamplingSettings(0.5, min_p=0.1), seed=3)
    assert [chunk.tokens for chunk in answer.chunks] == [(5,), (6, 7, 8), (9,)]
    assert (answer.finish, answer.usage) == ("length", {"completion_tokens": 5})
    seconds = [chunk.seconds for chunk in answer.chunks]
    assert 0 < seconds[0] <= seconds[1] <= seconds[2]
    (body,) = served.bodies
    told = {"prompt": [1, 2], "max_tokens": 5, "temperature": 0.5, "min_p": 0.1, "seed": 3}
    told |= {
        "stream": True,
        "return_token_ids": True,
        "top_k": -1,
        **endpoint.NEUTRAL,
    }  # what it might fill in
    assert {name: body[name] for name in told} == told


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (500, "status 500"),
        (429, "status 429"),
        ("cut", "the stream ends before the answer does"),
        ("stall", "read timeout"),
        ("drip", "no whole answer within 0.3 s"),
        ("garbage", "an event that is no JSON"),
        ("html", "the reply is no stream of events"),
        ("textual", "the server ignores return_token_ids; server.tokens=text"),
        ("error", "the server says: out of memory"),
    ],
)
def test_every_fault_is_one_line_and_a_later_answer_is_taken(fault, said):
    patience = {"timeout_s": 0.3, "answer_timeout_s": 3.0 if fault == "stall" else 0.3}
    with answering(fault, fault) as served:
        with pytest.raises(ServerError, match=said) as caught:
            asked(served.url, attempts=2, **patience).complete([1], 5)
        (line,) = str(caught.value).splitlines()
        assert line.startswith(f"{served.url}: ") and line.endswith("after 2 attempts")
        served.faults.append(fault)
        assert asked(served.url, attempts=2, **patience).complete([1], 5).tokens == (5, 6, 7, 8, 9)
    assert len(served.bodies) == 4


def test_a_refusal_is_not_repeated_and_hides_the_key():
    refusal = pytest.raises(RequestRefusedError, match=r"status 401: refused: Bearer \*\*\*")
    with answering(401) as served, refusal as caught:
        asked(served.url, attempts=3).complete([1], 5)
    assert served.keys == [f"Bearer {KEY}"]
    assert KEY not in str(caught.value) + repr(asked(served.url))


def test_the_server_says_how_long_to_wait():
    waited = []
    with answering(429, 503, headers={"Retry-After": "7"}) as served:
        asked(served.url, attempts=3, sleep=waited.append).complete([1], 5)
    assert waited == [7.0, 14.0]


# What a server says beside its answer, and the two that do not agree.
SAID = {
    "a chunk lost": "completion_tokens 5, which are 2",
    "a chunk sent twice": "7 tokens or more where 5",
    "the first chunk sent twice": "6 tokens or more where 5",
    "a chunk of another answer": "id is 'answer-2' in place of 'answer-1'",
    "another model in one chunk": "model is 'another-model' in place of 'target'",
    "usage -5": "completion_tokens -5, ",
    "usage 1000000000": "completion_tokens 1000000000, which are 5",
    "prompt tokens 3": "prompt_tokens 3, which are 2",
    "usage 10^9": "completion_tokens 1000000000, the text that came has 5",
    "usage nested 100000 deep": "an event that is no JSON",
    "403, the key in base64": "status 403: no entry for",
}


@pytest.mark.parametrize("name", SAID)
def test_what_a_server_says_is_held_against_its_answer(name):
    fault = next(each for each in server_faults.all_faults() if each.name == name)
    with server_faults.serving(fault) as url:
        how, what = server_faults.ask(url, fault)
    assert how == "refused"
    assert SAID[name] in what
    assert not server_faults.leaks(what)


@pytest.mark.slow
def test_each_tenth_fault_of_a_server_is_refused_in_one_line_or_without_effect_in_little_memory():
    every = server_faults.all_faults()
    assert len(every) > 200
    taken = list(server_faults.take([*every[::10], *every[-4:]]))
    assert [(each.fault.name, each.fails) for each in taken if each.fails] == []
    whys = ("expired", "mismatch", "self-signed", "wrong version")  # of TLS, the last four
    for each, why in zip(taken[-4:], whys, strict=True):
        assert why in each.line


def test_an_address_of_nobody_or_without_its_scheme_is_one_line():
    with answering() as served:
        pass
    with pytest.raises(ServerError, match=r"connect error: .*refused, after 1 attempt"):
        asked(served.url).complete([1], 5)
    with pytest.raises(ValueError, match="must start with http"):
        ServerClient("localhost:8000", "target")
    with pytest.raises(ValueError, match="prompt 'x' is empty"):
        asking(served.url).refuse_unfit_prompts([Request("x", (), 1)])


ANSWER = [[5], [6, 7], [2]]
REQUESTS = [Request(name, (1, ord(name)), 6, (2,)) for name in "abcd"]


def asking(url, rows=1, temperature=0.0):
    return ServedDecoder(
        asked(url), RequestOptions(SamplingSettings(temperature), vocabulary_size=300), rows
    )


@pytest.mark.parametrize("rows", [1, 2])
def test_energy_is_metered_from_the_first_chunks_to_the_last(rows):
    window = []
    meter = SimpleNamespace(begin_window=lambda: window.append(time.perf_counter()))
    meter.end_window = meter.begin_window
    with serving(Completions(lambda _: ANSWER, delays=[0.2, 0.1, 0.1])) as served:
        start = time.perf_counter()
        asking(served.url, rows).generate(REQUESTS[:rows], 0, meter=meter)
    begun, ended = window
    assert begun - start > 0.19
    assert 0.1 < ended - begun < 1.0  # 0.2 s, less what the first wakes up late


def test_answers_come_in_the_order_asked_and_progress_is_told_of_each():
    told = []
    with serving(Completions(lambda _: ANSWER)) as served:
        found = asking(served.url, 4).generate(REQUESTS, 0, lambda *each: told.append(each))
    assert [(each.prompt_id, each.finish) for each in found] == [(name, "stop") for name in "abcd"]
    assert told == [(2, 3)] * 4


@pytest.mark.parametrize(
    ("steps", "tokens", "sizes"),
    [
        # What a server says behind a stop token is no part of the answer; an answer that ends by a
        # token of the server's own is one.
        ([[5], [6, 2, 7], [8]], (5, 6, 2), (1, 2)),
        ([[5], [6, 7]], (5, 6, 7), (1, 2)),
    ],
)
def test_an_answer_ends_at_a_stop_token_or_where_the_server_ends_it(steps, tokens, sizes):
    with serving(Completions(lambda _: steps)) as served:
        (found,) = asking(served.url).generate(REQUESTS[:1], 0)
    assert (found.tokens, found.finish, found.delivery.tokens) == (tokens, "stop", sizes)


def test_an_answer_that_ran_out_of_room_is_none():
    # Its context ends behind three tokens: "length", though six were asked for.
    refused = pytest.raises(UnansweredError, match="prompt 'a': 3 of 6 tokens, then no more room")
    with serving(Completions(lambda _: [[5], [6, 7]], room=3)) as served, refused:
        asking(served.url).generate(REQUESTS[:1], 0)


@pytest.mark.parametrize("metered", [False, True])
def test_with_a_meter_nothing_is_kept_of_a_window_that_was_none(metered):
    def answer(body):
        return [[999]] if body["prompt"][1] == ord("b") else ANSWER

    meter = Mock() if metered else None
    refused = pytest.raises(UnansweredError, match="token 999")
    with serving(Completions(answer)) as served, refused as caught:
        asking(served.url, 4).generate(REQUESTS, 0, meter=meter)
    kept = [each.prompt_id for each in caught.value.generations]
    assert kept == ([] if metered else ["a", "c", "d"])


def test_requests_of_an_open_loop_arrive_by_themselves_and_wait_in_their_latency():
    with serving(Completions(lambda _: ANSWER, delays=[0.3, 0.0, 0.0])) as served:
        loop = asking(served.url, 1)
        loop.requests_per_s = 1000.0  # all at once, one under way
        found = loop.generate(REQUESTS[:3], 0)
    latencies = [each.latency_s for each in found]
    assert latencies[0] < latencies[1] - 0.25 < latencies[2] - 0.5
    assert found[2].delivery.seconds[-1] == latencies[2]


def test_arrivals_are_a_poisson_process_that_the_seed_fixes():
    moments = decoder.draw_arrival_times_s(20_000, 4.0, 7)
    assert (
        moments
        == decoder.draw_arrival_times_s(20_000, 4.0, 7)
        != decoder.draw_arrival_times_s(20_000, 4.0, 8)
    )
    gaps = [after - before for before, after in pairwise(moments)]
    found = (moments[0], statistics.fmean(gaps), statistics.stdev(gaps))
    assert found == pytest.approx((0, 0.25, 0.25), rel=0.05)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], []),
        ([RequestSpan(1.0, 1.5, 4.0)], [(0.5, 2.5)]),  # alone it has its own seconds
        # 0..1 the first waits alone, 1..2 it decodes while the second waits, 2..3 both decode.
        ([RequestSpan(0.0, 1.0, 3.0), RequestSpan(1.0, 2.0, 4.0)], [(1.0, 1.0), (0.5, 1.5)]),
    ],
)
def test_requests_under_way_have_equal_parts_of_every_instant(spans, expected):
    assert decoder.share_batch_seconds(spans) == expected
    several = [
        RequestSpan(0.0, 0.4, 2.0),
        RequestSpan(0.1, 1.7, 1.9),
        RequestSpan(5.0, 5.0, 5.5),
        RequestSpan(0.3, 0.3, 0.3),
    ]
    found = decoder.share_batch_seconds(several)  # 2.5 s, in which anything was under way
    assert (sum(map(sum, found)), found[3]) == (pytest.approx(2.5), (0.0, 0.0))


SOON = {"timeout_s": 0.5, "answer_timeout_s": 0.5}


def raw(reply):
    """A server that answers every connection by a function."""

    class Handler(BaseRequestHandler):
        def handle(self):
            with suppress(OSError):
                self.request.recv(65536)
                reply(self.request)

    return listening(Handler)


def dripping(connection):
    for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"y" * 10_000:
        connection.sendall(bytes([byte]))
        time.sleep(0.01)


def flooding(status):
    def reply(connection):
        connection.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")
        while True:
            connection.sendall(b"x" * 65536)

    return reply


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (dripping, "no whole answer within 0.5 s"),
        (flooding(b"400 Bad Request"), "status 400: xxx"),
        (flooding(b"200 OK"), "a line of more than 8 MiB|no whole answer"),
    ],
)
def test_headers_that_drip_and_answers_and_counters_without_end_are_given_up_in_time(reply, said):
    start = time.perf_counter()
    with raw(reply) as url:
        assert asked(url, **SOON).fetch_text("metrics") is None
        with pytest.raises(ServerError, match=said) as caught:
            asked(url, **SOON).complete([1], 5)
    assert time.perf_counter() - start < 5
    assert len(str(caught.value)) < 400
    with pytest.raises(BadStreamError, match="a line of more than 8 MiB"):
        list(endpoint.iter_lines(iter([b"x" * 9 * 2**20])))


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"user:"])
def test_a_key_in_base64_is_not_shown_whatever_stands_before_it(before):
    key = "sk-a1b2c3d4e5f6"
    said = base64.b64encode(before + key.encode()).decode()
    left = redact(f"denied: {said}", key).removeprefix("denied: ")
    assert "***" in left
    assert len(left) <= len(before) * 2 + len("***") + 4


def test_a_message_has_neither_the_key_nor_an_addresss_password():
    refused = pytest.raises(ServerError, match=r"bad key Bearer \*\*\* \\x1b\[31mred")
    with answering("leak") as served, refused as caught:
        asked(served.url).complete([1], 5)
    for secret in (KEY, "MTIzNDU2Nzg5", "\x1b"):
        assert secret not in str(caught.value)
    assert (
        endpoint.redact_to_one_line("no http://me:hunter2@host/v1 there")
        == "no http://***@host/v1 there"
    )
    with pytest.raises(ValueError, match="without user and password") as caught:
        read_settings(ServerSettings, {"url": "http://me:hunter2@host/v1"}, "server")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("spelt", server_faults.spellings().values(), ids=server_faults.spellings())
def test_a_key_is_hidden_however_it_is_spelt_or_cut(spelt):
    shown = redact(f"no entry for {spelt}, ask", server_faults.KEY)
    assert not server_faults.leaks(shown)
    assert shown.startswith("no entry for ") and shown.endswith(", ask")


@pytest.mark.parametrize(
    "word", ["sk-", "secret=[", "--key=", "a@//", "sk-1", KEY, "&key=", " key"]
)
def test_what_a_hostile_message_repeats_is_redacted_in_time(word):
    start = time.perf_counter()
    endpoint.redact_to_one_line(word * 10**6, KEY, 200)
    redact(word * 10**4, KEY)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize("faults", [[], [404], ["cut"]])
@pytest.mark.parametrize("lives", [True, False])
def test_whoever_answers_once_a_started_server_has_ended_is_a_stranger(tmp_path, lives, faults):
    log = tmp_path / "server.log"
    log.write_text("ready\nout of memory\n")
    with log.open() as file, answering(*faults) as served:
        fcntl.flock(file, fcntl.LOCK_EX if lives else fcntl.LOCK_UN)
        server = asked(served.url, attempts=2, log=str(log))
        if lives and faults != [404]:
            assert server.complete([1], 5).tokens == (5, 6, 7, 8, 9)
            return
        said = "status 404" if lives else "the server has ended: out of memory"
        with pytest.raises(ServerError, match=said):
            server.complete([1], 5)
        assert len(served.bodies) == 1


@pytest.mark.parametrize(
    ("said", "secret"),
    [
        ("serve m --api-key sk-1 --port 8", "sk-1"),
        ("--api-key=sk-1,sk-2 -t 4", "sk-1,sk-2"),
        ("serve --api-key sk-1 sk-2 --port 8", "sk-1 sk-2"),
        ("--hf-token hf_1", "hf_1"),
        ("-hft hf_1 -c 1", "hf_1"),
        ("env HF_TOKEN=hf_1 vllm serve", "hf_1"),
        ("args: {'api_key': ['sk-1', 'sk-2'], 'port': 8}", "['sk-1', 'sk-2']"),
        *(("--hf-token --port 8", ""), ("--max-num-batched-tokens 8192", "")),
        ("started: API_TOKEN=abcd1234 serve", "abcd1234"),
        ('{"api_key": "abcd1234"}', "abcd1234"),
        ("http://host/v1?api_key=abcd1234&a=b", "abcd1234"),
        ("http://host/sk-live-4fQ9zT7mXw2L/v1", "sk-live-4fQ9zT7mXw2L"),
        ("a name 4fQ9zT7mXw2Lr8Vd1Bn6Kc3J", "4fQ9zT7mXw2Lr8Vd1Bn6Kc3J"),
        ("multi-token prediction of a sort_key: x, KEY=VALUE, pad_token=2", ""),
        ("commit 0f3c2a1b9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a of Qwen2ForCausalLMWithHeads", ""),
        *(("--ssl-keyfile f --num-speculative-tokens=5", ""), ("token 999 of 300", "")),
    ],
)
def test_the_value_of_what_is_named_as_a_key_is_not_shown(said, secret):
    assert redact(said) == (said.replace(secret, "***") if secret else said)


def test_what_is_no_answer_is_refused_at_once_or_after_all_attempts():
    with answering("abort") as served, pytest.raises(ServerError, match="finish_reason 'abort'"):
        asked(served.url).complete([1], 5)
    refused = pytest.raises(RequestRefusedError, match=r"server\.kind=llama_cpp")
    with answering("llama", text=lambda _: "x") as served, refused:
        asked(served.url, expects_ids=False, attempts=3).complete([1], 5)
    assert len(served.bodies) == 1


@pytest.mark.parametrize(
    ("heard", "temperature", "requests"), [(True, 1.0, 4), (False, 0.0, 2), (False, 1.0, None)]
)
def test_a_server_that_samples_by_settings_of_its_own_is_refused(heard, temperature, requests):
    def answer(body):
        likeliest = body["temperature"] == 0 or (heard and body["top_k"] == 1)
        return STEPS if likeliest else [[5], [6, 8, 7], [9]]

    said = nullcontext() if requests else pytest.raises(RequestRefusedError, match="ignores top_k")
    with serving(Completions(answer)) as served, said:
        made = asking(served.url, temperature=temperature)
        made.generate(REQUESTS[:1], 0)
        made.generate(REQUESTS[:1], 0)
        assert len(served.bodies) == requests


@pytest.mark.parametrize("chunks", [1, 2, 3, 20])
@pytest.mark.parametrize(("gap_s", "bursts"), [(2e-5, True), (2e-3, False)])
def test_chunks_that_come_at_once_say_nothing_of_when_they_were_made(gap_s, bursts, chunks):
    came = ServerChunks(tuple(1 + gap_s * place for place in range(chunks)), (1,) * chunks)
    found = Generation("p", (3,) * chunks, "length", (), 1, 1, 0, 0, delivery=came)
    assert are_most_chunks_simultaneous([found]) == (bursts and chunks > 1)


@pytest.mark.parametrize("seconds", [(-1.0, -2.0, -3.0), (1.0, 3.0, 2.0)])
def test_an_answer_by_a_clock_that_runs_backwards_is_none(seconds):
    chunks = tuple(TokenChunk(moment, (5,)) for moment in seconds)
    with pytest.raises(ServerError, match="the clock ran backwards"):
        decoder.trim_chunks(
            Request("a", (1,), 3, ()), StreamedAnswer(chunks, "length"), "http://host", 300
        )


def test_a_server_that_fails_while_it_is_probed_fails_the_row():
    with answering(500) as served, pytest.raises(ServerError, match="status 500") as caught:
        asking(served.url, temperature=1.0).generate(REQUESTS[:1], 0)
    assert not isinstance(caught.value, UnansweredError)
