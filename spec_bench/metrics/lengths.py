"""The acceptance lengths and rates that other tools print, from the same records as ours.

All are functions of what each target call verified and emitted. They differ in what they divide by:
ours and Spec-Bench's by all calls, vLLM's by the calls that had a draft, SPEED-Bench's by a
question's calls, then by questions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spec_bench.records.types import Generation, StepRecord


@dataclass(frozen=True)
class Lengths:
    """One cell in the words of several tools; None where its calls say nothing of it.

    Attributes:
        ratio_of_sums: tokens emitted over target calls, the target's own token counted: our block
            efficiency before an answer's end is cut, Spec-Bench's mean accepted tokens.
        vllm: 1 + accepted / calls with a draft: vLLM's mean acceptance length, SGLang's accept
            length where every call has a draft.
        draft_rate: accepted over drafted tokens: vLLM's draft acceptance rate.
        at_position: share of calls with a draft that accepted more than 0, 1, ... tokens: vLLM's
            per-position rates, in which a draft that is shorter counts as a failure.
        mean_of_means: emitted per call, averaged over the calls of all of a question's turns, then
            over questions: SPEED-Bench's Average_AL (specdec_bench, ``metrics/specbench.py``).
        joint: share of all calls that emitted at least 1, 2, ... tokens: SPEED-Bench's
            Joint_Acceptance_Rate.
        conditional: each of these over the one before.
    """

    ratio_of_sums: float | None
    vllm: float | None
    draft_rate: float | None
    at_position: tuple[float, ...]
    mean_of_means: float | None
    joint: tuple[float, ...]
    conditional: tuple[float, ...]


def lengths_of(generations: Iterable[Generation], turns: bool = False) -> Lengths:
    """All of a cell's answers; with ``turns`` some prompt ids are a question's and ``/turn``."""
    answers = [each for each in generations if each.steps]
    steps = [step for each in answers for step in each.steps]
    drafted = [step for step in steps if step.nodes]
    deepest = max((step.depth for step in drafted), default=0)
    accepted, proposed = sum(s.accepted for s in drafted), sum(s.nodes for s in drafted)

    def more_than(count: int) -> Callable[[StepRecord], bool]:
        return lambda step: step.accepted > count

    joint = tuple(_share(steps, more_than(count)) for count in range(-1, deepest))
    return Lengths(
        _mean([step.accepted + 1 for step in steps]),
        1 + accepted / len(drafted) if drafted else None,
        accepted / proposed if proposed else None,
        tuple(_share(drafted, more_than(place)) for place in range(deepest)),
        _mean_of_means(answers, turns),
        joint if steps else (),
        tuple(after / before for before, after in pairwise(joint) if before),
    )


def _mean_of_means(answers: Sequence[Generation], turns: bool) -> float | None:
    by_question: dict[str, list[int]] = defaultdict(list)
    for each in answers:
        question = each.prompt_id.rpartition("/")[0] if turns else ""
        by_question[question or each.prompt_id] += [step.accepted + 1 for step in each.steps]
    return _mean([sum(emitted) / len(emitted) for emitted in by_question.values()])


def _mean(numbers: Sequence[float]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _share(steps: Sequence[StepRecord], holds: Callable[[StepRecord], bool]) -> float:
    return sum(map(holds, steps)) / len(steps) if steps else 0.0
