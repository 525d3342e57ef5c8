"""A server as a decoder: what stands around the requests."""

import statistics
import time
from itertools import pairwise

import pytest

from spec_bench.records.types import Request
from spec_bench.server.decoder import Asking, ServedDecoder, UnansweredError, arrivals
from spec_bench.server.endpoint import Server
from tests.server.completions import Completions, serving

STEPS = [[5], [6, 7], [2]]
REQUESTS = [Request(name, (1, ord(name)), 6, (2,)) for name in "abcd"]


def decoder(url, rows=1):
    server = Server(url, "target", attempts=1, timeout_s=5.0)
    return ServedDecoder(server, Asking(0.0, 0, 1.0, vocabulary=300), rows)


class Meter:
    """Notes when its window was open."""

    def __init__(self):
        self.window = []

    def begin(self):
        self.window.append(time.perf_counter())

    def end(self):
        self.window.append(time.perf_counter())


@pytest.mark.parametrize("rows", [1, 2])
def test_energy_is_metered_from_the_first_chunks_to_the_last(rows):
    meter = Meter()
    with serving(Completions(lambda _: STEPS, delays=[0.2, 0.1, 0.1])) as served:
        start = time.perf_counter()
        decoder(served.url, rows).generate(REQUESTS[:rows], 0, meter=meter)
    begun, ended = meter.window
    assert begun - start > 0.19
    assert 0.1 < ended - begun < 1.0  # 0.2 s, less what the first wakes up late


def test_answers_come_in_the_order_asked_and_progress_is_told_of_each():
    told = []
    with serving(Completions(lambda _: STEPS)) as served:
        found = decoder(served.url, 4).generate(REQUESTS, 0, lambda *each: told.append(each))
    assert [each.prompt_id for each in found] == list("abcd")
    assert told == [(2, 3)] * 4
    assert {each.finish for each in found} == {"stop"}


def test_what_a_server_says_behind_a_stop_token_is_no_part_of_the_answer():
    with serving(Completions(lambda _: [[5], [6, 2, 7], [8]])) as served:
        (found,) = decoder(served.url).generate(REQUESTS[:1], 0)
    assert found.tokens == (5, 6, 2)
    assert found.delivery is not None
    assert found.delivery.tokens == (1, 2)
    assert found.finish == "stop"


def test_an_answer_that_ran_out_of_room_is_none():
    # Its context ends behind three tokens: "length", though six were asked for.
    refused = pytest.raises(UnansweredError, match="prompt 'a': 3 of 6 tokens, then no more room")
    with serving(Completions(lambda _: [[5], [6, 7]], room=3)) as served, refused:
        decoder(served.url).generate(REQUESTS[:1], 0)


def test_an_answer_that_ends_by_a_token_of_the_servers_own_is_one():
    with serving(Completions(lambda _: [[5], [6, 7]])) as served:
        (found,) = decoder(served.url).generate(REQUESTS[:1], 0)
    assert (found.tokens, found.finish) == ((5, 6, 7), "stop")


@pytest.mark.parametrize("metered", [False, True])
def test_with_a_meter_nothing_is_kept_of_a_window_that_was_none(metered):
    def answer(body):
        return [[999]] if body["prompt"][1] == ord("b") else STEPS

    meter = Meter() if metered else None
    refused = pytest.raises(UnansweredError, match="token 999")
    with serving(Completions(answer)) as served, refused as caught:
        decoder(served.url, 4).generate(REQUESTS, 0, meter=meter)
    kept = [each.prompt_id for each in caught.value.answered]
    assert kept == ([] if metered else ["a", "c", "d"])


def test_an_empty_prompt_is_refused_by_its_name():
    with pytest.raises(ValueError, match="prompt 'x' is empty"):
        decoder("http://127.0.0.1:1/v1").preflight([Request("x", (), 1)])


def test_requests_of_an_open_loop_arrive_by_themselves_and_wait_in_their_latency():
    with serving(Completions(lambda _: STEPS, delays=[0.3, 0.0, 0.0])) as served:
        loop = decoder(served.url, 1)
        loop.rate = 1000.0  # all at once, one under way
        found = loop.generate(REQUESTS[:3], 0)
    latencies = [each.latency_s for each in found]
    assert latencies[0] < latencies[1] - 0.25 < latencies[2] - 0.5
    assert found[2].delivery is not None
    assert found[2].delivery.seconds[-1] == latencies[2]


def test_arrivals_are_a_poisson_process_that_the_seed_fixes():
    moments = arrivals(20_000, 4.0, 7)
    assert moments == arrivals(20_000, 4.0, 7) != arrivals(20_000, 4.0, 8)
    gaps = [after - before for before, after in pairwise(moments)]
    assert moments[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)
