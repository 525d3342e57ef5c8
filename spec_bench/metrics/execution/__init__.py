"""What a model wrote, run in isolation: SQL judged by its result set, a program by its tests."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# With the language, where that is alone on the fence's line.
_FENCE = re.compile(r"(?:`{3,}|~{3,})(?:[ \t]*[^\s`]*[ \t]*$)?", re.MULTILINE)


def split_fences(answer: str) -> tuple[list[str], list[str]]:
    """Returns what stands in an answer's fences, and what stands outside; a fence may be spelt in
    any way, and lack its beginning or its end.
    """
    pieces = _FENCE.split(answer.replace("\r", ""))
    return pieces[1::2], pieces[::2]


def run_worker(
    script: Path,
    input_text: str,
    timeout_s: float,
    *arguments: str,
    folder: str = "/",
    inherited_variables: Sequence[str] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Runs a script of this folder on an input, in a process that is killed after so many seconds:
    that is as if its alarm had ended it.

    It gets those variables of the environment that are to be kept, and no others.
    """
    # -I, -S: no user's folder, environment or package is there to import.
    command = [sys.executable, "-I", "-S", "-B", str(script), *arguments]
    environment = {name: os.environ[name] for name in inherited_variables if name in os.environ}
    try:
        return subprocess.run(
            command, input=input_text.encode(), timeout=timeout_s, capture_output=True, check=False,
            cwd=folder, env=environment, start_new_session=True,  # an interrupt is ours to handle
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, -signal.SIGALRM, late.stdout or b"", b"")
