"""Measured rows, looked up by the cells that a table wants.

Of several rows that fit, those that a search confirmed are preferred, then the smallest batch and
the most prompts. Cells that differ in the seed alone are one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from spec_bench.report.data.apart import split
from spec_bench.report.data.counts import Records
from spec_bench.report.data.recipe_rows import of_recipes
from spec_bench.report.data.rows import Row, load_rows, rows_of
from spec_bench.report.data.seeds import pooled
from spec_bench.report.papers.pairs import pair_configs
from spec_bench.report.tables.grid import Wanted
from spec_bench.system import files
from spec_bench.vocabulary.spec import parse

_ASKED = ("pair", "task", "temperature", "top_k", "top_p")  # a table asks for these


class Measured:
    """Rows by pair, task and decoder.

    Attributes:
        rows: as read, seeds pooled.
        records: the cells' records by prompt, if any.
        whole: what these rows are a part of (``apart``), else this.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        self.records, self.whole = Records(Path(files.RESULTS)), self
        self.rows = rows = pooled(rows, self.records)
        self._aliases = _aliases(rows)
        self._buckets: dict[tuple[str, str, str], list[Row]] = {}
        self._sorted: dict[tuple[object, ...], list[Row]] = {}
        self._of: dict[tuple[str, ...], Measured] = {}
        self._rows: list[Row] = rows_of(rows)
        for row in self._rows:
            self._buckets.setdefault(self._key(row), []).append(row)

    @classmethod
    def below(cls, folder: Path) -> Measured:
        """All results files below a folder."""
        return cls(load_rows(folder))

    def pairs(self, tasks: Iterable[str] | None = None) -> list[str]:
        """Names of the pairs that have rows, of these tasks."""
        wanted = None if tasks is None else set(tasks)
        return sorted({pair for pair, task, _ in self._buckets if not wanted or task in wanted})

    def of(self, experiments: tuple[str, ...]) -> Measured:
        """The rows of each pair for a table or figure of these experiments (``of_recipes``)."""
        if experiments not in self._of:
            pairs = self.rows.groupby(self.rows.pair.replace(self._aliases)) if self._rows else []
            kept = [of_recipes(rows, experiments) for _, rows in pairs]
            taken = pd.concat(kept).sort_index() if kept else self.rows
            self._of[experiments] = self if len(taken) == len(self.rows) else Measured(taken)
        return self._of[experiments]

    def find(self, wanted: Wanted) -> Row | None:
        """The row that a table asks for; None where it was not run."""
        if wanted.pick == "spec":
            return self._first(wanted, wanted.spec)
        if wanted.pick == "preferred":
            row = self._first(wanted, wanted.spec)
            return row or next(iter(self._fitting(wanted)), None)
        if wanted.pick == "fastest":
            return self._fastest(wanted)
        if wanted.pick == "common":
            spec = self.common_spec(wanted)
            return self._first(wanted, spec) if spec else None
        best = self._fastest(replace(wanted, decoder=wanted.among[0]))
        if best is None:
            return None
        return self._first(wanted, str(len(parse(best["spec"]).numbers)))

    def apart(self, wanted: Iterable[Wanted]) -> list[tuple[str, Measured]]:
        """Parts whose rows agree in the settings of runs, as far as these cells are concerned.

        Returns:
            The distinctive settings of each part, and the part, one that a search confirmed first;
            this alone where nothing differs.
        """
        asked = list(wanted)
        keys = {(each.pair, each.task, each.decoder) for each in asked}
        fitting = [
            place
            for place, row in enumerate(self._rows)
            if (key := self._key(row)) in keys
            and any(key == (w.pair, w.task, w.decoder) and _fits(row, w) for w in asked)
        ]
        parts = split(self.rows.iloc[fitting], _ASKED) if fitting else []
        if len(parts) < 2:
            return [("", self)]
        screened = [not any(map(confirmed, rows_of(rows))) for _, rows in parts]
        ordered = sorted(zip(screened, parts, strict=True), key=lambda part: part[0])
        found = [(text, Measured(rows)) for _, (text, rows) in ordered]
        for _, part in found:
            part.whole = self
        return found

    def _key(self, row: Row) -> tuple[str, str, str]:
        pair = self._aliases.get(str(row["pair"]), str(row["pair"]))
        return pair, str(row["task"]), str(row["decoder"])

    def trees(self, wanted: Wanted) -> dict[str, Row]:
        """One row for each tree of a decoder that has numbers."""
        by_spec: dict[str, Row] = {}
        for row in self._fitting(wanted):
            if row["status"] != "failed":
                by_spec.setdefault(str(row["spec"]), row)
        return by_spec

    def common_spec(self, wanted: Wanted) -> str | None:
        """An ablation's tree: the asked one if it was measured, else most of its decoders'."""
        counts: dict[str, int] = {}
        for decoder in wanted.among:
            for attention in (True, False):
                asked = replace(wanted, decoder=decoder, tree_attention=attention)
                rows = self._fitting(asked)
                for spec in {str(row["spec"]) for row in rows}:
                    counts[spec] = counts.get(spec, 0) + 1
        if wanted.spec in counts:
            return wanted.spec
        return max(counts, key=lambda spec: (counts[spec], spec)) if counts else None

    def _first(self, wanted: Wanted, spec: str) -> Row | None:
        rows = self._fitting(wanted)
        return next((row for row in rows if str(row["spec"]) == spec), None)

    def is_confirmed(self, wanted: Wanted) -> bool:
        """Whether the wanted row is of a search's second stage."""
        row = self.find(wanted)
        return row is not None and confirmed(row)

    def _fastest(self, wanted: Wanted) -> Row | None:
        rows = [r for r in self.trees(wanted).values() if not pd.isna(r["speedup"])]
        # Where a search was confirmed, its screening only picked whom to confirm.
        rows = [row for row in rows if confirmed(row)] or rows
        return max(rows, key=lambda row: row["speedup"]) if rows else None

    def _fitting(self, wanted: Wanted) -> list[Row]:
        """A decoder's rows at the asked sampling, the preferred ones first; sorted once."""
        setting = (wanted.temperature, wanted.top_k, wanted.top_p, wanted.tree_attention)
        place = (wanted.pair, wanted.task, wanted.decoder)
        key = (*place, *setting)
        if key not in self._sorted:
            rows = [row for row in self._buckets.get(place, []) if _fits(row, wanted)]
            self._sorted[key] = sorted(rows, key=lambda row: _preference(row))
        return self._sorted[key]


def _fits(row: Row, wanted: Wanted) -> bool:
    """Whether a row was sampled as asked."""
    return (
        wanted.temperature in (None, row["temperature"])
        and row["top_p"] == wanted.top_p
        and (row["top_k"] or 0) == wanted.top_k
        and row["tree_attention"] == wanted.tree_attention
    )


def _preference(row: Row) -> tuple[float, ...]:
    """The sort key of rows, the preferred one the smallest."""
    return (
        row["status"] == "failed",
        not confirmed(row),
        row["batch_size"],
        row["temperature"],
        row["seed"],
        -_count(row.get("prompts")),
    )


def confirmed(row: Row) -> bool:
    """Whether it is of a search's second stage."""
    return row.get("stage") == "confirm"


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


def _count(value: Any) -> float:
    return 0.0 if value is None or pd.isna(value) else float(value)
