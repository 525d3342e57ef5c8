"""Replies read with bounds: on time, on bytes, on lines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import TypeVar

from spec_bench.server.stream import BadStreamError

MOST_TEXT = 8 * 2**20  # bytes of what is read beside answers
_MOST_LINE = 8 * 2**20
_MOST_ANSWER = 256 * 2**20

Found = TypeVar("Found")


def within(seconds: float, function: Callable[[], Found]) -> Found:
    """What a function finds, in a thread that is left to itself where it takes too long.

    Headers and bodies that drip are never silent, so that no limit of the connection ends them.

    Raises:
        BadStreamError: there is no time left.
    """
    found: SimpleQueue[tuple[Found | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            found.put((function(), None))
        except BaseException as error:
            found.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = found.get(timeout=seconds)
    except Empty:
        raise BadStreamError(f"no whole answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def at_most(parts: Iterator[bytes], most: int, *, cut: bool = False) -> bytes:
    """A body.

    Args:
        parts: of it.
        most: bytes that are read of it.
        cut: whether a longer one is cut there.

    Raises:
        BadStreamError: it is longer.
    """
    body = b""
    for part in parts:
        body += part
        if len(body) > most:
            if not cut:
                raise BadStreamError(f"more than {most // 2**20} MiB")
            break
    return body[:most]


def lines_of(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines without their ends.

    Raises:
        BadStreamError: one is past all measure.
    """
    rest, size = b"", 0
    for part in parts:
        size += len(part)
        if size > _MOST_ANSWER:
            raise BadStreamError(f"an answer of more than {_MOST_ANSWER // 2**20} MiB")
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.rstrip(b"\r") for line in whole)
        if len(rest) > _MOST_LINE:
            raise BadStreamError(f"a line of more than {_MOST_LINE // 2**20} MiB")
    if rest:
        yield rest
