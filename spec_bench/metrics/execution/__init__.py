"""Runs a model's answers in isolation: SQL, judged by result sets, and programs, by tests."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Takes in the language if nothing else follows it on the fence's line.
_FENCE = re.compile(r"(?:`{3,}|~{3,})(?:[ \t]*[^\s`]*[ \t]*$)?", re.MULTILINE)


def split_fences(answer: str) -> tuple[list[str], list[str]]:
    """Splits an answer into the texts inside and outside of its Markdown fences. Fences of any
    spelling count, also if the opening or closing fence is missing.
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
    """Runs a script of this folder on an input, in a process that is killed after ``timeout_s``.

    Of the environment it gets only ``inherited_variables``. After a timeout the return code is that
    of a process that its alarm ended.
    """
    # -I, -S: nothing can be imported from the user's folders, environment or packages.
    command = [sys.executable, "-I", "-S", "-B", str(script), *arguments]
    environment = {name: os.environ[name] for name in inherited_variables if name in os.environ}
    try:
        return subprocess.run(
            command, input=input_text.encode(), timeout=timeout_s, capture_output=True, check=False,
            cwd=folder, env=environment, start_new_session=True,  # an interrupt is ours to handle
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, -signal.SIGALRM, late.stdout or b"", b"")
