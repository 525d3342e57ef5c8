"""Compares plain decoding's scores with those that papers print of the same target model.

If they differ by more than chance explains, the prompts or the model are not the paper's, so the
decoders' numbers on them are not comparable with the paper's either. Numbers of a row may be text,
as in its file.
"""

from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.published import find_pair_spellings, read_all_published_numbers

_SCORES = frozenset(columns.list_value_column_names("score"))
_CELL = itemgetter("decoder", "task", "target", "draft")
_LINE = (
    "{} on {}: plain decoding's {} is {:.3f} [{:.3f}, {:.3f}] (99%) on {:g} prompts, answers of "
    "{:.0f} tokens, prompts of {:.0f}; printed is {:g}{}."
)


def find_published_baseline_scores(row: Mapping[str, Any]) -> dict[str, float]:
    """Finds the printed scores for a row of plain decoding, by column; empty for a row of another
    decoder, or of a pair that no paper has.
    """
    pairs = find_pair_spellings(row["pair"]) if row["decoder"] == "ar" else []
    cells = {("ar", row["task"], target, entry) for target, draft in pairs for entry in ("", draft)}
    return {
        entry["metric"]: float(entry["value"])
        for numbers in (read_all_published_numbers().values() if pairs else ())
        for entry in numbers
        if _CELL(entry) in cells and entry["metric"] in _SCORES
        if not entry["temperature"] or float(entry["temperature"]) == float(row["temperature"])
    }


def iter_published_baseline_comparisons(row: Mapping[str, Any]) -> Iterator[str]:
    """Compares plain decoding's scores with the printed ones, one line for each score that has an
    interval: both scores, whether the printed one lies outside the 99% interval, and the lengths of
    answers and prompts.
    """
    import pandas as pd
    from scipy.special import stdtrit

    for name, value in find_published_baseline_scores(row).items():
        column = columns.get_column(name)
        count, tokens, score, *ends, prompt = pd.to_numeric(
            [
                *map(row.get, ("prompts", "delivered_tokens", *column.names)),
                row.get("prompt_length"),
            ],
            errors="coerce",
        )
        widening = stdtrit(count - 1, 0.995) / stdtrit(count - 1, 0.975)
        low, high = (score + (end - score) * widening for end in ends)
        printed_value = value / 100 if value > 1 else value
        remark = (
            "" if low <= printed_value <= high else ": these are other prompts or another model"
        )
        if low == low:
            yield _LINE.format(
                names.get_task_title(row["task"]),
                row["pair"],
                column.title,
                score,
                max(low, 0.0),
                high,
                count,
                tokens / count,
                prompt,
                printed_value,
                remark,
            )
