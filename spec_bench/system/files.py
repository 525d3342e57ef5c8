"""Paths of an experiment's files, how files are written and locked, and digests.

`<results>/<name>/results.csv` is an experiment's table; `records.parquet` in the same folder has
the measurements of its cells by prompt. `<results>/runs/<run_id>/` has the files of one cell:
settings, provenance, records and result. A file is written under another name and then renamed,
so that a reader, or a rerun after a kill, sees a whole file or none. Errors of writing are one line
that names the file. Knows the file system only.
"""

import csv
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape, glob
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO
from uuid import uuid4

import spec_bench
from spec_bench.system.errors import UsageError
from spec_bench.system.redaction import redact_values

log = logging.getLogger(__name__)
WRITE_ERRNOS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENXIO,
    errno.EXDEV,
    errno.EBUSY,
    errno.ENOTEMPTY,
    errno.ESTALE,
)
_FILE_ERRNOS = (*WRITE_ERRNOS, errno.ENOENT)  # errors of a file that is written
_WRITTEN_NUMBER = re.compile(r"\(os error (\d+)\)")  # in safetensors' messages
# Errors of file systems without locks: Lustre without its option, some network folders.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_lock_warnings: list[bool] = []

RUNS = "runs"
RESULTS = "results.csv"
ARCHIVE = "archive.csv"
SCREENING = "screening.csv"
RECORDS = "records.parquet"
GENERATIONS = "generations.jsonl"
RETIMED = "retimed-*.jsonl"  # with a session's name
CELL = "cell.json"
MODELS = "models.json"
TRACE = "trace.txt"
ON_GPU = "engine=cuda"  # in printed commands for pairs that are not embedded
_MERGE_MARKS = ("<<<<<<<", "=======", ">>>>>>>")
_FORMULA_STARTS = "'=+-@\t\r"
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?")


@contextmanager
def write_errors_naming(path: Path, partial_path: Path | None = None) -> Iterator[None]:
    """Re-raises errors of writing ``path`` or ``partial_path`` in the block as FileWriteError, with
    the final path and the system's number and reason.
    """
    try:
        yield
    except Exception as error:
        number = _find_write_errno(error, (None, str(path), str(partial_path)))
        if number is None:
            raise
        raise FileWriteError(number, os.strerror(number), str(path)) from error


class FileWriteError(OSError):
    """A file cannot be written."""


def explain_write_error(error: OSError) -> str | None:
    """Explains an error of writing in one line; None if it is another error."""
    if error.errno not in WRITE_ERRNOS and not isinstance(error, FileWriteError):
        return None
    place = "" if error.filename is None else f" {str(error.filename)!r}"
    return f"cannot write{place}: {error.strerror}"


def _find_write_errno(error: BaseException | None, names: tuple[str | None, ...]) -> int | None:
    """Finds the system's number of a failed write in an error or its causes; None without any."""
    while error is not None:
        if isinstance(error, OSError):
            filename = None if error.filename is None else str(error.filename)
            return error.errno if error.errno in _FILE_ERRNOS and filename in names else None
        if match := _WRITTEN_NUMBER.search(str(error)):
            return int(match[1]) if int(match[1]) in _FILE_ERRNOS else None
        error = error.__cause__ or error.__context__
    return None


def lock_file(file: TextIO | int, *, may_wait: bool) -> bool:
    """Locks an open file, or a descriptor, until it is closed or the process ends, however it ends;
    returns whether it is locked. With ``may_wait`` it waits until another process unlocks the file.

    On a file system without locks it warns once and returns True; the user must then keep processes
    from working in one folder at the same time.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if may_wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        if not _lock_warnings:
            log.warning(
                "this file system has no locks (%s): let no two jobs write to one folder at the "
                "same time",
                error.strerror,
            )
            _lock_warnings.append(True)
    return True


def get_data_folder(name: str) -> Path:
    """Finds a folder of data: in the package of a wheel, next to the package in a checkout. Raises
    UsageError if the installation has no such folder.
    """
    package = Path(spec_bench.__file__).resolve().parent
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise UsageError(f"no folder {name!r} in {package} or beside it")


def join_path_inside(folder: Path, name: str) -> Path:
    """Joins a folder and a name that may come from others. Raises UsageError if the path leads out
    of the folder, directly or by a link.
    """
    path = folder / name
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"{name!r} leads out of {str(folder)!r}")
    return path


def open_regular_to_write(path: Path, mode: str = "a") -> Any:
    """Opens a regular file for writing, by default to append. Raises OSError if it is a link, which
    may lead anywhere, or a pipe, which would block.
    """

    def open_no_link(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    code = None if "b" in mode else "utf-8"
    return open(path, mode, encoding=code, opener=open_no_link)


def get_cache_folder() -> Path:
    """Returns the cache folder, which ``make clean`` removes."""
    folder = os.environ.get("SPEC_BENCH_CACHE")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "spec_bench"


def get_results_file(results: Path, experiment: str) -> Path:
    """Returns the path of an experiment's table. Raises UsageError if the name leads out of the
    results folder.
    """
    return join_path_inside(results, experiment) / RESULTS


def get_archive_path(table: Path) -> Path:
    """Returns the path of the archive, which has rows of past states and is read by no report."""
    return table.with_name(ARCHIVE)


def get_screening_path(table: Path) -> Path:
    """Returns the path of a search's screening rows, which have numbers without intervals."""
    return table.with_name(SCREENING)


def get_records_file(table: Path) -> Path:
    """Returns the path of an experiment's records, which have numbers by cell and prompt."""
    return table.with_name(RECORDS)


def make_error_with_stop_hint(message: str, results: Path) -> ValueError:
    """Makes the error for missing rows: ``message``, with a hint if a job below ``results`` was
    stopped before it wrote them.
    """
    has_tables = any(results.glob(f"*/{RESULTS}"))
    has_answers = not has_tables and any(results.glob(f"{RUNS}/*/{GENERATIONS}"))
    hint = "; a job was stopped before its rows were whole: the same command goes on"
    return UsageError(f"{message}{hint * has_answers}")


def get_run_folder(results: Path, run_id: str) -> Path:
    """Returns the folder of a run's records. Raises UsageError if the id is no folder's name."""
    if run_id in ("", "..") or Path(run_id).name != run_id:
        raise UsageError(f"run_id is {run_id!r}, which is no folder's name")
    return results / RUNS / run_id


def find_retimed_paths(run_folder: Path) -> list[Path]:
    """Lists the files of later sessions that timed a baseline's run again."""
    return [run_folder / name for name in sorted(glob(RETIMED, root_dir=run_folder))]


def get_jobs_folder(results: Path, experiment: str) -> Path:
    """Returns the folder of the notes of an experiment's jobs."""
    return results / RUNS / "jobs" / experiment


def get_training_name_of_heads(heads_folder: Path) -> str | None:
    """Returns the name of the training of heads in ``results/train/<name>/heads``; None for heads
    in other folders.
    """
    ours = heads_folder == Path("results", "train", heads_folder.parent.name, "heads")
    return heads_folder.parent.name if ours else None


def format_own_command(*words: object, results: object = "results") -> str:
    """Formats a command of this program for a shell, with ``--results`` if the results folder is
    not the default.
    """
    options = ["--results", results] * (str(results) != "results")
    return shlex.join(map(str, ["spec-bench", *words, *options]))


def format_training_command(kind: str, pair: str, name: str, on_gpu: bool = True) -> str:
    """Formats the command that trains heads for a pair, ``pair=NAME``, and writes them to the
    folder in which the pair looks for them. A name that ends in ``_blocks4`` means four residual
    blocks.
    """
    blocks = name.rpartition("_blocks")[2]
    size = f" head.blocks={blocks}" if blocks != name else ""
    engine = f" {ON_GPU}" if on_gpu else ""
    arguments = f"head={kind}{size} {pair}{engine} name={name} data.path=sharegpt.json"
    return f"spec-bench train {arguments}"


def get_results_folder(table: Path) -> Path:
    """Returns the results folder of an experiment's table. Raises UsageError if the experiment's
    folder is a link out of it.
    """
    folder = Path(os.path.abspath(table)).parent
    join_path_inside(folder.parent, folder.name)
    return folder.parent


def list_results_files(results: Path) -> list[Path]:
    """Returns all tables below a results folder, ``<name>/`` or ``<group>/<name>/``, by path."""
    tables = {*results.glob(f"*/{RESULTS}"), *results.glob(f"*/*/{RESULTS}")}
    return sorted(path for path in tables if RUNS not in path.relative_to(results).parts)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yields a path to write to, which replaces ``path`` when the block ends without an error.

    Creates the folder. After an exception the old file stays and the new one is removed. The files
    that killed writers left behind are removed by the next writer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a device or folder is not replaced
        raise FileExistsError(errno.EEXIST, "no file is there", str(path))
    # Not the process id: processes of two machines may write to one shared folder.
    start = f".{path.name[:40]}."
    partial = path.with_name(f"{start}{uuid4().hex}.tmp")
    try:
        for leftover in path.parent.glob(f"{escape(start)}*.tmp"):
            # OSError: an active writer has locked the file, or it is gone.
            with suppress(OSError), open_regular_to_write(leftover) as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                leftover.unlink()
        with write_errors_naming(path, partial), open_regular_to_write(partial) as partial_file:
            lock_file(partial_file, may_wait=True)
            yield partial
            with partial.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(partial, path)
    finally:
        with suppress(OSError):  # read-only file systems refuse that, too
            partial.unlink()


def move_aside(path: Path, copy: bool = False) -> Path:
    """Renames an unusable file to ``NAME.bad-1``, or the next free number; returns the new path.
    With ``copy`` the file also stays until the caller replaces it.
    """
    candidates = (path.with_name(f"{path.name}.bad-{number}") for number in count(1))
    aside = next(candidate for candidate in candidates if not os.path.lexists(candidate))
    if copy and path.is_file():
        write_bytes(aside, path.read_bytes())
    else:
        os.replace(path, aside)
    return aside


def require_writable(folder: Path) -> None:
    """Checks that a small file can be written to a folder, or where the folder will be created.
    Raises UsageError if not, with the folder and the reason.
    """
    upwards = (folder, *folder.parents)
    if blockers := [
        place for place in upwards if os.path.lexists(place) and not os.path.isdir(place)
    ]:
        raise UsageError(f"cannot write to {str(folder)!r}: {str(blockers[0])!r} is no folder")
    existing_folder = next(place for place in upwards if os.path.isdir(place))
    try:
        for place in (folder, *(existing_folder / name for name in folder.parts)):
            with suppress(FileNotFoundError):  # other errors count, such as too long a name
                place.lstat()
        with TemporaryFile(dir=existing_folder) as probe:
            probe.write(bytes(4096))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise UsageError(f"cannot write to {str(folder)!r}: {error.strerror}") from error


def read_folder_clock_s(folder: Path) -> float:
    """Returns the Unix time in seconds by the clock of a folder's file system, which is the same
    for all machines that share the folder; by this machine's clock if the folder is not writable.
    """
    try:
        with TemporaryFile(dir=folder) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file atomically."""
    with atomic_replace(path) as partial:
        partial.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically, in UTF-8."""
    write_bytes(path, text.encode())


def write_redacted_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically, with keys and passwords redacted."""
    write_text(path, json.dumps(redact_values(value), indent=1) + "\n")


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Writes a CSV atomically; values that a row lacks are empty.

    Texts that a spreadsheet would take for a formula are escaped; ``read_csv`` restores them.
    Raises ValueError if a row has a value of no column.
    """
    with atomic_replace(path) as partial, partial.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            texts = (
                (k, v)
                for k, v in row.items()
                if v and v.__class__ is str and v[0] in _FORMULA_STARTS
            )
            writer.writerow({**row, **{name: escape_cell(text) for name, text in texts}})


def read_csv(path: Path, needed_columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Reads the rows of a CSV as text; empty if there is no file. Raises UsageError if it is no CSV
    or lacks one of ``needed_columns``; the message names the file, the line and the reason.
    """
    rows = iter_csv_lines(path, needed_columns)
    return [
        dict(zip(names, [unescape_cell(e) if e[:1] == "'" else e for e in cells], strict=True))
        for _, names, cells in rows
    ]


def iter_csv_lines(
    path: Path, needed_columns: Sequence[str] = ()
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yields for each row the number of its last line, the header, and the row's raw cells."""
    if not path.exists():
        return
    if not path.is_file():  # a pipe would block
        raise UsageError(f"{str(path)!r} is no file")
    line = 1
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            names = _require_header_columns(next(reader, []), needed_columns)
            for cells in filter(None, reader):
                line = reader.line_num
                if len(cells) != len(names):
                    mark = cells[0].startswith(_MERGE_MARKS) and f"a merge mark, {cells[0][:20]!r}"
                    raise UsageError(mark or f"{len(cells)} cells, the header has {len(names)}")
                yield line, names, cells
    except (ValueError, csv.Error, OSError) as error:
        if isinstance(error, UnicodeDecodeError):
            line = reader.line_num + 1 + error.object[: error.start].count(b"\n")
            error = UsageError("it is no UTF-8; save it as UTF-8")
        raise UsageError(f"{str(path)!r}, line {line}: {error}") from error


def _require_header_columns(names: list[str], needed_columns: Sequence[str]) -> list[str]:
    """Returns the header. Raises UsageError if it lacks a column or has one twice."""
    if absent := [name for name in needed_columns if names and name not in names]:
        is_merge_mark = names[0].startswith(_MERGE_MARKS)
        reason = "; it is a merge mark" if is_merge_mark else "; are its columns separated by ';'?"
        raise UsageError(
            f"no column {absent[0]!r}{reason if is_merge_mark or (';' in names[0]) else ''}"
        )
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two columns {duplicates[0]!r}")
    return names


def escape_cell(value: Any) -> Any:
    """Escapes a cell that a spreadsheet would take for a formula; numbers and a lone dash stay.

    A text that begins like a formula, after any number of ``'``, gets one ``'`` more, so that
    ``unescape_cell`` restores every text.
    """
    if not isinstance(value, str) or value == "-" or not _FORMULA.match(value):
        return value
    return value if _NUMBER.fullmatch(value) else f"'{value}"


def unescape_cell(text: str) -> str:
    """Inverts ``escape_cell``."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def hash_json(value: Any, digits: int = 12) -> str:
    """Returns the first hex digits of the SHA-256 of a value's canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
