"""Measured rows, found for what the places of a table ask.

Of several rows that fit, those that a search confirmed are preferred, then the smallest batch and
the most prompts. Cells that differ in the seed alone are one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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
        self._joined = pd.DataFrame() if rows.empty else _preferred(rows, self._aliases)

    @classmethod
    def below(cls, folder: Path) -> Measured:
        """All results files below a folder."""
        return cls(load_rows(folder))

    def pairs(self, tasks: Iterable[str] | None = None) -> list[str]:
        """Names of the pairs that have rows, of these tasks."""
        rows, wanted = self._joined, {*([] if tasks is None else tasks)}
        if rows.empty:
            return []
        return sorted({*(rows.pair[rows.task.isin(wanted)] if wanted else rows.pair)})

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
        asked = asked[ASKED].reset_index(drop=True)
        for place, each in asked[asked.pick.isin(["common", "same depth"])].iterrows():
            asked.loc[place, "spec"] = self._tree_of(each)
        fitting = self._fitting(asked)
        if fitting.empty:
            return [NOWHERE] * len(asked)
        named = fitting[(fitting.asked_spec == fitting.spec) & (fitting.pick != "fastest")]
        others = fitting[fitting.pick == "preferred"]
        fastest = _fastest(fitting[fitting.pick == "fastest"])
        found = pd.concat([named, others, fastest]).drop_duplicates("place").set_index("place").row
        return [int(row) for row in found.reindex(asked.index, fill_value=NOWHERE)]

    def row(self, asked: pd.Series) -> Row | None:
        """What one place asks for."""
        (place,) = self.find(asked.to_frame().T)
        return None if place == NOWHERE else self.listed[place]

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
        fitting = sorted({*self._fitting(asked[ASKED]).row})
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
        asked = asked[ASKED].reset_index(drop=True)
        counts = _alive(self._fitting(asked)).groupby("place").size()
        return [int(count) for count in counts.reindex(asked.index, fill_value=0)]

    def common_spec(self, asked: pd.Series) -> str:
        """An ablation's tree: the asked one if it was measured, else most of its decoders'; ""
        where there is none.
        """
        every = pd.DataFrame([asked] * (2 * len(asked.among)))
        every["decoder"] = [decoder for decoder in asked.among for _ in range(2)]
        every["tree_attention"] = [True, False] * len(asked.among)
        counts = self._fitting(every).drop_duplicates(["place", "spec"]).spec.value_counts()
        if asked.spec in counts:
            return str(asked.spec)
        return max(counts.index, key=lambda spec: (counts[spec], spec), default="")

    def _tree_of(self, asked: pd.Series) -> str:
        """The tree that a pick comes to, of one that is not the asked decoder's own."""
        if asked.pick == "common":
            return self.common_spec(asked)
        best = self.row(pd.Series({**asked, "decoder": asked.among[0], "pick": "fastest"}))
        return "" if best is None else str(len(parse(best["spec"]).numbers))

    def _fitting(self, asked: pd.DataFrame) -> pd.DataFrame:
        """Each asked decoder's rows at the asked sampling, the preferred ones first."""
        if self._joined.empty or asked.empty:
            return pd.DataFrame(columns=[*_JOINED, "place", "pick", "asked_spec"])
        left = asked.reset_index(drop=True).rename_axis("place").reset_index()
        left = left.rename(columns={"spec": "asked_spec", "temperature": "asked_temperature"})
        left = left.astype({"top_k": float, "top_p": float, "tree_attention": bool})
        both = left.merge(self._joined, on=_EXACTLY)
        warm = both.asked_temperature.astype(float)
        return both[warm.isna() | (warm == both.temperature)].sort_values("rank", kind="stable")


_JOINED = [*_EXACTLY, "spec", "temperature", "failed", "confirmed", "speedup", "row", "rank"]


def _preferred(rows: pd.DataFrame, aliases: dict[str, str]) -> pd.DataFrame:
    """What tables ask of the rows, the preferred ones first."""
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
    return table.sort_values(by).assign(rank=range(len(table)))[_JOINED]


def _alive(fitting: pd.DataFrame) -> pd.DataFrame:
    """One row with numbers for each tree of what was asked."""
    return fitting[~fitting.failed.astype(bool)].drop_duplicates(["place", "spec"])


def _fastest(fitting: pd.DataFrame) -> pd.DataFrame:
    """The fastest tree of each place; where a search was confirmed, of those confirmed, since its
    screening only picked whom to confirm.
    """
    trees = _alive(fitting)
    trees = trees[trees.speedup.notna()]
    trees = trees[trees.confirmed == trees.groupby("place").confirmed.transform("max")]
    return trees.sort_values("speedup", ascending=False, kind="stable")


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
