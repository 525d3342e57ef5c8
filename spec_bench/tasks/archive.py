"""Folders that a public dataset packs into one file, fetched and unpacked once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from spec_bench.settings.fields import first_line
from spec_bench.settings.validation import Text, settings
from spec_bench.tasks.source import UnreadDataError


@settings
class Archive:
    """A packed folder on the hub."""

    path: Text  # the dataset's id
    file: Text  # the archive in it
    folder: Text  # what is wanted of the archive
    revision: Text = "main"  # a commit or a branch


@cache
def fetched(archive: Archive) -> Path:
    """The unpacked folder in the cache of ``datasets``.

    Raises:
        ValueError: the hub does not have it or cannot be reached; the message says what to set.
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
