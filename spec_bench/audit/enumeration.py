"""Runs randomised code once per outcome, with the outcome's probability.

The code under audit is the code that is benchmarked: it asks a ``Draws`` object for every random
choice, and here that object walks depth-first through all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Outcome = TypeVar("Outcome")
Key = TypeVar("Key", bound=Hashable)


class EnumeratedDraws:
    """``Draws`` for one row whose choices follow a script and extend it by first alternatives."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.alternatives: list[list[int]] = []
        self.probability = 1.0

    def choose(self, probs: Sequence[float]) -> int:
        """Picks the scripted alternative, or the first one with positive probability."""
        possible = [index for index, prob in enumerate(probs) if prob > 0]
        step = len(self.taken)
        choice = self._script[step] if step < len(self._script) else possible[0]
        self.taken.append(choice)
        self.alternatives.append(possible)
        self.probability *= probs[choice]
        return choice

    def categorical(self, probs: Tensor, count: int) -> Tensor:
        assert probs.shape[0] == 1, "enumeration runs one row"
        nodes = probs[0].tolist()
        return torch.tensor([[[self.choose(node) for _ in range(count)] for node in nodes]])

    def gumbel(self, like: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Noise that puts each node's tokens in an enumerated order.

        The order of perturbed log-probabilities is distributed as sampling without replacement
        (Gumbel-top-k), which is what is enumerated. Only the order is right, not the values: code
        that uses the values (stochastic beam search) cannot be enumerated this way.
        """
        assert like.shape[0] == 1, "enumeration runs one row"
        noise = torch.zeros_like(like)
        for node, log_q in enumerate(like[0]):
            probs = log_q.exp().tolist()
            for rank in range(sum(prob > 0 for prob in probs)):
                total = sum(probs)
                token = self.choose([prob / total for prob in probs])
                noise[0, node, token] = -rank - log_q[token]
                probs[token] = 0.0
        return noise

    def verdict(self, children: Sequence[int]) -> EnumeratedDraws:
        return self

    def first_accepted(self, level: int, acceptance: Tensor) -> Tensor:
        probs, missed = [], 1.0
        for accept in acceptance[0].tolist():
            probs.append(missed * accept)
            missed *= 1 - accept
        return torch.tensor([self.choose([*probs, missed])])

    def accepts(self, level: int, child: int, acceptance: float) -> bool:
        return self.choose([1 - acceptance, acceptance]) == 1

    def by_position(self, count: int) -> EnumeratedDraws:
        return self

    def token_at(self, level: int, probs: Tensor) -> Tensor:
        return self.token(probs)

    def tokens_at(self, levels: Tensor, probs: Tensor) -> Tensor:
        raise NotImplementedError("outcomes of nodes that no walk meets would be counted too")

    def settle(self, emitted: Sequence[int]) -> None:
        """Nothing was looked ahead at."""

    def passes(self, tests: Tensor, acceptance: Tensor) -> Tensor:
        raise NotImplementedError("outcomes of tests that no walk meets would be counted too")

    def trials(self, count: int) -> EnumeratedDraws:
        return self

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        chance = float(probability)
        return torch.tensor([self.choose([1 - chance, chance]) == 1])

    def token(self, probs: Tensor) -> Tensor:
        return torch.tensor([self.choose(probs[0].tolist())])


def outcomes(run: Callable[[EnumeratedDraws], Outcome]) -> Iterator[tuple[float, Outcome]]:
    """Yields (probability, result) for every way the choices can fall out of ``run``, which is
    deterministic but for the draws it is given.
    """
    script: list[int] = []
    while True:
        draws = EnumeratedDraws(script)
        result = run(draws)
        yield draws.probability, result
        script = list(draws.taken)
        while script:
            possible = draws.alternatives[len(script) - 1]
            later = [choice for choice in possible if choice > script[-1]]
            if later:
                script[-1] = later[0]
                break
            script.pop()
        if not script:
            return


def law_of(run: Callable[[EnumeratedDraws], Key]) -> tuple[dict[Key, float], int]:
    """The probability of each result of ``run``, and the number of outcomes enumerated."""
    law: dict[Key, float] = defaultdict(float)
    count = 0
    for probability, result in outcomes(run):
        law[result] += probability
        count += 1
    return law, count
