"""Reads cells' records, their origins (machine, versions) and the counts by prompt behind their
numbers.

Records and origins come from ``records.parquet``, which is written together with the results file.
A cell that is not in it, or that was written later, is read from its folder below
``<results>/runs``. Nothing else in the report opens either of them.

Times of two cells are compared if one session decoded both in turn. A baseline that later sessions
timed again has several timings of a prompt; the timing of the other cell's session is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from spec_bench.metrics import CellRecords, PromptSums, metric
from spec_bench.metrics.metric import MEASURED_ANEW
from spec_bench.metrics.quality import get_non_ratio_statistic
from spec_bench.metrics.resampling import label_clocks, sum_by_clock
from spec_bench.records import cell_folder, parquet
from spec_bench.records.parquet import RETIMED_SUFFIX, PackedRecords, Scored
from spec_bench.records.types import Generation
from spec_bench.report.data.rows import (
    Row,
    compute_max_tokens_per_call,
    count_prompts_per_clock,
    get_number,
)
from spec_bench.system import files
from spec_bench.system.groups import find_shared_keys, group_by_key
from spec_bench.vocabulary.columns import list_value_column_names

if TYPE_CHECKING:
    from spec_bench.records.arrays import GenerationArrays

Found = TypeVar("Found")
# Looked up before the registry, which searches other packages again for a name that it lacks.
_SCORES = frozenset(list_value_column_names("score"))
_FEWEST_ROUNDS = 2  # one round has no spread
ENOUGH = 3  # fewest repeats with a median that ignores a stalled one
Counts = dict[str, tuple[float, ...]]
"""Prompt id -> numerator and denominator, or the numbers of which a score needs the sums."""
Table = NDArray[np.float64]
"""Counts, (cells, counts, repeats, prompts); a cell's number is computed from their sums."""
TableGetter = Callable[[str], Table | None]
Timings = dict[str, dict[str, tuple[float, ...]]]
"""Prompt id -> session -> numerator and denominator."""


def read_repeats(results: Path, run_id: str) -> list[dict[str, Generation]]:
    """Reads a cell's records by prompt id, for each complete repeat. Raises ValueError if they
    cannot be read.
    """
    packed = read_or_pack_records(results, run_id)
    repeats = (
        (lines, packed.take_generations(lines.values()))
        for lines in packed.list_complete_repeats(run_id)
    )
    return [dict(zip(names, lines, strict=True)) for names, lines in repeats]


def read_provenance(results: Path, run_id: str) -> Mapping[str, Any] | None:
    """Returns where a cell was measured, see ``measure.provenance``; None if it is not recorded."""
    return read_or_pack_records(results, run_id).origins.get(run_id)


def read_or_pack_records(results: Path, run_id: str) -> PackedRecords:
    """Reads the records that include a cell's, if it has any; a file is read again only if it has
    changed. Raises ValueError if records, or the scores of their answers, cannot be read.
    """
    path = files.get_records_file(results)
    packed = (
        parquet.read_records_cached(path) if os.path.lexists(path) else parquet.concat_records([])
    )
    run_path = files.get_run_folder(files.get_results_folder(results), run_id)
    if run_id in packed and not _is_newer(run_path / files.CELL, path):
        return packed
    generations = cell_folder.read_generations_skipping_damaged(run_path / files.GENERATIONS)
    return cell_folder.pack_cell_with_provenance(
        run_path, cell_folder.read_cell_json(run_path), generations
    )


def _is_newer(cell: Path, records: Path) -> bool:
    """Returns whether a cell was written after the records that belong to its results file."""
    try:
        return cell.stat().st_mtime_ns > records.stat().st_mtime_ns
    except OSError:  # a table that was copied without its runs
        return False


class _RecordedCell:
    """Counts, sessions and categories of a cell; later repeats only have seconds and joules."""

    def __init__(self, packed: PackedRecords, run_id: str) -> None:
        self.packed = packed
        self.repeats = packed.list_complete_repeats(run_id)
        self.prompts = [*self.repeats[0]] if self.repeats else []
        # (repeat, session) -> prompt -> line, of prompts that later sessions timed again
        self.retimed_lines = packed.group_line_indices(
            f"{run_id}{RETIMED_SUFFIX}", "repeat", "session"
        )
        self.run_id = run_id

    def list_texts_by_prompt(self, column: str) -> list[dict[str, str]]:
        """Lists, for each repeat, prompt -> text of a column."""
        texts = getattr(self.packed.generation_arrays, column)
        return [{prompt: texts[line] for prompt, line in lines.items()} for lines in self.repeats]

    def get_line_counts(self, name: str, line_by_prompt: Mapping[str, int]) -> Counts:
        """Returns a metric's counts of these lines; {} if they have no such number."""
        quantity = metric.get(name)
        if not quantity or not quantity.column.interval:
            return {}
        if quantity.sums is None:
            generations = self.packed.take_generations(line_by_prompt.values())
            number = quantity.compute(CellRecords(generations, draft_calls=0, parameter_ratio=0.0))
            sums = isinstance(number, PromptSums) and (number.numerators, number.denominators)
            return dict(zip(line_by_prompt, zip(*sums, strict=True), strict=True)) if sums else {}
        if not quantity.sums:
            return {}
        part = self.packed.generation_arrays.compute_line_terms(*quantity.sums)[
            [*line_by_prompt.values()]
        ]
        if np.isnan(part).any() or not part[:, 1].any():
            return {}
        return dict(zip(line_by_prompt, map(tuple, part.tolist()), strict=True))


class _RecordBlock(NamedTuple):
    """Cells in one file that have the same seeds, repeats and prompts."""

    arrays: GenerationArrays
    prompts: list[str]
    lines: NDArray[np.int64]  # (cells, seeds, repeats, prompts)

    def stack_metric_counts(self, name: str) -> Table | None:
        """Stacks a metric's counts, (cells, counts, seeds, repeats, prompts). None if a line has
        none, or, for times, if no session measured all cells in turn.
        """
        ratio = metric[name].sums if name not in _SCORES and name in metric else None
        lines = self.lines if _is_remeasured(name) else self.lines[:, :, :1]
        if not ratio or (
            _is_remeasured(name)
            and ((sessions := self.arrays.session[lines]) != sessions[:1]).any()
        ):
            return None
        table = self.arrays.compute_line_terms(*ratio)[lines]
        is_known = not np.isnan(table).any() and table[..., 1].any(axis=-1).all()
        return np.moveaxis(table, -1, 1) if is_known else None


def _to_counts(score: Scored) -> tuple[float, ...]:
    return (float(score), 1.0) if isinstance(score, int | float) else tuple(score)


def _is_remeasured(name: str) -> bool:
    return name in metric and metric[name].column.kind in MEASURED_ANEW


@lru_cache(maxsize=1024)  # cells of a group are read several times
def _list_repeat_counts(cell: _RecordedCell, name: str) -> list[Counts]:
    """Returns a metric's counts for each repeat that has them: all for times, else the first."""
    if cell.repeats and (score_numbers := cell.packed.get_score(cell.run_id, name)):
        return [{prompt: _to_counts(numbers) for prompt, numbers in score_numbers.items()}]
    counts_by_repeat = (
        cell.get_line_counts(name, lines)
        for lines in cell.repeats[: None if _is_remeasured(name) else 1]
    )
    return [counts for counts in counts_by_repeat if counts]


@lru_cache(maxsize=256)
def _list_repeat_timings(cell: _RecordedCell, name: str) -> list[Timings]:
    """Returns each repeat's counts by prompt and session, the cell's own session first."""
    timings = []
    for number, (counts, own_sessions) in enumerate(
        zip(_list_repeat_counts(cell, name), cell.list_texts_by_prompt("session"), strict=False)
    ):
        pairs_by_session = {prompt: {own_sessions[prompt]: pair} for prompt, pair in counts.items()}
        for (repeat, session), lines in cell.retimed_lines.items():
            new_counts = (
                cell.get_line_counts(name, lines)
                if repeat == number and _is_remeasured(name)
                else {}
            )
            for prompt, pair in new_counts.items():
                pairs_by_session.setdefault(prompt, {}).setdefault(session, pair)
        timings.append(pairs_by_session)
    return timings


class RecordReader:
    """Reader of counts by prompt, for rows without a column ``file`` from the records that belong
    to ``results``. If ``results`` is None, rows are printed numbers without records.
    """

    def __init__(self, results: Path | None) -> None:
        self.printed = results is None
        self._results = results
        self._cells: dict[tuple[str, str], _RecordedCell] = {}
        self._packed_by_path: dict[str, PackedRecords] = {}  # results file -> records read last

    def sum_counts_over_repeats(self, row: Row, name: str) -> Counts | None:
        """Returns a metric's counts by prompt, summed over repeats; None without records."""
        return sum_prompts_of_all_repeats(
            _list_repeat_counts(self._get_cell(row, str(row["run_id"])), name)
        )

    def make_table_getter(
        self,
        rows: Sequence[Row],
        prompts: Collection[str] | None = None,
        *,
        sum_seeds: bool = False,
    ) -> TableGetter:
        """Returns a function from a metric's name to the counts of all rows' cells, or to None
        without records. The counts are of every seed and repeat (``sum_seeds``: summed over a
        seed's repeats), and of the prompts, among ``prompts``, that all cells have; for seconds and
        joules, only of those that one session measured in turn for all cells.
        """
        block = self._find_block(rows)

        def get_table(name: str) -> Table | None:
            if block and (table := block.stack_metric_counts(name)) is not None:
                table = table.sum(axis=3, keepdims=True) if sum_seeds else table
                is_chosen = [prompts is None or prompt in prompts for prompt in block.prompts]
                table = table.reshape(*table.shape[:2], -1, len(is_chosen))[..., is_chosen]
                return np.ascontiguousarray(table) if any(is_chosen) else None
            counts_by_seed = (self.get_counts_by_seed_and_repeat(row, name) or {} for row in rows)
            all_counts = (
                self.get_interleaved_counts(rows, name) or ()
                if _is_remeasured(name)
                else counts_by_seed
            )
            return stack_counts(map(_sum_by_seed, all_counts) if sum_seeds else all_counts, prompts)

        def sum_clocks(name: str) -> Table | None:
            largest = max(range(len(rows)), key=lambda place: count_prompts_per_clock(rows[place]))
            shares_clock = _is_remeasured(name) and count_prompts_per_clock(rows[largest]) > 1
            # The share of host overhead identifies a clock: its prompts have the same share.
            clocks = get_table("host_overhead") if shares_clock else None
            shared = () if clocks is None else label_clocks(np.divide(*clocks[largest]).round(9))
            table = get_table(name)
            return None if table is None else sum_by_clock(table, shared)

        return sum_clocks

    def _find_block(self, rows: Sequence[Row]) -> _RecordBlock | None:
        """Returns the rows' cells as a block; None if seeds, repeats, prompts or files differ."""
        seeds = [[seed for seed, _ in _list_runs(row)] for row in rows]
        cells = [self._get_cell(row, run_id) for row in rows for _, run_id in _list_runs(row)]
        packed = cells[0].packed
        prompts = cells[0].prompts
        repeats = len(cells[0].repeats)
        is_uniform = all(
            cell.packed is packed and cell.prompts == prompts and len(cell.repeats) == repeats
            for cell in cells
        )
        if not (prompts and is_uniform and seeds == seeds[:1] * len(seeds)):
            return None
        lines = np.array([[[*lines.values()] for lines in cell.repeats] for cell in cells])
        lines = lines.reshape(len(rows), -1, repeats, len(prompts))
        return _RecordBlock(packed.generation_arrays, prompts, lines)

    def _get_cell(self, row: Row, run_id: str) -> _RecordedCell:
        place = path, _ = str(row.get("file", self._results)), run_id
        if place not in self._cells:
            if path not in self._packed_by_path or run_id not in self._packed_by_path[path]:
                self._packed_by_path[path] = read_or_pack_records(Path(path), run_id)
            self._cells[place] = _RecordedCell(self._packed_by_path[path], run_id)
        return self._cells[place]

    def get_interleaved_counts(
        self,
        rows: Sequence[Row],
        name: str,
    ) -> list[dict[str, Counts]] | None:
        """Returns the counts of seconds or joules that one session measured in turn for all rows.

        A row's counts are by seed as in ``get_counts_by_seed_and_repeat``, for the seeds that all
        rows have, without prompts that no session decoded for all rows. None if a row has no
        records.
        """
        timed_rows = (
            self._count_by_seed_and_repeat(row, name, _list_repeat_timings) for row in rows
        )
        cells = [sessions for sessions in timed_rows if sessions]
        if len(cells) < len(rows):
            return None
        seeds = find_shared_keys(cells)
        counts: list[dict[str, Counts]] = [{seed: {} for seed in seeds} for _ in cells]
        for seed in seeds:
            for prompt in cells[0][seed]:
                sessions = [cell[seed].get(prompt, {}) for cell in cells]
                if common_sessions := find_shared_keys(sessions):
                    for by_seed, by_session in zip(counts, sessions, strict=True):
                        by_seed[seed][prompt] = by_session[common_sessions[0]]
        return counts

    def _count_by_seed_and_repeat(
        self,
        row: Row,
        name: str,
        count_repeats: Callable[[_RecordedCell, str], list[Found]],
    ) -> dict[str, Found] | None:
        """Returns seed, or ``SEED/REPEAT`` -> counts of a repeat; None if some run has none."""
        counts_by_run: dict[str, Found] = {}
        for seed, run_id in _list_runs(row):
            if not (repeats := count_repeats(self._get_cell(row, run_id), name)):
                return None
            counts_by_run |= {
                f"{seed}/{n}" if n else seed: counts for n, counts in enumerate(repeats)
            }
        return counts_by_run

    def get_categories(self, row: Row) -> dict[str, str]:
        """Returns prompt id -> category, which is "" if the task has none; {} without records."""
        run_id = str(row["run_id"]).split(",")[0]
        return next(iter(self._get_cell(row, run_id).list_texts_by_prompt("category")), {})

    def get_counts_by_seed_and_repeat(self, row: Row, name: str) -> dict[str, Counts] | None:
        """Returns seed -> counts of its run, for each seed that is pooled in the row; the key of a
        later repeat is ``SEED/REPEAT``. None if some run has no records.
        """
        return self._count_by_seed_and_repeat(row, name, _list_repeat_counts)


class RoundReader(RecordReader):
    """Reader that also compares seconds of different jobs, round by round.

    In a round, every job runs once, under one seed, on one machine. Each round's difference
    includes the drift of that machine between two jobs, so that rounds differ: an interval over
    prompts and rounds covers the drift, an interval over the prompts of a single round does not.
    """

    def __init__(self, records: RecordReader) -> None:
        super().__init__(records._results)
        self._cells = records._cells

    def get_interleaved_counts(
        self,
        rows: Sequence[Row],
        name: str,
    ) -> list[dict[str, Counts]] | None:
        """Returns the counts that one session measured for all rows; if there are none, the counts
        of at least two rounds by seed, with a prompt's repeats summed, since these are of one job.
        None if there are fewer rounds.
        """
        timings = super().get_interleaved_counts(rows, name)
        if timings and any(timings[0].values()):
            return timings
        cells = [
            {
                seed: self.sum_counts_over_repeats({**row, "run_id": run_id}, name)
                for seed, run_id in _list_runs(row)
            }
            for row in rows
        ]
        seeds = [seed for seed in cells[0] if all(cell.get(seed) is not None for cell in cells)]
        if len(seeds) < _FEWEST_ROUNDS:
            return None
        return [{seed: cell[seed] or {} for seed in seeds} for cell in cells]


def _list_runs(row: Row) -> list[tuple[str, str]]:
    """Lists (seed, run id) of each run that is pooled in a row."""
    seeds = str(row.get("seeds", row.get("seed", ""))).split(",")
    return list(zip(seeds, str(row["run_id"]).split(","), strict=True))


def _sum_by_seed(runs: Mapping[str, Counts]) -> dict[str, Counts]:
    return {
        seed: sum_prompts_of_all_repeats(repeats) or {}
        for seed, repeats in _group_runs_by_seed(runs).items()
    }


def _group_runs_by_seed(runs: Mapping[str, Counts]) -> dict[str, list[Counts]]:
    return group_by_key((name.partition("/")[0], run_id) for name, run_id in runs.items())


def compute_metric_from_sums(sums: NDArray[np.float64], row: Row, name: str) -> NDArray[np.float64]:
    """Computes a metric or score from sums of counts: (counts, batch) -> (batch,)."""
    is_own_metric = name not in _SCORES and name in metric
    statistic = None if is_own_metric else get_non_ratio_statistic(name, len(sums))
    if statistic is not None:
        return statistic(sums)
    ratio = sums[0] / sums[1]
    function = make_empty_sums(row, name).mapped
    return np.vectorize(function, otypes=[float])(ratio) if function else ratio


def stack_counts(
    cells: Iterable[Mapping[str, Counts] | None], prompts: Collection[str] | None = None
) -> Table | None:
    """Stacks cells' counts by seed, for the seeds and prompts (among ``prompts``) that all cells
    have; None if they share none.
    """
    known_cells = [cell or {} for cell in cells] or [{}]
    seeds = find_shared_keys(known_cells)
    shared_prompts = find_shared_keys([cell[seed] for cell in known_cells for seed in seeds])
    common = [prompt for prompt in shared_prompts if prompts is None or prompt in prompts]
    if not common:
        return None
    counts = [[[cell[seed][name] for name in common] for seed in seeds] for cell in known_cells]
    return np.ascontiguousarray(np.moveaxis(np.array(counts, dtype=np.float64), -1, 1))


def sum_prompts_of_all_repeats(repeats: Sequence[Counts]) -> Counts | None:
    """Sums the counts of the prompts that all repeats have; None if there are no repeats."""
    if len(repeats) < 2:
        return repeats[0] if repeats else None
    return {
        prompt: tuple(map(sum, zip(*(repeat[prompt] for repeat in repeats), strict=True)))
        for prompt in find_shared_keys(repeats)
    }


def make_empty_sums(row: Row, name: str) -> PromptSums:
    """Returns a metric's ``PromptSums`` for a row without the sums: how its value follows from the
    ratio (MBSU: tau / (L r + 1)), and the ratio's limits.
    """
    share = row.get("parameter_ratio")
    ratio_of = None if share is None else float(share)
    max_tokens = compute_max_tokens_per_call(row)
    depth = None if max_tokens is None else int(max_tokens) - 1
    calls = get_number(row, "draft_calls")
    cell = CellRecords((), draft_calls=calls, parameter_ratio=ratio_of, depth=depth)
    number = metric[name].compute(cell) if name not in _SCORES and name in metric else None
    return number if isinstance(number, PromptSums) else PromptSums((), ())


def get_paired_timings(
    row: Row,
    baselines: Iterable[Row],
    records: RecordReader,
) -> dict[str, Counts] | None:
    """Returns seed -> prompt -> tokens and seconds of a row, then those of the first baseline that
    was timed in turn with it; None if there is no such baseline.
    """
    for base in baselines:
        cell_counts, baseline_counts = records.get_interleaved_counts(
            [row, base], "token_rate"
        ) or ({}, {})
        timings = {
            seed: {
                prompt: (*counts, *baseline_counts[seed][prompt])
                for prompt, counts in counts_by_prompt.items()
            }
            for seed, counts_by_prompt in cell_counts.items()
        }
        if any(timings.values()):
            return _merge_repeats_by_median(timings)
    return None


def _merge_repeats_by_median(runs: dict[str, Counts]) -> dict[str, Counts]:
    """Merges the repeats of each seed if all seeds have at least ``ENOUGH``: a prompt's seconds
    become the median ratio to plain decoding's seconds, times the median of these.

    The two timings of a repeat were taken in turn, so that the machine's load changes their ratio
    least.
    """
    by_seed = _group_runs_by_seed(runs)
    if min(map(len, by_seed.values())) < ENOUGH:
        return runs
    medians: dict[str, Counts] = {}
    for seed, repeats in by_seed.items():
        medians[seed] = {}
        for prompt in find_shared_keys(repeats):
            tokens, seconds, plain_tokens, plain_s = np.array(
                [repeat[prompt] for repeat in repeats]
            ).T
            typical_s = float(np.median(plain_s))
            cell_s = typical_s * float(np.median(seconds / plain_s))
            medians[seed][prompt] = tokens[0], cell_s, plain_tokens[0], typical_s
    return medians
