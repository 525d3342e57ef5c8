"""What a server sent, as the answer to a request: held to it, and as a record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from spec_bench.records.types import Delivery, Finish, Generation, Request
from spec_bench.server.counts import Counts, steps_of
from spec_bench.server.endpoint import ServerError
from spec_bench.server.shares import Span
from spec_bench.server.stream import Chunk, Served


@dataclass(frozen=True)
class Answer:
    """An answer that came.

    Attributes:
        request: what was asked.
        served: as it came.
        chunks: of it those that are the answer.
        sources: what the server says of its calls, the best first.
    """

    request: Request
    served: Served
    chunks: tuple[Chunk, ...]
    sources: Sequence[Counts]

    @property
    def span(self) -> Span:
        """When it was under way."""
        seconds = (0.0, self.chunks[0].seconds, self.chunks[-1].seconds)
        return Span(*(self.served.sent_s + each for each in seconds))

    def arrived(self, moment_s: float) -> Answer:
        """The same, its seconds counted from a moment before it was sent.

        Args:
            moment_s: by ``time.perf_counter``.
        """
        late = self.served.sent_s - moment_s
        served, kept = (
            tuple(Chunk(chunk.seconds + late, chunk.tokens) for chunk in chunks)
            for chunks in (self.served.chunks, self.chunks)
        )
        return replace(
            self, served=replace(self.served, sent_s=moment_s, chunks=served), chunks=kept
        )

    def generation(self, prefill_s: float = 0.0, decode_s: float = 0.0) -> Generation:
        """The record, with its share of the batch's seconds."""
        sizes = tuple(len(chunk.tokens) for chunk in self.chunks)
        whole = sizes == tuple(len(chunk.tokens) for chunk in self.served.chunks)
        steps = steps_of(sizes, self.sources if whole else ())
        tokens = tuple(token for chunk in self.chunks for token in chunk.tokens)
        stopped = tokens[-1] in self.request.stop_ids or len(tokens) < self.request.max_new_tokens
        finish: Finish = "stop" if stopped else "length"
        seconds = tuple(chunk.seconds for chunk in self.chunks)
        came = Delivery(seconds, sizes, steps.counted, steps.proposed, self.served.attempts)
        return Generation(
            *(self.request.prompt_id, tokens, finish, steps.records, prefill_s, decode_s, 0.0, 0.0),
            latency_s=seconds[-1],
            delivery=came,
        )


def held(request: Request, served: Served, url: str, vocabulary: int) -> tuple[Chunk, ...]:
    """The chunks up to the first stop token.

    Raises:
        ServerError: they are no answer to the request.
    """
    whose = f"{url}: prompt {request.prompt_id!r}"
    if any(b.seconds < a.seconds for a, b in pairwise((Chunk(0.0, ()), *served.chunks))):
        raise ServerError(f"{whose}: the clock ran backwards")
    if (largest := max(served.tokens)) >= vocabulary:
        raise ServerError(
            f"{whose}: token {largest}, the target's tokenizer has {vocabulary}: another model is "
            "served"
        )
    limit = request.max_new_tokens
    ends = (place for place, each in enumerate(served.tokens, 1) if each in request.stop_ids)
    end = min(next(ends, len(served.tokens)), limit)
    stopped = served.finish != "length" or served.tokens[end - 1] in request.stop_ids
    if end < limit and not stopped:
        raise ServerError(f"{whose}: {end} of {limit} tokens, then no more room")
    kept, before = [], 0
    for chunk in served.chunks:
        if before < end:
            kept.append(Chunk(chunk.seconds, chunk.tokens[: end - before]))
        before += len(chunk.tokens)
    return tuple(kept)
