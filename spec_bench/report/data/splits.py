"""Splits rows by the settings of their runs, so that no table or figure mixes runs. Names the parts
in headings and files.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from spec_bench.report.data.rows import (
    format_setting,
    join_settings_counting_unstated,
    mask_draft_models,
    will_separate_models,
)
from spec_bench.system.files import hash_json
from spec_bench.vocabulary.columns import (
    COLUMNS,
    Column,
    get_column,
    select_must_match_columns,
)

_GROUP_COLUMNS = {"run": (), "task": ("pair", "task"), "pair": ("pair",)}
_LONGEST = 24  # characters of a word in a file's name
_WORDS = re.compile(r"[a-z]+(?:[ +_-][a-z]+)*")
_UNCLEAR = ("true", "false", "none", "not stated")  # unclear without their column
_ANY: str = ""  # for a value that all rows of the same task, or pair, share


def split_by_settings(
    rows: pd.DataFrame, names_shown: Collection[str]
) -> list[tuple[str, pd.DataFrame]]:
    """Splits rows into parts that agree in every column of ``select_must_match_columns``, except
    in ``names_shown``, which are shown separately. Returns each part's heading and rows, the part
    with most rows first. A heading has the varying settings that all rows of the part share
    (``batch size 4``); without differences there is one part with the heading "".

    Settings of the task, such as its length limit, may differ between tasks, and settings of the
    pair between pairs: they split the rows only if one task, or pair, has several values. Rows of
    other tasks are in every part.
    """
    columns = [
        setting for setting in select_must_match_columns(rows) if setting.name not in names_shown
    ]
    texts = {
        setting: rows[setting.name].map(partial(format_setting, setting)) for setting in columns
    }
    if will_separate_models(rows) and "draft" in rows:
        draft = replace(get_column("draft"), apart="pair")
        columns.append(draft)
        texts[draft] = rows.draft.map(partial(format_setting, draft)).where(mask_draft_models(rows))
    run_texts = [texts[setting] for setting in columns if setting.apart == "run"]
    varying_texts = {
        setting: _blank_agreeing_texts(rows, setting, texts[setting], ()) for setting in columns
    }
    varying_columns = [setting for setting in columns if (varying_texts[setting] != _ANY).any()]
    if not varying_columns:
        return [("", rows)]
    values = [
        _blank_agreeing_texts(rows, setting, texts[setting], run_texts)
        for setting in varying_columns
    ]
    keys = list(zip(*values, strict=True))
    parts = []
    for key in dict.fromkeys(keys):
        if any(other_key != key and _values_match(key, other_key) for other_key in keys):
            continue  # a part with more settings has these rows, too
        is_in_part = [_values_match(other_key, key) for other_key in keys]
        settings = []
        for text, setting in zip(key, varying_columns, strict=True):
            common_texts = {*varying_texts[setting][is_in_part]} - {_ANY}
            settings.append(text or (common_texts.pop() if len(common_texts) == 1 else _ANY))
        parts.append((join_settings_counting_unstated(filter(None, settings)), rows[is_in_part]))
    return sorted(parts, key=lambda part: -len(part[1]))


def _blank_agreeing_texts(
    rows: pd.DataFrame, column: Column, texts: pd.Series, run_texts: Sequence[pd.Series]
) -> pd.Series:
    """Blanks texts that all rows, or all of a task or pair, share: headings name differences."""
    scope = [rows[name] for name in _GROUP_COLUMNS[column.apart] if name in rows]
    scope += run_texts if column.apart != "run" else []
    counts = texts.groupby(scope or [0] * len(rows))
    return texts.where(counts.transform("nunique") > 1, _ANY).fillna(_ANY)


def _values_match(values: tuple[str, ...], key: tuple[str, ...]) -> bool:
    return all(value in (_ANY, key_value) for value, key_value in zip(values, key, strict=True))


def make_file_suffixes(setting_texts: Iterable[str]) -> dict[str, str]:
    """Makes a suffix of file names from each heading of ``split_by_settings``: ``-screen``,
    ``-batch-size-4``; "" for the heading "".

    A suffix has as few settings as distinguish its part from all others, in the columns' order, and
    only their values if these are words. If several parts would have the same suffix, it ends with
    the digest of the settings.
    """
    parts = {
        text: [_shorten_setting(word) for word in text.split(", ") if word]
        for text in setting_texts
    }
    names = {
        text: _join_distinctive_words(words, list(parts.values())) for text, words in parts.items()
    }
    counts = Counter(names.values())
    slugs = {}
    for text, name in names.items():
        digest = hash_json(text)[:8] if text and (counts[name] > 1 or not name) else ""
        slugs[text] = "".join(f"-{word}" for word in (name, digest) if word)
    return slugs


def _join_distinctive_words(words: Sequence[str], parts: Iterable[Sequence[str]]) -> str:
    """Joins the first words that distinguish a part from the others; skips those that all have."""
    rivals = list(parts)
    chosen_words = list[str]()
    for place, word in enumerate(words):
        if chosen_words and len(rivals) == 1:
            break
        matching_rivals = [rival for rival in rivals if rival[place : place + 1] == [word]]
        if len(matching_rivals) < len(rivals) or len(rivals) == 1:
            chosen_words.append(word)
        rivals = matching_rivals
    return "-".join(chosen_words or words[:1])


def _shorten_setting(text: str) -> str:
    """Shortens a setting for a file's name, to its value alone if that is clear without a title."""
    titles = sorted(
        (column_title.title for column_title in COLUMNS if column_title.apart),
        key=len,
        reverse=True,
    )
    title = next(
        (column_title for column_title in titles if text.startswith(f"{column_title} ")), ""
    )
    value = text.removeprefix(title).strip()
    is_clear_alone = bool(_WORDS.fullmatch(value)) and value not in _UNCLEAR
    file_word = re.sub(r"[^A-Za-z0-9.]+", "-", value if is_clear_alone else text).strip("-")
    return (
        file_word
        if len(file_word) <= _LONGEST
        else f"{file_word[:_LONGEST].strip('-')}-{hash_json(text)[:4]}"
    )
