"""Command lines in processes of their own that do not import everything again.

A server, one per test process, has imported what the commands need and forks for each of them: a
fresh interpreter costs seconds of imports, a fork some milliseconds. What runs is the module's own
``__main__`` with its own arguments, environment, folder, standard output and error; it can be
killed, and has an exit status. What a fresh interpreter imports, and what another one starts, is
not tested this way.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from uuid import uuid4

PRELOADED = [
    "spec_bench.jobs.app",
    "spec_bench.train.settings",
    "spec_bench.train.train",
    "transformers.models.llama.modeling_llama",
    "pandas",
    "pyarrow.parquet",
    "pytest",
]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(PRELOADED)
_UNCHANGED = dict(os.environ)  # by any test: modules read variables while they are imported


def process(target, *arguments):
    """A ``multiprocessing.Process``, not started yet, that calls a function of a module."""
    now = dict(os.environ)
    try:
        _set_environment({"HF_HUB_OFFLINE": "1", **_UNCHANGED})
        forkserver.ensure_running()
    finally:
        _set_environment(now)
    return _CONTEXT.Process(target=target, args=arguments)


def stop():
    """Ends the server and waits for it, so that its time counts as this process's children's."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


class Command:
    """``python -m MODULE ARGUMENTS``, started in a folder; its output goes to files there whose
    names start with a dot. Its environment is this process's, offline, and what is given. With
    ``group`` it leads a session and a group of processes, which ``kill`` kills as a whole.
    """

    def __init__(self, module, arguments, folder, environment=None, group=False):
        name = uuid4().hex
        self._out, self._err = (folder / f".{name}.{kind}" for kind in ("out", "err"))
        values = {"HF_HUB_OFFLINE": "1", **os.environ, **(environment or {})}
        files = (str(self._out), str(self._err))
        self._group = group
        self._process = process(
            run_here, module, list(arguments), str(folder), values, files, group
        )
        self._process.start()

    @property
    def pid(self):
        return int(self._process.pid)

    def poll(self):
        """Its exit status, None while it runs."""
        status = self._process.exitcode
        return None if status is None else int(status)

    def kill(self):
        """Kills it -9 and waits for its end."""
        with suppress(ProcessLookupError):  # it has ended, or leads no group yet
            if self._group:
                os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()

    def finish(self, seconds=240):
        """Waits for its exit status, standard output and error; kills it where it does not end."""
        self._process.join(seconds)
        status = self.poll()
        if status is None:
            self.kill()
            raise TimeoutError(f"after {seconds:g} s it still ran: {self._err.read_text()[-2000:]}")
        return status, self._out.read_text(), self._err.read_text()


def run(module, *arguments, folder):
    """Runs a command to its end: exit status, standard output, standard error."""
    return Command(module, arguments, folder).finish()


def run_here(module, arguments, folder, environment, files, group):
    """In the new process: what the interpreter does for ``-m``, from standard output to the end."""
    if group:
        os.setsid()
    streams = []
    for number, file in enumerate(files, start=1):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
        streams.append(os.fdopen(number, "w", buffering=1, closefd=False))
    sys.stdout, sys.stderr = streams
    _set_environment(environment)
    # As a fresh interpreter does; what lies there was not imported before.
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in named if path and path not in sys.path]
    os.chdir(folder)
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # ends pools of workers
        atexit._run_exitfuncs()


def until(look, patience_s=60):
    """What it sees in the end, after some patience."""
    end = time.monotonic() + patience_s
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


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


def _set_environment(values):
    os.environ.clear()
    os.environ.update(values)
