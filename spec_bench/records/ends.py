"""Where an answer ends: at tokens that a model's files call ends, and at texts.

A chat model ends its turns with a token that its tokenizer need not call its end of text. Its files
list all ends, and transformers' ``generate`` stops at those. ``engine.loading`` reads them when it
loads a tokenizer and leaves them with it as ``answer_ends``.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

_MARGIN = 8  # tokens: a letter's bytes, and tokens without text


def end_ids(tokenizer: Any) -> tuple[int, ...]:
    """Returns the ids of the tokens that end an answer, the tokenizer's own end first."""
    own = tokenizer.eos_token_id
    ids = [] if own is None else [int(own)]
    return tuple(dict.fromkeys([*ids, *getattr(tokenizer, "answer_ends", ())]))


def decode_answer(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Returns the text of an answer's tokens, without the end token, special or not."""
    ended = bool(tokens) and tokens[-1] in end_ids(tokenizer)
    said = tokens[:-1] if ended else tokens
    return str(tokenizer.decode(said, skip_special_tokens=True))


class StopTexts:
    """Texts that end an answer, whatever tokens they come in; none of them is empty."""

    def __init__(self, tokenizer: Any, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self._tokenizer = tokenizer
        # A token has a byte of text at least.
        self._reach = _MARGIN + max((len(text.encode()) for text in self.texts), default=0)

    def cut(self, text: str) -> str:
        """Returns a text up to the first stop text."""
        places = [place for stop in self.texts if (place := text.find(stop)) >= 0]
        return text[: min(places, default=len(text))]

    def find_end(self, tokens: Sequence[int], before: int = 0) -> int | None:
        """Returns how many tokens it takes for the first stop text to be whole; None if there is
        none. The first ``before`` tokens are known to hold none.
        """
        if not self._stops(tokens[max(0, before - self._reach) :]) or not self._stops(tokens):
            return None
        counts = range(before + 1, len(tokens) + 1)
        return counts[bisect_left(counts[:-1], True, key=lambda n: self._stops(tokens[:n]))]

    def _stops(self, tokens: Sequence[int]) -> bool:
        text = decode_answer(self._tokenizer, tokens)
        return any(stop in text for stop in self.texts)
