"""Finds the measured rows that tables and figures request.

If several rows fit, those that a search confirmed are preferred, then the smallest batch and the
most prompts. Cells that differ only in the seed are pooled to one row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from math import inf
from pathlib import Path

import pandas as pd

from spec_bench.report.data.counts import RecordReader
from spec_bench.report.data.rows import (
    Row,
    get_number,
    get_protocol,
    get_timing_doubt,
    read_rows,
    refuse_or_separate_models,
    select_experiments_or_all,
    to_rows,
)
from spec_bench.report.data.seeds import pool_seeds
from spec_bench.report.data.splits import split_by_settings
from spec_bench.report.papers.pairs import read_pair_configs
from spec_bench.report.tables.printed import SAMPLING, RequestedCell
from spec_bench.system import files
from spec_bench.system.groups import group_by_key
from spec_bench.vocabulary.numbers import format_count
from spec_bench.vocabulary.spec import parse_tree_spec

RESULTS = Path("results")  # the default folder
_CELL = ("task", "decoder", "tree_attention")
_SHOWN = ("pair", "task", *SAMPLING)  # columns whose values a table's cells name


class MeasuredRows:
    """Measured rows, indexed by the cells that tables request."""

    def __init__(
        self, rows: pd.DataFrame, results: Path = RESULTS, protocol: str | None = None
    ) -> None:
        self.results = results  # the folder that commands for missing cells write to
        self.protocol = protocol  # the requested protocol; None: any
        self.records = RecordReader(Path(files.RESULTS))
        self.unsplit = self  # the rows before ``split_by_run_settings``
        self.rows = pool_seeds(rows, self.records)  # as read, seeds pooled
        self.row_list: list[Row] = to_rows(self.rows)
        self._aliases = _find_pair_aliases(self.rows)
        self._by_experiments: dict[tuple[str, ...], MeasuredRows] = {}
        # Rows by pair, task, decoder and tree attention, the preferred ones first.
        self._cells = group_by_key(
            ((self._aliases.get(row["pair"], row["pair"]), *(row[name] for name in _CELL)), row)
            for row in sorted(self.row_list, key=_make_preferred_first_key)
        )

    @classmethod
    def read_below(
        cls,
        folder: Path,
        experiments: Collection[str] = (),
        protocol: str | None = None,
        mixed_models: bool = False,
    ) -> MeasuredRows:
        """Reads all results files below a results folder, or only those of ``experiments`` if there
        are any. With ``protocol`` only its rows are kept.
        """
        paths = files.list_results_files(folder)
        paths = [path for path in paths if path.parent.name in experiments] or paths
        rows = read_rows(paths, mixed_models)
        if protocol:
            rows = rows[[get_protocol(row) == protocol for row in to_rows(rows)]]
        return cls(refuse_or_separate_models(rows) if mixed_models else rows, folder, protocol)

    def list_pairs(self, tasks: Collection[str] = ()) -> list[str]:
        """Lists the pairs that have rows, or have rows of ``tasks`` if that is not empty."""
        return sorted({pair for pair, task, *_ in self._cells if not tasks or task in tasks})

    def for_experiments_or_all(self, experiments: tuple[str, ...]) -> MeasuredRows:
        """Returns the rows of each pair for these experiments (``select_experiments_or_all``)."""
        if experiments not in self._by_experiments:
            pairs = (
                self.rows.groupby(self.rows.pair.replace(self._aliases)) if self.row_list else []
            )
            selections = [select_experiments_or_all(rows, experiments) for _, rows in pairs]
            selection = pd.concat(selections).sort_index() if selections else self.rows
            is_all = len(selection) == len(self.rows)
            self._by_experiments[experiments] = (
                self if is_all else MeasuredRows(selection, self.results, self.protocol)
            )
        return self._by_experiments[experiments]

    def find_row(self, request: RequestedCell) -> Row | None:
        """Finds the row of a requested cell according to its ``pick``; None if it was not run."""
        matching_rows = self._find_rows(request)
        spec = request.spec
        if request.pick == "fastest":
            return pick_fastest_preferring_undoubted(matching_rows)
        if request.pick == "common":
            spec = self.find_most_shared_spec(request)
        elif request.pick == "same depth":
            fastest = pick_fastest_preferring_undoubted(
                self._find_rows(request._replace(decoder=request.among[0]))
            )
            spec = "" if fastest is None else str(len(parse_tree_spec(fastest["spec"]).numbers))
        spec_matches = [row for row in matching_rows if str(row["spec"]) == spec]
        spec_matches += matching_rows if request.pick == "preferred" else []
        return spec_matches[0] if spec_matches else None

    def describe_other_sampling(self, requests: Sequence[RequestedCell]) -> list[str]:
        """Describes how many rows fit the requests except for their sampling, one line per
        sampling.
        """
        requested_values = {
            name: {getattr(request, name) for request in requests} for name in SAMPLING
        }
        matching_rows = (row for e in requests for row in self._find_rows(e.any_sampling))
        counts_by_sampling = Counter(
            ", ".join(
                f"{n} {row[n]:g}" for n in SAMPLING if not requested_values[n] & {row[n], None}
            )
            for row in {id(row): row for row in matching_rows}.values()
        )
        counts = sorted(counts_by_sampling.items())
        return [f"Left out: {format_count(n, 'row')} at {text}." for text, n in counts if text]

    def list_missing(self, requests: Iterable[RequestedCell]) -> tuple[RequestedCell, ...]:
        """Lists the requested cells without numbers, including failed ones."""
        rows = ((request, self.find_row(request)) for request in requests)
        return tuple(request for request, row in rows if row is None or row["status"] == "failed")

    def split_by_run_settings(
        self, requests: Iterable[RequestedCell]
    ) -> list[tuple[str, MeasuredRows]]:
        """Splits the rows of the requested cells into parts with equal run settings; returns
        (settings in words, part), parts that a search confirmed first. Returns ("", self) alone if
        no settings differ.
        """
        matching_ids = {id(row) for request in requests for row in self._find_rows(request)}
        rows = self.rows[[id(row) in matching_ids for row in self.row_list]]
        parts = split_by_settings(refuse_or_separate_models(rows), _SHOWN) if matching_ids else []
        if len(parts) < 2:
            return [("", self)]
        parts.sort(key=lambda part: not ("stage" in part[1] and (part[1].stage == "confirm").any()))
        results = [(text, MeasuredRows(rows, self.results, self.protocol)) for text, rows in parts]
        for _, part in results:
            part.unsplit = self
        return results

    def count_trees(self, request: RequestedCell) -> int:
        """Counts the trees of the requested decoder that have numbers."""
        return len(_select_row_of_each_tree(self._find_rows(request)))

    def find_most_shared_spec(self, request: RequestedCell) -> str:
        """Finds an ablation's tree: the requested one if measured, else the one with the most rows
        of the decoders in ``among``; "" if there are no rows.
        """
        counts: Counter[str] = Counter()
        for decoder, attention in product(request.among, (True, False)):
            matching_rows = self._find_rows(
                request._replace(decoder=decoder, tree_attention=attention)
            )
            counts.update({str(row["spec"]) for row in matching_rows})
        if request.spec in counts:
            return request.spec
        return max(counts, key=lambda spec: (counts[spec], spec), default="")

    def _find_rows(self, request: RequestedCell) -> list[Row]:
        """Finds the requested decoder's rows at the requested sampling, preferred rows first."""
        rows = self._cells.get((*request[:3], request.tree_attention), [])
        requested_sampling = [
            (name, e) for name in SAMPLING if (e := getattr(request, name)) is not None
        ]
        return [row for row in rows if all(row[name] == e for name, e in requested_sampling)]


def _select_row_of_each_tree(matching_rows: Iterable[Row]) -> list[Row]:
    """Selects the first row of each tree that did not fail."""
    trees = group_by_key(
        (str(row["spec"]), row) for row in matching_rows if row["status"] != "failed"
    )
    return [rows[0] for rows in trees.values()]


def pick_fastest_preferring_undoubted(rows: Iterable[Row]) -> Row | None:
    """Picks the row of the tree with the highest speed-up; None if no row has one. Rows that a
    search confirmed come first, because its screening only selects trees to confirm; then rows
    without doubtful times.
    """
    return max(
        (row for row in _select_row_of_each_tree(rows) if get_number(row, "speedup") is not None),
        key=lambda row: (row.get("stage") == "confirm", not get_timing_doubt(row), row["speedup"]),
        default=None,
    )


def _make_preferred_first_key(row: Row) -> tuple[float, ...]:
    """Makes a sort key that puts preferred rows first, and unknown numbers last."""
    sizes = (get_number(row, name) for name in ("batch_size", "temperature", "seed", "top_k"))
    return (
        row["status"] == "failed",
        row.get("stage") != "confirm",
        *(inf if size is None else size for size in sizes),
        -(get_number(row, "top_p") or 1),
        -(get_number(row, "prompts") or 0),
    )


def _find_pair_aliases(rows: pd.DataFrame) -> dict[str, str]:
    """Maps labels in the results that were made from the models' names to the configs of these
    pairs.
    """
    configs = read_pair_configs()
    by_models = {(each.target, ",".join(each.drafts)): name for name, each in configs.items()}
    labels = rows.reindex(columns=["pair", "target", "draft"]).drop_duplicates()
    return {
        label: by_models[target, draft]
        for label, target, draft in labels.itertuples(index=False)
        if label not in configs and (target, draft) in by_models
    }
