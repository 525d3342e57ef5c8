"""An endpoint that sends without an end, slowly, packed, nested, or the key in another writing."""

from __future__ import annotations

import base64
import json
import logging
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from itertools import repeat
from urllib.parse import quote

import pytest

from spec_bench.judge.endpoint import Endpoint, JudgementFailedError, NoReplyError, endpoint_of
from spec_bench.judge.reply import MOST_MIB, hidden
from spec_bench.judge.settings import JudgeSettings
from tests.judge.endpoint import KEY, Judge

OK = b"HTTP/1.1 200 OK\r\n"
MIB = 2**20
FORMS = {
    "plain": KEY,
    "upper case": KEY.upper(),
    "base64": base64.b64encode(KEY.encode()).decode(),
    "base64 of the header": base64.b64encode(f"Bearer {KEY}".encode()).decode(),
    "base64 within": base64.b64encode(f'{{"a":"{KEY}"}}'.encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"?{KEY}".encode()).decode(),
    "quoted": quote(KEY, safe=""),
    "percents": "".join(f"%{byte:02X}" for byte in KEY.encode()),
    "hex": KEY.encode().hex(),
    "escapes": "".join(f"\\u{ord(letter):04x}" for letter in KEY),
    "backwards": KEY[::-1],
    "the first half": KEY[: len(KEY) // 2],
    "both ends": f"{KEY[:6]}...{KEY[-4:]}",
    "base32": base64.b32encode(KEY.encode()).decode(),
}


def ask(**settings: float) -> str:
    made: Endpoint = endpoint_of(JudgeSettings("tiny", attempts=1, **settings))  # type: ignore[arg-type]
    try:
        return made.ask(made.payload([{"role": "user", "content": "How good?"}]))
    finally:
        made.close()


def slowly(data: bytes, seconds: float) -> Iterator[bytes]:
    for byte in data:
        yield bytes([byte])
        time.sleep(seconds)


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_reply_a_byte_at_a_time_ends_at_the_limit(judge: Judge, part: str) -> None:
    head = OK + b"Content-Length: 9000\r\n"
    drops = slowly(b"X-A: " + b"a" * 9000, 0.02) if part == "headers" else slowly(b" " * 9000, 0.02)
    judge.raw = (each for parts in ([head + b"\r\n" * (part == "body")], drops) for each in parts)
    begun = time.monotonic()
    with pytest.raises(NoReplyError, match=r"no whole reply in 0\.3 s"):
        ask(timeout_s=0.3)
    assert time.monotonic() - begun < 2


def test_a_reply_without_an_end_is_read_no_further_than_the_limit(judge: Judge) -> None:
    judge.raw = (each for parts in ([OK + b"\r\n"], repeat(b" " * MIB, 60)) for each in parts)
    tracemalloc.start()
    try:
        with pytest.raises(NoReplyError, match=f"more than {MOST_MIB} MiB"):
            ask()
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_MIB * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("size", "word"), [(300 * MIB, "MiB"), (-1, "unpacked")])
def test_a_small_body_that_unpacks_to_a_huge_one_is_not_unpacked(
    judge: Judge, size: int, word: str
) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"no gzip"
    if size > 0:
        parts = [packer.compress(bytes(MIB)) for _ in range(size // MIB)]
        body = b"".join([*parts, packer.flush()])
    head = f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    judge.raw = [OK + head, body]
    tracemalloc.start()
    try:
        with pytest.raises(NoReplyError, match=word):
            ask()
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_MIB * MIB
    finally:
        tracemalloc.stop()


def test_a_packed_reply_is_read(judge: Judge) -> None:
    content = {"choices": [{"message": {"content": "Rating: [[3]]"}}]}
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = packer.compress(json.dumps(content).encode()) + packer.flush()
    head = f"Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    judge.raw = [OK + head + body]
    assert ask() == "Rating: [[3]]"


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"a":' * 200_000, b"1" * 10_000])
def test_a_nested_reply_is_one_without_a_text(judge: Judge, body: bytes) -> None:
    judge.raw = [OK + f"Content-Length: {len(body)}\r\n\r\n".encode() + body]
    with pytest.raises(JudgementFailedError, match="a reply without a text"):
        ask()


@pytest.mark.parametrize("form", list(FORMS.values()), ids=list(FORMS))
def test_the_key_is_shown_in_no_writing(
    judge: Judge, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    judge.script = [(401, f"no such key: {form}!")]
    with caplog.at_level(logging.DEBUG), pytest.raises(JudgementFailedError) as raised:
        ask()
    said = str(raised.value)
    assert "no such key: ***" in said
    told = said.lower()
    assert not [
        form[at : at + 6] for at in range(len(form) - 5) if form[at : at + 6].lower() in told
    ]
    assert KEY not in caplog.text and form not in caplog.text


def test_a_judgement_that_repeats_the_key_is_kept_without_it(judge: Judge) -> None:
    judge.reply = lambda body: f"You sent {KEY}. Rating: [[7]]"
    assert ask() == "You sent ***. Rating: [[7]]"


def test_only_what_tells_of_the_key_is_hidden() -> None:
    text = "The judge is not ready"
    assert hidden(text, KEY) == text == hidden(text, "")
    assert hidden("a EMPTY b", "EMPTY") == "a *** b"
    assert hidden("ab x ab", "ab") == "*** x ***"
