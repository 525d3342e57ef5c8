"""A folder of its own to run the package's command lines in, in this process.

Knows modules by name only: whichever ``spec_bench`` lies first on the path is the one that is
looked at.
"""

import contextlib
import io
import os
import runpy
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

COMMITTED = Path(__file__).resolve().parents[2] / "results"
EXPERIMENTS = ("embedded", "quickstart")  # below results; what else lies there is not committed
_WIDE = "4000"  # columns of the terminal: a table's row stays one line


@dataclass(frozen=True)
class Said:
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
    # Another test may have imported it; runpy warns of a module that is there already.
    imported = sys.modules.pop(f"{module}.__main__", None)
    status = 0
    with (
        mock.patch.object(sys, "argv", [module, *arguments]),
        mock.patch.dict(os.environ, COLUMNS=_WIDE),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        os.environ.pop("HYDRA_FULL_ERROR", None)
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as stopped:
            code = stopped.code
            status = code if isinstance(code, int) else int(code is not None)
        finally:
            if imported is not None:
                sys.modules[f"{module}.__main__"] = imported
    return Said(status, out.getvalue(), err.getvalue())


def must(module, *arguments):
    """What a command line printed, which must end with status 0."""
    said = run(module, *arguments)
    if said.status != 0:
        command = " ".join(["python -m", module, *arguments])
        raise RuntimeError(f"{command}: status {said.status}\n{said.out[-2000:]}{said.err[-2000:]}")
    return said.out
