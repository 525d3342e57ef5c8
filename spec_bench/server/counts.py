"""A served answer's target calls: from the server's own counts where it tells them.

A server says what its drafts came to in up to two places: with the answer (vLLM's
``--per-request-spec-decode-metrics``), and in counters that are read before and after
(``server.counters``). Both count the calls that had a draft, and say nothing of the plain calls
between them, nor of accepted tokens behind the answer's end. These follow from the tokens and the
chunks: a call brings its accepted tokens and one more, and a chunk holds one call or several that
came together. Where neither says anything a chunk is a call. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spec_bench.records.types import Counted, StepRecord


@dataclass(frozen=True)
class Counts:
    """What a server says of the calls that verified a draft.

    Attributes:
        source: where it says so.
        accepted: tokens of each such call, in order, or rising where the order is not known.
        drafted: tokens proposed to each; () where only their sum is known.
        calls: of all calls after the prompt's, plain ones too; None where nobody says.
    """

    source: Counted
    accepted: tuple[int, ...]
    drafted: tuple[int, ...] = ()
    calls: int | None = None

    @property
    def proposed(self) -> bool:
        """Whether it is known how many tokens each call verified."""
        return len(self.drafted) == len(self.accepted)


@dataclass(frozen=True)
class Steps:
    """The target calls of an answer.

    Attributes:
        records: those after the prompt's.
        counted: where they are known from.
        proposed: whether it is known how many tokens each verified.
    """

    records: tuple[StepRecord, ...]
    counted: Counted
    proposed: bool


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
    """Counts whose order is not known.

    Args:
        source: who says so.
        histogram: calls that accepted 0, 1, ... tokens.
        proposed: tokens proposed in all of them.
        most: that are proposed to one call.
        calls: of all calls, plain ones too.
    """
    accepted = tuple(tokens for tokens, times in enumerate(histogram) for _ in range(times))
    alike = type(most) is int and proposed == most * len(accepted)
    drafted = (most,) * len(accepted) if alike else ()
    return Counts(source, accepted, drafted, calls)


def _wholes(value: Any) -> tuple[int, ...] | None:
    """A list of numbers from 0; None where it is none."""
    whole = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
    return tuple(value) if whole else None
