"""What ends an answer: the end-of-sequence token, and texts of the task's own.

Knows texts and a tokenizer; nothing about tasks or models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def stops_of(texts: Sequence[str], tokenizer: Any) -> dict[str, int]:
    """What ends an answer while it is decoded, and its token id: ``eos``, and those of the texts
    that are a single token.
    """
    ids = {} if tokenizer.eos_token_id is None else {"eos": int(tokenizer.eos_token_id)}
    for text in texts:
        # Some tokenizers put a blank piece first, so it is the last piece that counts.
        last = tokenizer(text, add_special_tokens=False)["input_ids"][-1:]
        if last and tokenizer.decode(last) == text:
            ids[text] = last[0]
    return ids


def cut_at(texts: Sequence[str], answer: str) -> str:
    """A decoded answer up to the first of these texts, blanks at its ends removed."""
    answer = answer.lstrip()
    cuts = [answer.find(text) for text in texts]
    return answer[: min((cut for cut in cuts if cut >= 0), default=len(answer))].strip()
