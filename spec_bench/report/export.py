"""A results file in long format, for other people's tools: one line per cell, prompt and repeat.

Knows rows and records, and defines its columns (``dictionary``). Acceptance by position
stands in plain columns: ``reached_D`` and ``accepted_D``, walks that came to depth D of the tree
and those that left it by an accepted child, so that their sums make the acceptance rate at D.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.records.line import FIELDS, SERVED, STEP
from spec_bench.records.types import Generation
from spec_bench.report.data.records import repeats_of, scores_of
from spec_bench.report.data.rows import Row, read_results, rows_of
from spec_bench.system import files
from spec_bench.vocabulary.columns import columns_in, header

_OF_A_CELL = ("identity", "setting", "state")
_COUNTS = {
    "target_calls": "target calls of the prompt",
    "emitted_tokens": "accepted + 1, summed over its target calls",
    "nodes": "tree nodes verified, summed over its target calls",
    "draft_calls": "levels of the trees, summed over its target calls",
}
_BY_DEPTH = {
    "reached_{}": "target calls whose tree has depth {} and whose walk came to it",
    "accepted_{}": "of these, those that accepted a token at depth {}",
}
_SERVED = {
    "ttft_s": "s from the request to its first chunk, where a server decoded",
    "chunks": "chunks that the answer came in",
    "first_chunk_tokens": "tokens of the first chunk: the prompt's pass, no target call",
    "counted": "where the target calls are known from: requests, counters, stream",
    "attempts": "requests that the answer took",
}
_SCORE = "score_{}"
_TEXT = "the answer, special tokens left out"
_MAKES_TEXTS = "spec-bench answers FILE --texts writes one"


@dataclass(frozen=True)
class Export:
    """The contents of the files.

    Attributes:
        lines: one per cell, repeat and prompt; later repeats have times and counts, no scores.
        dictionary: name, unit and definition of each column of ``lines``.
        without: run ids of cells that have numbers but no records by prompt.
    """

    lines: pd.DataFrame
    dictionary: pd.DataFrame
    without: tuple[str, ...]


def export(table: Path) -> Export:
    """The long format of one results file.

    Raises:
        ValueError: there is no such file, or none of its cells has records.
    """
    rows = read_results(table)
    described = [each.name for each in columns_in(rows.columns) if each.kind in _OF_A_CELL]
    records: list[dict[str, Any]] = []
    without = []
    for row in rows_of(rows):
        cell_lines = list(_lines(table, row, described))
        records += cell_lines
        if not cell_lines and row["status"] != "failed":
            without.append(str(row["run_id"]))
    if not records:
        raise ValueError(f"no records by prompt beside {str(table)!r} or in its {files.RUNS}")
    names = _ordered(records, described)
    lines = pd.DataFrame(records, columns=names)
    return Export(lines, dictionary(names), tuple(without))


def with_texts(exported: Export, path: Path) -> Export:
    """The lines with their answers' texts in a last column, empty where the file has none.

    Raises:
        ValueError: there is no such file, or it has no line of any of these cells.
    """
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}; {_MAKES_TEXTS}")
    *key, text = files.TEXT_COLUMNS
    texts = {
        tuple(line[name] for name in key): line[text]
        for line in files.read_csv(path, files.TEXT_COLUMNS)
    }
    places = exported.lines[key].astype(str).itertuples(index=False, name=None)
    column = [texts.get(place) for place in places]
    if not any(each is not None for each in column):
        raise ValueError(f"{str(path)!r} has no line of these cells; {_MAKES_TEXTS}")
    lines = exported.lines.assign(**{text: column})
    return replace(exported, lines=lines, dictionary=dictionary([str(name) for name in lines]))


def write(exported: Export, folder: Path) -> list[Path]:
    """``long.parquet``, ``long.csv`` and ``dictionary.csv``; equal rows give equal bytes."""
    paths = [folder / name for name in ("long.parquet", "long.csv", "dictionary.csv")]
    with files.replacing(paths[0]) as partial:
        exported.lines.to_parquet(partial, index=False, compression="zstd")
    for path, frame in zip(paths[1:], (exported.lines, exported.dictionary), strict=True):
        lines = frame.astype(object).where(frame.notna(), "")
        written = ({str(name): value for name, value in line.items()} for line in rows_of(lines))
        files.write_csv(path, written, list(frame.columns))
    return paths


def dictionary(names: Sequence[str]) -> pd.DataFrame:
    """Name, unit and definition of the long format's columns."""
    mine, units = header(), {each.name: each.unit for each in columns_in(names)}
    packed = {each.name: each for each in FIELDS if not each.name.startswith((STEP, SERVED))}
    lines = []
    for name in names:
        stem, _, depth = name.rpartition("_")
        if name in packed and name not in mine:
            unit, text = packed[name].unit, packed[name].definition
        elif f"{stem}_{{}}" in _BY_DEPTH:
            unit, text = "", _BY_DEPTH[f"{stem}_{{}}"].format(depth)
        elif name == files.TEXT_COLUMNS[-1]:
            unit, text = "", _TEXT
        elif name.startswith(_SCORE.format("")):
            unit, text = "", f"{name.removeprefix(_SCORE.format(''))} of this answer alone"
        else:
            unit, text = units.get(name, ""), _COUNTS.get(name) or _SERVED.get(name) or mine[name]
        lines.append({"column": name, "unit": unit, "definition": text})
    return pd.DataFrame(lines)


def _lines(table: Path, row: Row, described: Sequence[str]) -> Iterator[dict[str, Any]]:
    run_id = str(row["run_id"])
    scores = scores_of(table, run_id)
    for repeat, generations in enumerate(repeats_of(table, run_id)):
        for prompt, each in generations.items():
            line = {name: row[name] for name in described}
            line |= _of_generation(each)
            for name, by_prompt in scores.items() if not repeat else ():
                if isinstance(value := by_prompt.get(prompt), int | float):
                    line[_SCORE.format(name)] = value
            yield line


def _of_generation(each: Generation) -> dict[str, Any]:
    """The columns of a prompt."""
    kept = [field.name for field in FIELDS if not field.name.startswith((STEP, SERVED))]
    line = {name: getattr(each, name) for name in kept if name not in ("run_id", "tokens")}
    line["tokens"] = len(each.tokens)
    counts = (
        len(each.steps),
        sum(step.accepted + 1 for step in each.steps),
        sum(step.nodes for step in each.steps),
        sum(step.depth for step in each.steps),
    )
    line |= dict(zip(_COUNTS, counts, strict=True))
    if came := each.delivery:
        seen = (came.seconds[0], len(came.seconds), came.tokens[0], came.counted, came.attempts)
        line |= dict(zip(_SERVED, seen, strict=True))
    for depth in range(1, max((step.depth for step in each.steps), default=0) + 1):
        walks = [s.accepted for s in each.steps if s.depth >= depth and s.accepted >= depth - 1]
        line[f"reached_{depth}"] = len(walks)
        line[f"accepted_{depth}"] = sum(accepted >= depth for accepted in walks)
    return line


def _ordered(lines: Sequence[Mapping[str, Any]], described: Sequence[str]) -> list[str]:
    """Columns: the cell's, the prompt's, its counts, then by depth, then scores."""
    names = dict.fromkeys(name for line in lines for name in line)
    depths = [int(name.removeprefix("reached_")) for name in names if name.startswith("reached_")]
    by_depth = [form.format(d) for d in range(1, max(depths, default=0) + 1) for form in _BY_DEPTH]
    scores = sorted(name for name in names if name.startswith(_SCORE.format("")))
    first = [n for n in names if n not in by_depth and n not in scores and n not in described]
    return [*described, *first, *by_depth, *scores]
