"""A served answer's target calls: from the server's own counts where it tells them.

A server says what its drafts came to in up to two places: with the answer (vLLM's
``--per-request-spec-decode-metrics``), and in counters (``GET /metrics``) that are read before and
after. Both count the calls that had a draft, and say nothing of the plain calls between them, nor
of accepted tokens behind the answer's end. These follow from the tokens and the chunks: a call
brings its accepted tokens and one more, and a chunk holds one call or several that came together.
Where neither says anything a chunk is a call.

Counters have vLLM's names. They are of the server as a whole, so they are used where one request is
under way at a time, and only if they say that the answer's own tokens were all that came meanwhile.
Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spec_bench.records.types import Counted, StepRecord

_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{([^}]*)\})?\s+([-+0-9.eE]+|NaN|[+-]Inf)\s*$")
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
class Counts:
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


@dataclass(frozen=True)
class Steps:
    """The target calls of an answer."""

    records: tuple[StepRecord, ...]  # those after the prompt's
    counted: Counted  # where they are known from
    proposed: bool  # whether it is known how many tokens each verified


def steps_of(chunks: Sequence[int], sources: Sequence[Counts]) -> Steps:
    """The calls after the prompt's, by the first source that fits the answer."""
    for counts in sources:
        if (records := _by_counts(chunks, counts)) is not None:
            return Steps(records, counts.source, counts.proposed)
    plain = tuple(StepRecord(size - 1, size - 1, size - 1, size) for size in chunks[1:])
    return Steps(plain, "stream", False)


def _by_counts(chunks: Sequence[int], counts: Counts) -> tuple[StepRecord, ...] | None:
    """The calls; None where such counts cannot have made such chunks.

    Of the last call tokens may be cut: as few as make the calls at least as many as the chunks, and
    at most those that it accepted. Plain calls, whose places nobody tells, stand first.
    """
    accepted, later = counts.accepted, len(chunks) - 1
    emitted, delivered = sum(accepted) + len(accepted), sum(chunks) - 1
    least, most = max(0, emitted - delivered), accepted[-1] if accepted else 0
    calls = later if counts.calls is None else counts.calls
    cut = calls - len(accepted) - (delivered - emitted)
    if counts.calls is None:
        cut = max(cut, least)  # several calls came in one chunk
    plain = delivered - emitted + cut
    if not least <= cut <= most or plain < 0 or (counts.calls is not None and calls < later):
        return None
    drafted = counts.drafted if counts.proposed else accepted
    records = [StepRecord(0, 0, 0, 1)] * plain
    records += [
        StepRecord(max(proposed, tokens), max(proposed, tokens), tokens, tokens + 1)
        for proposed, tokens in zip(drafted, accepted, strict=True)
    ]
    return _without(records, chunks[0] - 1, cut)


def _without(records: Sequence[StepRecord], first: int, cut: int) -> tuple[StepRecord, ...]:
    """The calls, less what the first chunk delivered of them and what the last one was cut by."""
    left, kept = first, []
    for place, step in enumerate(records):
        delivered = step.delivered - (cut if place == len(records) - 1 else 0)
        taken = min(left, delivered)
        left -= taken
        kept.append(StepRecord(step.nodes, step.depth, step.accepted, delivered - taken))
    return tuple(kept)


def counts_of_request(metrics: Mapping[str, Any]) -> Counts | None:
    """What came with an answer; None where nothing did that can be read."""
    numbers = metrics.get("speculative_decoding")
    if not isinstance(numbers, Mapping):
        return None
    accepted, drafted = (
        _wholes(numbers.get("per_step_accepted")),
        _wholes(numbers.get("per_step_drafted")),
    )
    if accepted is not None and drafted is not None and len(accepted) == len(drafted):
        return Counts("requests", accepted, drafted)
    by_number = _wholes(numbers.get("acceptance_histogram"))
    if by_number is None:
        return None
    total, most = numbers.get("num_draft_tokens"), numbers.get("num_spec_tokens")
    return of_histogram("requests", by_number, total, most)


def of_histogram(
    source: Counted, histogram: Sequence[int], proposed: Any, most: Any, calls: int | None = None
) -> Counts:
    """Counts whose order is not known: of calls that accepted 0, 1, ... tokens, of the tokens
    proposed in all of them and at most to one, and of all calls, plain ones too.
    """
    accepted = tuple(tokens for tokens, times in enumerate(histogram) for _ in range(times))
    alike = type(most) is int and proposed == most * len(accepted)
    drafted = (most,) * len(accepted) if alike else ()
    return Counts(source, accepted, drafted, calls)


def _wholes(value: Any) -> tuple[int, ...] | None:
    """A list of numbers from 0; None where it is none."""
    whole = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
    return tuple(value) if whole else None


def parse(text: str) -> Counters:
    """The counters that are used, from Prometheus' text format."""
    counters: dict[tuple[str, int], float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample[1] not in _KEPT:
            continue
        place = _PLACE.search(sample[2] or "")
        key = (sample[1], int(place[1]) if place else -1)
        try:
            value = float(sample[3])
        except ValueError:
            continue
        if math.isfinite(value):
            counters[key] = counters.get(key, 0.0) + value
    return counters


def generated(before: Counters, after: Counters) -> int | None:
    """Tokens that all requests together generated meanwhile; None where nothing counts them."""
    key = (_TOKENS, -1)
    return round(after[key] - before.get(key, 0.0)) if key in after else None


def counts_between(before: Counters, after: Counters, tokens: int) -> Counts | None:
    """The calls of the one answer that came meanwhile, of so many tokens; None where other requests
    were counted, too, or the server has no such counters.
    """
    if generated(before, after) != tokens or (_CALLS, -1) not in after:
        return None

    def added(name: str, place: int = -1) -> int:
        return round(after.get((name, place), 0.0) - before.get((name, place), 0.0))

    places = sorted(place for name, place in after if name == _BY_PLACE)
    at_least = [added(_DRAFTS), *(added(_BY_PLACE, place) for place in places), 0]
    histogram = [more - fewer for more, fewer in pairwise(at_least)]
    if places != list(range(len(places))) or min(histogram) < 0:
        return None
    return of_histogram("counters", histogram, added(_PROPOSED), len(places), added(_CALLS))
