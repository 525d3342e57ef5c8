"""The columns of the results table: one cell's records in, one row of numbers out.

Knows the metrics and the columns' names; nothing about files, labels or how a table is printed.
The names are a contract: tables, figures and users' scripts read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import exp
from typing import TypeVar

from spec_bench.metrics import efficiency
from spec_bench.metrics.intervals import Interval, rate_ratio_interval, ratio_interval
from spec_bench.metrics.quality import METRICS, quality_columns
from spec_bench.records import Generation

T = TypeVar("T")

DEFINITIONS: dict[str, str] = {
    "prompts": "prompts decoded (warm-up excluded)",
    "target_calls": "forward passes of the target that verified a tree; the prefill is not one",
    "delivered_tokens": "tokens handed to the user, end-of-sequence included, from token ids",
    "nodes_per_call": "tree nodes verified per target call, the root not counted",
    "nodes_per_call_p01": "1st percentile of the tree nodes of a call",
    "nodes_per_call_p50": "median of the tree nodes of a call",
    "nodes_per_call_p99": "99th percentile of the tree nodes of a call",
    "draft_calls": "L: sequential draft calls per iteration (depth of the tree)",
    "parameter_ratio": "r: parameters of the draft / parameters of the target",
    "block_efficiency": "tau: sum of (accepted + 1) / target calls; autoregressive is exactly 1",
    "mbsu": "memory-bound speed-up: tau / (L r + 1)",
    "acceptance_rate": "alpha: P(a walk leaves a depth by an accepted child | it reached it)",
    "acceptance_rate_by_depth": "the same, not pooled: children at depth 1, 2, ...; a JSON list",
    "token_rate": "delivered tokens / s of decoding (prefill left out)",
    "token_rate_end_to_end": "delivered tokens / s of prefill and decoding",
    "latency_s": "mean s from the start of a request's prefill to its last token",
    "token_rate_per_request": "delivered tokens / s of latency: what one user of a batch sees",
    "speedup": "token_rate / autoregressive token_rate of the same job and prompts",
    "host_overhead": "1 - s inside model forward passes / s of decoding",
    "prefill_s": "s of prefill, all prompts",
    "decode_s": "s of decoding, all prompts",
    "draft_s": "s of decode_s inside draft forward passes",
    "target_s": "s of decode_s inside target forward passes",
    "energy_j_per_token": "J over the decode window / delivered tokens; empty without a meter",
    "energy_check_j_per_token": "the same by the meter's second way; empty where it has none",
    "beam_width": "average number of beams after a layer; empty where single sequences are decoded",
    "perplexity": "exp(- log-likelihood per delivered token) under the target at temperature 1",
    "bleu": "corpus BLEU by sacrebleu, 0..1",
    "rouge2": "ROUGE-2 F1 by rouge-score, mean over prompts, 0..1",
    "exact_match": "answers equal after SQuAD normalisation, 0..1",
    "f1": "F1 of the answers' words after SQuAD normalisation, 0..1",
    "execution_accuracy": "SQL whose result set is that of the reference, 0..1",
    "execution_errors": "answers whose SQL did not run: none, wrong, refused or over a limit",
    "execution_timeouts": "answers whose SQL was stopped at its time limit",
    "quality_signature": "implementation, version and settings of the quality scores",
}

WITH_INTERVAL = frozenset(
    {
        "block_efficiency",
        "mbsu",
        "acceptance_rate",
        "token_rate",
        "token_rate_end_to_end",
        "speedup",
        "host_overhead",
        "energy_j_per_token",
        "beam_width",
        "perplexity",
        "latency_s",
        "token_rate_per_request",
        *METRICS,
    }
)


def _columns() -> dict[str, str]:
    columns: dict[str, str] = {}
    for name, definition in DEFINITIONS.items():
        columns[name] = definition
        if name in WITH_INTERVAL:
            columns[f"{name}_low"] = f"lower end of the 95% interval of {name} (over prompts)"
            columns[f"{name}_high"] = f"upper end of the 95% interval of {name} (over prompts)"
    return columns


COLUMNS: dict[str, str] = _columns()
"""Every column that any cell has, in order, with its one-line definition."""


def quality_names(columns: Iterable[str]) -> list[str]:
    """The quality scores among a table's columns: ours, then those of ``evaluate`` modules.

    A module's columns are named after it, so they are known by their intervals alone.
    """
    there = list(dict.fromkeys(columns))
    modules = [name for name in there if name not in COLUMNS and f"{name}_low" in there]
    return [*(name for name in METRICS if name in there), *modules]


def summarise(
    generations: Sequence[Generation],
    *,
    baseline: Sequence[Generation] | None = None,
    texts: Mapping[str, str] | None = None,
    references: Mapping[str, Sequence[str]] | None = None,
    scores: Sequence[str] = (),
    draft_calls: int | None = None,
    parameter_ratio: float | None = None,
) -> dict[str, float | str | None]:
    """The numbers of one cell.

    Args:
        generations: the cell's, one a prompt, warm-up excluded.
        baseline: autoregressive generations of the same job and prompts; None leaves ``speedup``
            empty.
        texts: prompt id -> decoded and post-processed text; needed if ``scores`` is not empty.
        references: prompt id -> reference texts; needed if ``scores`` is not empty.
        scores: names of quality metrics: ours, or modules of ``evaluate``.
        draft_calls: L, sequential draft calls per iteration; 0 for the autoregressive decoder.
        parameter_ratio: r = parameters(draft) / parameters(target); 0 where nothing is drafted
            by a model. MBSU is empty unless both are given.

    Returns:
        A value for each of ``COLUMNS``, in that order, then those of the ``evaluate`` modules among
        the scores, each with its interval; None is an empty cell.

    Raises:
        ValueError: no generations, an unknown score, or prompt ids that differ between arguments.
    """
    if not generations:
        raise ValueError("a cell without generations has no metrics")
    values: dict[str, float | str | None] = dict.fromkeys(COLUMNS)
    values.update(
        _counts_and_sums(generations), draft_calls=draft_calls, parameter_ratio=parameter_ratio
    )
    intervals = _efficiency(generations)
    tau = intervals["block_efficiency"]
    if tau is not None and draft_calls is not None and parameter_ratio is not None:
        intervals["mbsu"] = tau.scaled(efficiency.mbsu(1.0, draft_calls, parameter_ratio))
    if baseline is not None:
        intervals["speedup"] = speedup_interval(generations, baseline)
    signatures = []
    for name in scores:
        ids = [generation.prompt_id for generation in generations]
        answers, golds = _select(texts, ids, "texts"), _select(references, ids, "references")
        found, signature = quality_columns(name, answers, golds)
        if name not in METRICS and (taken := sorted(set(found) & {*values, *intervals})):
            raise ValueError(f"score {name}: there is a column {', '.join(taken)} already")
        intervals.update(found)
        signatures.append(signature)
    values["quality_signature"] = "; ".join(signatures) or None
    for name, interval in intervals.items():
        if interval is not None:
            values[name] = interval.value
            if name not in COLUMNS or name in WITH_INTERVAL:  # modules' columns all have one
                values[f"{name}_low"], values[f"{name}_high"] = interval.low, interval.high
    assert list(values)[: len(COLUMNS)] == list(COLUMNS), "the documented columns come first"
    return values


def _counts_and_sums(generations: Sequence[Generation]) -> dict[str, float | str | None]:
    """The columns without an interval."""
    return {
        "prompts": len(generations),
        "target_calls": efficiency.target_calls(generations),
        "delivered_tokens": efficiency.delivered_tokens(generations),
        "nodes_per_call": efficiency.nodes_per_call(generations),
        "nodes_per_call_p01": efficiency.nodes_percentile(generations, 1),
        "nodes_per_call_p50": efficiency.nodes_percentile(generations, 50),
        "nodes_per_call_p99": efficiency.nodes_percentile(generations, 99),
        "acceptance_rate_by_depth": json.dumps(efficiency.acceptance_rate_by_depth(generations)),
        "energy_check_j_per_token": efficiency.energy_check_j_per_token(generations),
        "prefill_s": sum(g.prefill_s for g in generations),
        "decode_s": sum(g.decode_s for g in generations),
        "draft_s": sum(g.draft_s for g in generations),
        "target_s": sum(g.target_s for g in generations),
    }


def speedup_interval(
    generations: Sequence[Generation], baseline: Sequence[Generation]
) -> Interval | None:
    """Token rate over the baseline's, with its interval, paired by prompt id.

    Raises:
        ValueError: the two do not hold the same prompts.
    """
    ours = efficiency.tokens_per_decode_s(generations)
    theirs = efficiency.tokens_per_decode_s(efficiency.matched(generations, baseline))
    return rate_ratio_interval(
        ours.numerators, ours.denominators, theirs.numerators, theirs.denominators
    )


def _efficiency(generations: Sequence[Generation]) -> dict[str, Interval | None]:
    sums = {
        "block_efficiency": efficiency.emitted_per_call(generations),
        "acceptance_rate": efficiency.acceptance(generations),
        "token_rate": efficiency.tokens_per_decode_s(generations),
        "token_rate_end_to_end": efficiency.tokens_per_total_s(generations),
        "host_overhead": efficiency.host_seconds(generations),
        "energy_j_per_token": efficiency.energy_per_token(generations),
        "beam_width": efficiency.beams_per_layer(generations),
        "perplexity": efficiency.surprise_per_token(generations),
        "latency_s": efficiency.latency_per_request(generations),
        "token_rate_per_request": efficiency.tokens_per_latency_s(generations),
    }
    found = {
        name: None if ratio is None else ratio_interval(ratio.numerators, ratio.denominators)
        for name, ratio in sums.items()
    }
    if (surprise := found["perplexity"]) is not None:
        found["perplexity"] = surprise.mapped(exp)
    return found


def _select(by_prompt: Mapping[str, T] | None, ids: Sequence[str], what: str) -> list[T]:
    """The values of these prompts, in their order.

    Raises:
        ValueError: some prompt has none.
    """
    missing = sorted(set(ids) - set(by_prompt or {}))
    if by_prompt is None or missing:
        raise ValueError(f"no {what} for prompts: {', '.join(missing)}")
    return [by_prompt[prompt_id] for prompt_id in ids]
