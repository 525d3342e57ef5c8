"""Which processes of a group, or of a launcher's, still run; read from ``/proc``."""

import time
from contextlib import suppress
from pathlib import Path

PATIENCE_S = 600.0


def tasks(folder: Path) -> list[int]:
    """Processes that a launcher started for this folder; they name it in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            # Not srun, which waits for the task and names it too.
            own = b"python" in words.split(b"\0")[0] and b"submitit" in words
            if own and str(folder).encode() in words:
                found.append(int(path.parts[2]))
    return sorted(found)


def wait_for_quiet(group: int, folder: Path) -> None:
    """Waits until the killed group is gone and what a launcher left running has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while members(group) or tasks(folder):
        assert time.monotonic() < deadline, f"still there: {members(group)}, {tasks(folder)}"
        time.sleep(0.02)


def members(group: int) -> list[int]:
    """The processes of a group that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, own = path.read_text().rpartition(")")[2].split()[:3]
            if int(own) == group and state != "Z":
                found.append(int(path.parts[2]))
    return found
