"""SIGINT and SIGTERM end a command with one line and status 130 or 143 at any time.

While modules are imported, the process ends at once: it has nothing to clean up, and an import may
swallow an exception. Later the signal raises ``KeyboardInterrupt``, so that locks, children and
files are cleaned up. If a library swallows it, the command ends at the next prompt; if Python
itself must ignore it (in a finaliser), the signal is sent again. A forked process dies of the
signal like any other. If the reader of standard output is gone (``| head``), a command ends
silently with status 141, after files are written completely. A missing package gives one line and
status 2.
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
_owner_pid = 0  # the process that cleans up after a signal
_signal_line = ""
_raises_interrupts = False
_received_signal = 0  # the signal's number


@contextmanager
def exits_in_one_line(signal_line: str) -> Iterator[None]:
    """Ends the process with one line on a signal or an error in the block, or if a package is
    missing. ``signal_line`` is printed on a signal, for example ``interrupted; the same command
    resumes``.
    """
    global _owner_pid, _signal_line, _received_signal, _raises_interrupts
    old_handlers = {number: signal.signal(number, _handle_signal) for number in _SIGNALS}
    _owner_pid = os.getpid()
    _signal_line = signal_line
    _received_signal = 0
    _raises_interrupts = False
    # A log line that cannot be written is no fault.
    raise_exceptions = logging.raiseExceptions
    logging.raiseExceptions = False
    sys.unraisablehook = _resend_swallowed_signal
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # for letters that a terminal lacks
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # at the process's end an error would go unnoticed
    except (BrokenPipeError, SystemExit) as error:
        if not _is_output_reader_gone(error):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # takes the unflushed rest
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
            # The next command of this process is not interrupted.
            number, _received_signal = _received_signal, 0
            sys.exit(128 + number)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


@contextmanager
def signals_as_interrupts(enabled: bool = True) -> Iterator[None]:
    """Turns signals in the block into ``KeyboardInterrupt``; if not ``enabled`` they end the
    process.
    """
    global _raises_interrupts
    did_raise_interrupts = _raises_interrupts
    _raises_interrupts = enabled and _owner_pid == os.getpid()
    try:
        yield
    finally:
        _raises_interrupts = did_raise_interrupts


def was_interrupted() -> bool:
    """Returns whether this process has received a signal that ends it."""
    return bool(_received_signal) and os.getpid() == _owner_pid


def raise_if_interrupted() -> None:
    """Raises KeyboardInterrupt if a signal was received, for code after which its exception may
    have been swallowed.
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
        # Sends the signal again after this function has returned.
        threading.Timer(0.01, os.kill, (os.getpid(), _received_signal)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _is_output_reader_gone(error: BaseException) -> bool:
    """Checks whether an error means that nobody reads standard output any more."""
    if isinstance(error, SystemExit):  # Rich raises it instead
        return isinstance(error.__context__, BrokenPipeError)
    poll = select.poll()
    poll.register(1, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _print_signal_line() -> None:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, f"{_signal_line}\n".encode())
    except (OSError, ValueError):  # the reader is gone
        pass
