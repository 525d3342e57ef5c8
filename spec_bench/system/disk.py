"""What a file system refuses, in one line that names the file; knows nothing of its content."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NO_ROOM = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    *(errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG),
)
_WRITTEN_NUMBER = re.compile(r"\(os error (\d+)\)")  # as safetensors says it


@contextmanager
def naming(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Within the block a refusal to write names the file, whoever met it.

    Args:
        path: the file as it will be called.
        partial: as it is called meanwhile.

    Raises:
        OSError: with the number, the system's reason and ``path``.
    """
    try:
        yield
    except Exception as error:
        number = _number(error, (None, str(path), str(partial)))
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def refused(error: OSError) -> str | None:
    """A refusal to write in one line; None where it is another error."""
    if error.errno not in NO_ROOM:
        return None
    where = "" if error.filename is None else f" {str(error.filename)!r}"
    return f"cannot write{where}: {os.strerror(error.errno)}"


def _number(error: BaseException | None, names: tuple[str | None, ...]) -> int | None:
    """The system's number of a refusal to write: of an error, or of what it was made of."""
    while error is not None:
        if isinstance(error, OSError):
            filename = None if error.filename is None else str(error.filename)
            return error.errno if error.errno in NO_ROOM and filename in names else None
        if match := _WRITTEN_NUMBER.search(str(error)):
            return int(match[1]) if int(match[1]) in NO_ROOM else None
        error = error.__cause__ or error.__context__
    return None
