"""One request and its whole reply, within a number of bytes and of seconds; and what hides a key.

An endpoint is somebody else's: it may send without an end, a byte at a time, or a small body that
unpacks to a huge one, and it may repeat the key that it was sent.
"""

from __future__ import annotations

import base64
import re
import socket
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

MOST_MIB = 8
"""Of a reply, in MiB, packed or unpacked."""
_MOST = MOST_MIB * 2**20
_PART = 4  # letters of a key in a row that are hidden already


_WORD = re.compile(r"[\w+/=%\\-]+")  # letters of every writing


class NoWholeReplyError(Exception):
    """A reply that was too long, too slow or cannot be unpacked; the message says which."""


@dataclass(frozen=True)
class Reply:
    """A reply, all of it here.

    Attributes:
        status: HTTP's.
        headers: by name in lower case.
        body: unpacked.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def post(client: Any, address: str, payload: Mapping[str, Any], timeout_s: float) -> Reply:
    """Sends a request and reads its reply.

    Args:
        client: an ``httpx.Client`` that keeps no connections.
        address: where to.
        payload: sent as JSON.
        timeout_s: from the first byte sent to the last one read.

    Raises:
        NoWholeReplyError: a reply past the limits.
        httpx.HTTPError: none.
    """
    import httpx

    with _Deadline(timeout_s) as deadline:
        try:
            with client.stream(
                "POST", address, json=dict(payload), extensions={"trace": deadline.trace}
            ) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                raw = _joined(response.iter_raw())
                status = int(response.status_code)
        except Exception as error:
            if deadline.passed or isinstance(error, httpx.TimeoutException):
                raise NoWholeReplyError(f"no whole reply in {timeout_s:g} s") from None
            raise
        if deadline.passed:  # the end that was read is the one that we made
            raise NoWholeReplyError(f"no whole reply in {timeout_s:g} s")
    return Reply(status, headers, _unpacked(raw, headers.get("content-encoding", "")))


class _Deadline:
    """Ends a connection at a moment, whatever is being read from it then.

    A client's own time limit starts again with every byte.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._stream: Any = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Told of by the client whenever something happens; a new connection is remembered."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._stream = info["return_value"]
            if self.passed:
                self._end()

    def _end(self) -> None:
        self.passed = True
        connection = None if self._stream is None else self._stream.get_extra_info("socket")
        if connection is not None:
            with suppress(OSError):  # it has ended by itself
                socket.socket.shutdown(
                    connection, socket.SHUT_RDWR
                )  # below TLS, whose state is not ours


def _joined(parts: Iterator[bytes]) -> bytes:
    """A body, no longer than it may be."""
    whole = bytearray()
    for part in parts:
        whole += part
        if len(whole) > _MOST:
            raise NoWholeReplyError(f"a reply of more than {MOST_MIB} MiB")
    return bytes(whole)


def _unpacked(raw: bytes, encoding: str) -> bytes:
    """A body without its compression, no longer than it may be."""
    if encoding.lower() in ("", "identity"):
        return raw
    if encoding.lower() not in ("gzip", "deflate"):
        raise NoWholeReplyError("a reply in an encoding that nobody asked for")
    try:
        body = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(raw, _MOST + 1)
    except zlib.error:
        raise NoWholeReplyError("a reply that cannot be unpacked") from None
    if len(body) > _MOST:
        raise NoWholeReplyError(f"a reply of more than {MOST_MIB} MiB")
    return body


def hidden(text: str, key: str, part: int = _PART) -> str:
    """A text with ``***`` in place of words that tell of a key.

    Args:
        text: from the endpoint.
        key: what it was sent; "" is no key. As it is, in another writing, or a part of either.
        part: letters in a row that count.
    """
    if not key:
        return text
    forms = _forms(key)
    size = min(part, *(len(form) for form in forms))
    parts = {form[at : at + size] for form in forms for at in range(len(form) - size + 1)}
    lower = text.lower() if len(text.lower()) == len(text) else text
    ats = {at for at in range(len(text) - size + 1) if lower[at : at + size] in parts}

    def shown(word: re.Match[str]) -> str:
        return (
            "***"
            if any(at in ats for at in range(word.start() - size + 1, word.end()))
            else word[0]
        )

    return _WORD.sub(shown, text)


def _forms(key: str) -> set[str]:
    """A key as others may write it, in lower case."""
    raw = key.encode()
    # Where the key begins within three bytes decides how base64 writes it; ends depend on what
    # stands beside it and are left out.
    packed = [base64.b64encode(b"\0" * shift + raw) for shift in range(3)]
    inner = [
        each.rstrip(b"=").decode()[shift and shift + 1 : -1] for shift, each in enumerate(packed)
    ]
    forms = [key, key[::-1], raw.hex(), quote(key, safe=""), *inner]
    forms += [each.replace("+", "-").replace("/", "_") for each in inner]
    forms.append("".join(f"%{byte:02x}" for byte in raw))
    forms.append("".join(f"\\u{ord(letter):04x}" for letter in key))
    forms.append(base64.b32encode(raw).decode().rstrip("="))
    return {each.lower() for each in forms if each}
