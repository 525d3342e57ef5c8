"""Acceptance lengths and rates as other tools print them.

Their denominators differ: ours and Spec-Bench's are all calls, vLLM's the calls that had a draft,
SPEED-Bench's a question's calls, and then the mean over questions is taken.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from spec_bench.metrics.metric import mean_of_known
from spec_bench.records.types import Generation, StepRecord


@dataclass(frozen=True)
class AcceptanceLengths:
    """Acceptance lengths and rates of a cell as several tools define them; None if undefined."""

    # tokens emitted over target calls, the target's own token counted: our block efficiency before
    # an answer's end is cut, Spec-Bench's mean accepted tokens
    ratio_of_sums: float | None
    # 1 + accepted / calls with a draft: vLLM's mean acceptance length, SGLang's accept length where
    # every call has a draft
    vllm_mean_length: float | None
    # accepted over drafted tokens: vLLM's draft acceptance rate
    draft_acceptance_rate: float | None
    # share of calls with a draft that accepted more than 0, 1, ... tokens: vLLM's per-position
    # rates, in which a draft that is too short counts as a rejection
    acceptance_by_position: tuple[float, ...]
    # emitted per call, averaged over the calls of all of a question's turns, then over questions:
    # SPEED-Bench's Average_AL (specdec_bench, `metrics/specbench.py`)
    mean_of_means: float | None
    # share of all calls that emitted at least 1, 2, ... tokens: SPEED-Bench's
    # Joint_Acceptance_Rate
    joint_rates: tuple[float, ...]
    conditional_rates: tuple[float, ...]  # each joint rate over its predecessor


def compute_acceptance_lengths(
    generations: Iterable[Generation], ids_have_turns: bool = False
) -> AcceptanceLengths:
    """Computes a cell's acceptance lengths and rates. With ``ids_have_turns``, prompt ids that end
    in ``/turn`` belong to one question.
    """
    by_question: dict[str, list[int]] = defaultdict(list)
    steps: list[StepRecord] = []
    for generation in generations:
        question = generation.prompt_id.rpartition("/")[0] if ids_have_turns else ""
        by_question[question or generation.prompt_id] += [
            step.accepted + 1 for step in generation.steps
        ]
        steps += generation.steps
    drafting_steps = [step for step in steps if step.nodes]
    deepest = max((step.depth for step in drafting_steps), default=0)
    accepted_count = sum(s.accepted for s in drafting_steps)
    proposed_count = sum(s.nodes for s in drafting_steps)

    def share(among: Sequence[StepRecord], count: int) -> float:
        """Share of the steps ``among`` that accepted more than ``count`` tokens."""
        return sum(step.accepted > count for step in among) / len(among)

    joint = tuple(share(steps, count) for count in range(-1, deepest)) if steps else ()
    return AcceptanceLengths(
        mean_of_known(step.accepted + 1 for step in steps),
        1 + accepted_count / len(drafting_steps) if drafting_steps else None,
        accepted_count / proposed_count if proposed_count else None,
        tuple(share(drafting_steps, place) for place in range(deepest)),
        mean_of_known(mean_of_known(lengths) for lengths in by_question.values()),
        joint,
        tuple(
            share_after / share_before
            for share_before, share_after in pairwise(joint)
            if share_before
        ),
    )
