"""Counts the target calls of a served answer from what the server reports.

A server reports its drafts in up to two places: with the answer (vLLM's
`--per-request-spec-decode-metrics`) and in counters (`GET /metrics`), read before and after. Both
count the calls with a draft only, and also accepted tokens after the answer's end. The plain calls
follow from tokens and chunks: a call emits its accepted tokens and one more, and a chunk holds one
or several calls. Without any counts a chunk is a call. Counters are the whole server's, so they are
used only with one request at a time, and if they count no other tokens.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from spec_bench.records.types import Counted, StepRecord
from spec_bench.settings.foreign import SpeculativeCounts

_MOST_COUNTED = 2**53  # a larger float is no exact count
_SAMPLE = re.compile(r"^vllm:(\w+)(?:\{([^}\n]*)\})?[ \t]+([-+0-9.eE]+)[ \t\r]*$", re.MULTILINE)
_PLACE = re.compile(r'\bposition="(\d+)"')
_DRAFTS = "spec_decode_num_drafts_total"
_PROPOSED_COUNTER = "spec_decode_num_draft_tokens_total"
_BY_PLACE = "spec_decode_num_accepted_tokens_per_pos_total"
_TOKENS = "generation_tokens_total"
_CALLS = "inter_token_latency_seconds_count"
_KEPT_COUNTERS = (_DRAFTS, _PROPOSED_COUNTER, _BY_PLACE, _TOKENS, _CALLS)

Counters = Mapping[tuple[str, int], float]
"""(name, position of a draft's token, or -1) -> value, summed over engines and models."""


@dataclass(frozen=True)
class CallCounts:
    """A server's counts of an answer's calls that verified a draft."""

    source: Counted
    accepted_by_call: tuple[int, ...]  # tokens of each such call, in order (ascending if unknown)
    drafted_by_call: tuple[int, ...] = ()  # tokens proposed to each; () if only their sum is known
    calls: int | None = None  # all calls after the prefill, plain ones too; None if unknown

    @property
    def knows_drafted_by_call(self) -> bool:
        """Whether the number of tokens that each call verified is known."""
        return len(self.drafted_by_call) == len(self.accepted_by_call)


class AnswerSteps(NamedTuple):
    """The target calls of an answer."""

    records: tuple[StepRecord, ...]  # without the prefill
    count_source: Counted  # source of the counts
    knows_drafted_by_call: bool  # whether the number of tokens that each verified is known


def build_answer_steps(chunk_sizes: Sequence[int], sources: Sequence[CallCounts]) -> AnswerSteps:
    """Builds the calls after the prefill, from the first source that fits the answer."""
    for counts in sources:
        if (records := _build_steps_from_counts(chunk_sizes, counts)) is not None:
            return AnswerSteps(records, counts.source, counts.knows_drafted_by_call)
    plain = tuple(StepRecord(size - 1, size - 1, size - 1, size) for size in chunk_sizes[1:])
    return AnswerSteps(plain, "stream", False)


def _build_steps_from_counts(
    chunk_sizes: Sequence[int], counts: CallCounts
) -> tuple[StepRecord, ...] | None:
    """Builds the calls from a server's counts; None if they do not fit the chunks.

    The answer's limit may cut the last call, by at most the tokens that it accepted; there must be
    at least as many calls as chunks. Plain calls come first, because their places are unknown.
    """
    accepted_counts = counts.accepted_by_call
    later_chunks = len(chunk_sizes) - 1
    emitted_count = sum(accepted_counts) + len(accepted_counts)
    delivered_count = sum(chunk_sizes) - 1
    min_cut = max(0, emitted_count - delivered_count)
    max_cut = accepted_counts[-1] if accepted_counts else 0
    calls = later_chunks if counts.calls is None else counts.calls
    cut = calls - len(accepted_counts) - (delivered_count - emitted_count)
    if counts.calls is None:
        cut = max(cut, min_cut)  # several calls in one chunk
    plain_calls = delivered_count - emitted_count + cut
    if (
        not min_cut <= cut <= max_cut
        or plain_calls < 0
        or not later_chunks <= calls <= delivered_count
    ):
        return None
    nodes_by_call = [0] * plain_calls + [
        *(counts.drafted_by_call if counts.knows_drafted_by_call else accepted_counts)
    ]
    accepted_by_call = [0] * plain_calls + [*accepted_counts]
    # tokens of these calls that the first chunk delivered
    first_chunk_tokens = chunk_sizes[0] - 1
    records = []
    for call, (nodes, accepted_count) in enumerate(
        zip(nodes_by_call, accepted_by_call, strict=True)
    ):
        call_tokens = accepted_count + 1 - (cut if call == len(accepted_by_call) - 1 else 0)
        in_first_chunk = min(first_chunk_tokens, call_tokens)
        first_chunk_tokens -= in_first_chunk
        nodes = max(nodes, accepted_count)
        records.append(StepRecord(nodes, nodes, accepted_count, call_tokens - in_first_chunk))
    return tuple(records)


def parse_request_counts(metrics: Mapping[str, Any], tokens: int) -> CallCounts | None:
    """Parses the counts that came with an answer of ``tokens`` tokens; None if there are none or
    they cannot be this answer's.
    """
    try:
        numbers = SpeculativeCounts.model_validate(metrics.get("speculative_decoding"))
    except ValueError:  # of pydantic
        return None
    accepted_counts = numbers.per_step_accepted
    drafted_counts = numbers.per_step_drafted
    if (
        accepted_counts is not None
        and drafted_counts is not None
        and len(accepted_counts) == len(drafted_counts)
    ):
        return CallCounts("requests", accepted_counts, drafted_counts)
    if numbers.acceptance_histogram is None:
        return None
    draft_totals = (numbers.num_draft_tokens, numbers.num_spec_tokens)
    return build_counts_from_histogram(
        "requests", numbers.acceptance_histogram, tokens, *draft_totals
    )


def build_counts_from_histogram(
    source: Counted,
    calls_by_accepted: Sequence[int],
    tokens: int,
    drafted_total: int | None,
    max_drafted: int | None,
    calls: int | None = None,
) -> CallCounts | None:
    """Builds counts from a histogram of calls by their accepted tokens (0, 1, ...).

    ``drafted_total`` is the number of tokens proposed to all of these calls, ``max_drafted`` the
    maximum per call, and ``calls`` includes plain calls. None if there are more calls than
    ``tokens``, the answer's number of tokens.
    """
    if sum(calls_by_accepted) > tokens:
        return None
    accepted_counts = tuple(
        accepted for accepted, times in enumerate(calls_by_accepted) for _ in range(times)
    )
    all_full = max_drafted is not None and drafted_total == max_drafted * len(accepted_counts)
    drafted_counts = (max_drafted or 0,) * len(accepted_counts) if all_full else ()
    return CallCounts(source, accepted_counts, drafted_counts, calls)


def parse_prometheus_counters(text: str) -> Counters:
    """Parses the counters that are used here from Prometheus' text format."""
    counters: dict[tuple[str, int], float] = {}
    for name, labels, number in _SAMPLE.findall(text):
        position = _PLACE.search(labels)
        with suppress(ValueError):
            if name in _KEPT_COUNTERS and abs(count := float(number)) < _MOST_COUNTED:
                key = (name, int(position[1]) if position else -1)
                counters[key] = counters.get(key, 0.0) + count
    return counters


def count_generated_tokens(start: Counters, end: Counters) -> int | None:
    """Counts the tokens that all requests generated between two readings; None if unknown."""
    key = (_TOKENS, -1)
    return round(end[key] - start.get(key, 0.0)) if key in end else None


def count_calls_between(start: Counters, end: Counters, tokens: int) -> CallCounts | None:
    """Counts the calls between two readings, which must be of a single answer of ``tokens`` tokens.
    None if other requests were counted too or the server has no such counters.
    """
    if count_generated_tokens(start, end) != tokens or (_CALLS, -1) not in end:
        return None

    def count_added(name: str, position: int = -1) -> int:
        return round(end.get((name, position), 0.0) - start.get((name, position), 0.0))

    positions = sorted(position for name, position in end if name == _BY_PLACE)
    at_least = [
        count_added(_DRAFTS),
        *(count_added(_BY_PLACE, position) for position in positions),
        0,
    ]
    histogram = [larger - smaller for larger, smaller in pairwise(at_least)]
    if positions != list(range(len(positions))) or min(histogram) < 0:
        return None
    drafted_total = count_added(_PROPOSED_COUNTER)
    return build_counts_from_histogram(
        "counters",
        histogram,
        tokens,
        drafted_total,
        len(positions),
        count_added(_CALLS),
    )
