"""A streamed completion, read: server-sent events into chunks of tokens with their times and calls.

What is read is OpenAI's completions stream with token ids in it, as vLLM writes it where a request
says ``return_token_ids``; the same as text alone, which the target's tokenizer reads again; and
llama.cpp's, whose every token is an event of its own. The first chunk is the token of the prompt's
pass; every later one is what one verification delivered. Pure: knows lines and seconds, no
connection.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeGuard

from spec_bench.records.types import Counted, StepRecord
from spec_bench.settings.fields import MOST_NODES, format_value, one_line
from spec_bench.settings.foreign import LlamaTimings, SpeculativeCounts, parse_json

_DATA = b"data:"
_DONE = b"[DONE]"
_ENDS = ("stop", "length")
_MOST_LETTERS = 256  # of a token
_APART = 4  # of so many tokens one may be another when a text is tokenised again
_MOST_COUNTED = 2**53  # beyond it a float is no count
LLAMA_CPP = (
    "this is llama.cpp's server, whose calls cannot be seen in text; use server.kind=llama_cpp"
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
class StreamedAnswer:
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


class StreamReader:
    """Takes the lines of a reply as they come, chunks with token ids or with text alone, and holds
    what it says of itself against them and against the request's ``payload``.
    """

    def __init__(self, ids: bool = True, payload: Mapping[str, Any] = {}) -> None:
        self._ids = ids
        self._payload = payload
        self._same = {"model": payload.get("model")}  # what every event says alike
        self._count = 0
        self._chunks: list[Chunk] = []
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._metrics: Mapping[str, Any] = {}
        self._done = False

    @property
    def has_tokens(self) -> bool:
        """Whether a token has come."""
        return bool(self._chunks)

    def take(self, line: bytes, seconds: float) -> None:
        """Reads a line without its end, so many seconds after the request was sent; comments, other
        fields and empty lines say nothing. Raises BadStreamError: it is data of another kind.
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
        self._check_same(event)
        usage = event.get("usage")
        metrics = event.get("metrics")
        self._usage = usage if isinstance(usage, dict) and usage else self._usage
        self._metrics = metrics if isinstance(metrics, dict) and metrics else self._metrics
        choices = event.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            raise BadStreamError("an event without its one choice")
        for choice in choices:
            if not isinstance(choice, dict):
                raise BadStreamError("a choice that is no object")
            self._finish = choice.get("finish_reason") or self._finish
            self._choice(choice, seconds, event)

    def _check_same(self, event: Mapping[str, Any]) -> None:
        """Checks that an event is of the model that was asked, and of the answer that began."""
        for name, error in (("model", AnotherKindError), ("id", BadStreamError)):
            said = event.get(name)
            before = self._same.setdefault(name, said)
            if said and before and said != before:
                raise error(
                    f"its {name} is {format_value(said)} in place of {format_value(before)}"
                )

    def _check_count(self, more: int) -> None:
        """Counts tokens. Raises BadStreamError: they are more than were asked for."""
        self._count += more
        most = self._payload.get("max_tokens", self._count)
        if self._count > most:
            raise BadStreamError(f"{self._count} tokens or more where {most} were asked for")

    def _choice(self, choice: Mapping[str, Any], seconds: float, event: Mapping[str, Any]) -> None:
        ids = choice.get("token_ids")
        text = choice.get("text")
        if not self._ids:
            if "timings" in event:
                raise AnotherKindError(LLAMA_CPP)
            if isinstance(text, str) and text:
                self._check_count(-(-len(text) // _MOST_LETTERS))
                self._chunks.append(Chunk(seconds, (), text))
            return
        if ids is None and text:
            instead = "server.tokens=text tokenises its text again"
            raise BadStreamError(f"no token ids: the server ignores return_token_ids; {instead}")
        if not are_ids(ids or []):
            raise BadStreamError("token ids that are no whole numbers from 0")
        if ids:
            self._check_count(len(ids))
            self._chunks.append(Chunk(seconds, tuple(ids)))

    def served(self) -> StreamedAnswer:
        """The answer, once the connection has ended. Raises BadStreamError: the stream was cut
        before its end, or held no token.
        """
        if not self._done or not isinstance(self._finish, str):
            raise BadStreamError("the stream ends before the answer does")
        if self._finish not in _ENDS:
            raise BadStreamError(f"an unfinished answer: finish_reason {self._finish!r}")
        if not self._chunks:
            raise BadStreamError("an answer without a token")
        served = StreamedAnswer(tuple(self._chunks), self._finish, self._usage, self._metrics)
        right = {"completion_tokens": served.tokens, "prompt_tokens": self._payload.get("prompt")}
        for name, tokens in right.items():
            said = self._usage.get(name)
            if said is not None and tokens and said != len(tokens):
                raise BadStreamError(
                    f"usage says {name} {format_value(said)}, which are {len(tokens)}"
                )
        return served


def _event(body: bytes) -> dict[str, Any]:
    try:
        event = parse_json(body)
    except ValueError:
        raise BadStreamError("an event that is no JSON") from None
    if not isinstance(event, dict):
        raise BadStreamError("an event that is no object")
    if "error" in event and "choices" not in event:
        error = event["error"]
        message = error.get("message") if isinstance(error, dict) else error
        raise BadStreamError(f"the server says: {one_line(message, 200)}")
    return event


def are_ids(ids: Any) -> TypeGuard[list[int]]:
    """Returns whether a value is a list of whole numbers from 0."""
    return isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)


def retokenise_answer(
    served: StreamedAnswer, tokenise: Tokenise, stop_ids: Sequence[int]
) -> StreamedAnswer:
    """Returns an answer that came as text, with token ids: the target's tokenizer reads it again.

    The tokens may be others than the server's, though they say the same, so that counts of tokens
    are near and not exact. A chunk has as many as the text gains with it; one that gains none, such
    as half a letter, goes with the next. Where the server counts one token more than the text has
    and says that it stopped, the first stop token, which is no text, is that one. Raises
    BadStreamError: the text has no token.
    """
    text = ""
    lengths = list[int]()
    for chunk in served.chunks:
        text += chunk.text
        lengths.append(len(tokenise(text)))
    ids = list(tokenise(text))
    if not ids:
        raise BadStreamError("an answer without a token")
    counted = served.usage.get("completion_tokens")
    if counted is not None and (
        not are_ids([counted]) or abs(counted - len(ids)) > 1 + len(ids) // _APART
    ):
        told = f"usage says completion_tokens {format_value(counted)}"
        raise BadStreamError(f"{told}, the text that came has {len(ids)}")
    if served.finish == "stop" and stop_ids and counted == len(ids) + 1:
        ids.append(stop_ids[0])
    lengths[-1] = len(ids)
    chunks = list[Chunk]()
    before = 0
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

    def __init__(self, payload: Mapping[str, Any] = {}) -> None:
        super().__init__(payload=payload)
        self._events: list[_Event] = []
        self._ids_seen: list[int] = []

    @property
    def has_tokens(self) -> bool:
        return bool(self._events)

    def _choice(self, choice: Mapping[str, Any], seconds: float, event: Mapping[str, Any]) -> None:
        said = event.get("__verbose")
        timings = event.get("timings")
        ids = said.get("tokens") if isinstance(said, dict) else None
        if not isinstance(timings, dict) or not are_ids(ids):
            raise BadStreamError("no timings and tokens in an event: not llama.cpp's server")
        try:
            told = LlamaTimings(**timings)
        except ValueError:  # of pydantic
            raise BadStreamError("timings that are no numbers from 0") from None
        self._ids_seen += ids
        self._check_count(max(0, told.predicted_n - self._count))
        numbers = (told.draft_n, told.draft_n_accepted)
        self._events.append(_Event(seconds, self._count, told.predicted_ms, *numbers))

    @property
    def lost(self) -> int:
        """Tokens whose ids no event had."""
        return self._events[-1].tokens - len(self._ids_seen) if self._events else 0

    def served(self, ids: Sequence[int] | None = None) -> StreamedAnswer:
        """The answer, once the connection has ended; its tokens, where they were asked for again.
        Raises BadStreamError: the stream was cut, or what it says does not fit together.
        """
        tokens = self._ids_seen if ids is None else list(ids)
        if self._events and len(tokens) != self._events[-1].tokens:
            raise BadStreamError("an answer that was another one when it was asked for again")
        calls, accepted, drafted = split_calls(self._events)
        left = iter(tokens)
        self._chunks = [Chunk(seconds, tuple(islice(left, size))) for seconds, size in calls]
        counts = {"per_step_accepted": accepted, "per_step_drafted": drafted}
        metrics = {"speculative_decoding": counts} if drafted else {}
        return replace(super().served(), metrics=metrics)


def split_calls(events: Sequence[_Event]) -> tuple[list[tuple[float, int]], list[int], list[int]]:
    """An answer's calls from its events, of which some tokens have none: when each came and how
    many tokens, the prompt's pass first; and of each that verified a draft, how many it accepted
    and how many were proposed.

    A call emits its accepted tokens and one more, a plain one its token; what no event tells of was
    a plain call. The last call may be cut by the answer's limit. Raises BadStreamError: counts that
    go back.
    """
    if not events:
        return [], [], []
    total = events[-1].tokens
    emitted = 1
    calls = [(events[0].seconds, 1)]
    kept = list[int]()
    proposed = list[int]()
    clock = 0.0
    drafted = 0
    accepted = 0
    for event in events:
        first = event.tokens == 1 and not event.drafted  # the prompt's pass
        same = event.clock == clock
        clock = event.clock
        if first or same or emitted >= total:
            continue
        new = event.drafted - drafted
        more = event.accepted - accepted
        if not 0 <= more <= new <= MOST_NODES:
            raise BadStreamError("counts of drafts that go back")
        drafted = event.drafted
        accepted = event.accepted
        size = more + 1 if new else 1
        for _ in range(emitted + size, min(event.tokens, total)):
            calls.append((event.seconds, 1))
            emitted += 1
        size = min(size, total - emitted)
        calls.append((event.seconds, size))
        emitted += size
        if new:
            kept.append(more)
            proposed.append(new)
    calls.extend((events[-1].seconds, 1) for _ in range(total - emitted))
    return calls, kept, proposed


# A server says what its drafts came to in up to two places: with the answer (vLLM's
# `--per-request-spec-decode-metrics`), and in counters (`GET /metrics`) that are read before and
# after. Both count the calls that had a draft, and say nothing of the plain calls between them, nor
# of accepted tokens behind the answer's end. These follow from the tokens and the chunks: a call
# brings its accepted tokens and one more, and a chunk holds one call or several that came together.
# Where neither says anything a chunk is a call. Counters are of the server as a whole, so they are
# used where one request is under way at a time, and only if the answer's tokens are all they count.


_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{([^}\n]*)\})?[ \t]+([-+0-9.eE]+)[ \t\r]*$", re.MULTILINE)
_PLACE = re.compile(r'\bposition="(\d+)"')
_DRAFTS = "spec_decode_num_drafts_total"
_PROPOSED = "spec_decode_num_draft_tokens_total"
_BY_PLACE = "spec_decode_num_accepted_tokens_per_pos_total"
_TOKENS = "generation_tokens_total"
_CALLS = "inter_token_latency_seconds_count"
_KEPT = (_DRAFTS, _PROPOSED, _BY_PLACE, _TOKENS, _CALLS)

Counters = Mapping[tuple[str, int], float]
"""(name, position of a draft's token, or -1) -> value, summed over engines and models."""


@dataclass(frozen=True)
class CallCounts:
    """What a server says of the calls that verified a draft."""

    source: Counted  # where it says so
    # tokens of each such call, in order, or rising where the order is not known
    accepted: tuple[int, ...]
    drafted: tuple[int, ...] = ()  # tokens proposed to each; () where only their sum is known
    # of all calls after the prompt's, plain ones too; None where nobody says
    calls: int | None = None

    @property
    def proposed(self) -> bool:
        """Whether it is known how many tokens each call verified."""
        return len(self.drafted) == len(self.accepted)


class AnswerSteps(NamedTuple):
    """The target calls of an answer."""

    records: tuple[StepRecord, ...]  # those after the prompt's
    counted: Counted  # where they are known from
    proposed: bool  # whether it is known how many tokens each verified


def build_steps(chunks: Sequence[int], sources: Sequence[CallCounts]) -> AnswerSteps:
    """Returns the calls after the prompt's, by the first source that fits the answer."""
    for counts in sources:
        if (records := _steps_by_counts(chunks, counts)) is not None:
            return AnswerSteps(records, counts.source, counts.proposed)
    plain = tuple(StepRecord(size - 1, size - 1, size - 1, size) for size in chunks[1:])
    return AnswerSteps(plain, "stream", False)


def _steps_by_counts(chunks: Sequence[int], counts: CallCounts) -> tuple[StepRecord, ...] | None:
    """Returns the calls; None where such counts cannot have made such chunks.

    Of the last call tokens may be cut: as few as make the calls at least as many as the chunks, and
    at most those that it accepted. Plain calls, whose places nobody tells, stand first.
    """
    accepted = counts.accepted
    later = len(chunks) - 1
    emitted = sum(accepted) + len(accepted)
    delivered = sum(chunks) - 1
    least = max(0, emitted - delivered)
    most = accepted[-1] if accepted else 0
    calls = later if counts.calls is None else counts.calls
    cut = calls - len(accepted) - (delivered - emitted)
    if counts.calls is None:
        cut = max(cut, least)  # several calls came in one chunk
    plain = delivered - emitted + cut
    if not least <= cut <= most or plain < 0 or not later <= calls <= delivered:
        return None
    proposed = [0] * plain + [*(counts.drafted if counts.proposed else accepted)]
    kept = [0] * plain + [*accepted]
    # what the first chunk delivered of them
    first = chunks[0] - 1
    records = []
    for place, (nodes, tokens) in enumerate(zip(proposed, kept, strict=True)):
        came = tokens + 1 - (cut if place == len(kept) - 1 else 0)
        taken = min(first, came)
        first -= taken
        nodes = max(nodes, tokens)
        records.append(StepRecord(nodes, nodes, tokens, came - taken))
    return tuple(records)


def counts_from_request(metrics: Mapping[str, Any], tokens: int) -> CallCounts | None:
    """Returns what came with an answer of so many tokens; None where nothing did that can be read,
    or that can be of it.
    """
    try:
        numbers = SpeculativeCounts.model_validate(metrics.get("speculative_decoding"))
    except ValueError:  # of pydantic
        return None
    accepted = numbers.per_step_accepted
    drafted = numbers.per_step_drafted
    if accepted is not None and drafted is not None and len(accepted) == len(drafted):
        return CallCounts("requests", accepted, drafted)
    if numbers.acceptance_histogram is None:
        return None
    proposed = (numbers.num_draft_tokens, numbers.num_spec_tokens)
    return counts_from_histogram("requests", numbers.acceptance_histogram, tokens, *proposed)


def counts_from_histogram(
    source: Counted,
    histogram: Sequence[int],
    tokens: int,
    proposed: int | None,
    most: int | None,
    calls: int | None = None,
) -> CallCounts | None:
    """Counts whose order is not known: of calls that accepted 0, 1, ... tokens, of the tokens
    proposed in all of them and at most to one, and of all calls, plain ones too. None where they
    are more than an answer of so many tokens has.
    """
    if sum(histogram) > tokens:
        return None
    accepted = tuple(tokens for tokens, times in enumerate(histogram) for _ in range(times))
    alike = most is not None and proposed == most * len(accepted)
    drafted = (most or 0,) * len(accepted) if alike else ()
    return CallCounts(source, accepted, drafted, calls)


def parse(text: str) -> Counters:
    """Returns the counters that are used, from Prometheus' text format."""
    counters: dict[tuple[str, int], float] = {}
    for name, labels, written in _SAMPLE.findall(text):
        place = _PLACE.search(labels)
        with suppress(ValueError):
            if name in _KEPT and abs(value := float(written)) < _MOST_COUNTED:
                key = (name, int(place[1]) if place else -1)
                counters[key] = counters.get(key, 0.0) + value
    return counters


def count_generated(before: Counters, after: Counters) -> int | None:
    """Tokens that all requests together generated meanwhile; None where nothing counts them."""
    key = (_TOKENS, -1)
    return round(after[key] - before.get(key, 0.0)) if key in after else None


def diff_counters(before: Counters, after: Counters, tokens: int) -> CallCounts | None:
    """The calls of the one answer that came meanwhile, of so many tokens; None where other requests
    were counted, too, or the server has no such counters.
    """
    if count_generated(before, after) != tokens or (_CALLS, -1) not in after:
        return None

    def added(name: str, place: int = -1) -> int:
        return round(after.get((name, place), 0.0) - before.get((name, place), 0.0))

    places = sorted(place for name, place in after if name == _BY_PLACE)
    at_least = [added(_DRAFTS), *(added(_BY_PLACE, place) for place in places), 0]
    histogram = [more - fewer for more, fewer in pairwise(at_least)]
    if places != list(range(len(places))) or min(histogram) < 0:
        return None
    proposed = added(_PROPOSED)
    return counts_from_histogram(
        "counters", histogram, tokens, proposed, len(places), added(_CALLS)
    )
