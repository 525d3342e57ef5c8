"""How many tokens a text has, by a folder's ``tokenizer.json``; without transformers and torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def token_counter(folder: Path) -> Callable[[str], int] | None:
    """Counts a text's tokens, special ones not among them; None where the file does not tell."""
    from tokenizers import Tokenizer

    try:
        read = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # the library's own; loading the tokenizer says what is wrong with it
        return None
    return lambda text: len(read.encode(text, add_special_tokens=False).ids)
