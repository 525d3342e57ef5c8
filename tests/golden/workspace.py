"""A folder of its own to run the package's command lines in, in this process.

Knows modules by name only: whichever ``spec_bench`` lies first on the path is the one that is
looked at.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

COMMITTED = Path(__file__).resolve().parents[2] / "results"
EXPERIMENTS = ("embedded", "quickstart")  # below results; what else lies there is not committed
_WIDE = "4000"  # columns of the terminal: a table's row stays one line


@dataclass(frozen=True)
class Said:
    """What a command line said.

    Attributes:
        status: its exit status.
        out: standard output.
        err: standard error.
    """

    status: int
    out: str
    err: str


@contextlib.contextmanager
def workspace():
    """A temporary working directory with a copy of the committed results and an empty folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name).resolve()
        for experiment in EXPERIMENTS:
            shutil.copytree(COMMITTED / experiment, folder / "results" / experiment)
        (folder / "nothing").mkdir()
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def run(module, *arguments):
    """``python -m MODULE ARGUMENTS`` without a new interpreter."""
    out, err = io.StringIO(), io.StringIO()
    argv, columns = sys.argv, os.environ.get("COLUMNS")
    full_error = os.environ.pop("HYDRA_FULL_ERROR", None)
    # Another test may have imported it; runpy warns of a module that is there already.
    imported = sys.modules.pop(f"{module}.__main__", None)
    sys.argv = [module, *arguments]
    os.environ["COLUMNS"] = _WIDE
    status = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module(module, run_name="__main__")
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        sys.argv = argv
        if imported is not None:
            sys.modules[f"{module}.__main__"] = imported
        _restore("COLUMNS", columns)
        _restore("HYDRA_FULL_ERROR", full_error)
    return Said(status, out.getvalue(), err.getvalue())


def must(module, *arguments):
    """What a command line printed.

    Raises:
        RuntimeError: it did not end with status 0.
    """
    said = run(module, *arguments)
    if said.status != 0:
        command = " ".join(["python -m", module, *arguments])
        raise RuntimeError(f"{command}: status {said.status}\n{said.out[-2000:]}{said.err[-2000:]}")
    return said.out


def _restore(name, value):
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
