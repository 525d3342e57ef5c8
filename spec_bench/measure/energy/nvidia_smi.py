"""Power by ``nvidia-smi``: what one call answers, a process that prints power with its own time
stamps, and joules from its samples.

The process runs for the whole job, so that sampling costs the decoding no more than a thread that
reads lines. Another GPU's or clock's samples never mix: times are the program's own stamps.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from itertools import pairwise
from typing import Any

import numpy as np

from spec_bench.measure.energy.counters import Gpu, job_gpus
from spec_bench.measure.energy.meters import EnergyMeter, UnmeteredError, meter

PROGRAM = "nvidia-smi"
ANSWER_S = 30.0  # a driver without persistence takes seconds to wake up
_PATIENCE_S = 6.0  # beyond the period, for late samples: of all windows together
_WIDE_PERIODS = 5  # samples further apart are flagged
_DRIFT = 1e-3  # a clock that is kept right runs no faster or slower than that
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
# Looked up here: a new child of a process with threads must not load anything.
_prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: -1)
_STAMP = "%Y/%m/%d %H:%M:%S.%f"

Trace = tuple[list[float], list[float]]
"""Seconds since the epoch, ascending; watts."""


@meter("nvidia_smi", period_s=0.05, update_period_s=0.1, idle_s=3.0, devices=None)
class SmiMeter(EnergyMeter[float]):
    """The trapezoid rule over the samples' own time stamps, GPUs added up.

    ``power.draw`` is an average over the last second on GPUs since Ampere (GA100 excepted), which
    smears a window's ends; ``power.draw.instant`` is not, so it is used if the driver has it. After
    each window the meter waits for the next sample; that wait is in no clock reading.
    """

    name = "nvidia_smi"
    fields: Sequence[str] = ("power.draw.instant", "power.draw")  # the first that is known
    _sampler: SmiSampler | None = None
    _clocks = (0.0, 0.0)  # at the last mark: seconds since the epoch, and of a clock nobody sets

    def start(self) -> None:
        try:
            known = [Gpu(int(index), uuid) for index, uuid in query(("index", "uuid"))]
        except ValueError:
            raise UnmeteredError(f"{PROGRAM} gives no list of GPUs") from None
        devices = self.settings.devices
        every = self.whole and devices is None
        gpus = known if every else job_gpus(known, devices, self.ordinals)
        period_s = self.settings.period_s / (20 if self.whole else 1)  # one is picked of these
        self._sampler = SmiSampler(gpus, find_field(gpus, self.fields), period_s)
        self._sampler.start()
        self._clocks = time.time(), time.monotonic()

    def mark(self) -> float:
        """Returns seconds since the epoch, by the clock of the samples' stamps; an
        ``UnmeteredError`` if that was set since the last mark, as what it says is then no duration.
        """
        before, self._clocks = self._clocks, (time.time(), time.monotonic())
        by_stamps_s, passed_s = np.subtract(self._clocks, before)
        if abs(by_stamps_s - passed_s) > self.settings.period_s + passed_s * _DRIFT:
            raise UnmeteredError("the machine's clock was set meanwhile")
        return self._clocks[0]

    def joules(self, begin: float, end: float) -> tuple[float, str]:
        assert self._sampler is not None
        traces = self._sampler.over(begin, end)
        gap_s = max(largest_gap_s(times, begin, end) for times, _ in traces)
        wide = gap_s > _WIDE_PERIODS * self.settings.period_s
        flag = f"samples more than {_WIDE_PERIODS} periods apart" if wide else ""
        return sum(integral_j(*trace, begin, end) for trace in traces), flag

    def stop(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


@meter("paper", period_s=1.0, idle_s=3.0, devices=None)
class PaperMeter(SmiMeter):
    """Watts summed, one sample a second of all that a cell does: the protocol of the DSBD authors.

    Their loop over the prompts is one window, from the first prefill on (arXiv:2409.16560, Appendix
    B; ``evaluation.py`` and ``gpu_power_monitor.py`` of their code): every second the power.draw of
    all GPUs that nvidia-smi lists is added up, as if each sample stood for one second, without the
    first sample. Here cells take turns, so the seconds are those of the cell's own clock, which
    stands while others decode. A sample belongs to the window in which its second ended, and only
    the sum of all windows says anything. Theirs are further apart by the time that nvidia-smi takes
    to start, which their sum ignores, and hold a pass that scores each answer: here the decoding
    knows its likelihood.
    """

    name = "paper"
    fields = ("power.draw",)
    whole = True

    def joules(self, begin: float, end: float) -> tuple[float, str]:
        assert self._sampler is not None
        period_s = self.settings.period_s
        before_s, self.clock_s = self.clock_s, self.clock_s + end - begin
        seconds = np.arange(before_s // period_s, self.clock_s // period_s) + 1
        moments = seconds * period_s - before_s + begin
        traces = self._sampler.over(begin, end)
        watts = sum(float(np.interp(moments, *trace).sum()) for trace in traces)
        note = f"one sum, a sample each {period_s:g} s, prefill in, GPUs: {len(traces)}"
        return watts * period_s, note

    def idle_w(self, begin: float, end: float, seconds: float) -> float:
        # Idle power is not part of the protocol: a sum of one or two samples is not in watts.
        return super().joules(begin, end)[0] / seconds


# From samples of power to energy: times are seconds on one clock, ascending; power is in watts.


def integral_j(
    times_s: Sequence[float], power_w: Sequence[float], begin_s: float, end_s: float
) -> float:
    """The trapezoid rule over a window whose ends are interpolated between their neighbours; an
    ``UnmeteredError`` if the samples do not cover it.
    """
    if not times_s or times_s[0] > begin_s or times_s[-1] < end_s:
        raise UnmeteredError("the samples of power do not reach over the window")
    inside = times_s[bisect_right(times_s, begin_s) : bisect_left(times_s, end_s)]
    moments = [begin_s, *inside, end_s]
    power = np.interp(moments, times_s, power_w)
    return float(np.diff(moments) @ (power[1:] + power[:-1]) / 2)


def largest_gap_s(times_s: Sequence[float], begin_s: float, end_s: float) -> float:
    """Returns the longest time between neighbouring samples that a window touches."""
    first = bisect_right(times_s, begin_s) - 1
    last = bisect_left(times_s, end_s)
    touched = times_s[max(first, 0) : last + 1]
    return max((b - a for a, b in pairwise(touched)), default=0.0)


# The program.


def query(wanted: Iterable[str]) -> list[list[str]]:
    """One answer of the program: a list of cells for each GPU; an ``UnmeteredError`` with its own
    first line if it is missing or fails.
    """
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    try:
        done = subprocess.run(_command(wanted), timeout=ANSWER_S, **output)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnmeteredError(f"{PROGRAM} failed: {type(error).__name__}") from None
    if done.returncode:
        message = (done.stdout.strip().splitlines() or [f"status {done.returncode}"])[0]
        raise UnmeteredError(f"{PROGRAM} failed: {message[:120]}")
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line]


def find_field(gpus: Sequence[Gpu], fields: Sequence[str]) -> str:
    """The first power field that the driver knows and that is a number on all of these GPUs; else
    an ``UnmeteredError`` about the last one.
    """
    refused = UnmeteredError(f"{PROGRAM} has no power field")
    for field in fields:
        try:
            cells = {row[0]: row[-1] for row in query(("index", field))}
            for gpu in gpus:
                _watts(cells.get(str(gpu.index), "nothing"), field, gpu.index)
        except UnmeteredError as error:
            refused = error
        else:
            return field
    raise refused


def _watts(text: str, field: str, index: int) -> float:
    """Returns a power; ``[N/A]`` and ``[Not Supported]`` are none, an ``UnmeteredError``."""
    try:
        return float(text)
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} gives {field} as {text} on GPU {index}") from None


def _command(fields: Iterable[str]) -> list[str]:
    """The program, asked for some fields of every GPU; an ``UnmeteredError`` if it is missing."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise UnmeteredError(f"no {PROGRAM} on PATH")
    return [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]


def parse_line(line: str, field: str) -> tuple[float, int, float]:
    """Seconds since the epoch, GPU index and watts of ``timestamp, index, power``, stamped in UTC;
    an ``UnmeteredError`` of a power that is no number, or of a bad line.
    """
    try:
        stamp, index, power = (part.strip() for part in line.split(","))
        stamp_s = datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC).timestamp()
        return stamp_s, int(index), _watts(power, field, int(index))
    except ValueError:
        raise UnmeteredError(f"{PROGRAM} printed: {line.strip()[:120]}") from None


class SmiSampler:
    """Power of some GPUs, from ``start`` to ``stop``."""

    def __init__(self, gpus: Sequence[Gpu], field: str, period_s: float) -> None:
        self.gpus = gpus
        self.field = field
        self.period_s = period_s
        self._traces: dict[int, Trace] = {gpu.index: ([], []) for gpu in gpus}
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._news = threading.Condition()
        self._patience_s = ANSWER_S  # for the first sample; then what is left of `_PATIENCE_S`
        self._ended = ""

    def start(self) -> None:
        """Starts the program and waits for each GPU's first sample, else an ``UnmeteredError``."""
        command = [
            *_command(("timestamp", "index", self.field)),
            f"--id={','.join(str(gpu.index) for gpu in self.gpus)}",
            f"--loop-ms={max(1, round(self.period_s * 1000))}",
        ]
        self._reader = threading.Thread(target=self._read, args=(command,), daemon=True)
        self._reader.start()
        self.over(0.0, 0.0)
        self._patience_s = _PATIENCE_S

    def over(self, begin_s: float, end_s: float) -> list[Trace]:
        """Returns each GPU's samples from the last one before a window until one is after it.

        Waits for the latter, else raises an ``UnmeteredError``; forgets what was before the window.
        Samples that come late use up the patience with later ones, so that a slow program costs a
        job some seconds and not some at each window.
        """
        due_s = time.monotonic() + self.period_s
        with self._news:
            while not all(t and t[-1] >= end_s for t, _ in self._traces.values()):
                if self._ended:
                    raise UnmeteredError(self._ended)
                left_s = due_s + self._patience_s - time.monotonic()
                if left_s <= 0:
                    self._patience_s = 0.0
                    raise UnmeteredError(f"{PROGRAM} gave no sample when one was due")
                self._news.wait(left_s)
            late_s = time.monotonic() - due_s
            if late_s > 1:
                self._patience_s = max(0.0, self._patience_s - late_s)
            for times, power in self._traces.values():
                old = max(0, bisect_right(times, begin_s) - 1)
                del times[:old], power[:old]
            return [(list(times), list(power)) for times, power in self._traces.values()]

    def stop(self) -> None:
        """Ends the program, which only reads, and the thread that reads it."""
        if self._process is not None:
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
                    stamp_s, index, watts = parse_line(line, self.field)
                    with self._news:
                        times, power = self._traces.get(index, ([], []))
                        if times and stamp_s < times[-1]:  # the clock was set back
                            times.clear()
                            power.clear()
                        if not times or stamp_s > times[-1]:
                            times.append(stamp_s)
                            power.append(watts)
                        self._news.notify_all()
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


def _spawn(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """Starts a program that is killed when the calling thread ends; the terminal it prints to.

    To a pipe a program may print in blocks of seconds; to a terminal it prints in lines. Its time
    stamps are in local time without a zone; the variable makes that UTC. In a session of its own it
    gets no interrupt meant for the job.
    """
    ours, theirs = os.openpty()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
            start_new_session=True, env={**os.environ, "TZ": "UTC"},
            preexec_fn=partial(_exit_with_parent, os.getpid()),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, ours


def _exit_with_parent(parent: int) -> None:
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
