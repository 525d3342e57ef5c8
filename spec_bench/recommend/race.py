"""Selects a search's candidates for the next round, and the number of its prompts.

Successive halving: each round gets an equal share of the remaining answers and decodes new prompts,
so that fewer candidates decode more of them (Karnin, Koren and Somekh, ICML 2013). A candidate that
is surely worse is dropped at once, as in a race by differences on the same prompts (Maron and
Moore, NIPS 1993; Birattari et al., GECCO 2002), which leaves more answers to the others.
"""

from dataclasses import dataclass

import pandas as pd

ROUNDS = 3
FIRST_PROMPTS = 2  # prompts of the first round; the next has at least twice as many
MAX_STANDARD_ERRORS = 4.0  # a candidate further behind the best is dropped


@dataclass
class CandidateElimination:
    """State of a search for the best candidates, which are identified by their indices."""

    candidates: list[int]  # remaining candidates, after a round the best first
    winner_count: int  # number of candidates to find
    answer_budget: int  # answers that may still be decoded, plain decoding's included
    prompt_count: int  # all available prompts
    rounds_left: int = ROUNDS  # remaining rounds, at most
    used_prompts: int = 0  # prompts that all remaining candidates have decoded and that count
    skipped_prompts: int = 0  # prompts of rounds that do not count

    def count_next_round_prompts(self) -> int:
        """Returns the number of the next round's prompts; 0 if the race is over."""
        fewest = 0 if self.used_prompts else self.winner_count
        if len(self.candidates) <= fewest or not self.rounds_left:
            return 0
        share = self.answer_budget // self.rounds_left // (len(self.candidates) + 1)
        fewest_prompts = FIRST_PROMPTS if self.skipped_prompts or not self.used_prompts else 0
        prompts = max(share, fewest_prompts) if self.used_prompts else fewest_prompts
        return min(prompts, self.prompt_count - self.next_prompt)

    @property
    def next_prompt(self) -> int:
        """The index of the next round's first prompt."""
        return self.used_prompts + self.skipped_prompts

    def skip_round_if_affordable(self, round_prompts: int) -> bool:
        """Discards a round's prompts and drops no candidate, if enough answers and prompts are left
        for another round; returns whether it did.
        """
        cost_per_prompt = len(self.candidates) + 1
        answers_left = self.answer_budget - round_prompts * cost_per_prompt
        prompts_left = self.prompt_count - self.next_prompt - round_prompts
        if min(answers_left // cost_per_prompt, prompts_left) < FIRST_PROMPTS:
            return False
        self.answer_budget = answers_left
        self.skipped_prompts += round_prompts
        return True

    def drop_candidates_after_round(
        self, round_prompts: int, values: pd.Series, values_by_prompt: pd.DataFrame
    ) -> None:
        """Drops candidates after a round of ``round_prompts`` prompts. ``values`` has each
        candidate's number over all prompts so far (larger is better); ``values_by_prompt`` has a
        row per candidate and a column per prompt.
        """
        self.answer_budget -= round_prompts * (len(self.candidates) + 1)
        self.used_prompts += round_prompts
        self.rounds_left -= 1
        sorted_values = values.dropna().sort_values(ascending=False, kind="stable")
        # A candidate has too few prompts to estimate its variance: uses the mean over all.
        spread = (
            (values_by_prompt.loc[sorted_values.index[:1]].mean() - values_by_prompt)
            .var(axis=1)
            .mean()
        )
        reach = MAX_STANDARD_ERRORS * (spread / self.used_prompts) ** 0.5
        close_count = (~(sorted_values < sorted_values.max() - reach)).sum()
        affordable_count = self.answer_budget // max(self.rounds_left, 1) // (2 * round_prompts) - 1
        self.candidates = [
            *sorted_values.index[: max(self.winner_count, min(close_count, affordable_count))]
        ]
