"""SIGINT and SIGTERM end a command in one line with status 130 or 143, whenever they come.

While modules are imported nothing is under way that has to be put in order, and an exception in the
middle of an import may be swallowed by it: the process ends at once. Later the signal is a
``KeyboardInterrupt``, so that locks, children and files are left in order; a library that swallows
it delays the end to the next prompt, and where Python itself must ignore it (in a finaliser) the
signal comes again. A process that was forked dies of the signal as any other.
A reader of standard output that went away (``| head``) ends a command without a word, with status
141; what it writes to files is not cut short by that. A missing package is one line and status 2.
"""

import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType

from spec_bench.system import files
from spec_bench.system.errors import UsageError, print_fault

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_owner_pid = 0  # the process that a signal ends in order
_signal_line = ""
_raises_interrupts = False
_received_signal = 0  # the signal's number


@contextmanager
def exits_in_one_line(signal_line: str) -> Iterator[None]:
    """Ends the process with one line on a signal or an error in the block, or if a package is
    missing. ``signal_line`` is printed on a signal: ``interrupted; the same command resumes``.
    """
    global _owner_pid, _signal_line, _received_signal, _raises_interrupts
    old_handlers = {number: signal.signal(number, _handle_signal) for number in _SIGNALS}
    _owner_pid = os.getpid()
    _signal_line = signal_line
    _received_signal = 0
    _raises_interrupts = False
    # A log that nobody reads is no fault.
    raise_exceptions = logging.raiseExceptions
    logging.raiseExceptions = False
    sys.unraisablehook = _resend_swallowed_signal
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a letter, such as ASCII's
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # at the process's end it would be too late to notice
    except (BrokenPipeError, SystemExit) as error:
        if not _is_output_reader_gone(error):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # takes what is still to be flushed
        os.close(nowhere)
        sys.exit(128 + signal.SIGPIPE)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == "spec_bench":
            raise
        do = "source .venv/bin/activate, or make env where there is none"
        if "launcher=ray" in str(sys.argv):
            do = "Ray's environment is pip install -c constraints-ray.txt -e '.[ray]'"
        print(f"spec_bench: the package {package!r} is not installed here: {do}", file=sys.stderr)
        sys.exit(2)
    except UsageError as error:
        print(f"spec_bench: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if (os_explanation := files.explain_write_error(error)) is None:
            sys.exit(print_fault(error, "spec_bench", signal_line.partition("; ")[2]))
        print(f"spec_bench: {os_explanation}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        sys.exit(print_fault(error, "spec_bench", signal_line.partition("; ")[2]))
    finally:
        logging.raiseExceptions = raise_exceptions
        sys.unraisablehook = sys.__unraisablehook__
        _raises_interrupts = False
        if _received_signal and os.getpid() == _owner_pid:
            _print_signal_line()
            # Another command of this process was not interrupted.
            number, _received_signal = _received_signal, 0
            sys.exit(128 + number)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


@contextmanager
def signals_as_interrupts(enabled: bool = True) -> Iterator[None]:
    """Turns signals into ``KeyboardInterrupt``; if not ``enabled`` they end the process."""
    global _raises_interrupts
    did_raise_interrupts = _raises_interrupts
    _raises_interrupts = enabled and _owner_pid == os.getpid()
    try:
        yield
    finally:
        _raises_interrupts = did_raise_interrupts


def was_interrupted() -> bool:
    """Returns whether a signal has come that ends this process."""
    return bool(_received_signal) and os.getpid() == _owner_pid


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if a signal has come, for code where its exception may have been
    swallowed.
    """
    if was_interrupted():
        raise KeyboardInterrupt


def _handle_signal(number: int, _: FrameType | None) -> None:
    global _received_signal
    if os.getpid() != _owner_pid:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    _received_signal = number
    if _raises_interrupts:
        raise KeyboardInterrupt
    _print_signal_line()
    os._exit(128 + number)


def _resend_swallowed_signal(unraisable: "sys.UnraisableHookArgs") -> None:
    if isinstance(unraisable.exc_value, KeyboardInterrupt) and was_interrupted():
        # The signal comes again, once this has returned.
        threading.Timer(0.01, os.kill, (os.getpid(), _received_signal)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _is_output_reader_gone(error: BaseException) -> bool:
    """Checks whether an error means that nobody reads standard output any more."""
    if isinstance(error, SystemExit):  # what Rich makes of it
        return isinstance(error.__context__, BrokenPipeError)
    poll = select.poll()
    poll.register(1, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _print_signal_line() -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, f"{_signal_line}\n".encode())
    except (OSError, ValueError):  # nobody reads any more
        pass
