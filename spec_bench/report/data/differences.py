"""Remarks on how measured rows differ from the papers' measurements.

Each remark follows from the rows, the configs of their pairs and tasks, and the trainings of their
heads. Independent of tables and pages.
"""

import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from spec_bench.metrics.plain import iter_published_baseline_comparisons
from spec_bench.report.data.rows import Row, format_marked_decoder_and_tree, get_number
from spec_bench.report.papers.pairs import is_embedded, read_head_training, read_pair_configs
from spec_bench.settings.configs import find_configs, read_yaml
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary import names
from spec_bench.vocabulary.columns import get_column
from spec_bench.vocabulary.decoders import find_canonical_name

GENERATE = "hf_generate"  # transformers' own plain decoding
_EQUAL_COLUMNS = ("pair", "task", "spec", "temperature", "batch_size", "experiment")
_OF_DECODING = ("token_rate", "speedup")
_PREFILL = (
    "Ours, tokens/s and speed-ups: of decoding alone, the prompt's prefill left out; "
    "token_rate_end_to_end counts it."
)
_HEADS = (
    "Ours, heads: they learned the target's own answers; those of the papers learned the answers "
    "in ShareGPT's chats (data.answered_by=file)."
)


def describe_differences_from_papers(
    rows: Sequence[Row], names_shown: Collection[str]
) -> list[str]:
    """Lists the remarks that apply to rows in a table with the columns ``names_shown``."""
    notes = [
        *([_PREFILL] if {*_OF_DECODING} & {*names_shown} else []),
        *(_note_stand_in_mbsu(rows) if "mbsu" in names_shown else []),
        *(line for row in rows for line in iter_published_baseline_comparisons(row)),
        *_note_replaced_prompts(rows),
        *_note_answer_limits(rows),
        *_note_unused_chat_templates(rows),
        *(
            [_HEADS]
            if any(_is_trained_on_target_answers(str(row.get("draft", ""))) for row in rows)
            else []
        ),
        *_note_prompts_in_training(rows),
        *describe_speed_caveats(rows, names_shown),
    ]
    return list(dict.fromkeys(notes))


def describe_speed_caveats(rows: Sequence[Row], names_shown: Collection[str]) -> Iterator[str]:
    """Yields caveats on speeds: chance differences of rows of one configuration, and tasks where
    transformers' own plain decoding is faster than ours.
    """
    yield from _note_chance_differences(rows, names_shown)
    if "speedup" in names_shown:
        yield from _note_slow_baselines(rows)


def find_generate_speedup_over_ours(rows: Iterable[Row]) -> float:
    """Returns the speed-up of transformers' own ``generate`` over our plain decoding, the largest
    of the rows where it is surely above 1; 0 if there is no such row.
    """
    faster = [
        get_number(row, "speedup") or 0.0
        for row in rows
        if row["decoder"] == GENERATE and (get_number(row, "speedup_low") or 0.0) > 1
    ]
    return max(faster, default=0.0)


def _note_slow_baselines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a note for each task where transformers' own plain decoding is faster than ours."""
    for row in rows:
        if times := find_generate_speedup_over_ours([row]):
            yield (
                f"{names.get_task_title(row['task'])}: transformers' own generate is surely faster "
                f"than our plain decoding, {times:.2f} times. Over it, a speed-up is "
                f"{1 / times:.2f} of what is printed here."
            )


def find_relative_chance_difference(rows: Sequence[Row], metric: str) -> float:
    """Returns the largest relative difference in a column between two rows of one configuration
    under two names, such as 0.05 for 5%; it is due to chance alone. 0 if there are no such rows.
    """
    return max((gap for _, _, gap in _iter_twins(rows, metric)), default=0.0)


def _iter_twins(rows: Sequence[Row], metric: str) -> Iterator[tuple[Row, Row, float]]:
    """Yields every two rows of one configuration under two names, and their relative difference."""
    keyed_rows = (
        ((find_canonical_name(row["decoder"]), *map(row.get, _EQUAL_COLUMNS)), row) for row in rows
    )
    for group in group_by_key(keyed_rows).values():
        for one, twin in itertools.combinations(group, 2):
            values = get_number(one, metric), get_number(twin, metric)
            if one["decoder"] != twin["decoder"] and all(values):
                low, high = sorted(value for value in values if value)
                yield one, twin, high / low - 1


def _note_chance_differences(rows: Sequence[Row], names_shown: Collection[str]) -> Iterator[str]:
    """Yields a note on every two rows of one configuration: their speeds differ by chance alone."""
    for metric in _OF_DECODING:
        for row, twin, gap in _iter_twins(rows, metric) if metric in names_shown else ():
            title = (
                f"{format_marked_decoder_and_tree(row)} and {format_marked_decoder_and_tree(twin)}"
            )
            yield (
                f"{title} are one configuration under two names: their "
                f"{get_column(metric).title} differs by {gap:.1%}, by chance. "
                "No smaller difference is called one here."
            )


def _note_stand_in_mbsu(rows: Sequence[Row]) -> list[str]:
    """Notes how the size of a stand-in for the paper's draft changes MBSU."""
    deepest: dict[str, float] = {}
    for row in rows:
        calls = row.get("draft_calls")
        deepest[row["pair"]] = max(deepest.get(row["pair"], 0), 0 if pd.isna(calls) else calls or 0)
    notes = []
    for pair, calls in deepest.items():
        config = read_pair_configs().get(pair)
        if config is None or not (config.paper_draft_parameters and config.target_parameters):
            continue
        own_parameters = config.draft_parameters or 0
        paper_parameters = config.paper_draft_parameters
        r = own_parameters / config.target_parameters
        paper_r = paper_parameters / config.target_parameters
        share = (calls * paper_r + 1) / (calls * r + 1) - 1
        notes.append(
            f"Ours, MBSU of pair {pair}: r is the stand-in's, {own_parameters / 1e6:.0f}M "
            f"parameters where the paper's draft has {paper_parameters / 1e6:.0f}M: {share:+.0%} "
            f"at L = {calls:g}."
        )
    return notes


def _note_replaced_prompts(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a note on each row with prompts that are not of its task's dataset."""
    for row in rows:
        config = read_pair_configs().get(row["pair"])
        source = {
            "local": str(row.get("data_file")),
            "embedded": "" if config and is_embedded(config) else "the shipped sample",
        }.get(str(row.get("data_source")))
        if source:
            title = names.get_task_title(row["task"])
            yield f"Ours, {title}: prompts of {source}, not the dataset's."


def _note_answer_limits(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a note on each row with a limit on answers that is not its task's."""
    for row in rows:
        limit = row.get("max_new_tokens")
        usual_limit = (
            read_task_config(row["task"]).get("generation", {}).get("max_new_tokens", limit)
        )
        if not pd.isna(limit) and limit != usual_limit:
            task = names.get_task_title(row["task"])
            yield f"Ours, {task}: at most {limit:g} new tokens; the task's limit is {usual_limit}."


def _note_unused_chat_templates(rows: Sequence[Row]) -> list[str]:
    """Notes targets that were tuned on conversations but complete texts without a chat template."""
    places = [
        (names.get_task_title(row["task"]), row["pair"])
        for row in rows
        if (config := read_pair_configs().get(row["pair"])) is not None
        and config.chat_tuned
        and read_task_config(row["task"]).get("chat") is False
    ]
    if not places:
        return []
    tasks, pairs = (", ".join(dict.fromkeys(names_of)) for names_of in zip(*places, strict=True))
    return [
        f"Ours, {tasks}: a text to complete, in no chat template, though the target of {pairs} was "
        "tuned on conversations; task.chat=true puts it into one."
    ]


def _note_prompts_in_training(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        config = read_pair_configs().get(row["pair"])
        share = config.seen_in_training.get(row["task"], 0.0) if config else 0.0
        if share and row.get("data_source") == "embedded":
            share_text = "all" if share == 1 else f"{share:.0%}"
            training = f"the models of {row['pair']} were trained on"
            yield (
                f"Ours, {names.get_task_title(row['task'])}: {share_text} of the sample's "
                f"prompts are in the text that {training}."
            )


@functools.cache
def read_task_config(task: str) -> dict[str, Any]:
    """Reads a task's config; {} if it has none."""
    path = find_configs("task").get(task)
    return read_yaml(path) if path else {}


def _is_trained_on_target_answers(heads: str) -> bool:
    """Returns whether the heads were trained here, on the target's own answers."""
    if not (training := read_head_training(heads)):
        return False
    data = training["settings"]["data"]
    return data["kind"] != "chats" or data["answered_by"] == "target"
