"""Keeps a process only as long as the one that wants it: ``python keeper.py LOG COMMAND ...``.

Reads standard input, which the wanting process holds open: however that process ends, the input
ends with it, and the command is ended with all that it started, on Linux in other sessions too. It
dies with a keeper that is killed. Needs nothing but Python itself.
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


def adopt() -> None:
    """From now on orphans among what this process started become its children."""
    _control(_ADOPTS, 1, 0, 0, 0)


def children() -> set[int]:
    """This process's children, where ``/proc`` tells."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            found |= {int(stat.parent.name)} if int(parent) == os.getpid() else set()
    return found


def sweep(spared: Set[int] = frozenset()) -> None:
    """Kills this process's children and, as they become its own, theirs."""
    tried = set(spared)
    while new := children() - tried:
        tried |= new
        for pid in new:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def end(server: subprocess.Popen[bytes]) -> None:
    """Ends a server and its group: asked first, then killed, with what outlived it."""
    for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(server.pid, number)
            server.wait(patience)


def main() -> int:
    """Runs the command; its status, or 0 once nobody wants it any more.

    The log is locked until the command has ended, so that others see whether it has.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # the input's end is what counts
    adopt()
    held = os.open(sys.argv[1] or __file__, os.O_RDONLY)  # not what the command inherits
    with suppress(OSError):  # a file system without locks
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    server = subprocess.Popen(
        sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: _control(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0),
    )  # fmt: skip
    unwanted = threading.Event()

    def listen() -> None:
        while os.read(0, 4096):
            pass
        unwanted.set()
        end(server)

    threading.Thread(target=listen, daemon=True).start()
    status = server.wait()
    os.close(held)
    end(server)
    sweep()
    return 0 if unwanted.is_set() else status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
