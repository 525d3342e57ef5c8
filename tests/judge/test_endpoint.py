"""The endpoint is asked again where that may help, and never tells its key."""

from __future__ import annotations

import time

import pytest

from spec_bench.judge.endpoint import (
    Endpoint,
    JudgementFailedError,
    NoReplyError,
    RefusedError,
    endpoint_of,
)
from spec_bench.judge.settings import JudgeSettings, judge_settings
from tests.judge.endpoint import KEY, Judge
from tests.said import naming

SILENT_S = 60.0  # longer than any test; the endpoint does not wait for such a reply at its end
ASKED = [{"role": "user", "content": "How good?"}]


def endpoint(waits: list[float], **settings) -> Endpoint:
    made = endpoint_of(JudgeSettings("tiny", **settings))
    made.sleep = waits.append
    return made


def test_an_answer_comes_with_key_model_and_greedy_limits_in_the_request(judge: Judge) -> None:
    made = endpoint([])
    assert made.ask(made.payload(ASKED)) == "Good. Rating: [[7]]"
    assert judge.keys == [f"Bearer {KEY}"]
    assert judge.bodies == [
        {"model": "tiny", "messages": ASKED, "temperature": 0.0, "max_tokens": 2048}
    ]


def test_a_server_error_and_too_many_requests_are_waited_out_ever_longer(judge: Judge) -> None:
    judge.script = [(500, ""), (429, ""), (503, "")]
    waits: list[float] = []
    made = endpoint(waits, wait_s=1.0)
    assert made.ask(made.payload(ASKED)) == "Good. Rating: [[7]]"
    assert (waits, made.requests) == ([1.0, 2.0, 4.0], 4)


def test_the_wait_that_the_endpoint_asks_for_is_kept_up_to_a_minute(judge: Judge) -> None:
    judge.script = [(429, {"Retry-After": "7"}), (429, {"Retry-After": "9000"})]
    waits: list[float] = []
    made = endpoint(waits, wait_s=1.0)
    made.ask(made.payload(ASKED))
    assert waits == [7.0, 60.0]


def test_a_silent_endpoint_is_given_up_after_the_attempts(judge: Judge) -> None:
    judge.script = [(0, SILENT_S)] * 2
    made = endpoint([], timeout_s=0.1, attempts=2)
    begun = time.monotonic()
    with pytest.raises(NoReplyError, match=naming("0.1 s", "2 attempts")):
        made.ask(made.payload(ASKED))
    assert len(judge.bodies) == 2
    assert time.monotonic() - begun < SILENT_S


@pytest.mark.parametrize(("status", "error"), [(401, RefusedError), (400, JudgementFailedError)])
def test_a_refusal_is_not_asked_again_and_its_text_is_told_without_the_key(
    judge: Judge, status: int, error: type[Exception]
) -> None:
    judge.script = [(status, f"wrong key {KEY}")]
    made = endpoint([])
    with pytest.raises(error, match=rf"status {status}: .*wrong key \*\*\*") as raised:
        made.ask(made.payload(ASKED))
    assert type(raised.value) is error
    assert KEY not in str(raised.value)
    assert KEY not in repr(made)
    assert len(judge.bodies) == 1


def test_a_reply_without_a_text_has_failed(judge: Judge) -> None:
    judge.script = [(200, None)]
    made = endpoint([])
    with pytest.raises(JudgementFailedError, match="a reply without a text"):
        made.ask(made.payload(ASKED))


def test_a_key_goes_to_its_own_address_only() -> None:
    given = {"SPEC_BENCH_JUDGE_URL": "http://127.0.0.1:1", "OPENAI_API_KEY": KEY}
    assert endpoint_of(JudgeSettings("tiny"), given).key == ""


def test_without_an_address_the_variables_are_named() -> None:
    with pytest.raises(ValueError, match=naming("SPEC_BENCH_JUDGE_URL", "OPENAI_BASE_URL")):
        endpoint_of(JudgeSettings("tiny"), {"OPENAI_API_KEY": KEY})


def test_an_address_that_is_none_is_named_by_its_variable() -> None:
    with pytest.raises(ValueError, match=naming("OPENAI_BASE_URL", "https://")):
        endpoint_of(JudgeSettings("tiny"), {"OPENAI_BASE_URL": "localhost:8000"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"modle": "x"}, "unknown setting judge.modle; did you mean judge.model?"),
        ({"attempts": 0}, r"judge\.attempts must be a whole number >= 1, got 0"),
        ({"timeout_s": "long"}, r"judge\.timeout_s must be a number > 0, got 'long'"),
        ({"model": ""}, r"judge\.model must be a text .* got ''"),
    ],
)
def test_a_setting_that_cannot_be_right_is_named(config: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge_settings(config)
