"""What a row of a server leaves empty, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spec_bench.jobs.config.settings import JobSettings
from spec_bench.metrics.served import in_bursts
from spec_bench.records.types import Generation
from spec_bench.vocabulary.columns import header

_NOT_SEEN = ("draft_s", "target_s", "host_")  # what these columns' names begin with
_BURSTS = (
    "chunks came in bursts, as behind a proxy that buffers: when each was made is not to be seen"
)
_UNNAMED = "of a server, that of the GPUs that are named: energy=nvml energy.devices=[0]"
# What hangs on when the chunks came; whole answers' seconds do not.
_WHOLE = "token_rate_end_to_end"
_TIMED = (
    "prefill_s", "decode_s", "ttft_s", "inter_token_s", "chunk_gap_s", "token_rate", "speedup",
    "energy_j", "energy_saving",
)  # fmt: skip
_NOT_PROPOSED = ("acceptance_rate", "nodes_per_call")


def has_no_baseline(settings: JobSettings) -> bool:
    """Whether nothing decodes plainly beside a server."""
    served = settings.served
    return served is not None and not served.has_baseline and served.decoder != "ar"


def served_columns(windows: Sequence[Generation]) -> dict[str, Any]:
    """Columns that a client cannot fill, emptied; none if this program decoded."""
    if not any(each.delivery for each in windows):
        return {}
    stems = _NOT_SEEN + (() if _proposed(windows) else _NOT_PROPOSED)
    stems += _TIMED if in_bursts(windows) else ()
    emptied = (name for name in header() if name.startswith(stems))
    return {name: None for name in emptied if not name.startswith(_WHOLE)}


def served_reasons(
    windows: Sequence[Generation], unmetered: bool, retold: bool
) -> list[tuple[str, str]]:
    """Why they are empty, and what to mind about others.

    Args:
        windows: every answer.
        unmetered: whether there was no meter.
        retold: whether answers came as text.
    """
    came = [each.delivery for each in windows if each.delivery]
    if not came:
        return []
    again = sum(each.attempts > 1 for each in came)
    unknown = "" if _proposed(windows) else "nobody says how many tokens were proposed to a call"
    return [
        ("delivered_tokens", "of the answers' text, tokenised again" if retold else ""),
        ("host_overhead", "what a server's seconds go to is not seen from outside"),
        ("perplexity", "the target is not loaded here"),
        ("acceptance_rate", unknown),
        ("token_rate", _BURSTS if in_bursts(windows) else ""),
        ("energy_j_per_token", _UNNAMED if unmetered else ""),
        ("latency_s", f"{again} of {len(came)} answers took several requests" if again else ""),
    ]


def _proposed(windows: Sequence[Generation]) -> bool:
    return all(each.delivery.proposed for each in windows if each.delivery)
