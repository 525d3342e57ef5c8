"""Splits rows by the settings of their runs, so that no table or figure mixes runs.

Knows the columns of such settings (``columns.csv``, ``apart``); nothing about tables or figures.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import pandas as pd

from spec_bench.system.files import digest
from spec_bench.vocabulary.columns import COLUMNS, Column, apart_in

_WITHIN = {"run": (), "task": ("pair", "task"), "pair": ("pair",)}
_LONGEST = 24  # characters of a word in a file's name
_WORDS = re.compile(r"[a-z]+(?:[ +_-][a-z]+)*")
_UNCLEAR = ("true", "false", "none", "not stated")  # unclear without their column
_UNSTATED, _FEW_UNSTATED = " not stated", 2
_ANY: str = ""  # a value shared by all rows of the same task, or pair


def split(rows: pd.DataFrame, shown: Collection[str]) -> list[tuple[str, pd.DataFrame]]:
    """The rows in parts that agree in every column of ``apart_in`` but those ``shown`` separately:
    the settings that are each part's alone (``batch size 4``), as far as all of its rows agree in
    them, and its rows, the part with most rows first; one part, named "", if none differs.

    Settings of the task, such as its length limit, may differ from task to task, and likewise
    for the pair: they split the rows only where one task has several, and rows of other tasks
    stand in every part.
    """
    columns = [each for each in apart_in(rows) if each.name not in shown]
    texts = {each: rows[each.name].map(partial(value_text, each)) for each in columns}
    run = [texts[each] for each in columns if each.apart == "run"]
    alone = {each: _values(rows, each, texts[each], ()) for each in columns}
    varying = [each for each in columns if (alone[each] != _ANY).any()]
    if not varying:
        return [("", rows)]
    values = [_values(rows, each, texts[each], run) for each in varying]
    keys, parts = list(zip(*values, strict=True)), []
    for key in dict.fromkeys(keys):
        if any(other != key and _fits(key, other) for other in keys):
            continue  # a part with more values holds these rows, too
        fitting = [_fits(other, key) for other in keys]
        named = []
        for text, each in zip(key, varying, strict=True):
            agreed = {*alone[each][fitting]} - {_ANY}
            named.append(text or (agreed.pop() if len(agreed) == 1 else _ANY))
        parts.append((together(filter(None, named)), rows[fitting]))
    return sorted(parts, key=lambda part: -len(part[1]))


def _values(
    rows: pd.DataFrame, column: Column, texts: pd.Series, run: Sequence[pd.Series]
) -> pd.Series:
    """A column's values for headings; empty where all agree, or where ``run`` tells them."""
    within = [rows[name] for name in _WITHIN[column.apart] if name in rows]
    within += run if column.apart != "run" else []
    counts = texts.groupby(within or [0] * len(rows))
    return texts.where(counts.transform("nunique") > 1, _ANY)


def _fits(values: tuple[str, ...], key: tuple[str, ...]) -> bool:
    return all(mine in (_ANY, other) for mine, other in zip(values, key, strict=True))


def slugs(settings: Iterable[str]) -> dict[str, str]:
    """Each part's distinctive settings, for a file's name: ``-screen``, ``-batch-size-4``; by the
    text of each from ``split``, "" for the only part without a setting.

    A part is named by as few of its differing columns as distinguish it from all others, in the
    columns' order, and by their values alone where these are words. A name that several would have
    ends with the digest of the settings.
    """
    parts = {text: [_word(each) for each in text.split(", ") if each] for text in settings}
    names = {text: _distinctive(words, list(parts.values())) for text, words in parts.items()}
    counts = Counter(names.values())
    slugs = {}
    for text, name in names.items():
        unlike = digest(text)[:8] if text and (counts[name] > 1 or not name) else ""
        slugs[text] = "".join(f"-{each}" for each in (name, unlike) if each)
    return slugs


def _distinctive(words: Sequence[str], parts: Iterable[Sequence[str]]) -> str:
    """The first words that no other part has in their places, without those that all share."""
    rivals, kept = list(parts), list[str]()
    for place, word in enumerate(words):
        if kept and len(rivals) == 1:
            break
        same = [each for each in rivals if each[place : place + 1] == [word]]
        if len(same) < len(rivals) or len(rivals) == 1:
            kept.append(word)
        rivals = same
    return "-".join(kept or words[:1])


def _word(text: str) -> str:
    """A column's value for a file's name; without the title ``value_text`` puts before it."""
    titles = sorted((each.title for each in COLUMNS if each.apart), key=len, reverse=True)
    title = next((each for each in titles if text.startswith(f"{each} ")), "")
    value = text.removeprefix(title).strip()
    alone = bool(_WORDS.fullmatch(value)) and value not in _UNCLEAR
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", value if alone else text).strip("-")
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST].strip('-')}-{digest(text)[:4]}"


def together(parts: Iterable[str]) -> str:
    """Returns all settings of a part; those not stated are counted if they are many."""
    words = list(parts)
    unstated = [word for word in words if word.endswith(_UNSTATED)]
    if len(unstated) <= _FEW_UNSTATED:
        return ", ".join(words)
    stated = [word for word in words if word not in unstated]
    return ", ".join([*stated, f"{len(unstated)} facts{_UNSTATED}"])


def value_text(column: Column, value: object) -> str:
    """A value of a column in a heading: ``batch size 4``; an unknown one is ``not stated``."""
    if value is None or pd.isna(value) or value == "":
        return f"{column.title}{_UNSTATED}"
    return f"{column.title} {value:g}" if isinstance(value, float) else f"{column.title} {value}"
