"""A streamed completion, read: server-sent events into chunks of tokens with their times.

What is read is OpenAI's completions stream with token ids in it, as vLLM writes it where a request
says ``return_token_ids``; the same as text alone, which the target's tokenizer reads again; and
llama.cpp's, whose every token is an event of its own. The first chunk is the token of the prompt's
pass; every later one is what one verification delivered. Pure: knows lines and seconds, no
connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from spec_bench.settings.fields import one_line

_DATA = b"data:"
_DONE = b"[DONE]"
_ENDS = ("stop", "length")
LLAMA_CPP = (
    "this is llama.cpp's server, whose every token is an event of its own: its calls cannot be "
    "seen in text; use server.kind=llama_cpp"
)
Tokenise = Callable[[str], Sequence[int]]
LLAMA_ASKED: Mapping[str, Any] = {
    "verbose": True,  # each event's token ids
    "timings_per_token": True,
    "cache_prompt": False,  # else a prompt that came before is prefilled for nothing
}
LLAMA_AGAIN: Mapping[str, Any] = {"stream": False, "return_tokens": True, "verbose": True}


class BadStreamError(Exception):
    """The stream is no completion; the message says where it stops being one."""


class AnotherKindError(Exception):
    """The server is of another kind than it is asked as."""


@dataclass(frozen=True)
class Chunk:
    """Tokens that came together."""

    seconds: float  # after the request was sent
    tokens: tuple[int, ...]  # their ids; the end token is among them
    text: str = ""  # what they say, of a server that is not asked for ids


@dataclass(frozen=True)
class Served:
    """One whole answer."""

    chunks: tuple[Chunk, ...]  # that held tokens, in the order they came
    finish: str  # why it ended, ``stop`` or ``length``
    # the server's own count of tokens, if it sent one
    usage: Mapping[str, Any] = field(default_factory=dict)
    # its own numbers of this request, if it sent any
    metrics: Mapping[str, Any] = field(default_factory=dict)
    sent_s: float = 0.0  # by ``time.perf_counter``, when the request was sent
    attempts: int = 1  # requests that it took

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
    """Takes the lines of a reply as they come, chunks with token ids or with text alone."""

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
        """Reads a line without its end, so many seconds after the request was sent; comments, other
        fields and empty lines say nothing.

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


def in_tokens(served: Served, tokenise: Tokenise, stop_ids: Sequence[int]) -> Served:
    """An answer that came as text, with token ids: the target's tokenizer reads it again.

    The tokens may be others than the server's, though they say the same, so that counts of tokens
    are near and not exact. A chunk has as many as the text gains with it; one that gains none, such
    as half a letter, goes with the next. Where the server counts one token more than the text has
    and says that it stopped, the first stop token, which is no text, is that one.

    Raises:
        BadStreamError: the text has no token.
    """
    text, lengths = "", list[int]()
    for chunk in served.chunks:
        text += chunk.text
        lengths.append(len(tokenise(text)))
    ids = list(tokenise(text))
    if not ids:
        raise BadStreamError("an answer without a token")
    counted = served.usage.get("completion_tokens")
    if served.finish == "stop" and stop_ids and counted == len(ids) + 1:
        ids.append(stop_ids[0])
    lengths[-1] = len(ids)
    chunks, before = list[Chunk](), 0
    for chunk, length in zip(served.chunks, lengths, strict=True):
        upto = min(length, len(ids))
        if upto > before:
            chunks.append(Chunk(chunk.seconds, tuple(ids[before:upto])))
            before = upto
    return replace(served, chunks=tuple(chunks))


class _Event(NamedTuple):
    """What an event says of where the answer is."""

    seconds: float  # after the request was sent
    tokens: int  # of the answer so far
    clock: float  # the server's own, in milliseconds
    drafted: int  # tokens proposed so far
    accepted: int  # of these


class LlamaReader(StreamReader):
    """Takes the lines of llama.cpp's replies: calls are told by the server's own clock.

    ``timings.predicted_ms`` moves once a verification, so tokens of one value are of one call; the
    cumulative ``draft_n`` and ``draft_n_accepted`` say what a call verified. Tokens inside an
    unfinished letter are sent by no event: their ids are asked for again, without a stream.
    """

    def __init__(self) -> None:
        super().__init__()
        self._events: list[_Event] = []
        self._ids_seen: list[int] = []

    @property
    def begun(self) -> bool:
        return bool(self._events)

    def _choice(self, choice: Any, seconds: float, event: Mapping[str, Any]) -> None:
        if not isinstance(choice, dict):
            raise BadStreamError("a choice that is no object")
        said, timings = event.get("__verbose"), event.get("timings")
        ids = said.get("tokens") if isinstance(said, dict) else None
        if not isinstance(timings, dict) or not are_ids(ids):
            raise BadStreamError("no timings and tokens in an event: not llama.cpp's server")
        self._finish = choice.get("finish_reason") or self._finish
        numbers = [timings.get(name, 0) for name in ("predicted_n", "draft_n", "draft_n_accepted")]
        clock = timings.get("predicted_ms")
        if not are_ids(numbers) or not isinstance(clock, (int, float)):
            raise BadStreamError("timings that are no numbers from 0")
        assert ids is not None
        self._ids_seen += ids
        self._events.append(_Event(seconds, numbers[0], float(clock), *numbers[1:]))

    @property
    def lost(self) -> int:
        """Tokens whose ids no event had."""
        return self._events[-1].tokens - len(self._ids_seen) if self._events else 0

    def served(self, ids: Sequence[int] | None = None) -> Served:
        """The answer, once the connection has ended; its tokens, where they were asked for again.

        Raises:
            BadStreamError: the stream was cut, or what it says does not fit together.
        """
        tokens = self._ids_seen if ids is None else list(ids)
        if self._events and len(tokens) != self._events[-1].tokens:
            raise BadStreamError("an answer that was another one when it was asked for again")
        sizes = calls_of(self._events)
        chunks, before = [], 0
        for seconds, size in sizes.chunks:
            chunks.append(Chunk(seconds, tuple(tokens[before : before + size])))
            before += size
        self._chunks = chunks
        counts = {"per_step_accepted": sizes.accepted, "per_step_drafted": sizes.drafted}
        metrics = {"speculative_decoding": counts} if sizes.drafted else {}
        return replace(super().served(), metrics=metrics)


class Calls(NamedTuple):
    """The calls of an answer."""

    # of each call when it came and how many tokens; the prompt's pass first
    chunks: list[tuple[float, int]]
    accepted: list[int]  # of each call that verified a draft
    drafted: list[int]  # likewise


def calls_of(events: Sequence[_Event]) -> Calls:
    """An answer's calls from its events, of which some tokens have none.

    A call emits its accepted tokens and one more, a plain one its token; what no event tells of
    was a plain call. The last call may be cut by the answer's limit.

    Raises:
        BadStreamError: counts that go back.
    """
    calls = Calls([], [], [])
    if not events:
        return calls
    total, emitted = events[-1].tokens, 1
    calls.chunks.append((events[0].seconds, 1))
    clock, drafted, accepted = 0.0, 0, 0
    for event in events:
        first = event.tokens == 1 and not event.drafted  # the prompt's pass
        if first or event.clock == clock or emitted >= total:
            clock = event.clock
            continue
        clock = event.clock
        new, kept = event.drafted - drafted, event.accepted - accepted
        if not 0 <= kept <= new:
            raise BadStreamError("counts of drafts that go back")
        drafted, accepted = event.drafted, event.accepted
        size = kept + 1 if new else 1
        for _ in range(emitted + size, min(event.tokens, total)):
            calls.chunks.append((event.seconds, 1))
            emitted += 1
        size = min(size, total - emitted)
        calls.chunks.append((event.seconds, size))
        emitted += size
        if new:
            calls.accepted.append(kept)
            calls.drafted.append(new)
    calls.chunks.extend((events[-1].seconds, 1) for _ in range(total - emitted))
    return calls
