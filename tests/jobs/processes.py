"""Whether processes still run."""

import os
import time
from pathlib import Path


def alive(pid):
    """Whether it runs; one that nobody has waited for yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return not Path("/proc/self/stat").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"


def gone(pids, patience_s=20):
    """Whether none of them runs any more, after some patience."""
    end = time.monotonic() + patience_s
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))
