"""Whether two models give every token the same id, from dictionaries or from folders' files.

Knows JSON; imports neither torch nor transformers, so that a pair that cannot work together is
refused at once. What transformers adds to a tokenizer while it loads it is not known here: tokens
that only one side's files name as special are left to the loaded tokenizers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INTERSECTION = "intersection"
_TOKENS, _CONFIG, _SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"


def kept_tokens(outputs: str | int) -> tuple[int, ...]:
    """The token ids that a draft keeps in its last layer, in order.

    Args:
        outputs: a JSON file of ids, most frequent ones say (FR-Spec, arXiv 2502.14856), or a number
            N of the lowest, which a byte-pair vocabulary merged first.

    Raises:
        ValueError: no such file, or no list of distinct ids >= 0.
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
    """Refuses two vocabularies that are not the same.

    Raises:
        ValueError: naming the first token that differs.
    """
    if ours == theirs:
        return
    token = min(set(ours.items()) ^ set(theirs.items()), key=lambda item: item[::-1])[0]
    raise ValueError(
        f"target and draft vocabularies differ ({len(ours)} and {len(theirs)} tokens): "
        f"token {token!r} has id {ours.get(token)} in the target, {theirs.get(token)} in the "
        "draft; speculative decoding needs the same tokens"
    )


def refuse_different_files(target: Path, draft: Path) -> None:
    """The same of two model folders, where their files alone tell.

    Raises:
        ValueError: naming the first token that differs.
    """
    ours, theirs = _vocabulary(target), _vocabulary(draft)
    if ours is None or theirs is None:
        return
    special = _special(target) | _special(draft)
    certain = [
        token
        for token in ours.keys() | theirs.keys()
        if ours.get(token) != theirs.get(token)
        and (token not in special or (token in ours and token in theirs))
    ]
    if certain:
        refuse_different(ours, theirs)


def _vocabulary(folder: Path) -> dict[str, int] | None:
    """Ids of the tokens that a folder's files name; None where they are of another kind."""
    tokenizer, config = parsed(folder / _TOKENS), parsed(folder / _CONFIG)
    try:
        vocab = tokenizer["model"]["vocab"]
        if isinstance(vocab, list):  # Unigram: tokens with their scores, in the order of ids
            vocab = {token: number for number, (token, _) in enumerate(vocab)}
        added = {each["content"]: each["id"] for each in tokenizer.get("added_tokens") or ()}
        decoder = config.get("added_tokens_decoder") or {}
        more = {each["content"]: int(number) for number, each in decoder.items()}
        return {**vocab, **added, **more}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _special(folder: Path) -> set[str]:
    """Tokens that a loader may add: those that the settings name by their text."""
    special: set[str] = set()
    for values in (parsed(folder / _CONFIG), parsed(folder / _SPECIAL)):
        queue: list[Any] = list(values.values())
        while queue:
            value = queue.pop()
            if isinstance(value, str):
                special.add(value)
            elif isinstance(value, dict | list):
                queue += value.values() if isinstance(value, dict) else value
    return special


def parsed(file: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is none, for loading says what is wrong with it."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
