"""Beam verification by enumeration: a layer's W output beams are i.i.d. from the beam law.

A case is one layer: the target's beam law over the parents that stand, the draft's over all its
parents, and which of them stand. Every tuple of drafts and every outcome of the trials is visited.
Letters: T drafts, M cells, W output beams.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from spec_bench.audit.rules import adversarial_pairs
from spec_bench.verify.beams import (
    LayerVerdict,
    acceptance_in_a_row,
    accepted_count_law,
    completion,
    layer_width,
    residual_chain,
    verify_layer,
)

THRESHOLDS = (0.0, 0.5, 0.7, 0.9, 1.0)


class LayerCase(NamedTuple):
    """One layer.

    Attributes:
        p: [M] the target's beam law; no mass below rejected parents.
        q: [M] the draft's, over all its parents.
        stands: [M] whether the cell's parent stands.
    """

    p: Tensor
    q: Tensor
    stands: Tensor


class LayerRule(NamedTuple):
    """The parts of beam verification, so that a test can put a broken one in.

    Attributes:
        chain: p' by rejections in a row.
        width: W from (alpha, t, W_min).
        verify: the trials.
    """

    chain: Callable[[Tensor, Tensor, int], Tensor] = residual_chain
    width: Callable[[Tensor, float, int], Tensor] = layer_width
    verify: Callable[..., LayerVerdict] = verify_layer


AS_IT_IS = LayerRule()


class ListedTrials:
    """Trials that go as listed, with the probability of going so.

    Args:
        outcomes: [R, T] bool.
    """

    def __init__(self, outcomes: Tensor) -> None:
        self._outcomes = outcomes
        self.probability = torch.ones(outcomes.shape[0], dtype=torch.float64)

    def succeeds(self, index: int, probability: Tensor) -> Tensor:
        hit = self._outcomes[:, index]
        self.probability = self.probability * torch.where(hit, probability, 1 - probability)
        return hit


def layer_cases(seed: int = 0) -> Iterator[LayerCase]:
    """Random and adversarial layers of two parents with two tokens each: both parents standing,
    one of them, and the same laws cut by truncation.
    """
    everywhere = torch.ones(4, dtype=torch.bool)
    first_only = torch.tensor([True, True, False, False])
    for p, drafts in adversarial_pairs(4, seed, random_pairs=24):
        q = drafts[0]
        yield LayerCase(p, q, everywhere)
        kept = p * first_only
        if kept.sum() > 0:
            yield LayerCase(kept / kept.sum(), q, first_only)


def output_law(
    case: LayerCase, trials: int, threshold: float, least: int, rule: LayerRule
) -> tuple[Tensor, int]:
    """The joint law of a layer's output beams, accepted ones first in drawing order.

    Args:
        case: the layer.
        trials: T.
        threshold: t.
        least: W_min.
        rule: its parts.

    Returns:
        [M] * W, and W.
    """
    cells_count = case.p.shape[0]
    q = (case.q * case.stands).unsqueeze(0)
    chain = rule.chain(case.p.unsqueeze(0), q, trials)
    width = int(rule.width(acceptance_in_a_row(chain, q), threshold, least))
    drafts = torch.tensor(list(itertools.product(range(cells_count), repeat=trials)))
    hits = torch.tensor(list(itertools.product([False, True], repeat=trials)))
    cells = drafts.repeat_interleave(hits.shape[0], dim=0)
    listed = ListedTrials(hits.repeat(drafts.shape[0], 1))
    rows = cells.shape[0]
    chains, widths = chain.expand(rows, -1, -1), torch.full((rows,), width)
    verdict = rule.verify(chains, q.expand(rows, -1), cells, widths, listed, 0)
    weight = case.q[cells].prod(dim=1) * listed.probability
    laws, wanted = completion(chains, verdict, widths)
    total = torch.zeros([cells_count] * width, dtype=torch.float64)
    for row in weight.nonzero().flatten().tolist():
        kept = cells[row][verdict.accepted[row]].tolist()
        rest = [laws[row, slot] for slot in range(int(wanted[row]))]
        total[tuple(kept)] += weight[row] * _product(rest)
    return total, width


def layer_error(
    case: LayerCase, trials: int, threshold: float, least: int, rule: LayerRule = AS_IT_IS
) -> float:
    """Largest difference between the output beams' joint law and W independent draws."""
    law, width = output_law(case, trials, threshold, least, rule)
    return float((law - _product([case.p] * width)).abs().max())


def count_error(case: LayerCase, trials: int, law: Callable[[Tensor], Tensor]) -> float:
    """Largest error of P(T, k) against the trials themselves, none turned away as surplus."""
    q = (case.q * case.stands).unsqueeze(0)
    chain = residual_chain(case.p.unsqueeze(0), q, trials)
    predicted = law(acceptance_in_a_row(chain, q))[0]
    enumerated = torch.zeros(trials + 1, dtype=torch.float64)
    for drafts in itertools.product(range(case.p.shape[0]), repeat=trials):
        for hits in itertools.product([False, True], repeat=trials):
            listed = ListedTrials(torch.tensor([hits]))
            cells, width = torch.tensor([drafts]), torch.tensor([trials])
            verify_layer(chain, q, cells, width, listed, 0)
            enumerated[sum(hits)] += case.q[list(drafts)].prod() * listed.probability[0]
    return float((enumerated - predicted).abs().max())


def audit_layers(*, seed: int = 0, rule: LayerRule = AS_IT_IS) -> tuple[float, int]:
    """Largest error over all cases, one to three drafts and all thresholds; number of cases."""
    worst, cases = 0.0, 0
    for case in layer_cases(seed):
        for trials, threshold in itertools.product((1, 2, 3), THRESHOLDS):
            worst = max(worst, layer_error(case, trials, threshold, 1, rule))
            cases += 1
    return worst, cases


def audit_counts(
    *, seed: int = 0, law: Callable[[Tensor], Tensor] = accepted_count_law
) -> tuple[float, int]:
    """Largest error of the width recursion over all cases; number of cases."""
    cases = list(itertools.islice(layer_cases(seed), 0, None, 4))
    return max(count_error(case, 3, law) for case in cases), len(cases)


def _product(laws: list[Tensor]) -> Tensor:
    """The joint law of independent draws; 1 for none."""
    joint = torch.ones((), dtype=torch.float64)
    for law in laws:
        joint = joint.unsqueeze(-1) * law
    return joint
