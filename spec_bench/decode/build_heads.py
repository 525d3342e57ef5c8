"""Kinds of draft heads, by function; see ``draft.base``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spec_bench.draft.base import head_kinds

HEADS = head_kinds()


def heads_used(decoder: Mapping[str, Any]) -> str | None:
    """Which draft heads the decoder needs: ``medusa``, ``redrafter``, ... or None."""
    kind = decoder["drafter"].get("kind")
    return kind if kind in HEADS else None
