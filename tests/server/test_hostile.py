"""Servers that leak, drip, flood or mislead: one line in time, nothing secret, nothing for good."""

import base64
import fcntl
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from spec_bench.metrics.efficiency import in_bursts
from spec_bench.records.types import Delivery, Generation, Request
from spec_bench.server.counts import parse
from spec_bench.server.decoder import Asking, ServedDecoder, UnansweredError, held
from spec_bench.server.endpoint import NEUTRAL, RefusedError, Server, ServerError, fit, masked
from spec_bench.server.settings import ServerSettings
from spec_bench.server.stream import Chunk, Served
from spec_bench.settings.validation import check
from tests.server.completions import Completions, serving

KEY = "sk-0123456789abcdef"
STEPS = [[5], [6, 7, 8], [9]]
OK = b"HTTP/1.1 200 OK\r\n"


def asked(url, **more):
    """A client that does not wait."""
    patience = {"sleep": lambda _: None, "timeout_s": 0.5, "answer_s": 0.5, "attempts": 1}
    return Server(url, "target", KEY, **{**patience, **more})


@contextmanager
def raw(reply):
    """A server that answers every connection by a function."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection):
        with suppress(OSError), connection:
            connection.recv(65536)
            reply(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.close()


def dripping(connection):
    for byte in OK + b"X-Slow: " + b"y" * 10_000:
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
def test_headers_that_drip_and_bodies_without_end_are_given_up_in_time(reply, said):
    start = time.perf_counter()
    with raw(reply) as url, pytest.raises(ServerError, match=said) as caught:
        asked(url).complete([1], 5)
    assert time.perf_counter() - start < 5
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("reply", [dripping, flooding(b"200 OK")])
def test_counters_without_end_are_none(reply):
    start = time.perf_counter()
    with raw(reply) as url:
        assert asked(url).read("metrics") is None
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("before", [b"", b"u", b"us", b"user:"])
def test_a_key_in_base64_is_not_shown_whatever_stands_before_it(before):
    key = "sk-a1b2c3d4e5f6"
    said = base64.b64encode(before + key.encode()).decode()
    left = masked(f"denied: {said}", key).removeprefix("denied: ")
    assert "***" in left
    assert len(left) <= len(before) * 2 + len("***") + 4


def test_a_message_with_the_key_in_it_is_shown_without():
    refused = pytest.raises(ServerError, match=r"bad key Bearer \*\*\* \[31mred")
    with serving(Completions(lambda _: STEPS, ["leak"])) as served, refused as caught:
        asked(served.url).complete([1], 5)
    for secret in (KEY, "MTIzNDU2Nzg5", "\x1b"):
        assert secret not in str(caught.value)


def test_an_addresss_password_is_in_no_message():
    assert fit("no http://me:hunter2@host/v1 there") == "no http://***@host/v1 there"
    with pytest.raises(ValueError, match="without user and password") as caught:
        check(ServerSettings, {"url": "http://me:hunter2@host/v1"}, "server")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("faults", [[], [404], ["cut"]])
@pytest.mark.parametrize("lives", [True, False])
def test_whoever_answers_once_a_started_server_has_ended_is_a_stranger(tmp_path, lives, faults):
    log = tmp_path / "server.log"
    log.write_text("ready\nout of memory\n")
    with log.open() as held, serving(Completions(lambda _: STEPS, faults)) as served:
        fcntl.flock(held, fcntl.LOCK_EX if lives else fcntl.LOCK_UN)
        server = asked(served.url, attempts=2, log=str(log))
        if lives and faults != [404]:
            assert server.complete([1], 5).tokens == (5, 6, 7, 8, 9)
            return
        said = "status 404" if lives else "the server has ended: out of memory"
        with pytest.raises(ServerError, match=said):
            server.complete([1], 5)
        assert len(served.bodies) == 1


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("serve m --api-key sk-1 --port 8", "serve m --api-key *** --port 8"),
        ("--api-key=sk-1,sk-2 -t 4", "--api-key=*** -t 4"),
        ("serve --api-key sk-1 sk-2 --port 8", "serve --api-key *** --port 8"),
        ("--hf-token hf_1", "--hf-token ***"),
        ("-hft hf_1 -c 1", "-hft *** -c 1"),
        ("env HF_TOKEN=hf_1 vllm serve", "env HF_TOKEN=*** vllm serve"),
        ("args: {'api_key': ['sk-1', 'sk-2'], 'port': 8}", "args: {'api_key': ***, 'port': 8}"),
        ("--hf-token --port 8", "--hf-token --port 8"),
        ("--max-num-batched-tokens 8192", "--max-num-batched-tokens 8192"),
        (
            "--ssl-keyfile f --num-speculative-tokens=5",
            "--ssl-keyfile f --num-speculative-tokens=5",
        ),
        ("token 999, the target has 300", "token 999, the target has 300"),
    ],
)
def test_the_value_of_what_is_named_as_a_key_is_not_shown(said, shown):
    assert masked(said) == shown


def test_an_answer_that_was_aborted_is_none():
    refused = pytest.raises(ServerError, match="unfinished answer: finish_reason 'abort'")
    with serving(Completions(lambda _: STEPS, ["abort"])) as served, refused:
        asked(served.url).complete([1], 5)


def test_llama_cpp_as_text_is_refused_at_once():
    refused = pytest.raises(RefusedError, match=r"server\.kind=llama_cpp")
    with serving(Completions(lambda _: STEPS, ["llama"], text=lambda _: "x")) as served, refused:
        asked(served.url, ids=False, attempts=3).complete([1], 5)
    assert len(served.bodies) == 1


def test_every_request_names_all_that_a_server_might_fill_in():
    with serving(Completions(lambda _: STEPS)) as served:
        asked(served.url).complete([1], 5)
        asked(served.url).complete([1], 5, top_k=7)
    for body, top_k in zip(served.bodies, (-1, 7), strict=True):
        assert {name: body[name] for name in NEUTRAL} == NEUTRAL
        assert body["top_k"] == top_k


@pytest.mark.parametrize(("heard", "temperature"), [(True, 1.0), (False, 1.0), (False, 0.0)])
def test_a_server_that_samples_by_settings_of_its_own_is_refused(heard, temperature):
    def answer(body):
        likeliest = body["temperature"] == 0 or (heard and body["top_k"] == 1)
        return STEPS if likeliest else [[5], [6, 8, 7], [9]]

    with serving(Completions(answer)) as served:
        decoder = ServedDecoder(asked(served.url), Asking(temperature, 0, 1.0, vocabulary=300))
        requests = [Request("a", (1, 2), 5, ())]
        if heard or not temperature:
            decoder.generate(requests, 0)
            decoder.generate(requests, 0)
            assert len(served.bodies) == (4 if temperature else 2)
            return
        with pytest.raises(RefusedError, match="ignores top_k"):
            decoder.generate(requests, 0)


def test_a_counter_that_is_no_number_costs_no_answer():
    text = "vllm:generation_tokens_total 1.2.3\nvllm:generation_tokens_total NaN\n"
    assert parse(text) == {}
    with serving(Completions(lambda _: STEPS, counters=lambda: text)) as served:
        decoder = ServedDecoder(asked(served.url), Asking(0.0, 0, 1.0, vocabulary=300))
        (found,) = decoder.generate([Request("a", (1, 2), 5, ())], 0)
    assert found.tokens == (5, 6, 7, 8, 9)


@pytest.mark.parametrize("chunks", [2, 3, 8, 16, 20])
@pytest.mark.parametrize(("gap_s", "bursts"), [(2e-5, True), (2e-3, False)])
def test_chunks_that_come_at_once_say_nothing_of_when_they_were_made(gap_s, bursts, chunks):
    seconds = tuple(1 + gap_s * place for place in range(chunks))
    came = Delivery(seconds, (1,) * chunks)
    found = Generation("p", (3,) * chunks, "length", (), 1, 1, 0, 0, delivery=came)
    assert in_bursts([found]) == bursts


def test_an_answer_of_one_chunk_came_in_no_bursts():
    came = Delivery((1.0,), (4,))
    assert not in_bursts([Generation("p", (3,) * 4, "length", (), 1, 0, 0, 0, delivery=came)])


@pytest.mark.parametrize("readings", [(5.0, 4.0, 3.0, 2.0), (1.0, 2.0, 4.0, 3.0)])
def test_an_answer_by_a_clock_that_runs_backwards_is_none(readings):
    start, *came = readings
    chunks = tuple(Chunk(moment - start, (5,)) for moment in came)
    with pytest.raises(ServerError, match="the clock ran backwards"):
        held(Request("a", (1,), 3, ()), Served(chunks, "length"), "http://host", 300)


def test_a_server_that_fails_while_it_is_probed_fails_the_row():
    with serving(Completions(lambda _: STEPS, [500])) as served:
        decoder = ServedDecoder(asked(served.url), Asking(1.0, 0, 1.0, vocabulary=300))
        with pytest.raises(ServerError, match="status 500") as caught:
            decoder.generate([Request("a", (1, 2), 5, ())], 0)
    assert not isinstance(caught.value, UnansweredError)
