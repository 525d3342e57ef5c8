"""A server's counters, as ``GET /metrics`` tells them: what one answer added to them.

vLLM's names. They are of the server as a whole, so they are used where one request is under way at
a time, and only if they say that the answer's own tokens were all that came meanwhile.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise

from spec_bench.server.counts import Counts, of_histogram

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
