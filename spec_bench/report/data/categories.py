"""A group's speed-ups and tokens per target call by category of prompts.

They are computed from the records by prompt. A category's speed-up is a ratio of sums over its
prompts, as that of the task is over all prompts, and has an interval over these prompts. The tokens
per target call are the block efficiency, which Spec-Bench (Xia et al., arXiv:2401.07851) calls mean
accepted tokens: the accepted tokens and one token that every call adds.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from spec_bench.metrics.interval import Interval, clip_or_drop_wide_ends
from spec_bench.metrics.intervals import rate_ratio_interval, ratio_interval, widen_to_tau_width
from spec_bench.metrics.metric import clip_and_map_interval
from spec_bench.report.data.counts import RecordReader, make_empty_sums
from spec_bench.report.data.rows import Group, Row, count_prompts_per_clock, to_rows
from spec_bench.system.groups import group_by_key
from spec_bench.system.printable import redact_escape_and_cut

TABLES = {
    "speedup": "speed-up over plain decoding of the same prompts",
    "block_efficiency": "tokens per target call (mean accepted tokens)",
}
OTHERS = "others"
UNKNOWN = "no category"
_MAX_COLUMNS = 24  # columns that a table has room for
SPEC_BENCH = "spec_bench"
"""The task with categories as in Spec-Bench's table, where MT-bench's eight are one."""
MT_BENCH = "multi-turn conversation"
_OF_MT_BENCH = frozenset(
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
)
SUBTASKS = (MT_BENCH, "translation", "summarization", "qa", "math_reasoning", "rag")
"""The columns of Spec-Bench's table, in its order."""


ByCategory = Mapping[str, Mapping[str, Interval]]
"""Key of ``TABLES`` -> category -> a cell's number; a category without records is left out."""


def group_prompts_by_category(group: Group, records: RecordReader) -> dict[str, list[str]]:
    """Groups the ids of a group's prompts by category, in the task's order; {} without categories.

    If there are more than ``_MAX_COLUMNS`` categories, the smaller ones are merged into ``OTHERS``.
    """
    categories: Mapping[str, str] = {}
    for row in to_rows(group.rows):  # the prompts of all cells are the same
        if row["status"] != "failed" and (categories := records.get_categories(row)):
            break
    if not any(categories.values()):
        return {}
    if str(group.rows.iloc[0].task) == SPEC_BENCH:
        categories = {prompt: get_subtask(name) for prompt, name in categories.items()}
    counts = Counter(categories.values())
    shown_names = (
        {name for name, _ in counts.most_common(_MAX_COLUMNS)}
        if len(counts) > _MAX_COLUMNS
        else set(counts)
    )
    names = group_by_key(
        (redact_escape_and_cut(name or UNKNOWN) if name in shown_names else OTHERS, prompt)
        for prompt, name in categories.items()
    )
    sorted_names = sorted(names, key=lambda name: name in (UNKNOWN, OTHERS))
    if set(names) <= set(SUBTASKS) and str(group.rows.iloc[0].task) == SPEC_BENCH:
        sorted_names = [name for name in SUBTASKS if name in names]
    return {name: names[name] for name in sorted_names}


def get_subtask(category: str) -> str:
    """Returns the column of Spec-Bench's table to which a category of its questions belongs."""
    return MT_BENCH if category in _OF_MT_BENCH else category


def describe_shared_clocks(group: Group) -> str:
    """Notes how batches mix the speed-ups of categories; "" if each prompt has its own clock."""
    prompt_count = max(map(count_prompts_per_clock, to_rows(group.rows)))
    if prompt_count < 2:
        return ""
    return (
        f"Prompts of a batch share a clock: in batches of {prompt_count} a category's speed-up is "
        "also that of the others in its batches."
    )


def compute_speedup_and_tau_by_category(
    group: Group,
    prompts_by_category: Mapping[str, Sequence[str]],
    records: RecordReader,
) -> Sequence[tuple[Row, ByCategory]]:
    """Computes the numbers of each cell that did not fail, the baseline first."""
    rows = [row for row in to_rows(group.rows) if row["status"] != "failed"]
    baselines = [row for row in rows if row["decoder"] == "ar"]
    cells = []
    for row in rows:
        taus: dict[str, Interval] = {}
        speeds: dict[str, Interval] = {}
        for category, prompts in prompts_by_category.items():
            tau = _compute_tokens_per_call(row, prompts, records)
            speed = _compute_speedup(row, baselines, prompts, records)
            if tau:
                taus[category] = tau
            if speed:
                speeds[category] = widen_to_tau_width(speed, tau, "speedup")
        cells.append((row, {"speedup": speeds, "block_efficiency": taus}))
    return cells


def _compute_tokens_per_call(
    row: Row, prompts: Sequence[str], records: RecordReader
) -> Interval | None:
    table = records.make_table_getter([row], prompts)("block_efficiency")
    if table is None or table.shape[-1] < len(prompts):
        return None
    numerators, denominators = table[0].sum(axis=1)
    sums = make_empty_sums(row, "block_efficiency")
    interval = ratio_interval(numerators, denominators, sums.largest_difference)
    return interval and clip_and_map_interval(sums, interval)


def _compute_speedup(
    row: Row,
    baselines: Sequence[Row],
    prompts: Sequence[str],
    records: RecordReader,
) -> Interval | None:
    """Computes a row's speed-up over the first baseline that was timed in turn with it on some of
    the prompts; None if there is no such baseline.
    """
    if row["decoder"] == "ar":
        return None
    for base in baselines:
        if (table := records.make_table_getter([row, base], prompts)("token_rate")) is not None:
            interval = rate_ratio_interval(*table[0], *table[1])
            return interval and clip_or_drop_wide_ends("speedup", interval)
    return None
