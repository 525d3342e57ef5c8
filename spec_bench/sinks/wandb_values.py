"""Records and rows as the values that W&B takes: history lines, histograms, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spec_bench.records.types import Generation
from spec_bench.vocabulary import columns


def prompt_lines(generations: Sequence[Generation]) -> list[dict[str, Any]]:
    """The history: one line a prompt, its step the prompt's index.

    Block efficiency is that of all prompts so far, the rest is the prompt's own; ``accepted`` is
    the list of accepted tokens, one a target call.
    """
    lines, calls, emitted = [], 0, 0
    for generation in generations:
        accepted = [step.accepted for step in generation.steps]
        calls, emitted = calls + len(accepted), emitted + sum(accepted) + len(accepted)
        line: dict[str, Any] = {
            "prompt/block_efficiency_so_far": emitted / calls if calls else None,
            "prompt/token_rate": _ratio(generation.decoded, generation.decode_s),
            "prompt/delivered_tokens": len(generation.tokens),
            "prompt/target_calls": len(accepted),
            "prompt/accepted_mean": _ratio(sum(accepted), len(accepted)),
            "prompt/accepted": accepted,
            "prompt/prefill_s": generation.prefill_s,
            "prompt/decode_s": generation.decode_s,
            "prompt/energy_j": generation.energy_j,
        }
        lines.append({name: value for name, value in line.items() if value not in (None, [])})
    return lines


def with_histogram(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line whose list of accepted tokens is a histogram with a bin a number of tokens."""
    import wandb

    counted = dict(line)
    if "prompt/accepted" in line:
        accepted = line["prompt/accepted"]
        edges = [number - 0.5 for number in range(max(accepted) + 2)]
        counts = [accepted.count(number) for number in range(max(accepted) + 1)]
        counted["prompt/accepted"] = wandb.Histogram(np_histogram=(counts, edges))
    return counted


def table_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows as a W&B table: numbers as numbers, empty cells as none."""
    import wandb

    names = list(dict.fromkeys(name for row in rows for name in row))
    texts = {each.name for each in columns.columns_in(names) if each.holds != "number"}
    data = [[_cell(row.get(name), name in texts) for name in names] for row in rows]
    return wandb.Table(columns=names, data=data, allow_mixed_types=True)


def _cell(value: Any, text: bool) -> Any:
    if value in (None, ""):
        return None
    if text or not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
