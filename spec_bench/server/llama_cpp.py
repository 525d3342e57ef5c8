"""llama.cpp's server: every token is an event of its own, and calls are told by its own clock.

``timings.predicted_ms`` moves once a verification, so tokens of one value are of one call; the
cumulative ``draft_n`` and ``draft_n_accepted`` say what a call verified. Tokens inside an
unfinished letter are sent by no event: their ids are asked for again, without a stream. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spec_bench.server.stream import BadStreamError, Chunk, Served, StreamReader, are_ids

ASKED: Mapping[str, Any] = {
    "verbose": True,  # each event's token ids
    "timings_per_token": True,
    "cache_prompt": False,  # else a prompt that came before is prefilled for nothing
}
AGAIN: Mapping[str, Any] = {"stream": False, "return_tokens": True, "verbose": True}


class _Event(NamedTuple):
    """What an event says of where the answer is.

    Attributes:
        seconds: after the request was sent.
        tokens: of the answer so far.
        clock: the server's own, in milliseconds.
        drafted: tokens proposed so far.
        accepted: of these.
    """

    seconds: float
    tokens: int
    clock: float
    drafted: int
    accepted: int


class LlamaReader(StreamReader):
    """Takes the lines of a reply as they come."""

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
        """The answer, once the connection has ended.

        Args:
            ids: its tokens, where they were asked for again.

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
    """The calls of an answer.

    Attributes:
        chunks: of each call when it came and how many tokens; the prompt's pass first.
        accepted: of each call that verified a draft.
        drafted: likewise.
    """

    chunks: list[tuple[float, int]]
    accepted: list[int]
    drafted: list[int]


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
