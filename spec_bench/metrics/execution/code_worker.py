"""The process that runs a program which nobody has read. A script: the standard library only.

A JSON object comes in: the code, its seconds and bytes, and a word; "passed" and that word go out
once the code has run to its end. What it may do:

* compute, within its time (processor and clock) and its memory, and import what Python brings;
* read files; write none (a limit of 0 bytes, and no way to open one for writing);
* start no process and no program, reach no network: of its own kernel's network there is nothing
  left where the system lets it give that up, and every socket is refused by Python itself.

A fresh process runs one program and ends; it runs in an empty folder with an empty environment.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from contextlib import suppress

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # unshare(2)
REFUSED = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "os.kill",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.putenv",
    "shutil.",
    "ctypes.",
    "signal.pthread_kill",
    "pty.spawn",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


def confine(seconds: float, memory: int) -> None:
    """Limits on this process that nothing in it can raise again."""
    with suppress(OSError, AttributeError):  # not on every system; the audit hook remains
        ctypes.CDLL(None, use_errno=True).unshare(NEW_USER | NEW_NETWORK)
    limits = {
        "RLIMIT_AS": memory,
        "RLIMIT_CPU": int(seconds) + 1,
        "RLIMIT_NPROC": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 32,
    }
    for name, most in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (most, most))
        except (AttributeError, ValueError, OSError):
            continue
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    signal.setitimer(signal.ITIMER_REAL, seconds)

    def hook(event: str, values: tuple) -> None:
        writing = event == "open" and (
            (isinstance(values[1], str) and set(values[1]) & set("wax+"))
            or (isinstance(values[2], int) and values[2] & WRITES)
        )
        if writing or event.startswith(REFUSED):
            raise PermissionError(f"{event} is refused")

    sys.addaudithook(hook)


def main() -> None:
    """Runs the program of the first line."""
    request = json.loads(sys.stdin.readline())
    word, out = request["word"], os.dup(1)
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    confine(request["seconds"], request["memory"])
    exec(compile(request["code"], "<answer>", "exec"), {"__name__": "__answer__"})
    os.write(out, f"passed {word}\n".encode())


if __name__ == "__main__":
    main()
