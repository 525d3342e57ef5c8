"""Reads measured rows, one per cell with typed columns, and groups comparable cells; ``splits``
splits rows by the settings of their runs.

Reads ``<results>/<name>/results.csv`` and ``<results>/<group>/<name>/results.csv``, without times
and energy of earlier engines. ``report.data.counts`` reads the records behind a row.
"""

import functools
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spec_bench.jobs.store.experiment import Experiment
from spec_bench.metrics.interval import FEWEST, FEWEST_ROUNDS, Interval
from spec_bench.records.sampling import EMPTY_AT_DEFAULT
from spec_bench.records.sessions import (
    OTHER_SESSION_MARK,
    OTHER_SESSION_NOTE,
    make_session_note_per_row,
)
from spec_bench.records.types import (
    ENGINE,
    explain_missing_data,
    explain_timing_doubt,
    parse_reasons,
)
from spec_bench.report.papers.items import Figure
from spec_bench.system import files
from spec_bench.system.errors import UsageError
from spec_bench.system.groups import group_by_key
from spec_bench.system.printable import redact_escape_and_cut
from spec_bench.vocabulary import columns, names
from spec_bench.vocabulary.columns import (
    CLEAN,
    ENDS,
    Column,
    get_columns,
    select_must_match_columns,
    select_score_names,
)
from spec_bench.vocabulary.decoders import DRAFT_MODELS, get_decoder_parts
from spec_bench.vocabulary.names import MEANINGS
from spec_bench.vocabulary.numbers import format_count
from spec_bench.vocabulary.spec import parse_tree_spec

Row = Mapping[str, Any]
"""Column -> value of a results file's row; about 100 times faster to read than a Series."""

MIXED = "mixed_models"  # a column: whether models under one name are renamed, or refused
OTHER_SESSION = "other_session"  # a column: the note on a row of another session, or ""
BESIDE = "plain_beside"  # a column: the rate of plain decoding in the row's own session
SERVER = "server"  # the device of rows that a server decoded
NOT_STATED = " not stated"
_FEW_UNSTATED = 2
TIMED = frozenset(columns.list_value_column_names("time", "energy"))
_NEEDED_COLUMNS = ("pair", "task", "decoder", "spec", "status", "run_id")
# With the columns that identify a run, these identify a cell.
_OF_A_CELL = ("draft", "tree_attention", "simulated_acceptance", "decoder", "spec")


def read_rows(paths: Iterable[Path], separate_models_later: bool = False) -> pd.DataFrame:
    """Reads results files into one row per cell; returns an empty frame if there are no rows.

    Further columns are ``experiment``, the name of the file's folder, and ``file``, its path. The
    column ``tree_attention`` is a bool; missing numbers are NaN, and missing texts are null.
    """
    nonempty_paths = (
        path
        for path in paths
        if path.stat().st_size or not _read_stored_and_screened_rows(path).empty
    )
    frames = [
        read_results_file(path, separate_models_later).assign(
            experiment=path.parent.name, file=str(path)
        )
        for path in nonempty_paths
    ]
    return defragment_rows(pd.concat(frames, ignore_index=True)) if frames else pd.DataFrame()


def read_results_file(path: Path, separate_models_later: bool = False) -> pd.DataFrame:
    """Reads the rows of a results file, with cells that have ended since it was written and cells
    that a search screened for it. With ``separate_models_later``, models under one name will be
    renamed instead of refused. Raises UsageError if there is no such file, or if it has no rows.
    """
    rows = _read_stored_and_screened_rows(path)
    if rows.empty:
        if not path.is_file():
            raise files.make_error_with_stop_hint(
                f"no results file {str(path)!r}", files.get_results_folder(path)
            )
        raise UsageError(f"{str(path)!r} has no rows")
    rows = defragment_rows(
        clear_past_times_and_energy(rows.assign(tree_attention=mask_tree_attention(rows)))
    )
    # Sessions are compared within a seed: pooled seeds have no single rate.
    session_marks = np.full(len(rows), "", object)
    if {"token_rate", "speedup"} <= {*rows.columns}:
        keys = [
            *(column.name for column in select_must_match_columns(rows)),
            *(["seed"] if "seed" in rows else []),
        ]
        cells = to_rows(rows[["decoder", "token_rate", "speedup"]])
        for part in rows.groupby(keys, sort=False, dropna=False).indices.values():
            session_marks[part] = make_session_note_per_row([cells[n] for n in part])
        rows[BESIDE] = rows.token_rate / rows.speedup
    return rows.assign(**{OTHER_SESSION: session_marks, MIXED: separate_models_later})


def refuse_or_separate_models(rows: pd.DataFrame) -> pd.DataFrame:
    """Refuses rows in which different models have one name. Every pair must have one target, every
    draft of a pair must be one model, and every decoder with a draft model must have one draft in a
    pair. Models are identified by the digest of their files, or by name. Raises UsageError, or, for
    ``MIXED`` rows, returns rows with a digest added to the names of pairs or drafts.
    """
    for keys, model in (
        (["pair"], "target"),
        (["pair", "draft"], "draft"),
        (["pair", "decoder"], "draft"),
    ):
        if model not in rows:
            continue
        digests = rows.get(f"{model}_digest", pd.Series(dtype=object)).reindex(rows.index)
        digests = digests.replace("", np.nan).astype(object).str[:8]
        # A row without a digest gets the digest of the first row with the same name.
        identities = digests.fillna(digests.groupby(rows[model]).transform("first")).fillna(
            rows[model]
        )
        if "decoder" in keys:
            identities = identities.where(mask_draft_models(rows))
        for key, part in identities.replace("", np.nan).groupby([rows[name] for name in keys]):
            if part.nunique() < 2:
                continue
            spellings = rows[model][part.index].unique()
            if not will_separate_models(rows):
                spelled = part.unique() if len(spellings) == 1 else spellings
                raise UsageError(
                    f"{' '.join(map(str, key))} has several models under one name: {model} "
                    f"{', '.join(spelled)}; --mixed-models names them apart"
                )
            if "decoder" not in keys:
                rows = rows.copy()
                rows.loc[part.index, keys[-1]] = part.radd(rows[keys[-1]] + " ")
    return rows


def will_separate_models(rows: pd.DataFrame) -> bool:
    """Returns whether different models under one name are renamed in these rows."""
    return MIXED in rows and bool(rows[MIXED].any())


def mask_draft_models(rows: pd.DataFrame) -> pd.Series:
    """Marks cells with a draft model, not only heads or lookup; unknown drafters count, too."""
    return rows.decoder.map(lambda name: get_decoder_parts(str(name)).drafter in DRAFT_MODELS)


def _read_stored_and_screened_rows(path: Path) -> pd.DataFrame:
    """Reads an experiment's rows as they are stored, screened rows last, possibly none."""
    experiment = Experiment(files.get_results_folder(path), path.resolve().parent.name)
    with experiment.tables_or_completed_copies() as (screening, table):
        tables = (file for file in (table, screening) if file.is_file() and file.stat().st_size)
        parts = [_read_typed_rows(file) for file in tables]
    nonempty_parts = [part for part in parts if not part.empty] or parts[:1]
    return pd.concat(nonempty_parts, ignore_index=True) if nonempty_parts else pd.DataFrame()


def defragment_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Stores columns of one type together, texts too, so that rows are selected much faster."""
    return rows.astype(dict.fromkeys(rows.select_dtypes("str"), object)).copy()


def _read_typed_rows(path: Path) -> pd.DataFrame:
    """Reads a file's rows with typed columns. Raises UsageError, with the line, for other types."""
    # Raises an error for incomplete lines, which pandas would fill up.
    deque(files.iter_csv_lines(path, _NEEDED_COLUMNS), maxlen=0)
    known_columns = get_columns(pd.read_csv(path, nrows=0))
    texts = dict.fromkeys((column.name for column in known_columns if column.holds == "text"), str)
    rows = pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])
    for name in rows.select_dtypes("str"):
        texts = rows[name].map(files.unescape_cell, na_action="ignore")
        rows[name] = texts.map(redact_escape_and_cut, na_action="ignore")
    of_numbers = [column for column in known_columns if column.holds == "number"]
    for name in (name for number in of_numbers for name in number.names if name in rows):
        if not pd.api.types.is_numeric_dtype(rows[name]):
            for line, header, cells in files.iter_csv_lines(path):
                text = cells[header.index(name)]
                if text and pd.isna(pd.to_numeric(text, errors="coerce")):
                    raise UsageError(f"{str(path)!r}, line {line}: {name} is {text!r}")
    return rows


def clear_times_and_energy(rows: pd.DataFrame, mask: pd.Series) -> pd.DataFrame:
    """Empties times and energy of the marked rows; returns the same frame if none is marked."""
    time_columns = [
        column for column in get_columns(rows.columns) if column.kind in ("time", "energy")
    ]
    names = [
        n for column in time_columns for n in column.names if n in rows and n != "energy_method"
    ]
    return rows.assign(**rows[names].mask(mask)) if names and mask.any() else rows


def mask_past_engine(rows: pd.DataFrame) -> pd.Series:
    """Marks rows of another engine version that did not fail; all without a column ``engine``."""
    engine = rows.get("engine", pd.Series(0, rows.index)).fillna(0)
    return (engine != ENGINE) & (rows.status != "failed")


def clear_past_times_and_energy(rows: pd.DataFrame) -> pd.DataFrame:
    """Empties times and energy that an earlier engine measured, and adds the reason.

    Counts (block efficiency, acceptance) and scores of the answers hold for any engine that decodes
    the same distribution; times do not. Rows without a column ``engine`` are older than the column.
    """
    past = mask_past_engine(rows)
    cleared_rows = clear_times_and_energy(rows, past)
    if cleared_rows is rows:
        return rows
    note = f"speedup: timed by an earlier engine, now {ENGINE}"
    notes = cleared_rows.get("reason", pd.Series("", rows.index)).fillna("")
    cleared_rows["reason"] = notes.mask(
        past, notes.map(lambda text: f"{text}; {note}" if text else note)
    )
    return cleared_rows


def select_or_read_figure_rows(item: Figure, rows: pd.DataFrame, results: Path) -> pd.DataFrame:
    """Selects the rows that a figure may show; reads ``item.rows`` if the figure needs no model.
    Raises UsageError, with the command that makes that file, if it is missing.
    """
    if item.rows:
        globs = [results.glob(f"{prefix}{item.rows}") for prefix in ("", "*/", "*/*/")]
        matches = [path for paths in globs for path in sorted(paths)]
        if not matches:
            raise UsageError(f"no {item.rows} below {str(results)!r}; it is made by {item.command}")
        return pd.read_csv(matches[0])
    return select_experiments_or_all(rows, item.experiments)


def select_experiments_or_all(rows: pd.DataFrame, experiments: Collection[str]) -> pd.DataFrame:
    """Selects the rows of these experiments, for a paper's table, figure or claim; all rows if the
    experiments have none.

    Cells of one job share prompts, limits and baseline, and were decoded in turn. This need not be
    true of a cell of another paper's job, even for the same decoder and temperature.
    """
    if "experiment" not in rows:
        return rows
    selection = rows[rows.experiment.isin(list(experiments))]
    return rows if selection.empty else selection


def drop_duplicates_with_fewer_prompts(rows: pd.DataFrame) -> pd.DataFrame:
    """Drops repeated cells; keeps each cell's row with the most prompts."""
    if "prompts" in rows:
        rows = rows.sort_values("prompts", ascending=False, kind="stable")
    return rows.drop_duplicates(list_cell_key_columns(rows)).sort_index(kind="stable")


def mask_tree_attention(rows: pd.DataFrame) -> pd.Series:
    """Marks cells that verified all paths in one row of the batch; all without such a column."""
    if "tree_attention" not in rows:
        return pd.Series(True, rows.index, dtype=bool)
    return rows.tree_attention.map(lambda value: str(value).lower() != "false").astype(bool)


@dataclass(frozen=True)
class Group:
    """Cells that differ only in the decoder, not in the settings of their runs."""

    title: str  # the task, and the settings that differ between groups
    rows: pd.DataFrame  # the cells in the file's order, the baseline first

    @functools.cached_property
    def rows_by_decoder(self) -> dict[str, list[Row]]:
        """Decoder -> its cells in the file's order; cached, because claims often use it."""
        return group_by_key((str(row["decoder"]), row) for row in to_rows(self.rows))

    @functools.cached_property
    def baseline(self) -> Row | None:
        """The first cell of plain decoding that did not fail; None if there is none."""
        cells = self.rows_by_decoder.get("ar", [])
        return next((row for row in cells if row["status"] != "failed"), None)


def get_number(row: Row | pd.Series, column: str) -> float | None:
    """Returns a row's number in a column; None if it has none."""
    value = row.get(column)
    return None if value is None or pd.isna(value) else float(value)


def get_number_and_ends(
    row: Row | pd.Series, column: str
) -> tuple[float | None, float | None, float | None]:
    """Returns a column's value and both ends of its interval; None for each that is missing."""
    low, high = (get_number(row, f"{column}{end}") for end in ENDS)
    return get_number(row, column), low, high


def compute_error_bars(values_and_ends: Iterable[Sequence[Any]]) -> NDArray[np.float64]:
    """Computes lengths of error bars, (2, rows), from (value, low, high); NaN, which is not drawn,
    if an end is unknown.
    """
    value, low, high = np.array([*values_and_ends], float).T
    return np.maximum([value - low, high - value], 0.0)


def get_interval(row: Row | pd.Series, column: str) -> Interval | None:
    """Returns a row's number with its interval; None if it has no number."""
    value, low, high = get_number_and_ends(row, column)
    return None if value is None else Interval(value, low, high)


def compute_max_tokens_per_call(row: Row) -> float | None:
    """Returns the most tokens that a target call can give; None if the depth is unknown."""
    spec = parse_tree_spec(str(row["spec"]))
    unknown = spec.form == "name" or (spec.depth == 0 and row["decoder"] != "ar")
    return None if unknown else spec.depth + 1.0


def count_prompts_per_clock(row: Row) -> int:
    """Returns how many prompts may share a clock: the batch size, but 1 with a server."""
    return 1 if row.get("device") == "server" else int(get_number(row, "batch_size") or 1)


def describe_intervals(rows: Sequence[Row], detail: str = "") -> str:
    """Describes in sentences what the intervals of these rows are over, or that there are none;
    ``detail`` ends the first sentence.
    """
    low_ends = (get_number(row, n) for row in rows for n in row if str(n).endswith(ENDS[0]))
    if all(low_end is None for low_end in low_ends):
        return "No number here has an interval."
    text = f"In brackets: 95% intervals over prompts{detail}."
    if any(count_prompts_per_clock(row) > 1 for row in rows):
        text += " Prompts of a batch share a clock: intervals of its times are over clocks, and "
        text += f"fewer than {FEWEST} have one from {FEWEST_ROUNDS} rounds on."
    return text


def format_prompt_count(rows: pd.DataFrame) -> str:
    """Formats the number of prompts of cells, ``30`` or ``8 to 30 prompts``; "" if unknown."""
    counts = rows.get("prompts", pd.Series(dtype=float)).dropna()
    if counts.empty:
        return ""
    smallest = int(counts.min())
    largest = int(counts.max())
    return f"{smallest} to " * (smallest < largest) + format_count(largest, "prompt")


def format_harness_note(rows: pd.DataFrame) -> str:
    """Formats the note on rows that other harnesses measured; "" if there are no such rows."""
    harnesses = rows.get("harness", pd.Series(dtype=str)).dropna()
    names = ", ".join(dict.fromkeys(str(name) for name in harnesses if name != ""))
    return f"Measured by another harness, read from its answer files: {names}." if names else ""


def get_empty_reason(row: Row | pd.Series, column: str) -> str:
    """Returns the row's reason for an empty column (``column: why; column: why``), or ""."""
    reasons = parse_reasons(str(row.get("reason", "")))
    return next((entry.text for entry in reasons if entry.column == column), "")


def get_timing_doubt(row: Row | pd.Series, column: str = "speedup") -> str:
    """Returns why a row's time is unreliable, see ``explain_timing_doubt``; "" if it is not, or if
    the column is not a time.
    """
    return explain_timing_doubt(str(row.get("reason"))) if column in TIMED else ""


def select_undoubted_rows(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Selects the rows with a reliable number in a column, see ``get_timing_doubt``."""
    return rows.loc[[not get_timing_doubt(row, column) for row in to_rows(rows)]]


def get_remarks(row: Row | pd.Series) -> list[str]:
    """Lists remarks on a row: paths as rows, another session, unreliable times, missing data."""
    paths = "" if row.get("tree_attention", True) else "paths as rows"
    session_mark = OTHER_SESSION_MARK if row.get(OTHER_SESSION) == OTHER_SESSION_NOTE else ""
    loss = explain_missing_data(str(row.get("reason")))
    return [remark for remark in (paths, session_mark, get_timing_doubt(row), loss) if remark]


def list_mark_meanings(rows: pd.DataFrame) -> list[str]:
    """Lists the footnotes of a table: the meanings of its rows' marks."""
    marks = {*map(str, rows.lossless)}
    session_marks = dict.fromkeys(rows[OTHER_SESSION]) if OTHER_SESSION in rows else ()
    return [
        *(text for mark, text in MEANINGS.items() if mark in marks),
        *filter(None, session_marks),
    ]


def get_failure_reason(row: Row | pd.Series) -> str:
    """Returns the reason for a cell's failure, without the traceback's location."""
    return parse_reasons(str(row["reason"]))[0].text


def find_score_column(rows: pd.DataFrame) -> str | None:
    """Returns the first quality score that some row has; None if there is none."""
    return find_filled_column(rows, select_score_names(rows.columns))


def find_filled_column(rows: pd.DataFrame, names: Iterable[str]) -> str | None:
    """Returns the first of these columns with a value in some row; None if there is none."""
    return next((name for name in names if name in rows and rows[name].notna().any()), None)


def resolve_metric_columns(group: Group, metric: str) -> list[str]:
    """Returns a metric's columns: for ``score`` the task's score, for ``scores`` also perplexity,
    else the metric's own column.
    """
    if metric not in ("score", "scores"):
        return [metric]
    names = [find_score_column(group.rows)]
    names += [find_filled_column(group.rows, ["perplexity"])] if metric == "scores" else []
    return [name for name in names if name]


def to_rows(frame: pd.DataFrame) -> list[Row]:
    """Converts a frame to rows."""
    names = list(frame.columns)  # pandas' ``to_dict`` goes by column, slow for small frames
    return [dict(zip(names, row, strict=True)) for row in frame.to_numpy(object).tolist()]


def list_cell_key_columns(rows: pd.DataFrame) -> list[str]:
    """Lists the columns that identify a cell: rows that agree in them are its repeats, or seeds."""
    return [
        *(column.name for column in select_must_match_columns(rows)),
        *(key for key in _OF_A_CELL if key in rows),
    ]


def group_rows(rows: pd.DataFrame) -> list[Group]:
    """Groups rows of comparable cells; a failed cell is grouped with its task's other cells.

    Cells of a group agree in every column of ``select_must_match_columns``. A file without such a
    column counts as having one unknown value in it.
    """
    setting_columns = select_must_match_columns(rows)
    heading_columns = _mask_heading_columns(rows, setting_columns)
    groups = []
    for _, part in rows.groupby(
        [setting.name for setting in setting_columns], sort=False, dropna=False
    ):
        first_row = part.iloc[0]
        heading_settings = [
            setting for setting in heading_columns if heading_columns[setting].at[part.index[0]]
        ]
        title = [
            str(first_row.task),
            *(format_setting(setting, first_row[setting.name]) for setting in heading_settings),
        ]
        groups.append(Group(join_settings_counting_unstated(filter(None, title)), part))
    return groups


def _mask_heading_columns(
    rows: pd.DataFrame, setting_columns: Sequence[Column]
) -> dict[Column, pd.Series]:
    """Masks, for each column, the rows for which headings must name it: those of a task, or pair,
    with several values. Leaves out columns without such rows.
    """
    columns = {}
    for setting in setting_columns:
        scope = rows.pair if setting.apart == "pair" and "pair" in rows else rows.task
        values = rows[setting.name]
        # A server's rows lack some settings; their device distinguishes them.
        if setting.name != "device" and "device" in rows:
            values = values[(rows.device != SERVER) | values.notna()]
        if setting.name == "task" or values.nunique(dropna=False) < 2:
            continue
        if setting.apart == "run" or setting.name == "pair":
            columns[setting] = pd.Series(True, rows.index)
            continue
        codes = pd.Series(pd.factorize(rows[setting.name], use_na_sentinel=False)[0], rows.index)
        has_several = codes.groupby(scope).transform("nunique") > 1
        if has_several.any():
            columns[setting] = has_several
    return columns


def format_title_without_pair(group: Group) -> str:
    """Formats a group's title for people, without the pair, which is printed next to it."""
    first_row = group.rows.iloc[0]
    title = group.title.replace(f", pair {first_row.pair}", "")
    return title.replace(str(first_row.task), names.get_task_title(str(first_row.task)))


def format_marked_decoder_and_tree(row: pd.Series | Row, with_stalls: bool = True) -> str:
    """Formats decoder and tree for people, with ``names.format_row_suffix``."""
    title = names.format_title_and_name(str(row["decoder"]))
    return f"{title} {row['spec']}".removesuffix(" -") + names.format_row_suffix(row, with_stalls)


def format_tree_titles_with_drafts(rows: pd.DataFrame) -> list[str]:
    """Formats each row's tree, with the name of its draft or heads if cells differ only in that."""
    specs = rows.spec.astype(str)
    if "draft" not in rows or rows.draft.nunique() < 2:
        return list(specs)
    has_several = rows.groupby(["decoder", "spec"]).draft.transform("nunique") > 1
    drafts = rows.draft.map(str).str.rstrip("/").str.removesuffix("/heads").str.split("/").str[-1]
    return list(specs.where(~has_several, specs + " " + drafts))


def get_protocol(row: Row) -> str:
    """Returns whose prompts, examples and limits a row has: ``clean`` (ours) or ``authors``."""
    protocol = row.get("protocol")
    return protocol if isinstance(protocol, str) and protocol else CLEAN


def format_setting(column: Column, value: object) -> str:
    """Formats a column's value for a heading: ``batch size 4``; ``not stated`` if it is unknown."""
    if value is None or pd.isna(value) or value == "":
        default_text = f" {CLEAN}" if column.name == "protocol" else NOT_STATED
        return (
            f"no {column.title}"
            if column.name in EMPTY_AT_DEFAULT
            else f"{column.title}{default_text}"
        )
    return f"{column.title} {value:g}" if isinstance(value, float) else f"{column.title} {value}"


def join_settings_counting_unstated(setting_texts: Iterable[str]) -> str:
    """Joins the settings of a part; only counts those that are not stated if they are many."""
    texts = list(setting_texts)
    unstated_texts = [text for text in texts if text.endswith(NOT_STATED)]
    if len(unstated_texts) <= _FEW_UNSTATED:
        return ", ".join(texts)
    stated_texts = [text for text in texts if text not in unstated_texts]
    return ", ".join([*stated_texts, f"{len(unstated_texts)} facts{NOT_STATED}"])
