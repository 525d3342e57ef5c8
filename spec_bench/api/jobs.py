"""Jobs from Python: settings as on the command line in, rows as a table out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spec_bench.api.pairs import LoadedPair, Prompt, parse_prompts, prompt_id
from spec_bench.jobs.config.flags import FLAGS, flags_to_overrides, settings_of_command
from spec_bench.settings.fields import suggest, warn
from spec_bench.settings.words import describe_value, format_override, quote_text, quote_value
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.vocabulary.columns import OURS, find_columns

if TYPE_CHECKING:
    import pandas as pd

# Flags of the command line that no setting is called.
_FLAGS = {each.replace("-", "_") for each in FLAGS["run"]}
_FLAGS -= {"pair", "task", "prompts", "seed", "name"}
_LISTS = ("cells", "task.metrics", "task.scores")  # which may be written as on the command line
Columns = Literal["main", "all"] | Sequence[str]

# Of a frame's main columns: there whether they vary or not, numbers, never there.
_NAMES = ("decoder", "spec")
_NUMBERS = ("block_efficiency", "token_rate", "speedup")
_NEVER = (
    *("run_id", "baseline", "draft", "target", "prompts_digest", "target_revision"),
    *("draft_revision", "tree_revision", "data_revision", "data_file", "library", "stage"),
    *("lossless", "status", "reason", "simulated_acceptance", "machine"),
)


def run(
    *overrides: str,
    texts: Iterable[Any] | None = None,
    references: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    columns: Columns = "main",
    **settings: Any,
) -> pd.DataFrame:
    """Runs a job and gives its rows; run again, it resumes or reads them.

    Args:
        overrides: as on the command line: ``task=xsum``, ``cells=[sd:3,rsd_s:4x3]``.
        texts: an earlier name of ``prompts``.
        references: one for each of the prompts: a text, a list of texts that are all as good, or
            None; of a conversation a list with one of these for each turn.
        pair: a name of ``conf/pair``, or what ``load_pair`` gave, if its models have names.
        columns: ``main``; ``all`` that ``results.csv`` has; or a list of names.
        settings: the same as ``overrides`` by keyword, or the flags of ``spec-bench run``:
            ``decoders=["sd:3"]``, ``temperature=0``, ``max_new_tokens=64``, ``data=FILE``. In place
            of a task, ``prompts=[...]`` are prompts of your own, texts or conversations, which are
            kept below ``results``/runs/texts. ``limit=5`` is how many prompts are asked; all are by
            default of your own.

    Returns:
        One row per cell, the baseline first; see ``docs/results.md`` for what the columns mean.
    """
    import pandas as pd

    from spec_bench.jobs.app import run_config
    from spec_bench.jobs.config.compose import compose_config
    from spec_bench.sinks.rows import to_row

    _check_columns(columns)
    results = run_config(
        compose_config(build_overrides(overrides, settings, texts, pair, references))
    )
    return select_columns(pd.DataFrame([to_row(result) for result in results]), columns)


def sweep(
    over: Mapping[str, Iterable[Any]],
    *overrides: str,
    texts: Iterable[Any] | None = None,
    references: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    columns: Columns = "main",
    **settings: Any,
) -> pd.DataFrame:
    """Runs a job for each combination of values; all are checked before the first one runs.

    ``over`` are values by setting: ``{"task": ["xsum", "dolly"], "generation.temperature": [0,
    1]}``; the rest, as in ``run``, is what the jobs have in common. Returns the rows of all jobs,
    those of the first combination first.
    """
    import pandas as pd

    from spec_bench.jobs.app import build_job_settings
    from spec_bench.jobs.config.compose import compose_config

    _check_columns(columns)
    for key, values in over.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise UsageError(f"over[{key!r}] must be a list of values, got {values!r}")
    choices = [dict(zip(over, values, strict=True)) for values in product(*over.values())]
    if not choices:
        raise UsageError(f"over needs a value for each setting, got {over!r}")
    jobs = [
        build_overrides(overrides, settings | each, texts, pair, references) for each in choices
    ]
    for words in jobs:
        build_job_settings(compose_config(words))
    parts = [run(*words, columns="all") for words in jobs]
    return select_columns(pd.concat(parts, ignore_index=True), columns)


def build_overrides(
    overrides: Sequence[str],
    settings: Mapping[str, Any],
    texts: Iterable[Any] | None = None,
    pair: str | LoadedPair | None = None,
    references: Iterable[Any] | None = None,
) -> list[str]:
    """Puts a job's settings in the words of the command line, quiet unless they name a sink, and
    writes the texts' file. Raises ValueError: a setting that has no such words.
    """
    for word in overrides:
        if not isinstance(word, str):
            raise UsageError(f"settings are texts such as 'task=xsum', got {describe_value(word)}")
    settings = {**settings}
    if isinstance(settings.get("prompts"), list | tuple):
        texts = settings.pop("prompts")
    elif texts is not None:
        warn("texts=[...] is prompts=[...] now, and limit=N how many of them are asked")
    if "limit" in settings:
        settings["prompts"] = settings.pop("limit")
    count = settings.get("prompts")
    if isinstance(count, Path) or (isinstance(count, str) and "." in count):
        raise UsageError(
            "prompts=[...] are prompts of your own, limit=N is how many are asked; data=FILE "
            f"reads a file, got {describe_value(count)}"
        )
    words = [*_pair_words(pair), *overrides]
    flags = list[str]()
    known = [*_FLAGS, *settings_of_command("run")]
    for key, value in settings.items():
        value = [value] if key == "metrics" and callable(value) else value
        if key in ("metrics", "task.metrics") and isinstance(value, list | tuple):
            from spec_bench.metrics import find_score  # with numpy

            value = [find_score(each) if callable(each) else each for each in value]
        if key in _FLAGS or (key, value) == ("prompts", "all"):
            flags += [] if value is None else _flag_words(key, value)
        elif key.partition(".")[0] not in known and (near := suggest(key, known)):
            raise UsageError(f"unknown setting {key}{near}")
        else:
            written = key in _LISTS and isinstance(value, str) and value.startswith("[")
            words.append(f"{key}={value if written else format_override(key, value)}")
    words = flags_to_overrides("run", [*flags, *words])  # together: a flag may follow from others
    keys = [each.lstrip("+").partition("=")[0] for each in words]
    if texts is not None:
        if "task" in keys:
            raise UsageError(
                "prompts=[...] are a task of their own: leave task out (task.stop=... may stay)"
            )
        words = [*_text_words(texts, references, words, keys), *words]
    elif references is not None:
        raise UsageError("references go with prompts=[...], one for each; a file has its own")
    if not any(key == "sink" or key.startswith("sink.") for key in keys):
        words.append("sink=quiet")
    return words


def _flag_words(key: str, value: Any) -> list[str]:
    """Returns a flag of the command line and its value, once for each file of ``data``."""
    listed = [*map(str, value)] if isinstance(value, list | tuple) else [str(value)]
    listed = listed if key == "data" else [",".join(listed)]
    return [word for each in listed for word in (f"--{key.replace('_', '-')}", each)]


def _pair_words(pair: Any) -> Sequence[str]:
    if pair is None:
        return ()
    if isinstance(pair, str):
        return (f"pair={quote_text(pair)}",)
    if not isinstance(pair, LoadedPair):
        raise UsageError(f"pair must be a name or what load_pair gave, got {describe_value(pair)}")
    if not pair.overrides:
        raise UsageError(
            f"pair {pair.pair.name!r} holds a loaded model or tokenizer, and a job reads both by "
            "name, which its rows state: save_pretrained(FOLDER) and load_pair(target=FOLDER)"
        )
    return pair.overrides


def _text_words(
    texts: Any, references: Any, arguments: Sequence[str], keys: Sequence[str]
) -> list[str]:
    prompts, several = parse_prompts(texts, "prompts")
    if not several or not prompts:
        what = "a list of prompts, at least one (data=FILE reads a file)"
        raise UsageError(f"prompts must be {what}, got {describe_value(texts)}")
    golds = [] if references is None or isinstance(references, str) else [*references]
    if references is not None and len(golds) != len(prompts):
        raise UsageError(f"references must be a list of {len(prompts)}, one for each of prompts")
    folders = [each.partition("=")[2] for each in arguments if each.startswith("results=")]
    folder = Path((folders or ["results"])[-1].strip("\"'"))
    words = ["task=jsonl", f"task.source.path={quote_value(_write_texts(prompts, golds, folder))}"]
    words += ["prompts=null"] if "prompts" not in keys else []
    if all(isinstance(each, str) for each in prompts) and "task.chat" not in keys:
        words.append("task.chat=false")  # as pair.decode(text) does
    return words


def _write_texts(prompts: Sequence[Prompt], golds: Sequence[Any], results: Path) -> Path:
    """Writes prompts as the file that ``task=jsonl`` reads, named after its content."""
    seen: Counter[str] = Counter()
    lines = []
    for prompt, gold in zip_longest(prompts, golds):
        prompt_key = prompt_id(prompt)
        seen[prompt_key] += 1
        name = prompt_key if seen[prompt_key] == 1 else f"{prompt_key}-{seen[prompt_key]}"
        turns: list[Any] = [prompt] if isinstance(prompt, str) else [dict(each) for each in prompt]
        line: dict[str, Any] = {"question_id": name, "turns": turns}
        if isinstance(prompt, str) or isinstance(gold, str):  # a text is of the last turn
            before = sum(message["role"] == "user" for message in turns[:-1])
            gold = None if gold is None else [*[None] * before, gold]
        if gold is not None:  # a place for each turn
            line["reference"] = gold
        lines.append(json.dumps(line, ensure_ascii=False))
    path = results / files.RUNS / "texts" / f"{files.digest(lines, 12)}.jsonl"
    files.write_text(path, "\n".join(lines) + "\n")
    return path


def _check_columns(columns: Columns) -> None:
    if columns in ("main", "all"):
        return
    if isinstance(columns, str) or not all(isinstance(each, str) for each in columns):
        raise UsageError(f"columns must be main, all or a list of names, got {columns!r}")


def select_columns(rows: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """Returns some columns of a table, one row per cell: ``all``; names, refused where no column
    has one; or ``main``: decoder, spec and whatever else tells the rows apart, prompts, the main
    numbers, the task's scores and metrics of one's own with the ends of their 95% intervals,
    losslessness, status and, where a cell failed or its times decide nothing, the reason.
    """
    if columns == "all":
        return rows
    if columns != "main":
        if unknown := [name for name in columns if name not in rows]:
            raise UsageError(f"no column {unknown[0]!r}; columns='all' has {', '.join(rows)}")
        return rows[list(columns)]
    known = find_columns(rows.columns)
    varying = [
        each.name
        for each in known
        if each.kind in ("identity", "setting")
        and each.name not in (*_NAMES, *_NEVER)
        and rows[each.name].nunique(dropna=False) > 1
    ]
    numbers = [
        name
        for each in known
        if each.name in _NUMBERS
        or (each.kind == "score" and each.interval)
        or (each not in OURS and each.holds == "number")
        for name in each.names
        if name in rows and (each.name in _NUMBERS or rows[each.name].notna().any())
    ]
    prompts = [name for name in ("prompts",) if name in rows]
    odd = (rows.status == "failed") | rows.reason.astype(str).str.contains(
        ": (?:stalled|disturbed): "
    )
    state = ["lossless", "status", *(["reason"] if odd.any() else [])]
    shown = rows[[*varying, *_NAMES, *prompts, *numbers, *state]]
    return shown.astype(dict.fromkeys(numbers, float))  # not None, which no plot or mean takes
