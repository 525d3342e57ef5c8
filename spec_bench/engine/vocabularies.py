"""Which tokens a draft may propose, and whether two models give every token the same id.

Knows JSON; imports neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INTERSECTION = "intersection"


def kept_tokens(outputs: str | int) -> tuple[int, ...]:
    """Returns the token ids that a draft keeps in its last layer, in order: those of a JSON file,
    most frequent ones say (FR-Spec, arXiv 2502.14856), or the N lowest, which a byte-pair
    vocabulary merged first. A ValueError for no such file, or no list of distinct ids >= 0.
    """
    if isinstance(outputs, int):
        if outputs < 1:
            raise ValueError(f"pair.draft_vocabulary must be at least 1, got {outputs}")
        return tuple(range(outputs))
    try:
        ids = json.loads(Path(outputs).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"pair.draft_vocabulary must be {INTERSECTION}, a number of tokens or a JSON file of "
            f"token ids, got {outputs!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    whole = isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)
    if not ids or not whole or len(set(ids)) < len(ids):
        raise ValueError(f"pair.draft_vocabulary: {outputs!r} holds no list of distinct ids >= 0")
    return tuple(sorted(ids))


def refuse_different(ours: Mapping[str, int], theirs: Mapping[str, int]) -> None:
    """Refuses two vocabularies that are not the same; the ValueError names the first token that
    differs.
    """
    if ours == theirs:
        return
    token = min(set(ours.items()) ^ set(theirs.items()), key=lambda item: item[::-1])[0]
    raise ValueError(
        f"target and draft vocabularies differ ({len(ours)} and {len(theirs)} tokens): "
        f"token {token!r} has id {ours.get(token)} in the target, {theirs.get(token)} in the "
        "draft; speculative decoding needs the same tokens"
    )


def parsed(file: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is none, for loading says what is wrong with it."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
