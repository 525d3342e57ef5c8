"""Servers that stall, drip, cut, refuse or talk nonsense: one line each, or the answer at last."""

import pytest

from spec_bench.server.endpoint import RefusedError, Server, ServerError
from tests.server.completions import Completions, serving

STEPS = [[5], [6, 7, 8], [9]]


def asked(url, **more):
    """A client that does not wait."""
    return Server(url, "target", **{"sleep": lambda _: None, "timeout_s": 5.0, **more})


def test_an_answer_is_its_chunks_with_times_that_rise():
    with serving(Completions(lambda _: STEPS)) as served:
        answer = asked(served.url).complete([1, 2], 5, temperature=0.5, seed=3)
    assert answer.tokens == (5, 6, 7, 8, 9)
    assert [chunk.tokens for chunk in answer.chunks] == [(5,), (6, 7, 8), (9,)]
    assert answer.steps == 2
    assert answer.finish == "length"
    assert answer.usage == {"completion_tokens": 5}
    seconds = [chunk.seconds for chunk in answer.chunks]
    assert 0 < seconds[0] <= seconds[1] <= seconds[2]
    (body,) = served.bodies
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ([1, 2], 5, 0.5)
    assert (body["seed"], body["stream"], body["return_token_ids"]) == (3, True, True)


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
    patience = {"timeout_s": 0.3, "answer_s": 3.0 if fault == "stall" else 0.3}
    with serving(Completions(lambda _: STEPS, [fault, fault])) as served:
        with pytest.raises(ServerError, match=said) as caught:
            asked(served.url, attempts=2, **patience).complete([1], 5)
        assert str(caught.value).startswith(f"{served.url}: ")
        assert str(caught.value).endswith("after 2 attempts")
        assert "\n" not in str(caught.value)
        served.faults.append(fault)
        assert asked(served.url, attempts=2, **patience).complete([1], 5).tokens == (5, 6, 7, 8, 9)
    assert len(served.bodies) == 4


def test_a_refusal_is_not_repeated_and_hides_the_key():
    refusal = pytest.raises(RefusedError, match=r"status 401: refused: Bearer \*\*\*")
    with serving(Completions(lambda _: STEPS, [401])) as served, refusal as caught:
        asked(served.url, key="sk-secret").complete([1], 5)
    assert served.keys == ["Bearer sk-secret"]
    assert "sk-secret" not in str(caught.value) + repr(asked(served.url, key="sk-secret"))


def test_the_server_says_how_long_to_wait():
    waited = []
    served = Completions(lambda _: STEPS, [429, 503], {"Retry-After": "7"})
    with serving(served):
        asked(served.url, sleep=waited.append).complete([1], 5)
    assert waited == [7.0, 14.0]


def test_nobody_there_is_one_line():
    with serving(Completions(lambda _: STEPS)) as served:
        pass
    with pytest.raises(ServerError, match="connect error, after 1 attempt"):
        asked(served.url, attempts=1).complete([1], 5)


def test_an_address_without_its_scheme_is_refused():
    with pytest.raises(ValueError, match="must start with http"):
        Server("localhost:8000", "target")
