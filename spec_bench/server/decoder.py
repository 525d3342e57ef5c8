"""A server as a decoder: requests under way together, each an answer with its times and calls.

What decodes, and how, is the server's. What stands here are the client's clock, its threads (one a
request under way), the check that an answer is one, and whose seconds they were. An answer that
could not be had is raised when those under way beside it have come, and what came is not lost.
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

from spec_bench.records.types import (
    Delivery,
    Finish,
    Generation,
    Lossless,
    Meter,
    Progress,
    PromptError,
    Request,
)
from spec_bench.server.endpoint import RequestRefusedError, Server, ServerError
from spec_bench.server.stream import (
    AnswerSteps,
    BadStreamError,
    CallCounts,
    Chunk,
    Counters,
    StreamedAnswer,
    build_steps,
    count_generated,
    counts_from_request,
    diff_counters,
    parse,
    retokenise_answer,
)
from spec_bench.system import files

_SEEDS = 2**31
_PROBE = 8  # tokens
_LATE = 20  # looks at counters that have not heard of an answer yet
_LOOK_S = 0.05


class RequestSpan(NamedTuple):
    """A request under way, on one clock."""

    began_s: float  # when it was sent
    first_s: float  # when its first chunk came
    ended_s: float  # when its last one came


def share_seconds(spans: Sequence[RequestSpan]) -> list[tuple[float, float]]:
    """(prefill, decoding) seconds of each request.

    At every instant the requests under way have equal parts of it, those that wait for their first
    chunk as prefill, the others as decoding. So the shares of a batch add up to the time in which
    anything was under way, and those of a request alone are its own seconds.
    """
    moments = sorted({moment for span in spans for moment in span})
    seconds = [(0.0, 0.0)] * len(spans)
    for start, end in pairwise(moments):
        under_way = [i for i, s in enumerate(spans) if s.began_s <= start and end <= s.ended_s]
        for index in under_way:
            part = (end - start) / len(under_way)
            prefill, decoding = seconds[index]
            waits = end <= spans[index].first_s
            seconds[index] = (prefill + part, decoding) if waits else (prefill, decoding + part)
    return seconds


@dataclass(frozen=True)
class ServerAnswer:
    """An answer that came."""

    request: Request  # what was asked
    chunks: tuple[Chunk, ...]  # up to its end
    steps: AnswerSteps  # its target calls
    sent_s: float  # by ``time.perf_counter``, when the request was sent, or arrived
    attempts: int  # requests that it took

    @property
    def span(self) -> RequestSpan:
        """When it was under way."""
        seconds = (0.0, self.chunks[0].seconds, self.chunks[-1].seconds)
        return RequestSpan(*(self.sent_s + each for each in seconds))

    def shift_start(self, moment_s: float) -> ServerAnswer:
        """Returns the same, its seconds counted from a moment on our clock before it was sent."""
        late = self.sent_s - moment_s
        chunks = tuple(replace(each, seconds=each.seconds + late) for each in self.chunks)
        return replace(self, sent_s=moment_s, chunks=chunks)

    def generation(self, prefill_s: float = 0.0, decode_s: float = 0.0) -> Generation:
        """Returns the record, with its share of the batch's seconds."""
        tokens = tuple(token for chunk in self.chunks for token in chunk.tokens)
        ended = self.request.find_end(tokens) is not None
        stopped = ended or len(tokens) < self.request.max_new_tokens
        finish: Finish = "stop" if stopped else "length"
        seconds = tuple(chunk.seconds for chunk in self.chunks)
        sizes = tuple(len(chunk.tokens) for chunk in self.chunks)
        came = Delivery(seconds, sizes, self.steps.counted, self.steps.proposed, self.attempts)
        return Generation(
            *(self.request.prompt_id, tokens, finish, self.steps.records),
            *(prefill_s, decode_s, 0.0, 0.0),
            latency_s=seconds[-1],
            delivery=came,
        )


def trim_answer(
    request: Request, served: StreamedAnswer, url: str, vocabulary: int
) -> tuple[Chunk, ...]:
    """The chunks up to the first end. Raises ServerError: they are no answer to it."""
    whose = f"{url}: prompt {request.prompt_id!r}"
    if any(b.seconds < a.seconds for a, b in pairwise((Chunk(0.0, ()), *served.chunks))):
        raise ServerError(f"{whose}: the clock ran backwards")
    if (largest := max(served.tokens)) >= vocabulary:
        raise ServerError(
            f"{whose}: token {largest}, the target's tokenizer has {vocabulary}: another model is "
            "served"
        )
    limit = request.max_new_tokens
    first = request.find_end(served.tokens)
    end = min(first or len(served.tokens), limit)
    if end < limit and first is None and served.finish == "length":
        raise ServerError(f"{whose}: {end} of {limit} tokens, then no more room")
    kept = []
    before = 0
    for chunk in served.chunks:
        if before < end:
            kept.append(Chunk(chunk.seconds, chunk.tokens[: end - before]))
        before += len(chunk.tokens)
    return tuple(kept)


class UnansweredError(ServerError):
    """Some answers could not be had."""

    def __init__(
        self, failed: Mapping[str, Exception], answered: Sequence[Generation] = ()
    ) -> None:
        super().__init__(str(next(iter(failed.values()))))
        self.failed = failed  # why, by prompt id
        self.answered = list(answered)  # the others of the batch that were asked


@dataclass(frozen=True)
class RequestOptions:
    """How a server is asked."""

    temperature: float  # 0 is greedy
    top_k: int  # most probable tokens that are sampled from; 0: all
    top_p: float  # mass that is sampled from
    vocabulary: int  # tokens that the target has
    # the target's tokenizer, of a server that streams text alone
    tokenise: Callable[[str], Sequence[int]] | None = None


@dataclass
class ServedDecoder:
    """Decodes by a server."""

    server: Server  # where
    asking: RequestOptions  # how
    rows: int = 1  # requests that are under way together
    # requests a second that arrive, ``rows`` of them under way at most: an open loop; None: one is
    # sent where there is room. Latencies count from a request's arrival.
    rate: float | None = None
    counted: bool = True  # whether its counters are read, where one request is under way at a time
    lossless: Lossless = "unaudited"  # what is known of its distribution
    _probed: bool = field(default=False, init=False)
    target: None = field(default=None, init=False)
    drafts: tuple[()] = field(default=(), init=False)
    draft_calls: None = field(default=None, init=False)
    speed_ratio: None = field(default=None, init=False)

    def remember(self, answers: Sequence[Sequence[int]]) -> None:
        """What the server keeps is its own."""

    def preflight(self, requests: Sequence[Request]) -> None:
        """Checks that prompts can be asked. Raises ValueError: naming the prompt that cannot."""
        for request in requests:
            if not request.prompt_ids:
                raise PromptError(request.prompt_id, " is empty; at least one token needed")

    def _probe(self, request: Request) -> None:
        """Asks for the one likeliest token of all in two ways. Raises RefusedError: it ignores what
        a request says of its sampling: its distribution may be any.
        """
        ask = partial(self.server.complete, request.prompt_ids, _PROBE, seed=0)
        greedy = ask(temperature=0.0)
        top = ask(temperature=1.0, top_k=1)
        if (greedy.tokens or greedy.text) != (top.tokens or top.text):
            raise RequestRefusedError(
                f"{self.server.shown} ignores top_k: at temperature 1 the one likeliest token is "
                "not what it says at temperature 0, so it samples by settings of its own"
            )
        self._probed = True

    def generate(
        self,
        requests: Sequence[Request],
        seed: int,
        progress: Progress | None = None,
        meter: Meter | None = None,
    ) -> list[Generation]:
        """Asks for all answers, up to ``rows`` at a time; the next one where one has come.

        The seed and a request's id fix the seed that is sent to the server; ``progress`` is called
        with (target calls, tokens) of each answer; the meter begins when the requests that are sent
        first have their first chunks. After a failure that is no refusal what is under way is
        waited for. Raises RefusedError: the server ignores settings of the sampling;
        UnansweredError: some answer could not be had; with a meter none, in one window, is kept.
        """
        if requests and self.asking.temperature > 0 and not self._probed:
            self._probe(requests[0])
        came: SimpleQueue[tuple[int, ServerAnswer | Exception | None]] = SimpleQueue()
        arriving = arrivals(len(requests), self.rate, seed) if self.rate else []
        start = time.perf_counter()
        moments = [start + each for each in arriving]
        waiting = iter(enumerate(requests))

        def ask(index: int, request: Request) -> None:
            moment = moments[index] if moments else None
            came.put((index, self._asked(request, seed, moment, lambda: came.put((index, None)))))

        def send(most: int) -> int:
            sent = list(islice(waiting, most))
            for each in sent:  # in a thread that does not outlive the process
                Thread(target=ask, args=each, daemon=True).start()
            return len(sent)

        answers: dict[int, ServerAnswer] = {}
        failed: dict[str, Exception] = {}
        going = True
        running = send(self.rows)
        unbegun = set(range(running))
        metering = False
        while running:
            index, result = came.get()
            unbegun.discard(index)
            if isinstance(result, ServerAnswer):
                answers[index] = result
                if progress:
                    progress(len(result.steps.records), result.generation().decoded)
            elif result is not None:
                failed[requests[index].prompt_id] = result
                going = going and isinstance(result, RequestRefusedError)
            if meter and not metering and not unbegun:
                meter.begin()
                metering = True
            if result is not None:
                running += send(int(going)) - 1
        if meter and metering:
            meter.end()
        generations = _share_time([answers[index] for index in sorted(answers)])
        if failed:
            raise UnansweredError(failed, () if meter else generations)
        return generations

    def _asked(
        self, request: Request, seed: int, moment: float | None, begun: Callable[[], None]
    ) -> ServerAnswer | Exception:
        """One answer, sent for at once or when its moment has come, or why there is none."""
        try:
            if moment is None:
                return self.answer(request, seed, begun)
            time.sleep(max(0.0, moment - time.perf_counter()))
            return self.answer(request, seed, begun).shift_start(moment)
        except Exception as error:
            return error

    def answer(self, request: Request, seed: int, begun: Callable[[], None]) -> ServerAnswer:
        """One answer, its calls counted. Raises ServerError: there is none, or it is none of this
        request.
        """
        before = self._counters()
        asking = self.asking
        served = self.server.complete(
            request.prompt_ids, request.max_new_tokens,
            temperature=asking.temperature, top_p=asking.top_p, top_k=asking.top_k,
            seed=int(files.digest([seed, request.prompt_id]), 16) % _SEEDS,
            ignore_eos=not request.stop_ids, stop_ids=request.stop_ids,
            stop=request.ends.texts, begun=begun,
        )  # fmt: skip
        if asking.tokenise:
            try:
                served = retokenise_answer(served, asking.tokenise, request.stop_ids)
            except BadStreamError as error:
                raise ServerError(f"{self.server.shown}: {error}") from None
        chunks = trim_answer(request, served, self.server.shown, asking.vocabulary)
        count = len(served.tokens)
        sources = [counts_from_request(served.metrics, count), self._counts(before, count)]
        sizes = [len(chunk.tokens) for chunk in chunks]
        whole = sum(sizes) == count
        steps = build_steps(sizes, [counts for counts in sources if counts and whole])
        return ServerAnswer(request, chunks, steps, served.sent_s, served.attempts)

    def _counters(self) -> Counters:
        """Returns the server's counters now; none where they would be of several requests."""
        if not self.counted or self.rows > 1:
            return {}
        text = self.server.read("metrics")
        counters = parse(text) if text else {}
        self.counted = bool(counters)
        return counters

    def _counts(self, before: Counters, tokens: int) -> CallCounts | None:
        """Returns what an answer added to the counters, which may hear of it a little late."""
        if not before:
            return None
        for _ in range(_LATE):
            after = self._counters()
            if (count_generated(before, after) or 0) >= tokens:
                return diff_counters(before, after, tokens)
            self.server.sleep(_LOOK_S)
        return None


def _share_time(answers: Sequence[ServerAnswer]) -> list[Generation]:
    """Returns answers with their shares of the time in which several are under way."""
    parts = share_seconds([answer.span for answer in answers])
    return [answer.generation(*part) for answer, part in zip(answers, parts, strict=True)]


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Returns seconds at which requests arrive: a Poisson process, the same for every server."""
    draws = random.Random(seed)
    moments = [0.0]
    while len(moments) < count:
        moments.append(moments[-1] + draws.expovariate(rate))
    return moments
