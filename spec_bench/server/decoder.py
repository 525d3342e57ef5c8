"""A server as a decoder: sends requests, several at a time, and records each answer's times and
calls.

Times are the client's. It runs a thread for each request under way, checks the answers, and gives
each its share of the seconds. If an answer fails, those under way are still received and kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple

from spec_bench.records.sampling import SamplingSettings
from spec_bench.records.types import (
    Finish,
    Generation,
    Lossless,
    Meter,
    Progress,
    PromptError,
    Request,
    ServerChunks,
)
from spec_bench.server.calls import (
    AnswerSteps,
    CallCounts,
    Counters,
    build_answer_steps,
    count_calls_between,
    count_generated_tokens,
    parse_prometheus_counters,
    parse_request_counts,
)
from spec_bench.server.endpoint import RequestRefusedError, ServerClient, ServerError
from spec_bench.server.stream import BadStreamError, StreamedAnswer, TokenChunk, retokenise_answer
from spec_bench.system import files

_SEEDS = 2**31
_PROBE = 8  # tokens
_POLLS = 20  # of counters that do not include an answer yet
_POLL_S = 0.05


class RequestSpan(NamedTuple):
    """Moments of a request, in seconds on one clock."""

    began_s: float  # when it was sent
    first_s: float  # when its first chunk arrived
    ended_s: float  # when its last one arrived


def share_batch_seconds(spans: Sequence[RequestSpan]) -> list[tuple[float, float]]:
    """Splits the elapsed time among the requests; returns (prefill, decoding) seconds of each.

    At every instant the requests under way share the time equally: as prefill until their first
    chunk, then as decoding. So the shares of a batch add up to the time in which any request was
    under way, and a request alone gets its own seconds.
    """
    moments = sorted({moment for span in spans for moment in span})
    seconds = [(0.0, 0.0)] * len(spans)
    for start, end in pairwise(moments):
        under_way = [i for i, s in enumerate(spans) if s.began_s <= start and end <= s.ended_s]
        for index in under_way:
            share = (end - start) / len(under_way)
            prefill, decoding = seconds[index]
            is_prefill = end <= spans[index].first_s
            seconds[index] = (
                (prefill + share, decoding) if is_prefill else (prefill, decoding + share)
            )
    return seconds


@dataclass(frozen=True)
class ServerAnswer:
    """A server's answer to a request."""

    request: Request
    chunks: tuple[TokenChunk, ...]  # up to its end
    steps: AnswerSteps  # its target calls
    sent_s: float  # ``time.perf_counter`` when the request was sent, or arrived
    attempts: int  # requests that the answer took

    @property
    def span(self) -> RequestSpan:
        """When the request was under way."""
        return RequestSpan(
            began_s=self.sent_s,
            first_s=self.sent_s + self.chunks[0].seconds,
            ended_s=self.sent_s + self.chunks[-1].seconds,
        )

    def shift_start(self, due_s: float) -> ServerAnswer:
        """Returns the answer with its seconds counted from ``due_s``, the request's arrival on our
        clock.
        """
        delay_s = self.sent_s - due_s
        chunks = tuple(replace(chunk, seconds=chunk.seconds + delay_s) for chunk in self.chunks)
        return replace(self, sent_s=due_s, chunks=chunks)

    def build_generation(self, prefill_s: float = 0.0, decode_s: float = 0.0) -> Generation:
        """Builds the answer's record, with its share of the batch's seconds."""
        tokens = tuple(token for chunk in self.chunks for token in chunk.tokens)
        has_end = self.request.count_tokens_to_end(tokens) is not None
        has_stopped = has_end or len(tokens) < self.request.max_new_tokens
        finish: Finish = "stop" if has_stopped else "length"
        delivery = ServerChunks(
            seconds=tuple(chunk.seconds for chunk in self.chunks),
            tokens=tuple(len(chunk.tokens) for chunk in self.chunks),
            counted=self.steps.count_source,
            proposed=self.steps.knows_drafted_by_call,
            attempts=self.attempts,
        )
        return Generation(
            prompt_id=self.request.prompt_id,
            tokens=tokens,
            finish=finish,
            steps=self.steps.records,
            prefill_s=prefill_s,
            decode_s=decode_s,
            draft_s=0.0,
            target_s=0.0,
            latency_s=self.chunks[-1].seconds,
            delivery=delivery,
        )


ResultQueue = SimpleQueue[tuple[int, ServerAnswer | Exception | None]]
"""Indices of requests with their answers or errors; None at an answer's first token."""


def trim_chunks(
    request: Request, answer: StreamedAnswer, url: str, vocabulary_size: int
) -> tuple[TokenChunk, ...]:
    """Cuts an answer's chunks at the first end. Raises ServerError if it cannot be the answer to
    this request.
    """
    label = f"{url}: prompt {request.prompt_id!r}"
    if any(b.seconds < a.seconds for a, b in pairwise((TokenChunk(0.0, ()), *answer.chunks))):
        raise ServerError(f"{label}: the clock ran backwards")
    if (largest := max(answer.tokens)) >= vocabulary_size:
        raise ServerError(
            f"{label}: token {largest}, the target's tokenizer has {vocabulary_size}: another "
            "model is served"
        )
    limit = request.max_new_tokens
    first_end = request.count_tokens_to_end(answer.tokens)
    end = min(first_end or len(answer.tokens), limit)
    if end < limit and first_end is None and answer.finish == "length":
        raise ServerError(f"{label}: {end} of {limit} tokens, then no more room")
    chunks = []
    token_count = 0
    for chunk in answer.chunks:
        if token_count < end:
            chunks.append(TokenChunk(chunk.seconds, chunk.tokens[: end - token_count]))
        token_count += len(chunk.tokens)
    return tuple(chunks)


class UnansweredError(ServerError):
    """Error about requests that the server did not answer."""

    def __init__(
        self, errors: Mapping[str, Exception], generations: Sequence[Generation] = ()
    ) -> None:
        super().__init__(str(next(iter(errors.values()))))
        self.errors = errors  # by prompt id
        self.generations = list(generations)  # of the batch's other requests


@dataclass(frozen=True)
class RequestOptions:
    """Sampling options of all requests, and the target's vocabulary."""

    sampling: SamplingSettings  # the target's
    vocabulary_size: int  # number of the target's tokens
    # the target's tokenizer, for a server that streams text only
    tokenise: Callable[[str], Sequence[int]] | None = None


@dataclass
class ServedDecoder:
    """Decoder that sends its requests to a server."""

    server: ServerClient
    options: RequestOptions
    rows: int = 1  # maximum number of requests under way
    # arriving requests per second (an open loop); None: each answer triggers the next request.
    # Latencies count from a request's arrival.
    requests_per_s: float | None = None
    reads_counters: bool = True  # whether the counters are read, if ``rows`` is 1
    lossless: Lossless = "unaudited"
    _is_top_k_checked: bool = field(default=False, init=False)
    target: None = field(default=None, init=False)
    drafts: tuple[()] = field(default=(), init=False)
    draft_calls: None = field(default=None, init=False)
    parameter_ratio: None = field(default=None, init=False)

    def remember_for_drafting(self, answers: Sequence[Sequence[int]]) -> None:
        """Does nothing: a server's drafter has its own memory."""

    def refuse_unfit_prompts(self, requests: Sequence[Request]) -> None:
        """Raises PromptError, with the prompt's id, if a prompt is empty."""
        for request in requests:
            if not request.prompt_ids:
                raise PromptError(request.prompt_id, " is empty; at least one token needed")

    def _check_top_k_honoured(self, request: Request) -> None:
        """Checks that the server honours ``top_k``: sampling from the top token must be greedy.

        Raises RequestRefusedError if it ignores a request's sampling options.
        """
        complete = partial(self.server.complete, request.prompt_ids, _PROBE, seed=0)
        greedy = complete(SamplingSettings(0.0))
        top = complete(SamplingSettings(top_k=1))
        if (greedy.tokens or greedy.text_without_ids) != (top.tokens or top.text_without_ids):
            raise RequestRefusedError(
                f"{self.server.public_url} ignores top_k: at temperature 1 the one "
                "likeliest token is not what it says at temperature 0, so it samples by settings "
                "of its own"
            )
        self._is_top_k_checked = True

    def generate(
        self,
        requests: Sequence[Request],
        seed: int,
        progress: Progress | None = None,
        meter: Meter | None = None,
    ) -> list[Generation]:
        """Requests all answers, up to ``rows`` at a time.

        The seed that is sent depends on ``seed`` and the request's id. ``progress`` is called with
        (target calls, tokens) of each answer. The meter begins when all of the first ``rows``
        requests have their first chunks. After a failure other than a refusal no more requests are
        sent.

        Raises RequestRefusedError if the server ignores sampling options, and UnansweredError if an
        answer failed (with a meter the others are dropped too, because they share its window).
        """
        if requests and self.options.sampling.temperature > 0 and not self._is_top_k_checked:
            self._check_top_k_honoured(requests[0])
        results: ResultQueue = SimpleQueue()
        start_s = time.perf_counter()
        rate = self.requests_per_s
        arrivals_s = draw_arrival_times_s(len(requests), rate, seed) if rate else []
        request_queue = iter(enumerate(requests))

        def send(limit: int) -> int:
            batch = list(islice(request_queue, limit))
            for index, request in batch:
                due_s = start_s + arrivals_s[index] if arrivals_s else None
                arguments = (results, index, request, seed, due_s)
                Thread(target=self._put_answer, args=arguments, daemon=True).start()
            return len(batch)

        answers: dict[int, ServerAnswer] = {}
        errors: dict[str, Exception] = {}
        running_count = send(self.rows)
        awaiting_token = set(range(running_count))
        meter_began = False
        while running_count:
            index, result = results.get()
            awaiting_token.discard(index)
            if isinstance(result, ServerAnswer):
                answers[index] = result
                if progress:
                    token_count = result.build_generation().tokens_in_decode_s
                    progress(len(result.steps.records), token_count)
            elif result is not None:
                errors[requests[index].prompt_id] = result
            if meter and not meter_began and not awaiting_token:
                meter.begin_window()
                meter_began = True
            if result is not None:
                may_send = all(isinstance(error, RequestRefusedError) for error in errors.values())
                running_count += send(int(may_send)) - 1
        if meter and meter_began:
            meter.end_window()
        generations = _build_generations([answers[index] for index in sorted(answers)])
        if errors:
            raise UnansweredError(errors, () if meter else generations)
        return generations

    def _put_answer(
        self, results: ResultQueue, index: int, request: Request, seed: int, due_s: float | None
    ) -> None:
        """Requests one answer, at once or when it is due, and puts its index into the queue: with
        None at the first token, in the end with the answer, or with the error if it fails.
        """
        result: ServerAnswer | Exception
        try:
            if due_s is not None:
                time.sleep(max(0.0, due_s - time.perf_counter()))
            result = self.request_answer(request, seed, lambda: results.put((index, None)))
            result = result if due_s is None else result.shift_start(due_s)
        except Exception as error:
            result = error
        results.put((index, result))

    def request_answer(
        self, request: Request, seed: int, on_first_token: Callable[[], None]
    ) -> ServerAnswer:
        """Requests one answer and counts its target calls. Raises ServerError if the server gives
        no answer, or one that cannot be this request's.
        """
        counters_before = self._read_counters()
        options = self.options
        answer = self.server.complete(
            request.prompt_ids, request.max_new_tokens,
            options.sampling,
            seed=int(files.hash_json([seed, request.prompt_id]), 16) % _SEEDS,
            ignore_eos=not request.stop_ids, stop_ids=request.stop_ids,
            stop=request.stop_criteria.stop_texts, on_first_token=on_first_token,
        )  # fmt: skip
        if options.tokenise:
            try:
                answer = retokenise_answer(answer, options.tokenise, request.stop_ids)
            except BadStreamError as error:
                raise ServerError(f"{self.server.public_url}: {error}") from None
        chunks = trim_chunks(request, answer, self.server.public_url, options.vocabulary_size)
        count = len(answer.tokens)
        sources = [
            parse_request_counts(answer.metrics, count),
            self._count_calls(counters_before, count),
        ]
        sizes = [len(chunk.tokens) for chunk in chunks]
        is_whole = sum(sizes) == count
        steps = build_answer_steps(sizes, [counts for counts in sources if counts and is_whole])
        return ServerAnswer(request, chunks, steps, answer.sent_s, answer.attempts)

    def _read_counters(self) -> Counters:
        """Reads the server's counters; empty if several requests would share them."""
        if not self.reads_counters or self.rows > 1:
            return {}
        text = self.server.fetch_text("metrics")
        counters = parse_prometheus_counters(text) if text else {}
        self.reads_counters = bool(counters)
        return counters

    def _count_calls(self, counters_before: Counters, tokens: int) -> CallCounts | None:
        """Counts an answer's calls by the counters, which may lag; None if they do not catch up in
        time.
        """
        if not counters_before:
            return None
        for _ in range(_POLLS):
            counters_after = self._read_counters()
            if (count_generated_tokens(counters_before, counters_after) or 0) >= tokens:
                return count_calls_between(counters_before, counters_after, tokens)
            self.server.sleep(_POLL_S)
        return None


def _build_generations(answers: Sequence[ServerAnswer]) -> list[Generation]:
    """Builds the answers' records with their shares of the common time."""
    shares = share_batch_seconds([answer.span for answer in answers])
    return [answer.build_generation(*share) for answer, share in zip(answers, shares, strict=True)]


def draw_arrival_times_s(count: int, requests_per_s: float, seed: int) -> list[float]:
    """Draws requests' arrival times, in seconds, by a Poisson process; equal for all servers."""
    random_source = random.Random(seed)
    moments = [0.0]
    while len(moments) < count:
        moments.append(moments[-1] + random_source.expovariate(requests_per_s))
    return moments
