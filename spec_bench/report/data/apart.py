"""Rows split by what tells runs apart, so that no table or figure mixes them.

Knows the columns that do (``columns.csv``, ``apart``); nothing about tables or figures.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import pandas as pd

from spec_bench.report.data.headings import said, together
from spec_bench.system.files import digest
from spec_bench.vocabulary.columns import COLUMNS, Column, apart_in

_WITHIN = {"run": (), "task": ("pair", "task"), "pair": ("pair",)}
_LONGEST = 24  # characters of a word in a file's name
_WORDS = re.compile(r"[a-z]+(?:[ +_-][a-z]+)*")
_UNTOLD = ("true", "false", "none", "not stated")  # say nothing without their column
_ANY: str = ""  # a value that no row of the same task, or pair, differs in


def split(rows: pd.DataFrame, told: Collection[str]) -> list[tuple[str, pd.DataFrame]]:
    """The rows in parts that agree in every column that tells runs apart.

    What belongs to the task, such as its length limit, may differ from task to task, and likewise
    for the pair: only where one task has several is it a reason to split, and rows of other tasks
    stand in every part.

    Args:
        rows: cells.
        told: columns whose values are told apart within a table or figure anyway.

    Returns:
        What tells each part from the others (``batch size 4``), as far as all of its rows agree in
        it, and its rows, the part with most rows first; one part, told by "", where nothing
        differs.
    """
    columns = [each for each in apart_in(rows) if each.name not in told]
    texts = {each: rows[each.name].map(partial(said, each)) for each in columns}
    run = [texts[each] for each in columns if each.apart == "run"]
    alone = {each: _values(rows, each, texts[each], ()) for each in columns}
    varying = [each for each in columns if (alone[each] != _ANY).any()]
    if not varying:
        return [("", rows)]
    values = [_values(rows, each, texts[each], run) for each in varying]
    keys = list(zip(*values, strict=True))
    whole = [key for key in dict.fromkeys(keys) if not _covered(key, keys)]
    parts = []
    for key in whole:
        fitting = [_fits(own, key) for own in keys]
        agreed = (_agreed(alone[each][fitting]) for each in varying)
        named = (told or also for told, also in zip(key, agreed, strict=True))
        parts.append((together(filter(None, named)), rows[fitting]))
    return sorted(parts, key=lambda part: -len(part[1]))


def _values(
    rows: pd.DataFrame, column: Column, texts: pd.Series, run: Sequence[pd.Series]
) -> pd.Series:
    """A column's values as headings say them; nothing where it tells no rows apart, or follows from
    ``run``, what tells runs apart besides (a search screens and confirms each task on other
    prompts).
    """
    within = [rows[name] for name in _WITHIN[column.apart] if name in rows]
    within += run if column.apart != "run" else []
    counts = texts.groupby(within or [0] * len(rows))
    return texts.where(counts.transform("nunique") > 1, _ANY)


def _agreed(values: pd.Series) -> str:
    """The one value of those rows that have one; "" where they have several."""
    found = set(values) - {_ANY}
    return found.pop() if len(found) == 1 else _ANY


def _fits(own: tuple[str, ...], key: tuple[str, ...]) -> bool:
    return all(mine in (_ANY, other) for mine, other in zip(own, key, strict=True))


def _covered(key: tuple[str, ...], keys: Iterable[tuple[str, ...]]) -> bool:
    """Whether a part with more values holds these rows, too."""
    return any(other != key and _fits(key, other) for other in keys)


def slugs(settings: Iterable[str]) -> dict[str, str]:
    """What tells each part from the others, for a file's name: ``-screen``, ``-batch-size-4``.

    A part is named by as few of the columns that it differs in as tell it from all others, in the
    columns' order, and by their values alone where these are words.

    Args:
        settings: what ``split`` says of each part; the same text is the same part.

    Returns:
        By setting; "" for that of a part which is the only one and says nothing.
    """
    parts = {text: [_word(each) for each in text.split(", ") if each] for text in settings}
    names = {text: _told(words, list(parts.values())) for text, words in parts.items()}
    counts = Counter(names.values())
    return {
        text: f"-{name}" if counts[name] == 1 and name else _numbered(name, text)
        for text, name in names.items()
    }


def _told(words: Sequence[str], parts: Iterable[Sequence[str]]) -> str:
    """The first words that no other part has in their places, without those that tell nothing."""
    rivals, told = list(parts), list[str]()
    for place, word in enumerate(words):
        if told and len(rivals) == 1:
            break
        same = [each for each in rivals if each[place : place + 1] == [word]]
        if len(same) < len(rivals) or len(rivals) == 1:
            told.append(word)
        rivals = same
    return "-".join(told or words[:1])


def _numbered(name: str, text: str) -> str:
    """A name that several parts would have, with the digest of what tells this one."""
    return "-".join(["", *filter(None, [name, digest(text)[:8] if text else ""])]).rstrip("-")


def _word(text: str) -> str:
    """A column's value for a file's name; without the title that ``said`` puts before words."""
    titles = sorted((each.title for each in COLUMNS if each.apart), key=len, reverse=True)
    title = next((each for each in titles if text.startswith(f"{each} ")), "")
    value = text.removeprefix(title).strip()
    alone = bool(_WORDS.fullmatch(value)) and value not in _UNTOLD
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", value if alone else text).strip("-")
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST].strip('-')}-{digest(text)[:4]}"
