"""Locks on files, which the system releases however a process ends."""

from __future__ import annotations

import errno
import fcntl
import logging
from typing import TextIO

log = logging.getLogger(__name__)
# What a file system answers that has no locks: Lustre without its option, some network folders.
_WITHOUT = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
_warned: list[bool] = []


def lock(file: TextIO | int, *, wait: bool) -> bool:
    """Locks an open file until it is closed; whether it is locked now.

    Where the file system has no locks a line says so, once, and the answer is yes: processes that
    work in one folder at the same time are then the user's to keep apart.

    Args:
        file: or its descriptor.
        wait: until another process gives it back.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT:
            raise
        if not _warned:
            log.warning(
                "this file system has no locks (%s): let no two jobs write to one folder at the "
                "same time",
                error.strerror,
            )
            _warned.append(True)
    return True
