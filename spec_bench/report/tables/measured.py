"""Measured rows, found for what the places of a table ask.

Of several rows that fit, those that a search confirmed are preferred, then the smallest batch and
the most prompts. Cells that differ in the seed alone are one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.counts import Records
from spec_bench.report.data.grouping import split
from spec_bench.report.data.rows import Row, number_in, of_recipes, read_rows, rows_of
from spec_bench.report.data.seeds import pooled
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.tables.printed import Asked
from spec_bench.system import files
from spec_bench.vocabulary.spec import parse

RESULTS = Path("results")  # where nothing else is said
_SAMPLING = ("pair", "task", "temperature", "top_k", "top_p")  # a table asks for these


class Measured:
    """Rows by what tables ask for."""

    def __init__(self, rows: pd.DataFrame, results: Path = RESULTS) -> None:
        self.results = results  # the folder that commands for missing cells write to
        self.records, self.whole = Records(Path(files.RESULTS)), self  # whole: see ``apart``
        self.rows = rows = pooled(rows, self.records)  # as read, seeds pooled
        self.listed: list[Row] = rows_of(rows)
        self._aliases = _aliases(rows)
        self._of: dict[tuple[str, ...], Measured] = {}
        # The positions in ``listed`` of what tables ask for, the preferred ones first.
        self._cells: dict[tuple[Any, ...], list[int]] = {}
        for place in sorted(range(len(rows)), key=lambda each: (*_rank(self.listed[each]), each)):
            row = self.listed[place]
            pair = self._aliases.get(str(row["pair"]), str(row["pair"]))
            sampling = (row["top_k"], row["top_p"], bool(row["tree_attention"]))
            cell = (pair, str(row["task"]), str(row["decoder"]), *sampling)
            self._cells.setdefault(cell, []).append(place)

    @classmethod
    def below(cls, folder: Path) -> Measured:
        """Returns all results files below a results folder."""
        return cls(read_rows(files.results_files(folder)), folder)

    def pairs(self, tasks: Collection[str] = ()) -> list[str]:
        """Names of the pairs that have rows, of these tasks."""
        return sorted({pair for pair, task, *_ in self._cells if not tasks or task in tasks})

    def of(self, experiments: tuple[str, ...]) -> Measured:
        """The rows of each pair for a table or figure of these experiments (``of_recipes``)."""
        if experiments not in self._of:
            pairs = self.rows.groupby(self.rows.pair.replace(self._aliases)) if self.listed else []
            kept = [of_recipes(rows, experiments) for _, rows in pairs]
            taken = pd.concat(kept).sort_index() if kept else self.rows
            whole = len(taken) == len(self.rows)
            self._of[experiments] = self if whole else Measured(taken, self.results)
        return self._of[experiments]

    def row(self, asked: Asked) -> Row | None:
        """Returns what a place asks for; None: it was not run."""
        place = self.place(asked)
        return None if place is None else self.listed[place]

    def place(self, asked: Asked) -> int | None:
        """The position in ``listed`` of what is asked for, by its pick; None: it was not run."""
        fitting = self._fitting(asked)
        if asked.pick == "fastest":
            # Where a search was confirmed, of those: its screening only picked whom to confirm.
            rows = ((each, self.listed[each]) for each in self._alive(fitting))
            speeds = {each: number_in(row, "speedup") for each, row in rows}
            return max(
                (each for each, speed in speeds.items() if speed is not None),
                key=lambda each: (self.listed[each].get("stage") == "confirm", speeds[each]),
                default=None,
            )
        spec = asked.spec
        if asked.pick == "common":
            spec = self.common_spec(asked)
        elif asked.pick == "same depth":
            other = self.row(asked._replace(decoder=asked.among[0], pick="fastest"))
            spec = "" if other is None else str(len(parse(other["spec"]).numbers))
        named = [each for each in fitting if str(self.listed[each]["spec"]) == spec]
        others = fitting if asked.pick == "preferred" else []
        return next(iter([*named, *others]), None)

    def missing(self, asked: Iterable[Asked]) -> tuple[Asked, ...]:
        """Returns the asked cells without numbers, failed ones included."""
        rows = ((each, self.row(each)) for each in asked)
        return tuple(each for each, row in rows if row is None or row["status"] == "failed")

    def apart(self, asked: Iterable[Asked]) -> list[tuple[str, Measured]]:
        """Parts whose rows agree in the settings of runs, as far as these cells are concerned, each
        with its distinctive settings, one that a search confirmed first; this alone where nothing
        differs.
        """
        fitting = sorted({place for each in asked for place in self._fitting(each)})
        parts = split(self.rows.iloc[fitting], _SAMPLING) if fitting else []
        if len(parts) < 2:
            return [("", self)]
        parts.sort(key=lambda part: not ("stage" in part[1] and (part[1].stage == "confirm").any()))
        found = [(text, Measured(rows, self.results)) for text, rows in parts]
        for _, part in found:
            part.whole = self
        return found

    def trees(self, asked: Asked) -> int:
        """Returns how many trees of the asked decoder have numbers."""
        return len(self._alive(self._fitting(asked)))

    def common_spec(self, asked: Asked) -> str:
        """An ablation's tree: the asked one if measured, else most of its decoders', if any."""
        counts: Counter[str] = Counter()
        for decoder, attention in product(asked.among, (True, False)):
            fitting = self._fitting(asked._replace(decoder=decoder, tree_attention=attention))
            counts.update({str(self.listed[each]["spec"]) for each in fitting})
        if asked.spec in counts:
            return asked.spec
        return max(counts, key=lambda spec: (counts[spec], spec), default="")

    def _fitting(self, asked: Asked) -> list[int]:
        """Returns an asked decoder's rows at the asked sampling, the preferred ones first."""
        exactly = (asked.pair, asked.task, asked.decoder, asked.top_k, asked.top_p)
        rows = self._cells.get((*exactly, asked.tree_attention), [])
        warm = asked.temperature
        return [each for each in rows if warm is None or self.listed[each]["temperature"] == warm]

    def _alive(self, fitting: Iterable[int]) -> list[int]:
        """Returns the first row with numbers of each tree."""
        trees: dict[str, int] = {}
        for each in fitting:
            if self.listed[each]["status"] != "failed":
                trees.setdefault(str(self.listed[each]["spec"]), each)
        return list(trees.values())


def _rank(row: Row) -> tuple[float, ...]:
    """Where a row stands among those that fit: the least is preferred, unknown numbers last."""
    sizes = (number_in(row, name) for name in ("batch_size", "temperature", "seed"))
    unlike = (row["status"] == "failed", row.get("stage") != "confirm")
    known = (inf if size is None else size for size in sizes)
    return (*unlike, *known, -(number_in(row, "prompts") or 0))


def _aliases(rows: pd.DataFrame) -> dict[str, str]:
    """Label in the results -> pair config, for labels made from the models' names."""
    if rows.empty:
        return {}
    named = pair_configs()
    by_models = {(each.target, ",".join(each.drafts)): each.name for each in named.values()}
    labels = rows[["pair", "target", "draft"]].drop_duplicates()
    return {
        label: by_models[target, draft]
        for label, target, draft in labels.itertuples(index=False)
        if label not in named and (target, draft) in by_models
    }
