"""Jobs from Python: take the command line's settings and return rows as a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spec_bench.api.pairs import LoadedPair, Prompt, derive_prompt_id, parse_prompts
from spec_bench.jobs.config.flags import FLAGS, flags_to_overrides, list_setting_names
from spec_bench.settings.fields import format_suggestion, warn_once
from spec_bench.settings.override_values import (
    describe_type_and_value,
    quote_if_needed,
    quote_setting_value,
    quote_value,
)
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.columns import OURS, get_columns

if TYPE_CHECKING:
    import pandas as pd

# Flags of the command line without a setting of that name.
_FLAGS = {flag.replace("-", "_") for flag in FLAGS["run"]}
_FLAGS -= {"pair", "task", "prompts", "seed", "name"}
_LISTS = ("cells", "task.metrics", "task.scores")  # texts in brackets are passed on unchanged
Columns = Literal["main", "all"] | Sequence[str]

# Main columns of a frame: always shown, numbers, never shown.
_NAMES = ("decoder", "spec")
_NUMBERS = ("block_efficiency", "token_rate", "speedup")
_NEVER = (
    "run_id",
    "baseline",
    "draft",
    "target",
    "prompts_digest",
    "target_revision",
    "draft_revision",
    "draft_digest",
    "tree_revision",
    "data_revision",
    "data_file",
    "library",
    "stage",
    "lossless",
    "status",
    "reason",
    "simulated_acceptance",
    "machine",
)


def run(
    *overrides: str,
    texts: Iterable[Any] | None = None,
    references: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    columns: Columns = "main",
    **settings: Any,
) -> pd.DataFrame:
    """Runs a job and returns its rows; the same call again resumes it or reads its rows.

    Args:
        overrides: as on the command line: ``task=xsum``, ``cells=[sd:3,rsd_s:4x3]``.
        texts: an earlier name of ``prompts``.
        references: an entry per prompt: a text, a list of equally good texts, or None; for a
            conversation a list of such entries, one per turn.
        pair: a name of ``conf/pair``, or a pair of ``load_pair`` if its models have names.
        columns: ``main``; ``all`` of ``results.csv``; or a list of names.
        settings: ``overrides`` by keyword, or the flags of ``spec-bench run``:
            ``decoders=["sd:3"]``, ``temperature=0``, ``max_new_tokens=64``, ``data=FILE``. In place
            of a task, ``prompts=[...]`` are your own prompts, texts or conversations, which are
            kept below ``results``/runs/texts. ``limit=5`` is the number of prompts to decode; by
            default all of your own.

    Returns:
        One row per cell, the baseline first; ``docs/results.md`` defines the columns.
    """
    import pandas as pd

    from spec_bench.jobs.app import run_config
    from spec_bench.jobs.config.compose import compose_config
    from spec_bench.metrics.own_code import renew_run_mark
    from spec_bench.sinks.rows import result_to_row

    _require_valid_columns(columns)
    renew_run_mark()
    results = run_config(
        compose_config(
            build_overrides_and_save_prompts(overrides, settings, texts, pair, references)
        )
    )
    return select_columns(pd.DataFrame([result_to_row(result) for result in results]), columns)


def sweep(
    over: Mapping[str, Iterable[Any]],
    *overrides: str,
    texts: Iterable[Any] | None = None,
    references: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    columns: Columns = "main",
    **settings: Any,
) -> pd.DataFrame:
    """Runs a job for each combination of values, after checking all of them.

    ``over`` has the values by setting: ``{"task": ["xsum", "dolly"], "generation.temperature": [0,
    1]}``; all jobs share the other arguments, see ``run``. Returns the rows of all jobs, in the
    order of the combinations.
    """
    import pandas as pd

    from spec_bench.jobs.app import build_unpinned_settings
    from spec_bench.jobs.config.compose import compose_config

    _require_valid_columns(columns)
    for key, values in over.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"over[{key!r}] must be a list of values, got {values!r}")
    choices = [dict(zip(over, values, strict=True)) for values in product(*over.values())]
    if not choices:
        raise UsageError(f"over needs a value for each setting, got {over!r}")
    jobs = [
        build_overrides_and_save_prompts(overrides, settings | choice, texts, pair, references)
        for choice in choices
    ]
    for words in jobs:
        build_unpinned_settings(compose_config(words))
    tables = [run(*words, columns="all") for words in jobs]
    return select_columns(pd.concat(tables, ignore_index=True), columns)


def build_overrides_and_save_prompts(
    overrides: Sequence[str],
    settings: Mapping[str, Any],
    texts: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    references: Iterable[Any] | None = None,
) -> list[str]:
    """Converts a job's settings to words of the command line, with ``sink=quiet`` unless they set a
    sink, and writes the file of own prompts. Raises UsageError if a setting cannot be converted.
    """
    for word in overrides:
        if not isinstance(word, str):
            raise UsageError(
                f"settings are texts such as 'task=xsum', got {describe_type_and_value(word)}"
            )
    settings, texts = _separate_own_prompts(settings, texts)
    words = [*_pair_to_overrides(pair), *overrides]
    flags = list[str]()
    known_keys = [*_FLAGS, *{path.partition(".")[0] for path in list_setting_names("run")}]
    for key, value in settings.items():
        value = [value] if key == "metrics" and callable(value) else value
        if key in ("metrics", "task.metrics") and isinstance(value, list | tuple):
            from spec_bench.metrics import register_score_function  # with numpy

            value = [
                register_score_function(metric) if callable(metric) else metric for metric in value
            ]
        if key in _FLAGS or (key, value) == ("prompts", "all"):
            flags += [] if value is None else _format_flag_arguments(key, value)
        elif key.partition(".")[0] not in known_keys and (
            suggestion := format_suggestion(key, known_keys)
        ):
            raise UsageError(f"unknown setting {key}{suggestion}")
        else:
            is_verbatim = key in _LISTS and isinstance(value, str) and value.startswith("[")
            words.append(f"{key}={value if is_verbatim else quote_setting_value(key, value)}")
    words = flags_to_overrides("run", [*flags, *words])  # together: flags may depend on others
    keys = [word.lstrip("+").partition("=")[0] for word in words]
    if texts is not None:
        if "task" in keys:
            raise UsageError(
                "prompts=[...] are a task of their own: leave task out (task.stop=... may stay)"
            )
        words = [*_save_texts_as_overrides(texts, references, words, keys), *words]
    elif references is not None:
        raise UsageError("references go with prompts=[...], one for each; a file has its own")
    if not any(key == "sink" or key.startswith("sink.") for key in keys):
        words.append("sink=quiet")
    return words


def _separate_own_prompts(
    settings: Mapping[str, Any], texts: Iterable[Any] | None
) -> tuple[dict[str, Any], Iterable[Any] | None]:
    """Separates the user's own prompts from the settings, in which ``prompts`` then is the number
    of prompts. Raises UsageError if ``prompts`` is a file.
    """
    settings = {**settings}
    if isinstance(settings.get("prompts"), list | tuple):
        texts = settings.pop("prompts")
    elif texts is not None:
        warn_once("texts=[...] is prompts=[...] now, and limit=N how many of them are asked")
    if "limit" in settings:
        settings["prompts"] = settings.pop("limit")
    count = settings.get("prompts")
    if isinstance(count, Path) or (isinstance(count, str) and "." in count):
        raise UsageError(
            "prompts=[...] are prompts of your own, limit=N is how many are asked; data=FILE "
            f"reads a file, got {describe_type_and_value(count)}"
        )
    return settings, texts


def _format_flag_arguments(key: str, value: Any) -> list[str]:
    """Formats a flag of the command line with its value, once per file of ``data``."""
    values = [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
    values = values if key == "data" else [",".join(values)]
    return [word for text in values for word in (f"--{key.replace('_', '-')}", text)]


def _pair_to_overrides(pair: Any) -> Sequence[str]:
    if pair is None:
        return ()
    if isinstance(pair, str):
        return (f"pair={quote_if_needed(pair)}",)
    if not isinstance(pair, LoadedPair):
        raise UsageError(
            f"pair must be a name or what load_pair gave, got {describe_type_and_value(pair)}"
        )
    if not pair.overrides:
        raise UsageError(
            f"pair {pair.pair.name!r} holds a loaded model or tokenizer, and a job reads both by "
            "name, which its rows state: save_pretrained(FOLDER) and load_pair(target=FOLDER)"
        )
    return pair.overrides


def _save_texts_as_overrides(
    texts: Any,
    references: Any,
    arguments: Sequence[str],
    keys: Sequence[str],
) -> list[str]:
    prompts, is_list = parse_prompts(texts, "prompts")
    if not is_list or not prompts:
        expectation = "a list of prompts, at least one (data=FILE reads a file)"
        raise UsageError(f"prompts must be {expectation}, got {describe_type_and_value(texts)}")
    golds = [] if references is None or isinstance(references, str) else [*references]
    if references is not None and len(golds) != len(prompts):
        raise UsageError(f"references must be a list of {len(prompts)}, one for each of prompts")
    folders = [word.partition("=")[2] for word in arguments if word.startswith("results=")]
    folder = Path((folders or ["results"])[-1].strip("\"'"))
    words = [
        "task=jsonl",
        f"task.source.path={quote_value(_write_prompts_file(prompts, golds, folder))}",
    ]
    words += ["prompts=null"] if "prompts" not in keys else []
    if all(isinstance(prompt, str) for prompt in prompts) and "task.chat" not in keys:
        words.append("task.chat=false")  # as pair.decode(text) does
    return words


def _write_prompts_file(prompts: Sequence[Prompt], golds: Sequence[Any], results: Path) -> Path:
    """Writes prompts to a file for ``task=jsonl``, named by its digest."""
    key_counts: Counter[str] = Counter()
    lines = []
    for prompt, gold in zip_longest(prompts, golds):
        prompt_key = derive_prompt_id(prompt)
        key_counts[prompt_key] += 1
        count = key_counts[prompt_key]
        name = prompt_key if count == 1 else f"{prompt_key}-{count}"
        turns: list[Any] = [prompt] if isinstance(prompt, str) else list(map(dict, prompt))
        line: dict[str, Any] = {"question_id": name, "turns": turns}
        if isinstance(prompt, str) or isinstance(gold, str):  # a text belongs to the last turn
            earlier_turns = sum(message["role"] == "user" for message in turns[:-1])
            gold = None if gold is None else [*[None] * earlier_turns, gold]
        if gold is not None:  # an entry per turn
            line["reference"] = gold
        lines.append(json.dumps(line, ensure_ascii=False))
    path = results / files.RUNS / "texts" / f"{files.hash_json(lines, 12)}.jsonl"
    files.write_text(path, "\n".join(lines) + "\n")
    return path


def _require_valid_columns(columns: Columns) -> None:
    if columns in ("main", "all"):
        return
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise UsageError(f"columns must be main, all or a list of names, got {columns!r}")


def select_columns(rows: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Selects columns of a table with one row per cell: ``all``, the given names, or ``main``.

    ``main`` are decoder, spec, the settings that differ between rows, prompts, the main numbers,
    the task's scores and own metrics with their 95% intervals, losslessness, status and, if a cell
    failed or its times are unreliable, the reason.
    """
    if columns == "all":
        return rows
    if columns != "main":
        if unknown := [name for name in columns if name not in rows]:
            raise UsageError(f"no column {unknown[0]!r}; columns='all' has {', '.join(rows)}")
        return rows[list(columns)]
    table_columns = get_columns(rows.columns)
    varying_names = [
        column.name
        for column in table_columns
        if column.kind in ("identity", "setting")
        and column.name not in (*_NAMES, *_NEVER)
        and rows[column.name].nunique(dropna=False) > 1
    ]
    numbers = [
        name
        for column in table_columns
        if column.name in _NUMBERS
        or (column.kind == "score" and column.interval)
        or (column not in OURS and column.holds == "number")
        for name in column.names
        if name in rows and (column.name in _NUMBERS or rows[column.name].notna().any())
    ]
    prompts = [name for name in ("prompts",) if name in rows]
    needs_reason = (rows.status == "failed") | rows.reason.astype(str).str.contains(
        ": (?:stalled|disturbed): "
    )
    state = ["lossless", "status", *(["reason"] if needs_reason.any() else [])]
    table = rows[[*varying_names, *_NAMES, *prompts, *numbers, *state]]
    return table.astype(dict.fromkeys(numbers, float))  # None would break plots and means
