"""Finds where an answer ends: at an end token of the model, or at a stop text.

A chat model may end its turns with a token other than its tokenizer's end of text. Its files list
all end tokens, and transformers' ``generate`` stops at each of them. ``engine.loading`` reads them
along with a tokenizer and stores them as the tokenizer's ``answer_ends``.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

_MARGIN = 8  # tokens: a letter may take several, and some have no text


def find_end_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """Returns the ids of the tokens that end an answer, the tokenizer's own end first."""
    eos_id = tokenizer.eos_token_id
    ids = [] if eos_id is None else [int(eos_id)]
    return tuple(dict.fromkeys([*ids, *getattr(tokenizer, "answer_ends", ())]))


def decode_without_end_token(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Decodes an answer's tokens without the end token, special or not."""
    end_tokens = {*tokens[-1:]} & {*find_end_token_ids(tokenizer)}
    text_tokens = tokens[: len(tokens) - len(end_tokens)]
    return str(tokenizer.decode(text_tokens, skip_special_tokens=True))


def cut_at_stop(text: str, stop_texts: Sequence[str]) -> str:
    """Cuts a text at the first occurrence of any of the stop texts."""
    positions = [position for stop in stop_texts if (position := text.find(stop)) >= 0]
    return text[: min(positions, default=len(text))]


class StopCriteria:
    """End tokens and stop texts that end an answer; none without a tokenizer."""

    def __init__(self, tokenizer: Any = None, stop_texts: Sequence[str] = ()) -> None:
        self.stop_texts = tuple(stop_texts)
        self._tokenizer = tokenizer
        end_tokens = () if tokenizer is None else find_end_token_ids(tokenizer)
        self._tokens = [str(tokenizer.convert_ids_to_tokens(end)) for end in end_tokens]
        # Some tokenizers put a blank piece first, so the last piece counts.
        last_pieces = [(text, self._encode_text(text)[-1:]) for text in self.stop_texts]
        text_ids = [ids[0] for text, ids in last_pieces if ids and tokenizer.decode(ids) == text]
        # end tokens and stop texts of a single token
        self.stop_ids = tuple(dict.fromkeys([*end_tokens, *text_ids]))
        # Assumes a byte of text per token; ``_MARGIN`` covers tokens with less.
        self._reach = _MARGIN + max((len(text.encode()) for text in self.stop_texts), default=0)

    @property
    def token_and_text_names(self) -> list[str]:
        """Names of the end tokens, then of the stop texts."""
        texts = ("newline" if text == "\n" else json.dumps(text) for text in self.stop_texts)
        return [*self._tokens, *texts]

    @property
    def rule_text(self) -> str:
        """All ends in one text, with ``eos`` for the tokenizer's own: ``eos+newline``."""
        eos_id = getattr(self._tokenizer, "eos_token_id", None)
        return "+".join(
            self.token_and_text_names if eos_id is None else ["eos", *self.token_and_text_names[1:]]
        )

    @property
    def unusual_rule_text(self) -> str:
        """The rule, or "" if only the tokenizer's own end and single-token newlines end answers."""
        is_usual = self.rule_text in ("", "eos") or (
            self.rule_text == "eos+newline" and len(self._encode_text("\n\n")) > 1
        )
        return "" if is_usual else self.rule_text

    def count_tokens_to_stop_text(
        self, tokens: Sequence[int], checked_count: int = 0
    ) -> int | None:
        """Counts the tokens up to and including the first stop text; None if there is none. The
        first ``checked_count`` tokens must contain none.
        """
        if not self._contains_stop_text(tokens[max(0, checked_count - self._reach) :]):
            return None
        counts = range(checked_count + 1, len(tokens) + 1)
        return counts[
            bisect_left(counts[:-1], True, key=lambda n: self._contains_stop_text(tokens[:n]))
        ]

    def _contains_stop_text(self, tokens: Sequence[int]) -> bool:
        text = decode_without_end_token(self._tokenizer, tokens) if self.stop_texts else ""
        return any(stop in text for stop in self.stop_texts)

    def _encode_text(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
