"""Runs ``nvidia-smi``: queries facts of the GPUs once, and samples their power while a job runs.

A sampler's process runs for the whole job, so that sampling costs the decoding only a thread that
reads lines. Times are the program's own stamps, so that there is one clock for all samples.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from typing import NamedTuple

from spec_bench.measure.energy.counters import Gpu
from spec_bench.measure.energy.meters import UnmeteredError

PROGRAM = "nvidia-smi"
ANSWER_S = 30.0  # a driver without persistence takes seconds to wake up
_PATIENCE_S = 6.0  # waiting for late samples beyond the period, in all windows together
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Looked up here: a new child of a process with threads must not load anything.
_prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)
_STAMP_FORMAT = "%Y/%m/%d %H:%M:%S.%f"

Trace = tuple[list[float], list[float]]
"""Ascending seconds since the epoch, and watts at these times."""


def query_gpus(fields: Iterable[str]) -> list[list[str]]:
    """Queries these fields of all GPUs once; returns a list of cells per GPU.

    Raises ``UnmeteredError`` if the program is missing, or with the first line of its output if it
    fails.
    """
    try:
        process = subprocess.run(
            _build_query_command(fields), timeout=ANSWER_S, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnmeteredError(f"{PROGRAM} failed: {type(error).__name__}") from None
    if process.returncode:
        message = (process.stdout.strip().splitlines() or [f"status {process.returncode}"])[0]
        raise UnmeteredError(f"{PROGRAM} failed: {message[:120]}")
    return [
        [cell.strip() for cell in line.split(",")] for line in process.stdout.splitlines() if line
    ]


def find_power_field(gpus: Sequence[Gpu], fields: Sequence[str]) -> str:
    """Finds the first power field that is a number on all of these GPUs.

    Raises ``UnmeteredError`` about the last field if no field is.
    """
    last_error = UnmeteredError(f"{PROGRAM} has no power field")
    for field in fields:
        try:
            cells = {row[0]: row[-1] for row in query_gpus(("index", field))}
            for gpu in gpus:
                _parse_watts(cells.get(str(gpu.index), "nothing"), field, gpu.index)
        except UnmeteredError as error:
            last_error = error
        else:
            return field
    raise last_error


def _parse_watts(text: str, field: str, gpu_index: int) -> float:
    """Parses a power in watts. Raises ``UnmeteredError`` for ``[N/A]`` and the like."""
    try:
        return float(text)
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} gives {field} as {text} on GPU {gpu_index}") from None


def _build_query_command(fields: Iterable[str]) -> list[str]:
    """Builds the command line. Raises ``UnmeteredError`` if the program is missing."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise UnmeteredError(f"no {PROGRAM} on PATH")
    return [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


class PowerSample(NamedTuple):
    """A GPU's power at a moment."""

    time_s: float  # since the epoch
    gpu_index: int
    watts: float


def parse_power_sample(line: str, field: str) -> PowerSample:
    """Parses a line ``timestamp, index, power`` with the time in UTC.

    Raises ``UnmeteredError`` for a bad line or a power that is no number.
    """
    try:
        stamp, index, power = (part.strip() for part in line.split(","))
        stamp_s = datetime.strptime(stamp, _STAMP_FORMAT).replace(tzinfo=UTC).timestamp()
        return PowerSample(stamp_s, int(index), _parse_watts(power, field, int(index)))
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} printed: {line.strip()[:120]}") from None


class PowerSampler:
    """Samples the power of some GPUs from ``start`` to ``stop``."""

    def __init__(self, gpus: Sequence[Gpu], field: str, period_s: float) -> None:
        self.gpus = gpus
        self.field = field
        self.period_s = period_s
        self._traces: dict[int, Trace] = {gpu.index: ([], []) for gpu in gpus}
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._new_sample = threading.Condition()
        self._patience_s = ANSWER_S  # for the first sample; then the rest of `_PATIENCE_S`
        self._end_reason = ""

    def start(self) -> None:
        """Starts the program and waits for each GPU's first sample."""
        command = [
            *_build_query_command(("timestamp", "index", self.field)),
            f"--id={','.join(str(gpu.index) for gpu in self.gpus)}",
            f"--loop-ms={max(1, round(self.period_s * 1000))}",
        ]
        self._reader = threading.Thread(target=self._read_samples, args=(command,), daemon=True)
        self._reader.start()
        self.wait_for_samples_dropping_earlier(0.0, 0.0)
        self._patience_s = _PATIENCE_S

    def wait_for_samples_dropping_earlier(self, begin_s: float, end_s: float) -> list[Trace]:
        """Waits for a sample after the window and returns each GPU's samples around it.

        The first sample returned is the last before the window; earlier ones are deleted. Raises
        ``UnmeteredError`` if no sample arrives in time. All late samples share one patience, so
        that a slow program costs a job some seconds in total, not at each window.
        """
        due_s = time.monotonic() + self.period_s
        with self._new_sample:
            while not all(t and t[-1] >= end_s for t, _ in self._traces.values()):
                if self._end_reason:
                    raise UnmeteredError(self._end_reason)
                left_s = due_s + self._patience_s - time.monotonic()
                if left_s <= 0:
                    self._patience_s = 0.0
                    raise UnmeteredError(f"{PROGRAM} gave no sample when one was due")
                self._new_sample.wait(left_s)
            late_s = time.monotonic() - due_s
            if late_s > 1:
                self._patience_s = max(0.0, self._patience_s - late_s)
            for times, power in self._traces.values():
                passed_count = max(0, bisect_right(times, begin_s) - 1)
                del times[:passed_count], power[:passed_count]
            return [(list(times), list(power)) for times, power in self._traces.values()]

    def stop(self) -> None:
        """Ends the program and the thread that reads its output."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join()

    def _read_samples(self, command: Sequence[str]) -> None:
        """Parses lines into samples, in a thread of its own, until the program ends or prints a bad
        line.
        """
        reason = ""
        try:
            self._process, terminal = _spawn_on_terminal(command)
            with open(terminal, "rb", buffering=0) as output:
                for line in _iter_terminal_lines(output):
                    stamp_s, index, watts = parse_power_sample(line, self.field)
                    with self._new_sample:
                        times, power = self._traces.get(index, ([], []))
                        if times and stamp_s < times[-1]:  # the clock was set back
                            times.clear()
                            power.clear()
                        if not times or stamp_s > times[-1]:
                            times.append(stamp_s)
                            power.append(watts)
                        self._new_sample.notify_all()
        except UnmeteredError as error:
            reason = str(error)
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"{PROGRAM} failed: {type(error).__name__}"
        if not reason:
            assert self._process is not None
            reason = f"{PROGRAM} ended with status {self._process.wait()}"
        with self._new_sample:
            self._end_reason = reason
            self._new_sample.notify_all()


def _spawn_on_terminal(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program that is killed when the calling thread ends; returns it and the descriptor
    of the terminal that it prints to.

    Into a pipe a program may print in blocks of seconds; to a terminal it prints line by line.
    ``TZ`` makes its time stamps UTC. In its own session it gets no interrupt that is meant for the
    job.
    """
    terminal, output = os.openpty()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, env={**os.environ, "TZ": "UTC"},
            preexec_fn=partial(_die_with_parent, os.getpid()),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        os.close(terminal)
        raise
    finally:
        os.close(output)
    return process, terminal


def _die_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this new child process when the thread that started it ends.

    If the job was killed before this call, there will be no signal: the process then has another
    parent, and exits.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(1)


def _iter_terminal_lines(terminal: FileIO) -> Iterator[str]:
    """Yields whole lines as they arrive, until the program has ended."""
    tail = b""
    while True:
        try:
            block = terminal.read(65536)
        except OSError:  # on Linux: the other side is closed
            return
        if not block:
            return
        *lines, tail = (tail + block).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines if line.strip())
