"""Rows split by the settings of their runs, so that no table or figure mixes runs, and names of the
parts in headings and files.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from spec_bench.report.data.rows import (
    format_setting,
    join_settings,
    mask_draft_models,
    separates_mixed_models,
)
from spec_bench.system.files import hash_json
from spec_bench.vocabulary.columns import (
    COLUMNS,
    Column,
    get_column,
    select_identifying_columns,
)

_GROUP_COLUMNS = {"run": (), "task": ("pair", "task"), "pair": ("pair",)}
_LONGEST = 24  # characters of a word in a file's name
_WORDS = re.compile(r"[a-z]+(?:[ +_-][a-z]+)*")
_UNCLEAR = ("true", "false", "none", "not stated")  # unclear without their column
_ANY: str = ""  # a value shared by all rows of the same task, or pair


def split_by_settings(
    rows: pd.DataFrame, names_shown: Collection[str]
) -> list[tuple[str, pd.DataFrame]]:
    """The rows in parts that agree in every column of ``select_identifying_columns`` but
    ``names_shown``, shown separately: the settings that are each part's alone (``batch size 4``),
    as far as all of its rows agree in them, and its rows, the part with most rows first; one part,
    named "", if none differs.

    Settings of the task, such as its length limit, may differ from task to task, and likewise
    for the pair: they split the rows only where one task has several, and rows of other tasks
    stand in every part.
    """
    columns = [
        setting for setting in select_identifying_columns(rows) if setting.name not in names_shown
    ]
    texts = {
        setting: rows[setting.name].map(partial(format_setting, setting)) for setting in columns
    }
    if separates_mixed_models(rows) and "draft" in rows:
        draft = replace(get_column("draft"), apart="pair")
        columns.append(draft)
        texts[draft] = rows.draft.map(partial(format_setting, draft)).where(mask_draft_models(rows))
    run_texts = [texts[setting] for setting in columns if setting.apart == "run"]
    alone = {
        setting: _blank_agreeing_texts(rows, setting, texts[setting], ()) for setting in columns
    }
    varying_columns = [setting for setting in columns if (alone[setting] != _ANY).any()]
    if not varying_columns:
        return [("", rows)]
    values = [
        _blank_agreeing_texts(rows, setting, texts[setting], run_texts)
        for setting in varying_columns
    ]
    keys = list(zip(*values, strict=True))
    parts = []
    for key in dict.fromkeys(keys):
        if any(another != key and _values_match(key, another) for another in keys):
            continue  # a part with more values holds these rows, too
        fits = [_values_match(another, key) for another in keys]
        settings = []
        for text, setting in zip(key, varying_columns, strict=True):
            common_texts = {*alone[setting][fits]} - {_ANY}
            settings.append(text or (common_texts.pop() if len(common_texts) == 1 else _ANY))
        parts.append((join_settings(filter(None, settings)), rows[fits]))
    return sorted(parts, key=lambda part: -len(part[1]))


def _blank_agreeing_texts(
    rows: pd.DataFrame, column: Column, texts: pd.Series, run_texts: Sequence[pd.Series]
) -> pd.Series:
    """Blanks a column's texts where all rows of a scope agree: headings name what varies."""
    scope = [rows[name] for name in _GROUP_COLUMNS[column.apart] if name in rows]
    scope += run_texts if column.apart != "run" else []
    counts = texts.groupby(scope or [0] * len(rows))
    return texts.where(counts.transform("nunique") > 1, _ANY).fillna(_ANY)


def _values_match(values: tuple[str, ...], key: tuple[str, ...]) -> bool:
    return all(mine in (_ANY, another) for mine, another in zip(values, key, strict=True))


def make_file_suffixes(setting_texts: Iterable[str]) -> dict[str, str]:
    """Each part's distinctive settings, for a file's name: ``-screen``, ``-batch-size-4``; by the
    text of each from ``split_by_settings``, "" for the only part without a setting.

    A part is named by as few of its differing columns as distinguish it from all others, in the
    columns' order, and by their values alone where these are words. A name that several would have
    ends with the digest of the settings.
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
        unlike = hash_json(text)[:8] if text and (counts[name] > 1 or not name) else ""
        slugs[text] = "".join(f"-{word}" for word in (name, unlike) if word)
    return slugs


def _join_distinctive_words(words: Sequence[str], parts: Iterable[Sequence[str]]) -> str:
    """The first words that no other part has in their places, without those that all share."""
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
    """A column's value for a file's name; without the title ``format_setting`` puts before it."""
    titles = sorted(
        (column_title.title for column_title in COLUMNS if column_title.apart),
        key=len,
        reverse=True,
    )
    title = next(
        (column_title for column_title in titles if text.startswith(f"{column_title} ")), ""
    )
    value = text.removeprefix(title).strip()
    alone = bool(_WORDS.fullmatch(value)) and value not in _UNCLEAR
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", value if alone else text).strip("-")
    return (
        plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST].strip('-')}-{hash_json(text)[:4]}"
    )
