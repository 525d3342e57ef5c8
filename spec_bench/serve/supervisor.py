"""Runs a command as long as the calling process lives: ``python supervisor.py LOG COMMAND ...``.

The calling process holds the supervisor's standard input open. However that process ends, the
input ends too, and the supervisor ends the command and all that it started, on Linux in other
sessions too. If the supervisor is killed, the command is killed too. Imports nothing but Python's
standard library.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

_GRACE_S = 10.0
# PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_DIES_WITH_PARENT = 1
_ADOPTS = 36
_control = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: 0


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process (Linux)."""
    _control(_ADOPTS, 1, 0, 0, 0)


def find_child_pids() -> set[int]:
    """Returns the ids of this process's children; empty without ``/proc``."""
    pids = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            pids |= {int(stat.parent.name)} if int(parent) == os.getpid() else set()
    return pids


def kill_children(spared_pids: Set[int] = frozenset()) -> None:
    """Kills this process's children except ``spared_pids``, and orphans that it
    adopts meanwhile.
    """
    known_pids = set(spared_pids)
    while new_pids := find_child_pids() - known_pids:
        known_pids |= new_pids
        for pid in new_pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def end_process_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its process group by SIGTERM, then by SIGKILL."""
    for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, number)
            process.wait(patience)


def main() -> int:
    """Runs the command; returns its status, or 0 if the input ended first.

    The log is locked until the command has ended, so that others see whether it runs.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # only the input's end counts
    adopt_orphans()
    # the command does not inherit it
    log_descriptor = os.open(sys.argv[1] or __file__, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(log_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    server = subprocess.Popen(
        sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: _control(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0),
    )  # fmt: skip
    input_ended = threading.Event()

    def listen() -> None:
        while os.read(0, 4096):
            pass
        input_ended.set()
        end_process_group(server)

    threading.Thread(target=listen, daemon=True).start()
    status = server.wait()
    os.close(log_descriptor)
    end_process_group(server)
    kill_children()
    return 0 if input_ended.is_set() else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
