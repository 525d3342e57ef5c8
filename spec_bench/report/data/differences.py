"""Remarks for readers of measured rows: where they differ from the papers' measurements.

Each remark follows from the rows, the configs of their pairs and tasks, and the trainings of
their heads. Knows no table and no page.
"""

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pandas as pd

from spec_bench.report.data.rows import Row
from spec_bench.report.papers.pairs import is_embedded, pair_configs, training_of_heads
from spec_bench.settings.configs import find_configs, read_yaml
from spec_bench.vocabulary import names

_OF_DECODING = ("token_rate", "speedup")
_PREFILL = (
    "Ours, tokens/s and speed-ups: of decoding alone, the prompt's prefill left out; "
    "token_rate_end_to_end counts it."
)
_HEADS = (
    "Ours, heads: they learned the target's own answers; those of the papers learned the answers "
    "in ShareGPT's chats (data.answered_by=file)."
)


def differences(rows: Sequence[Row], shown: Collection[str]) -> list[str]:
    """Returns a sentence or two for each that applies."""
    notes = [
        *([_PREFILL] if {*_OF_DECODING} & {*shown} else []),
        *(_stand_ins(rows) if "mbsu" in shown else []),
        *_own_prompts(rows),
        *_short_answers(rows),
        *_completions(rows),
        *([_HEADS] if any(_learned_answers(str(row.get("draft", ""))) for row in rows) else []),
        *_seen(rows),
    ]
    return list(dict.fromkeys(notes))


def _stand_ins(rows: Sequence[Row]) -> list[str]:
    """Returns the effect of a draft of another size on MBSU."""
    deepest: dict[str, float] = {}
    for row in rows:
        calls = row.get("draft_calls")
        deepest[row["pair"]] = max(deepest.get(row["pair"], 0), 0 if pd.isna(calls) else calls or 0)
    notes = []
    for pair, calls in deepest.items():
        config = pair_configs().get(pair)
        if config is None or not (config.paper_draft_parameters and config.target_parameters):
            continue
        ours = config.draft_parameters or 0
        papers = config.paper_draft_parameters
        r, paper_r = (each / config.target_parameters for each in (ours, papers))
        share = (calls * paper_r + 1) / (calls * r + 1) - 1
        notes.append(
            f"Ours, MBSU of pair {pair}: r is the stand-in's, {ours / 1e6:.0f}M parameters where "
            f"the paper's draft has {papers / 1e6:.0f}M: {share:+.0%} at L = {calls:g}."
        )
    return notes


def _own_prompts(rows: Sequence[Row]) -> Iterator[str]:
    """Prompts that are not those of their task's dataset."""
    for row in rows:
        config = pair_configs().get(row["pair"])
        where = {
            "local": str(row.get("data_file")),
            "embedded": "" if config and is_embedded(config) else "the shipped sample",
        }.get(str(row.get("data_source")))
        if where:
            yield f"Ours, {names.task(row['task'])}: prompts of {where}, not the dataset's."


def _short_answers(rows: Sequence[Row]) -> Iterator[str]:
    """Limits on answers that are not those of their tasks."""
    for row in rows:
        limit = row.get("max_new_tokens")
        usual = task_config(row["task"]).get("generation", {}).get("max_new_tokens", limit)
        if not pd.isna(limit) and limit != usual:
            task = names.task(row["task"])
            yield f"Ours, {task}: at most {limit:g} new tokens; the task's limit is {usual}."


def _completions(rows: Sequence[Row]) -> list[str]:
    """Targets tuned on conversations that are asked to complete a text."""
    found = [
        (names.task(row["task"]), row["pair"])
        for row in rows
        if (config := pair_configs().get(row["pair"])) is not None
        and config.chat_tuned
        and task_config(row["task"]).get("chat") is False
    ]
    if not found:
        return []
    tasks, pairs = (", ".join(dict.fromkeys(each)) for each in zip(*found, strict=True))
    return [
        f"Ours, {tasks}: a text to complete, in no chat template, though the target of {pairs} was "
        "tuned on conversations; task.chat=true puts it into one."
    ]


def _seen(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        config = pair_configs().get(row["pair"])
        share = config.seen_in_training.get(row["task"], 0.0) if config else 0.0
        if share and row.get("data_source") == "embedded":
            many = "all" if share == 1 else f"{share:.0%}"
            whose = f"the models of {row['pair']} were trained on"
            yield (
                f"Ours, {names.task(row['task'])}: {many} of the sample's prompts are in the "
                f"text that {whose}."
            )


@functools.cache
def task_config(task: str) -> dict[str, Any]:
    """Returns a task's config; {} where it has none."""
    path = find_configs("task").get(task)
    return read_yaml(path) if path else {}


def _learned_answers(heads: str) -> bool:
    """Returns whether a training here made them, on answers of the target."""
    if not (training := training_of_heads(heads)):
        return False
    data = training["settings"]["data"]
    return data["kind"] != "chats" or data["answered_by"] == "target"
