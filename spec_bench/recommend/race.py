"""Which candidates of a search go on, and on how many prompts.

Successive halving: each round has an equal part of the time that is left, and the fewer candidates
go on, the more prompts they get, none of which an earlier round had (Karnin, Koren and Somekh, ICML
2013). Who is surely behind is out at once, as in a race by differences on the same prompts (Maron
and Moore, NIPS 1993; Birattari et al., GECCO 2002), and its time is the others'.
"""

from dataclasses import dataclass

import pandas as pd

ROUNDS = 3
FIRST = 2  # prompts of the first round; those who go on get at least twice as many in the next
REACH = 4.0  # standard errors behind the best at which a candidate is out


@dataclass
class Race:
    """A search for the best of some candidates, by their places."""

    open: list[int]  # who is in it, behind a round the best first
    best: int  # how many it is to find
    answers: int  # that it may decode yet, plain decoding's among them
    prompts: int  # that there are
    rounds: int = ROUNDS  # that are left at most
    used: int = 0  # prompts that all in it have decoded

    def count_prompts(self) -> int:
        """Counts the prompts of the next round; none where the race is over."""
        fewest = 0 if self.used else self.best
        if len(self.open) <= fewest or not self.rounds:
            return 0
        shared = self.answers // self.rounds // (len(self.open) + 1)
        return min(shared if self.used else FIRST, self.prompts - self.used)

    def end_round(self, count: int, values: pd.Series, by_prompt: pd.DataFrame) -> None:
        """Drops candidates behind a round of so many prompts. ``values`` are of all in it, over all
        prompts so far, the larger the better; ``by_prompt`` has a column for each of these.
        """
        self.answers -= count * (len(self.open) + 1)
        self.used += count
        self.rounds -= 1
        ranked = values.dropna().sort_values(ascending=False, kind="stable")
        # Few prompts say little of how much one candidate's differ: all candidates' are taken.
        spread = (by_prompt.loc[ranked.index[:1]].mean() - by_prompt).var(axis=1).mean()
        reach = REACH * (spread / self.used) ** 0.5
        near = (~(ranked < ranked.max() - reach)).sum()
        most = self.answers // max(self.rounds, 1) // (2 * count) - 1
        self.open = [*ranked.index[: max(self.best, min(near, most))]]
