"""Keeps a server only as long as the process that wants it: ``python keeper.py COMMAND ...``.

Reads standard input, which the wanting process holds open: however that process ends, the input
ends with it, and the server's whole process group is ended. Needs nothing but Python itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

_GRACE_S = 10.0


def end(server: subprocess.Popen[bytes]) -> None:
    """Ends a server and all that it started: asked first, then killed."""
    for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(patience)
            break
    with suppress(ProcessLookupError):  # children that outlived it
        os.killpg(server.pid, signal.SIGKILL)


def main() -> int:
    """Runs the command; its status, or 0 once nobody wants it any more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the input's end is what counts
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    unwanted = threading.Event()

    def listen() -> None:
        while os.read(0, 4096):
            pass
        unwanted.set()
        end(server)

    threading.Thread(target=listen, daemon=True).start()
    status = server.wait()
    if not unwanted.is_set():
        return status
    end(server)
    return 0


if __name__ == "__main__":
    sys.exit(main())
