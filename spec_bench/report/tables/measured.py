"""Measured rows, found for what the places of a table ask.

Of several rows that fit, those that a search confirmed are preferred, then the smallest batch and
the most prompts. Cells that differ in the seed alone are one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.apart import split
from spec_bench.report.data.counts import Records
from spec_bench.report.data.recipe_rows import of_recipes
from spec_bench.report.data.rows import Row, load_rows, rows_of
from spec_bench.report.data.seeds import pooled
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.tables.printed import ASKED
from spec_bench.system import files
from spec_bench.vocabulary.spec import parse

_SAMPLING = ("pair", "task", "temperature", "top_k", "top_p")  # a table asks for these
_EXACTLY = ["pair", "task", "decoder", "top_k", "top_p", "tree_attention"]
NOWHERE = -1  # in place of a row's position


class Measured:
    """Rows by what tables ask for."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.records, self.whole = Records(Path(files.RESULTS)), self  # whole: see ``apart``
        self.rows = rows = pooled(rows, self.records)  # as read, seeds pooled
        self.listed: list[Row] = rows_of(rows)
        self._aliases = _aliases(rows)
        self._of: dict[tuple[str, ...], Measured] = {}
        self._cells = _preferred(rows, self._aliases)

    @classmethod
    def below(cls, folder: Path) -> Measured:
        """All results files below a folder."""
        return cls(load_rows(folder))

    def pairs(self, tasks: Iterable[str] = ()) -> list[str]:
        """Names of the pairs that have rows, of these tasks."""
        wanted = {*tasks}
        return sorted({pair for pair, task, *_ in self._cells if not wanted or task in wanted})

    def of(self, experiments: tuple[str, ...]) -> Measured:
        """The rows of each pair for a table or figure of these experiments (``of_recipes``)."""
        if experiments not in self._of:
            pairs = self.rows.groupby(self.rows.pair.replace(self._aliases)) if self.listed else []
            kept = [of_recipes(rows, experiments) for _, rows in pairs]
            taken = pd.concat(kept).sort_index() if kept else self.rows
            self._of[experiments] = self if len(taken) == len(self.rows) else Measured(taken)
        return self._of[experiments]

    def find(self, asked: pd.DataFrame) -> list[int]:
        """The position in ``rows`` of what each asks for, by its pick; NOWHERE: it was not run."""
        return [self._place(each) for each in asked[ASKED].itertuples(index=False)]

    def _place(self, asked: Any) -> int:
        fitting = self._fitting(asked)
        if asked.pick == "fastest":
            # Where a search was confirmed, of those: its screening only picked whom to confirm.
            trees = [each for each in _alive(fitting) if not isnan(each.speedup)]
            best = max(trees, key=lambda each: (each.confirmed, each.speedup), default=None)
            return NOWHERE if best is None else best.row
        spec = asked.spec
        if asked.pick == "common":
            spec = self.common_spec(asked)
        elif asked.pick == "same depth":
            other = self._place(asked._replace(decoder=asked.among[0], pick="fastest"))
            spec = "" if other == NOWHERE else str(len(parse(self.listed[other]["spec"]).numbers))
        named = [each.row for each in fitting if each.spec == spec]
        others = [each.row for each in fitting] if asked.pick == "preferred" else []
        return next(iter([*named, *others]), NOWHERE)

    def missing(self, asked: pd.DataFrame) -> pd.DataFrame:
        """The asked cells without numbers, failed ones included."""
        rows = [None if place == NOWHERE else self.listed[place] for place in self.find(asked)]
        without = [row is None or row["status"] == "failed" for row in rows]
        return asked[pd.Series(without, asked.index, dtype=bool)]

    def apart(self, asked: pd.DataFrame) -> list[tuple[str, Measured]]:
        """Parts whose rows agree in the settings of runs, as far as these cells are concerned.

        Returns:
            The distinctive settings of each part, and the part, one that a search confirmed first;
            this alone where nothing differs.
        """
        cells = asked[ASKED].itertuples(index=False)
        fitting = sorted({each.row for cell in cells for each in self._fitting(cell)})
        parts = split(self.rows.iloc[fitting], _SAMPLING) if fitting else []
        if len(parts) < 2:
            return [("", self)]
        parts.sort(key=lambda part: not ("stage" in part[1] and (part[1].stage == "confirm").any()))
        found = [(text, Measured(rows)) for text, rows in parts]
        for _, part in found:
            part.whole = self
        return found

    def trees(self, asked: pd.DataFrame) -> list[int]:
        """How many trees each of the asked decoders has numbers of."""
        cells = asked[ASKED].itertuples(index=False)
        return [len(_alive(self._fitting(each))) for each in cells]

    def common_spec(self, asked: Any) -> str:
        """An ablation's tree: the asked one if it was measured, else most of its decoders'; ""
        where there is none.
        """
        cells = [
            self._fitting(asked._replace(decoder=decoder, tree_attention=attention))
            for decoder, attention in product(asked.among, (True, False))
        ]
        counts = Counter(spec for fitting in cells for spec in {each.spec for each in fitting})
        if asked.spec in counts:
            return str(asked.spec)
        return max(counts, key=lambda spec: (counts[spec], spec), default="")

    def _fitting(self, asked: Any) -> list[Any]:
        """An asked decoder's rows at the asked sampling, the preferred ones first."""
        rows = self._cells.get(tuple(getattr(asked, name) for name in _EXACTLY), [])
        warm = asked.temperature
        return [each for each in rows if isnan(warm) or each.temperature == warm]


def _preferred(rows: pd.DataFrame, aliases: dict[str, str]) -> dict[tuple[Any, ...], list[Any]]:
    """What tables ask of the rows by ``_EXACTLY``, the preferred ones first."""
    if rows.empty:
        return {}
    stage = rows.stage if "stage" in rows else pd.Series("", rows.index)
    prompts = rows.prompts if "prompts" in rows else pd.Series(0.0, rows.index)
    table = pd.DataFrame(
        {
            "pair": rows.pair.astype(str).replace(aliases),
            "task": rows.task.astype(str),
            "decoder": rows.decoder.astype(str),
            "top_k": rows.top_k.astype(float),
            "top_p": rows.top_p.astype(float),
            "tree_attention": rows.tree_attention.astype(bool),
            "spec": rows.spec.astype(str),
            "temperature": rows.temperature,
            "failed": rows.status == "failed",
            "confirmed": stage == "confirm",
            "speedup": rows.speedup if "speedup" in rows else float("nan"),
            "row": range(len(rows)),
            "batch_size": rows.batch_size,
            "seed": rows.seed,
            "fewer": -prompts.fillna(0),
            "searched": stage != "confirm",
        }
    )
    by = ["failed", "searched", "batch_size", "temperature", "seed", "fewer", "row"]
    cells: dict[tuple[Any, ...], list[Any]] = {}
    for each in table.sort_values(by).itertuples(index=False):
        cells.setdefault(tuple(getattr(each, name) for name in _EXACTLY), []).append(each)
    return cells


def _alive(fitting: Iterable[Any]) -> list[Any]:
    """The first row with numbers of each tree."""
    trees: dict[str, Any] = {}
    for each in fitting:
        if not each.failed:
            trees.setdefault(each.spec, each)
    return list(trees.values())


def _aliases(rows: pd.DataFrame) -> dict[str, str]:
    """Label in the results -> pair config, for labels made from the models' names."""
    if rows.empty:
        return {}
    by_models = {
        (config.target, ",".join(config.drafts)): config.name for config in pair_configs().values()
    }
    named = pair_configs()
    labels = rows[["pair", "target", "draft"]].drop_duplicates()
    return {
        label: by_models[target, draft]
        for label, target, draft in labels.itertuples(index=False)
        if label not in named and (target, draft) in by_models
    }
