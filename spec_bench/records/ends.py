"""Where an answer ends: at tokens that a model's files call ends, and at texts.

A chat model ends its turns with a token that its tokenizer need not call its end of text. Its files
list all ends, and transformers' ``generate`` stops at those. ``engine.loading`` reads them when it
loads a tokenizer and leaves them with it as ``answer_ends``.
"""

import json
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
    ended = {*tokens[-1:]} & {*end_ids(tokenizer)}
    said = tokens[: len(tokens) - len(ended)]
    return str(tokenizer.decode(said, skip_special_tokens=True))


def cut_before(text: str, stops: Sequence[str]) -> str:
    """Returns a text up to the first of the stops in it."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places, default=len(text))]


class StopCriteria:
    """What ends an answer: end tokens, and texts in whatever tokens; nothing without a tokenizer.

    None of the texts is empty.
    """

    def __init__(self, tokenizer: Any = None, texts: Sequence[str] = ()) -> None:
        self.texts = tuple(texts)
        self._tokenizer = tokenizer
        known = () if tokenizer is None else end_ids(tokenizer)
        self._tokens = [str(tokenizer.convert_ids_to_tokens(end)) for end in known]
        # Some tokenizers put a blank piece first, so it is the last piece that counts.
        last = [(text, self._encode(text)[-1:]) for text in self.texts]
        single = [ids[0] for text, ids in last if ids and tokenizer.decode(ids) == text]
        self.ids = tuple(dict.fromkeys([*known, *single]))  # of tokens and single-token texts
        # A token has a byte of text at least.
        self._reach = _MARGIN + max((len(text.encode()) for text in self.texts), default=0)

    @property
    def names(self) -> list[str]:
        """Names what ends an answer before its limit: tokens, then texts."""
        texts = ("newline" if text == "\n" else json.dumps(text) for text in self.texts)
        return [*self._tokens, *texts]

    @property
    def rule(self) -> str:
        """The same in one text, the tokenizer's own end as ``eos``: ``eos+newline``."""
        own = getattr(self._tokenizer, "eos_token_id", None)
        return "+".join(self.names if own is None else ["eos", *self.names[1:]])

    @property
    def further(self) -> str:
        """The rule where more ends an answer than the tokenizer's own end and newlines that are a
        token each; else "".
        """
        usual = self.rule in ("", "eos") or (
            self.rule == "eos+newline" and len(self._encode("\n\n")) > 1
        )
        return "" if usual else self.rule

    def find_text(self, tokens: Sequence[int], before: int = 0) -> int | None:
        """Returns how many tokens it takes for the first text to be whole; None if there is none.
        The first ``before`` tokens are known to hold none.
        """
        if not self._holds(tokens[max(0, before - self._reach) :]):
            return None
        counts = range(before + 1, len(tokens) + 1)
        return counts[bisect_left(counts[:-1], True, key=lambda n: self._holds(tokens[:n]))]

    def _holds(self, tokens: Sequence[int]) -> bool:
        text = decode_answer(self._tokenizer, tokens) if self.texts else ""
        return any(stop in text for stop in self.texts)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
