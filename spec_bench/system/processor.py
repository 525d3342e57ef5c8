"""Reads the processor's name."""

import platform
from contextlib import suppress
from pathlib import Path


def read_cpu_model() -> str:
    """Returns the processor's name as the system gives it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
