"""Command lines forked from this process, which has imported what they need.

Unlike ``tests.warm`` it needs no server: the process that forks has read the variables of the
stand-in hub when it imported the libraries, and runs nothing itself but forks and waits.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import Generic, NamedTuple, TypeVar
from uuid import uuid4

from tests.warm import run_here

IMPORTED = (  # what commands would else import in each process; an optional one may be missing
    *(
        "spec_bench.jobs.app",
        "spec_bench.jobs.job.job",
        "spec_bench.jobs.sweep.plan",
        "spec_bench.train.app",
        "spec_bench.train.train",
    ),
    *("transformers.models.llama.modeling_llama", "transformers.models.opt.modeling_opt"),
    *("transformers.models.llama.tokenization_llama", "transformers.convert_slow_tokenizer"),
    *("sentencepiece.sentencepiece_model_pb2", "accelerate", "datasets", "aiohttp", "email.policy"),
    *("pandas", "pyarrow.parquet", "scipy.stats", "rouge_score.rouge_scorer", "sacrebleu"),
    *("hydra_plugins.hydra_joblib_launcher", "hydra_plugins.hydra_submitit_launcher"),
)
_POLL_S = 0.01
Task = TypeVar("Task")


class Ended(NamedTuple):
    """What a command left.

    Attributes:
        status: its exit status; below 0 a signal's number.
        out: standard output.
        err: standard error.
        seconds: from its start.
        cpu_s: seconds of all cores.
    """

    status: int
    out: str
    err: str
    seconds: float
    cpu_s: float


class Forked:
    """``python -m MODULE ARGUMENTS``, started.

    Args:
        module: e.g. ``spec_bench``.
        arguments: what a user types after it.
        folder: where it runs; its output goes to files there whose names start with a dot.
        limit_s: seconds after which it is killed.
    """

    def __init__(self, module, arguments, folder, limit_s):
        name = uuid4().hex
        self._files = [folder / f".{name}.{kind}" for kind in ("out", "err")]
        self._began, self._limit_s = time.monotonic(), limit_s
        self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                status = _main(module, list(arguments), folder, [str(f) for f in self._files])
            finally:
                os._exit(status)

    def ended(self):
        """What it left; None while it runs."""
        pid, status, used = os.wait4(self._pid, os.WNOHANG)
        seconds = time.monotonic() - self._began
        if not pid:
            if seconds > self._limit_s:
                os.kill(self._pid, signal.SIGKILL)
            return None
        out, err = (each.read_text() if each.exists() else "" for each in self._files)
        for each in self._files:
            each.unlink(missing_ok=True)
        cpu_s = used.ru_utime + used.ru_stime
        return Ended(os.waitstatus_to_exitcode(status), out, err, seconds, cpu_s)

    def kill(self):
        """Kills it and waits for its end."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


class _Running(NamedTuple, Generic[Task]):
    """A command at work, and what follows it."""

    process: Forked
    task: Task
    rest: list[Task]


def side_by_side(groups, at_once, start):
    """Runs the tasks of a group one after the other, so many groups at once; as they end."""
    waiting = [list(group) for group in groups if group]
    running = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                first, *rest = waiting.pop(0)
                running.append(_Running(start(first), first, rest))
            time.sleep(_POLL_S)
            for each in list(running):
                if (found := each.process.ended()) is None:
                    continue
                running.remove(each)
                if each.rest:
                    waiting.insert(0, each.rest)
                yield each.task, found
    finally:
        for each in running:
            each.process.kill()


def _main(module, arguments, folder, files):
    """In the new process: the exit status that the interpreter would give."""
    try:
        run_here(module, arguments, str(folder), dict(os.environ), (files[0], files[1]), False)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
