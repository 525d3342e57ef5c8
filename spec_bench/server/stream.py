"""A streamed completion, read: server-sent events into chunks of tokens with their times.

What is read is OpenAI's completions stream with token ids in it, as vLLM writes it where a request
says ``return_token_ids``. The first chunk is the token of the prompt's pass; every later one is
what one verification delivered. Pure: knows lines and seconds, no connection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spec_bench.settings.fields import one_line

_DATA = b"data:"
_DONE = b"[DONE]"
_ENDS = ("stop", "length")
LLAMA_CPP = (
    "this is llama.cpp's server, whose every token is an event of its own: its calls cannot be "
    "seen in text; use server.kind=llama_cpp"
)


class BadStreamError(Exception):
    """The stream is no completion; the message says where it stops being one."""


class AnotherKindError(Exception):
    """The server is of another kind than it is asked as."""


@dataclass(frozen=True)
class Chunk:
    """Tokens that came together.

    Attributes:
        seconds: after the request was sent.
        tokens: their ids; the end token is among them.
        text: what they say, of a server that is not asked for ids.
    """

    seconds: float
    tokens: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True)
class Served:
    """One whole answer.

    Attributes:
        chunks: that held tokens, in the order they came.
        finish: why it ended, ``stop`` or ``length``.
        usage: the server's own count of tokens, if it sent one.
        metrics: its own numbers of this request, if it sent any.
        sent_s: by ``time.perf_counter``, when the request was sent.
        attempts: requests that it took.
    """

    chunks: tuple[Chunk, ...]
    finish: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    sent_s: float = 0.0
    attempts: int = 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens of the answer."""
        return tuple(token for chunk in self.chunks for token in chunk.tokens)

    @property
    def text(self) -> str:
        """All text of the answer, of a server that is not asked for ids."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def steps(self) -> int:
        """Target calls after the prompt's: chunks after the first."""
        return max(0, len(self.chunks) - 1)


class StreamReader:
    """Takes the lines of a reply as they come.

    Args:
        ids: whether chunks have token ids; else their text is all there is.
    """

    def __init__(self, ids: bool = True) -> None:
        self._ids = ids
        self._chunks: list[Chunk] = []
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._metrics: Mapping[str, Any] = {}
        self._done = False

    @property
    def begun(self) -> bool:
        """Whether a token has come."""
        return bool(self._chunks)

    def take(self, line: bytes, seconds: float) -> None:
        """Reads a line without its end; comments, other fields and empty lines say nothing.

        Args:
            line: as it came.
            seconds: after the request was sent.

        Raises:
            BadStreamError: it is data of another kind.
        """
        if not line.startswith(_DATA):
            if line[:1] in (b"{", b"<"):
                raise BadStreamError("the reply is no stream of events")
            return
        body = line[len(_DATA) :].strip()
        if body == _DONE:
            self._done = True
            return
        event = _event(body)
        self._usage = _mapping(event, "usage") or self._usage
        self._metrics = _mapping(event, "metrics") or self._metrics
        choices = event.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            raise BadStreamError("an event without its one choice")
        for choice in choices:
            self._choice(choice, seconds, event)

    def _choice(self, choice: Any, seconds: float, event: Mapping[str, Any]) -> None:
        if not isinstance(choice, dict):
            raise BadStreamError("a choice that is no object")
        ids, text = choice.get("token_ids"), choice.get("text")
        self._finish = choice.get("finish_reason") or self._finish
        if not self._ids:
            if "timings" in event:
                raise AnotherKindError(LLAMA_CPP)
            if isinstance(text, str) and text:
                self._chunks.append(Chunk(seconds, (), text))
            return
        if ids is None and text:
            instead = "server.tokens=text tokenises its text again"
            raise BadStreamError(f"no token ids: the server ignores return_token_ids; {instead}")
        if not are_ids(ids or []):
            raise BadStreamError("token ids that are no whole numbers from 0")
        if ids:
            self._chunks.append(Chunk(seconds, tuple(ids)))

    def served(self) -> Served:
        """The answer, once the connection has ended.

        Raises:
            BadStreamError: the stream was cut before its end, or held no token.
        """
        if not self._done or not isinstance(self._finish, str):
            raise BadStreamError("the stream ends before the answer does")
        if self._finish not in _ENDS:
            raise BadStreamError(f"an unfinished answer: finish_reason {self._finish!r}")
        if not self._chunks:
            raise BadStreamError("an answer without a token")
        return Served(tuple(self._chunks), self._finish, self._usage, self._metrics)


def _event(body: bytes) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        raise BadStreamError("an event that is no JSON") from None
    if not isinstance(event, dict):
        raise BadStreamError("an event that is no object")
    if "error" in event and "choices" not in event:
        message = (
            event["error"].get("message") if isinstance(event["error"], dict) else event["error"]
        )
        raise BadStreamError(f"the server says: {one_line(message, 200)}")
    return event


def _mapping(event: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = event.get(name)
    return value if isinstance(value, dict) else None


def are_ids(ids: Any) -> bool:
    """Whether a value is a list of whole numbers from 0."""
    whole = isinstance(ids, list) and all(type(token) is int for token in ids)
    return whole and all(token >= 0 for token in ids)
