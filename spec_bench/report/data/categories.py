"""A group's numbers by category of prompt: speed-up and tokens per target call.

Made of the records by prompt. A category's speed-up is a ratio of sums like that of the whole task,
over its own prompts, with the interval of those. Its tokens per target call are the block
efficiency, which Spec-Bench (Xia et al., arXiv:2401.07851) calls mean accepted tokens: the accepted
ones and the one that every call adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spec_bench.metrics.interval import Interval, limited
from spec_bench.metrics.intervals import rate_ratio_interval, ratio_interval
from spec_bench.report.data.counts import Records, table_of
from spec_bench.report.data.rows import Group, Row, interval_in, most_of, rows_of

TABLES = {
    "speedup": "speed-up over plain decoding of the same prompts",
    "block_efficiency": "tokens per target call (mean accepted tokens)",
}
OTHERS, UNKNOWN = "others", "no category"
_MOST = 24  # columns that a table has room for
SPEC_BENCH = "spec_bench"
"""The task whose categories are shown as Spec-Bench shows them: MT-bench's eight as one."""
MT_BENCH = "multi-turn conversation"
_OF_MT_BENCH = frozenset(
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
)
SUBTASKS = (MT_BENCH, "translation", "summarization", "qa", "math_reasoning", "rag")
"""The columns of Spec-Bench's table, in its order."""


@dataclass(frozen=True)
class CellByCategory:
    """One cell's numbers."""

    row: Row  # the cell's
    # by category, over plain decoding of the same prompts, where it was timed in turn with them
    speedup: Mapping[str, Interval]
    tokens: Mapping[str, Interval]  # by category, tokens per target call, where there are records

    def of(self, column: str) -> Mapping[str, Interval]:
        """Returns the numbers of one of ``TABLES``."""
        return self.speedup if column == "speedup" else self.tokens

    def overall(self, column: str) -> Interval | None:
        """Returns the row's number, of all prompts; None where it has none."""
        return interval_in(self.row, column)


def kinds_of(group: Group, records: Records) -> dict[str, list[str]]:
    """The ids of a group's prompts by category in the task's order; {} where no prompt has one.

    Of more than ``_MOST`` the largest, and the others as one.
    """
    categories: Mapping[str, str] = {}
    for row in rows_of(group.rows):  # the prompts of all cells are the same
        if row["status"] != "failed" and (categories := records.categories(row)):
            break
    if not any(categories.values()):
        return {}
    if str(group.rows.iloc[0].task) == SPEC_BENCH:
        categories = {prompt: subtask(name) for prompt, name in categories.items()}
    counts = Counter(categories.values())
    kept = {name for name, _ in counts.most_common(_MOST)} if len(counts) > _MOST else set(counts)
    names: dict[str, list[str]] = {}
    for prompt, name in categories.items():
        names.setdefault((name or UNKNOWN) if name in kept else OTHERS, []).append(prompt)
    ordered = sorted(names, key=lambda name: name in (UNKNOWN, OTHERS))
    if set(names) <= set(SUBTASKS) and str(group.rows.iloc[0].task) == SPEC_BENCH:
        ordered = [name for name in SUBTASKS if name in names]
    return {name: names[name] for name in ordered}


def subtask(category: str) -> str:
    """Returns the column of Spec-Bench's table that a category of its questions belongs to."""
    return MT_BENCH if category in _OF_MT_BENCH else category


def overall_columns(group: Group, column: str) -> dict[str, str]:
    """Title -> column of the numbers of all prompts that stand behind those by category.

    Spec-Bench's table of speed-ups has its mean accepted tokens there, too.
    """
    overall = {"overall": column}
    if str(group.rows.iloc[0].task) == SPEC_BENCH and column == "speedup":
        return {"mean accepted tokens": "block_efficiency", **overall}
    return overall


def by_category(
    group: Group, kinds: Mapping[str, Sequence[str]], records: Records
) -> list[CellByCategory]:
    """Returns the numbers of all cells that have any, the baseline first."""
    rows = [row for row in rows_of(group.rows) if row["status"] != "failed"]
    bases = [row for row in rows if row["decoder"] == "ar"]
    cells = []
    for row in rows:
        speedups, tokens = {}, {}
        for name, prompts in kinds.items():
            if speedup := _speedup(row, bases, prompts, records):
                speedups[name] = speedup
            if rate := _tokens(row, prompts, records):
                tokens[name] = rate
        cells.append(CellByCategory(row, speedups, tokens))
    return cells


def _tokens(row: Row, prompts: Sequence[str], records: Records) -> Interval | None:
    table = table_of([records.by_seed(row, "block_efficiency")], prompts)
    if table is None or table.shape[-1] < len(prompts):
        return None
    interval = ratio_interval(*table[0])
    return interval and limited("block_efficiency", interval, most_of(row))


def _speedup(
    row: Row, bases: Sequence[Row], prompts: Sequence[str], records: Records
) -> Interval | None:
    """Over the first baseline that was timed in turn with some of the prompts."""
    if row["decoder"] == "ar":
        return None
    for base in bases:
        timed = records.interleaved([row, base], "token_rate") or ()
        if (table := table_of(timed, prompts)) is not None:
            interval = rate_ratio_interval(*table[0], *table[1])
            return interval and limited("speedup", interval)
    return None
