"""Speed, energy and perplexity: metrics of generations in seconds, joules and nats.

What target calls yield is in ``calls``, which also describes how numbers are aggregated;
``latencies`` and ``stalls`` have two more kinds of times. ``columns.csv`` defines each number.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import exp

from spec_bench.metrics.interval import Interval
from spec_bench.metrics.intervals import rate_ratio_interval
from spec_bench.metrics.metric import (
    CellRecords,
    PromptSums,
    Summand,
    mean_of_known,
    metric,
    pool_repeats,
    ratio_of_sums,
)
from spec_bench.records.types import Generation
from spec_bench.system.errors import UsageError

Repeats = Sequence[Sequence[Generation]]

_RATE: tuple[Summand, Summand] = (lambda g: g.tokens_in_decode_s, lambda g: g.decode_s)
_SURPRISE: tuple[Summand, Summand] = (
    lambda g: None if g.log_likelihood is None else -g.log_likelihood,
    lambda g: g.delivered,
)
_RATIOS: Mapping[str, tuple[Summand, Summand]] = {
    "token_rate": _RATE,
    "token_rate_end_to_end": (lambda g: g.delivered, lambda g: g.prefill_s + g.decode_s),
    "host_overhead": (lambda g: g.decode_s - g.draft_s - g.target_s, lambda g: g.decode_s),
    "energy_j_per_token": (lambda g: g.energy_j, lambda g: g.tokens_in_decode_s),
    "latency_s": (lambda g: g.latency_s, lambda g: 1),
    "token_rate_per_request": (lambda g: g.delivered, lambda g: g.latency_s),
}


def _sum_attribute(attribute: str, generations: Sequence[Generation]) -> float:
    return sum(getattr(generation, attribute) for generation in generations)


for _name, (_numerator, _denominator) in _RATIOS.items():
    metric(_name, sums=(_numerator, _denominator))(
        partial(ratio_of_sums, numerator=_numerator, denominator=_denominator)
    )
metric("prompts")(len)
metric("prompt_length")(
    lambda generations: mean_of_known(answer.prompt_tokens for answer in generations)
)
metric("delivered_tokens")(lambda generations: sum(answer.delivered for answer in generations))
for _name in ("prefill_s", "decode_s", "draft_s", "target_s"):
    metric(_name)(partial(_sum_attribute, _name))


@metric("repeats", of_cell=True)
def count_repeats(cell: CellRecords) -> int:
    """Returns how often each prompt was decoded."""
    return len(cell.repeats)


def iter_repeats_with_baseline(
    cell: CellRecords,
) -> Iterator[tuple[Sequence[Generation], Sequence[Generation]]]:
    """Yields, for each repeat of both, the cell's generations and the baseline's in the same order
    of prompts. Raises UsageError if the two have different prompts.
    """
    if cell.baseline is not None:
        for cell_repeat, baseline_repeat in zip(
            cell.repeats,
            (cell.baseline, *cell.later_baseline_repeats),
            strict=False,
        ):
            yield cell_repeat, match_baseline(cell_repeat, baseline_repeat)


def match_baseline(
    generations: Sequence[Generation], baseline: Sequence[Generation]
) -> tuple[Generation, ...]:
    """Returns the baseline's generations in the order of ``generations``, matched by prompt id.
    Raises UsageError if a prompt id occurs twice, or only on one side.
    """
    cell_ids, baseline_ids = (
        [generation.prompt_id for generation in side] for side in (generations, baseline)
    )
    for owner, ids, other_ids in (
        ("cell", cell_ids, baseline_ids),
        ("baseline", baseline_ids, cell_ids),
    ):
        if repeated_ids := sorted(name for name, count in Counter(ids).items() if count > 1):
            raise UsageError(f"prompts twice in the {owner}: {', '.join(repeated_ids)}")
        if missing_ids := sorted({*other_ids} - {*ids}):
            raise UsageError(f"prompts missing from the {owner}: {', '.join(missing_ids)}")
    by_prompt = dict(zip(baseline_ids, baseline, strict=True))
    return tuple(by_prompt[name] for name in cell_ids)


def divide_rate_by_baseline(rate_name: str, cell: CellRecords) -> Interval | None:
    """Divides a rate of ``_RATIOS`` by the baseline's, paired by prompt id; None without a
    baseline. Raises UsageError if the two have different prompts.
    """
    if cell.baseline is None:
        return None
    pairs = list(iter_repeats_with_baseline(cell))
    terms = _RATIOS[rate_name]
    cell_sums = pool_repeats(
        [ratio_of_sums(cell_repeat, *terms) for cell_repeat, _ in pairs], cell.clocks
    )
    baseline_sums = pool_repeats(
        [ratio_of_sums(baseline_repeat, *terms) for _, baseline_repeat in pairs], cell.clocks
    )
    assert isinstance(cell_sums, PromptSums) and isinstance(baseline_sums, PromptSums)
    return rate_ratio_interval(*cell_sums.to_arrays(), *baseline_sums.to_arrays())


speedup = partial(divide_rate_by_baseline, "token_rate")
metric("speedup", of_cell=True, sums=())(speedup)
metric("speedup_end_to_end", of_cell=True, sums=())(
    partial(divide_rate_by_baseline, "token_rate_end_to_end")
)


@metric("perplexity", sums=_SURPRISE)
def perplexity(generations: Sequence[Generation]) -> PromptSums | None:
    """Exponential of the nats of surprise per delivered token; None if a record lacks them."""
    sums = ratio_of_sums(generations, *_SURPRISE)
    return sums and replace(sums, mapped=exp)


@metric("perplexity_by_prompt")
def perplexity_of_prompt_means(generations: Sequence[Generation]) -> PromptSums | None:
    """Exponential of the mean over prompts of each prompt's nats per token (DSBD)."""
    nats, tokens = _SURPRISE
    answered = [generation for generation in generations if generation.delivered]
    sums = ratio_of_sums(answered, lambda g: nats(g) and nats(g) / tokens(g), lambda g: 1)
    return sums and replace(sums, mapped=exp)
