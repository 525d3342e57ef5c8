"""``nvidia-smi``: what one call answers, and a process that prints power with its own time stamps.

Knows the program's options and its CSV; nothing about windows or joules. The process runs for the
whole job, so that sampling costs the decoding no more than a thread that reads lines.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from io import FileIO

from spec_bench.measure.energy.devices import Gpu
from spec_bench.measure.energy.settings import POWER_FIELDS
from spec_bench.measure.energy.window import UnmeteredError

PROGRAM = "nvidia-smi"
ANSWER_S = 30.0  # a driver without persistence takes seconds to wake up
_PATIENCE_S = 3.0  # beyond the period, for a sample that is due
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Looked up here: a new child of a process with threads must not load anything.
_prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)
_STAMP = "%Y/%m/%d %H:%M:%S.%f"

Trace = tuple[list[float], list[float]]


def query(wanted: Iterable[str]) -> list[list[str]]:
    """One answer of the program: a list of cells for each GPU.

    Raises:
        UnmeteredError: it is missing or fails; the message is its own first line.
    """
    command = _command(wanted)
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnmeteredError(f"{PROGRAM} failed: {type(error).__name__}") from None
    if done.returncode:
        message = (done.stdout.strip().splitlines() or [f"status {done.returncode}"])[0]
        raise UnmeteredError(f"{PROGRAM} failed: {message[:120]}")
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line]


def find_gpus() -> list[Gpu]:
    """All GPUs of the machine.

    Raises:
        UnmeteredError: as ``query``, or its answer is not a list of GPUs.
    """
    try:
        return [Gpu(int(index), uuid) for index, uuid in query(("index", "uuid"))]
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} gives no list of GPUs") from None


def find_fields(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """The power fields that the driver knows and that are numbers on all of these GPUs.

    Raises:
        UnmeteredError: there is none; the message is about ``power.draw``.
    """
    known, refused = [], UnmeteredError(f"{PROGRAM} has no power field")
    for field in POWER_FIELDS:
        try:
            cells = {row[0]: row[-1] for row in query(("index", field))}
            for gpu in gpus:
                _watts(cells.get(str(gpu.index), "nothing"), field, gpu.index)
        except UnmeteredError as error:
            refused = error
        else:
            known.append(field)
    if not known:
        raise refused
    return tuple(known)


def _watts(text: str, field: str, index: int) -> float:
    """A power.

    Raises:
        UnmeteredError: it is no number (``[N/A]``, ``[Not Supported]``).
    """
    try:
        return float(text)
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} gives {field} as {text} on GPU {index}") from None


def _command(fields: Iterable[str]) -> list[str]:
    """The program, asked for some fields of every GPU.

    Raises:
        UnmeteredError: it is missing.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise UnmeteredError(f"no {PROGRAM} on PATH")
    return [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def parse_line(line: str, fields: Sequence[str]) -> tuple[float, int, dict[str, float]]:
    """Seconds since the epoch, GPU index and watts by field, of one CSV line.

    Args:
        line: ``timestamp, index, power, ...``, the stamp in UTC.
        fields: the power fields that were asked for, in order.

    Raises:
        UnmeteredError: a power that is no number, or a bad line.
    """
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 2 + len(fields):
        raise UnmeteredError(f"{PROGRAM} printed: {line.strip()[:120]}")
    try:
        stamp_s = datetime.strptime(parts[0], _STAMP).replace(tzinfo=UTC).timestamp()
        index = int(parts[1])
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} printed: {line.strip()[:120]}") from None
    texts = zip(fields, parts[2:], strict=True)
    return stamp_s, index, {field: _watts(text, field, index) for field, text in texts}


class SmiSampler:
    """Power of some GPUs, from ``start`` to ``stop``."""

    def __init__(self, gpus: Sequence[Gpu], fields: Sequence[str], period_s: float) -> None:
        self.gpus, self.fields, self.period_s = gpus, fields, period_s
        self._traces: dict[int, tuple[list[float], dict[str, list[float]]]] = {
            gpu.index: ([], {field: [] for field in fields}) for gpu in gpus
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._news = threading.Condition()
        self._ended = ""

    def start(self) -> None:
        """Starts the program and waits for each GPU's first sample.

        Raises:
            UnmeteredError: none came.
        """
        command = [
            *_command(("timestamp", "index", *self.fields)),
            f"--id={','.join(str(gpu.index) for gpu in self.gpus)}",
            f"--loop-ms={max(1, round(self.period_s * 1000))}",
        ]
        self._reader = threading.Thread(target=self._read, args=(command,), daemon=True)
        self._reader.start()
        self.wait_until(0.0, ANSWER_S)

    def wait_until(self, moment_s: float, patience_s: float | None = None) -> None:
        """Waits until every GPU has a sample at or after a moment, in seconds since the epoch.

        By default for a little longer than a sample takes.

        Raises:
            UnmeteredError: the program ended before, or no sample comes.
        """
        patience_s = self.period_s + _PATIENCE_S if patience_s is None else patience_s
        deadline_s = time.monotonic() + patience_s
        with self._news:
            while not all(t and t[-1] >= moment_s for t, _ in self._traces.values()):
                if self._ended:
                    raise UnmeteredError(self._ended)
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise UnmeteredError(f"{PROGRAM} gave no sample when one was due")
                self._news.wait(left_s)

    def traces(self, field: str) -> list[Trace]:
        """Times and watts of each GPU so far."""
        with self._news:
            return [(list(t), list(power[field])) for t, power in self._traces.values()]

    def forget(self, moment_s: float) -> None:
        """Drops what lies before the last sample before a moment."""
        with self._news:
            for times, power in self._traces.values():
                old = max(0, bisect_right(times, moment_s) - 1)
                del times[:old]
                for values in power.values():
                    del values[:old]

    def stop(self) -> None:
        """Ends the program and the thread that reads it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._reader is not None:
            self._reader.join()

    def _read(self, command: Sequence[str]) -> None:
        """The thread: every line becomes a sample, until the program ends or says nonsense."""
        reason = ""
        try:
            self._process, terminal = _spawn(command)
            with open(terminal, "rb", buffering=0) as printed:
                for line in _lines(printed):
                    stamp_s, index, power = parse_line(line, self.fields)
                    self._add(stamp_s, index, power)
        except UnmeteredError as error:
            reason = str(error)
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"{PROGRAM} failed: {type(error).__name__}"
        if not reason:
            assert self._process is not None
            reason = f"{PROGRAM} ended with status {self._process.wait()}"
        with self._news:
            self._ended = reason
            self._news.notify_all()

    def _add(self, stamp_s: float, index: int, power: Mapping[str, float]) -> None:
        with self._news:
            if index not in self._traces:
                return
            times, values = self._traces[index]
            # A clock that was set back would leave times that do not ascend.
            if not times or stamp_s > times[-1]:
                times.append(stamp_s)
                for field, watts in power.items():
                    values[field].append(watts)
            self._news.notify_all()


def _spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program that is killed when the calling thread ends; also what it prints to.

    To a pipe a program may print in blocks of seconds; to a terminal it prints in lines. Its time
    stamps are in local time without a zone; the variable makes that UTC. In a session of its own it
    gets no interrupt meant for the job.

    Returns:
        The process, and a file descriptor to read the terminal from.
    """
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TZ": "UTC"},
            preexec_fn=partial(_die_with, os.getpid()),
        )
    except (OSError, subprocess.SubprocessError):
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, ours


def _die_with(parent: int) -> None:
    """Makes the kernel kill this process, a new child, when the thread that made it ends.

    A job that is killed takes all its threads along. One killed before this call no longer sends a
    signal: then another process has become the parent.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def _lines(terminal: FileIO) -> Iterator[str]:
    """Whole lines as they come, until the program has ended and all it printed is read."""
    rest = b""
    while True:
        try:
            data = terminal.read(65536)
        except OSError:  # on Linux: the other side is closed
            return
        if not data:
            return
        *whole, rest = (rest + data).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole if line.strip())
