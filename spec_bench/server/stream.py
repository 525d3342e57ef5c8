"""Parses a streamed completion: server-sent events into chunks of tokens with times.

Reads OpenAI's completions stream with token ids (vLLM's ``return_token_ids``) or as text, which the
target's tokenizer encodes again, and llama.cpp's stream, with one event per token. The first chunk
has the token of the prefill, each later chunk the tokens of one verification. Knows lines and
seconds, but no connection.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, TypeGuard

from spec_bench.settings.fields import MOST_NODES, format_value, to_one_line
from spec_bench.settings.foreign import LlamaTimings, parse_json_within_limits

_DATA = b"data:"
_END_OF_STREAM = b"[DONE]"
_ENDS = ("stop", "length")
_MOST_LETTERS = 256  # of a token
_TOKENS_PER_DIFFERENCE = 4  # a text tokenised again may differ in one token of this many
LLAMA_CPP = (
    "this is llama.cpp's server, whose calls cannot be seen in text; use server.kind=llama_cpp"
)
Tokenise = Callable[[str], Sequence[int]]
LLAMA_OPTIONS: Mapping[str, Any] = {
    "verbose": True,  # each event's token ids
    "timings_per_token": True,
    "cache_prompt": False,  # else a repeated prompt needs no prefill
    # In the order of ``core/warp.py``; llama.cpp by default applies the temperature last.
    "samplers": ["temperature", "top_k", "top_p", "min_p"],
}
LLAMA_IDS_OPTIONS: Mapping[str, Any] = {
    "stream": False,
    "return_tokens": True,
    "verbose": True,
}


class BadStreamError(Exception):
    """The stream is no valid completion; the message names the defect."""


class OtherServerKindError(Exception):
    """The server is of another kind than the configured one."""


@dataclass(frozen=True)
class TokenChunk:
    """Tokens that arrived together."""

    seconds: float  # after the request was sent
    tokens: tuple[int, ...]  # ids, with the end token
    text: str = ""  # from a server that sends no ids


@dataclass(frozen=True)
class StreamedAnswer:
    """One whole streamed answer."""

    chunks: tuple[TokenChunk, ...]  # with tokens, in the order of arrival
    finish: str  # ``stop`` or ``length``
    usage: Mapping[str, Any] = field(default_factory=dict)  # the server's counts of tokens
    metrics: Mapping[str, Any] = field(default_factory=dict)  # the server's numbers of this request
    sent_s: float = 0.0  # by ``time.perf_counter``, when the request was sent
    attempts: int = 1  # requests that it took

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens of the answer."""
        return tuple(token for chunk in self.chunks for token in chunk.tokens)

    @property
    def text_without_ids(self) -> str:
        """All text of the answer if the server sends no ids, else nothing."""
        return "".join(chunk.text for chunk in self.chunks)


class StreamReader:
    """Parser of a reply's lines, with token ids or text, as they arrive. Checks the server's counts
    against them, and both against the request's ``payload``.
    """

    def __init__(self, expects_ids: bool = True, payload: Mapping[str, Any] = {}) -> None:
        self._expects_ids = expects_ids
        self._payload = payload
        self._constants = {"model": payload.get("model")}  # equal in all events
        self._count = 0
        self._chunks: list[TokenChunk] = []
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._metrics: Mapping[str, Any] = {}
        self._done = False

    @property
    def has_tokens(self) -> bool:
        """Whether a token has arrived."""
        return bool(self._chunks)

    def parse_line(self, line: bytes, seconds: float) -> None:
        """Parses a line without its end, which arrived ``seconds`` after the request was sent;
        ignores lines that are no data. Raises BadStreamError if the data is no completion's.
        """
        if not line.startswith(_DATA):
            if line[:1] in (b"{", b"<"):
                raise BadStreamError("the reply is no stream of events")
            return
        body = line[len(_DATA) :].strip()
        if body == _END_OF_STREAM:
            self._done = True
            return
        event = _parse_event(body)
        self._check_same_model_and_answer(event)
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
            self._parse_choice(choice, seconds, event)

    def _check_same_model_and_answer(self, event: Mapping[str, Any]) -> None:
        """Checks that an event is from the requested model and of the same answer as the others."""
        for name, error in (("model", OtherServerKindError), ("id", BadStreamError)):
            value = event.get(name)
            first_value = self._constants.setdefault(name, value)
            if value and first_value and value != first_value:
                raise error(
                    f"its {name} is {format_value(value)} in place of {format_value(first_value)}"
                )

    def _add_tokens(self, new_tokens: int) -> None:
        """Adds to the count of tokens. Raises BadStreamError if there are more than requested."""
        self._count += new_tokens
        limit = self._payload.get("max_tokens", self._count)
        if self._count > limit:
            raise BadStreamError(f"{self._count} tokens or more where {limit} were asked for")

    def _parse_choice(
        self, choice: Mapping[str, Any], seconds: float, event: Mapping[str, Any]
    ) -> None:
        ids = choice.get("token_ids")
        text = choice.get("text")
        if not self._expects_ids:
            if "timings" in event:
                raise OtherServerKindError(LLAMA_CPP)
            if isinstance(text, str) and text:
                self._add_tokens(-(-len(text) // _MOST_LETTERS))
                self._chunks.append(TokenChunk(seconds, (), text))
            return
        if ids is None and text:
            remedy = "server.tokens=text tokenises its text again"
            raise BadStreamError(f"no token ids: the server ignores return_token_ids; {remedy}")
        if not is_token_id_list(ids or []):
            raise BadStreamError("token ids that are no whole numbers from 0")
        if ids:
            self._add_tokens(len(ids))
            self._chunks.append(TokenChunk(seconds, tuple(ids)))

    def build_answer(self) -> StreamedAnswer:
        """Builds the answer once the connection has ended. Raises BadStreamError if the stream is
        cut or has no token.
        """
        if not self._done or not isinstance(self._finish, str):
            raise BadStreamError("the stream ends before the answer does")
        if self._finish not in _ENDS:
            raise BadStreamError(f"an unfinished answer: finish_reason {self._finish!r}")
        if not self._chunks:
            raise BadStreamError("an answer without a token")
        answer = StreamedAnswer(tuple(self._chunks), self._finish, self._usage, self._metrics)
        tokens_by_name = {
            "completion_tokens": answer.tokens,
            "prompt_tokens": self._payload.get("prompt"),
        }
        for name, tokens in tokens_by_name.items():
            usage = self._usage.get(name)
            if usage is not None and tokens and usage != len(tokens):
                raise BadStreamError(
                    f"usage says {name} {format_value(usage)}, which are {len(tokens)}"
                )
        return answer


def _parse_event(body: bytes) -> dict[str, Any]:
    try:
        event = parse_json_within_limits(body)
    except ValueError:
        raise BadStreamError("an event that is no JSON") from None
    if not isinstance(event, dict):
        raise BadStreamError("an event that is no object")
    if "error" in event and "choices" not in event:
        error = event["error"]
        message = error.get("message") if isinstance(error, dict) else error
        raise BadStreamError(f"the server says: {to_one_line(message, 200)}")
    return event


def is_token_id_list(ids: Any) -> TypeGuard[list[int]]:
    """Returns whether a value is a list of token ids."""
    return isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)


def retokenise_answer(
    answer: StreamedAnswer, tokenise: Tokenise, stop_ids: Sequence[int]
) -> StreamedAnswer:
    """Tokenises an answer that came as text with the target's tokenizer.

    The tokens may differ from the server's, so counts are approximate. A chunk gets the tokens that
    it adds to the text; a chunk that adds none, such as half a letter, joins the next. If the
    server stopped and counts one token more, the first stop token, which has no text, is appended.
    Raises BadStreamError if the text has no token or the server's count differs too much.
    """
    text = ""
    lengths = list[int]()
    for chunk in answer.chunks:
        text += chunk.text
        lengths.append(len(tokenise(text)))
    ids = list(tokenise(text))
    if not ids:
        raise BadStreamError("an answer without a token")
    server_count = answer.usage.get("completion_tokens")
    if server_count is not None and (
        not is_token_id_list([server_count])
        or abs(server_count - len(ids)) > 1 + len(ids) // _TOKENS_PER_DIFFERENCE
    ):
        message = f"usage says completion_tokens {format_value(server_count)}"
        raise BadStreamError(f"{message}, the text that came has {len(ids)}")
    if answer.finish == "stop" and stop_ids and server_count == len(ids) + 1:
        ids.append(stop_ids[0])
    lengths[-1] = len(ids)
    chunks = list[TokenChunk]()
    start = 0
    for chunk, length in zip(answer.chunks, lengths, strict=True):
        end = min(length, len(ids))
        if end > start:
            chunks.append(TokenChunk(chunk.seconds, tuple(ids[start:end])))
            start = end
    return replace(answer, chunks=tuple(chunks))


class _ProgressEvent(NamedTuple):
    """Progress of an answer at one event."""

    seconds: float  # after the request was sent
    token_total: int  # tokens of the answer until now
    server_clock: float  # the server's clock, in milliseconds
    drafted_total: int  # tokens proposed until now
    accepted_total: int  # proposed tokens that were accepted until now


class LlamaCppStreamReader(StreamReader):
    """Parser of llama.cpp's replies, which separates the calls by the server's clock.

    ``timings.predicted_ms`` changes once per verification, so tokens with an equal value are from
    one call; the cumulative ``draft_n`` and ``draft_n_accepted`` give its counts. Events lack the
    tokens of an unfinished letter: their ids need a second request, without a stream.
    """

    def __init__(self, payload: Mapping[str, Any] = {}) -> None:
        super().__init__(payload=payload)
        self._events: list[_ProgressEvent] = []
        self._ids_seen: list[int] = []

    @property
    def has_tokens(self) -> bool:
        return bool(self._events)

    def _parse_choice(
        self, choice: Mapping[str, Any], seconds: float, event: Mapping[str, Any]
    ) -> None:
        details = event.get("__verbose")
        timings = event.get("timings")
        ids = details.get("tokens") if isinstance(details, dict) else None
        if not isinstance(timings, dict) or not is_token_id_list(ids):
            raise BadStreamError("no timings and tokens in an event: not llama.cpp's server")
        try:
            totals = LlamaTimings(**timings)
        except ValueError:  # of pydantic
            raise BadStreamError("timings that are no numbers from 0") from None
        self._ids_seen += ids
        self._add_tokens(max(0, totals.predicted_n - self._count))
        numbers = (totals.draft_n, totals.draft_n_accepted)
        self._events.append(_ProgressEvent(seconds, self._count, totals.predicted_ms, *numbers))

    @property
    def missing_id_count(self) -> int:
        """Number of tokens without an id in any event."""
        return self._events[-1].token_total - len(self._ids_seen) if self._events else 0

    def build_answer(self, ids: Sequence[int] | None = None) -> StreamedAnswer:
        """Builds the answer once the connection has ended, from ``ids`` if they were requested
        again. Raises BadStreamError if the stream is cut or contradicts itself.
        """
        tokens = self._ids_seen if ids is None else list(ids)
        if self._events and len(tokens) != self._events[-1].token_total:
            raise BadStreamError("an answer that was another one when it was asked for again")
        calls, accepted_counts, drafted_counts = split_into_calls(self._events)
        remaining_ids = iter(tokens)
        self._chunks = [
            TokenChunk(seconds, tuple(islice(remaining_ids, size))) for seconds, size in calls
        ]
        counts = {"per_step_accepted": accepted_counts, "per_step_drafted": drafted_counts}
        metrics = {"speculative_decoding": counts} if drafted_counts else {}
        return replace(super().build_answer(), metrics=metrics)


class AnswerCalls(NamedTuple):
    """An answer's calls, the prefill first."""

    calls: list[tuple[float, int]]  # seconds and tokens of each
    accepted_by_call: list[int]  # accepted tokens of each call that verified a draft
    drafted_by_call: list[int]  # tokens that were proposed to each of these calls


def split_into_calls(events: Sequence[_ProgressEvent]) -> AnswerCalls:
    """Splits an answer's events into its calls.

    A call emits its accepted tokens and one more. Tokens without an event are from plain calls.
    The answer's limit may cut the last call. Raises BadStreamError if a count falls.
    """
    if not events:
        return AnswerCalls([], [], [])
    total = events[-1].token_total
    emitted_count = 1
    calls = [(events[0].seconds, 1)]
    accepted_counts = list[int]()
    drafted_counts = list[int]()
    clock = 0.0
    drafted_total = 0
    accepted_total = 0
    for event in events:
        is_prefill = event.token_total == 1 and not event.drafted_total
        is_same_call = event.server_clock == clock
        clock = event.server_clock
        if is_prefill or is_same_call or emitted_count >= total:
            continue
        drafted_count = event.drafted_total - drafted_total
        accepted_count = event.accepted_total - accepted_total
        if not 0 <= accepted_count <= drafted_count <= MOST_NODES:
            raise BadStreamError("counts of drafts that go back")
        drafted_total = event.drafted_total
        accepted_total = event.accepted_total
        size = accepted_count + 1 if drafted_count else 1
        for _ in range(emitted_count + size, min(event.token_total, total)):
            calls.append((event.seconds, 1))
            emitted_count += 1
        size = min(size, total - emitted_count)
        calls.append((event.seconds, size))
        emitted_count += size
        if drafted_count:
            accepted_counts.append(accepted_count)
            drafted_counts.append(drafted_count)
    calls.extend((events[-1].seconds, 1) for _ in range(total - emitted_count))
    return AnswerCalls(calls, accepted_counts, drafted_counts)
