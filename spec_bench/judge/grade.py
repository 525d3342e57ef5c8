"""Grading conversations: one rating a turn, from the cache or from the endpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spec_bench.judge.cache import Judgements
from spec_bench.judge.conversation import Conversation
from spec_bench.judge.endpoint import Endpoint, JudgementFailedError, NoReplyError, RefusedError
from spec_bench.judge.prompts import judge_messages

LOWEST, HIGHEST = 1.0, 10.0
# As the published judge's replies are read: double brackets, else single ones.
_PATTERNS = (re.compile(r"\[\[(\d+(?:\.\d+)?)\]\]"), re.compile(r"\[(\d+(?:\.\d+)?)\]"))
_PATIENCE = 3  # judgements in a row without a reply, then the endpoint is taken for lost


@dataclass(frozen=True)
class Grade:
    """One judgement.

    Attributes:
        turn: which answer, from 0.
        rating: 1 to 10; None where it failed.
        problem: why it failed; "" otherwise.
    """

    turn: int
    rating: float | None
    problem: str = ""


class Grader:
    """A judge at work.

    Attributes:
        lost: why the endpoint is asked no more; "" while it is.
    """

    def __init__(self, endpoint: Endpoint, cache: Judgements) -> None:
        self.endpoint, self.cache = endpoint, cache
        self.lost = ""
        self._silent = 0

    def grade(self, conversations: Sequence[Conversation]) -> list[list[Grade]]:
        """The grades of each conversation's turns; a failed one leaves the others going."""
        asked = [(each, turn) for each in conversations for turn in range(len(each.questions))]
        with ThreadPoolExecutor(self.endpoint.settings.parallel) as pool:
            try:
                grades = iter(list(pool.map(lambda item: self._grade(*item), asked)))
            except BaseException:  # an interrupt: no more than what is under way is waited for
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [[next(grades) for _ in each.questions] for each in conversations]

    def _grade(self, conversation: Conversation, turn: int) -> Grade:
        payload = self.endpoint.payload(judge_messages(conversation, turn))
        known = self.cache.get(payload)
        if known is not None:
            return Grade(turn, known)
        if self.lost:
            return Grade(turn, None, self.lost)
        try:
            reply = self.endpoint.ask(payload)
        except JudgementFailedError as error:
            self._silent += isinstance(error, NoReplyError)
            if isinstance(error, RefusedError) or self._silent >= _PATIENCE:
                self.lost = str(error)
            return Grade(turn, None, str(error))
        self._silent = 0
        rating = rating_of(reply)
        if rating is None:
            return Grade(turn, None, "a reply without a rating")
        self.cache.put(payload, reply, rating)
        return Grade(turn, rating)


def rating_of(reply: str) -> float | None:
    """The first rating in ``[[5]]``'s format; None where there is none between 1 and 10."""
    for pattern in _PATTERNS:
        if match := pattern.search(reply):
            rating = float(match.group(1))
            return rating if LOWEST <= rating <= HIGHEST else None
    return None
