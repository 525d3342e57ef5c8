"""Programs are judged by their tests; those that mean harm do none and forge no verdict."""

import gzip
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import spec_bench
from spec_bench.metrics.execution import code
from spec_bench.metrics.execution.code import PassAt1
from spec_bench.metrics.quality import check_references, compute_score_columns
from spec_bench.records.types import ProgramTests
from spec_bench.tasks.source import RowSource, WheelFile, load_rows
from spec_bench.tasks.task import Task

PROMPT = 'from math import pi\n\n\ndef area(r):\n    """Of a circle."""\n'
TESTS = "def check(f):\n    assert abs(f(2) - 12.566) < 0.01\n    assert f(0) == 0\n"
REFERENCE = ProgramTests(TESTS, PROMPT, "area")
SCORE = PassAt1(seconds=1.0, memory=1 << 28)
MARK = "spec_bench_was_here"
C = "import ctypes; c = ctypes.CDLL(None, use_errno=True)\n"
QUIETLY = "for n in range(64):\n  try: {}\n  except Exception: pass\n"

RIGHT = {
    "goes on where the prompt ends": "    return pi * r * r\n",
    "its first blanks cut": "return pi * r * r",
    "two lines, the first one's blanks cut": "square = r * r\n    return pi * square",
    "a fenced block": "Here it is:\n```python\ndef area(r):\n    return pi * r ** 2\n```\nBye.",
    "nothing but the body": "    return pi * r * r",
    "a block that never ends": "```\ndef area(r):\n    return pi * r ** 2\n",
}
WRONG = {
    "another result": "    return r\n",
    "no Python": "    return pi * * r\n",
    "nothing": "",
    "an error": "    return pie * r * r\n",
    "never ends": "    while True:\n        pass\n",
    "all memory": "    return len([0] * 10**9)\n",
    "leaves early": "    import sys\n    sys.exit(0)\n",
    "leaves at once": "    import os\n    os._exit(0)\n",
    "says that it passed": "    print('passed')\n    import os\n    os._exit(0)\n",
    "its own block without the function": "```python\narea = None\n```",
}
REFUSED = {
    "writes a file": "open({file!r}, 'w').write('x')",
    "writes a file past Python's open": "import os\n    os.open({file!r}, os.O_CREAT)",
    "removes a file": "import os\n    os.remove({kept!r})",
    "reaches the network": "import socket\n    socket.socket()",
    "starts a program": "import subprocess\n    subprocess.run(['touch', {file!r}])",
    "starts a program below Python's": "import os\n    os.system('touch {file}')",
    "forks": "import os\n    os.fork()",
    "calls C": "import ctypes\n    ctypes.CDLL(None)",
}


@pytest.mark.parametrize("name", [*RIGHT, *WRONG])
def test_a_right_program_passes_however_it_is_written_and_no_other(name):
    assert SCORE.passes({**RIGHT, **WRONG}[name], REFERENCE) == (name in RIGHT)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_may_not_do_is_refused(name, tmp_path):
    file, kept = tmp_path / "written", tmp_path / "kept"
    kept.touch()
    act = REFUSED[name].format(file=str(file), kept=str(kept))
    assert not SCORE.passes(f"    {act}\n    return pi * r * r\n", REFERENCE)
    assert kept.exists() and not file.exists()
    tried = act.replace("\n", "\n    ")
    caught = f"    try:\n        {tried}\n    except PermissionError:\n        return pi * r * r\n"
    assert SCORE.passes(caught, REFERENCE)


def test_the_columns_are_the_share_of_prompts_and_what_was_not_judged_as_the_others():
    answers = [RIGHT["a fenced block"], WRONG["nothing"], RIGHT["a fenced block"], "return 1"]
    columns, signature = compute_score_columns("pass_at_1", answers, [[REFERENCE]] * 4)
    assert columns["pass_at_1"].value == 0.5
    assert "limit:3s" in signature
    answers = [WRONG["never ends"], "    import numpy_\n    return r", "    raise ValueError", "r"]
    columns = SCORE.columns([*answers, RIGHT["nothing but the body"]], [[REFERENCE]] * 5)
    assert {name: found.value for name, found in columns.items()} == {
        "pass_at_1": 0.2,
        "program_timeouts": 1,
        "programs_not_judged": 1,
        "programs_judged_together": 2,  # whoever raises may be waited for
    }


# Results that are no plain values, and what tests may do with them. All these are right.
OTHERS = {
    "a view of keys": (
        "return dict.fromkeys(x).keys()",
        "list(f([2, 1])) == [2, 1] and f([1]) == {1}",
    ),
    "a view of items": ("return dict(enumerate(x)).items()", "f([7]) == {(0, 7)}"),
    "a deque": ("from collections import deque\n    return deque(x)", "list(f([1])) == [1]"),
    "a Counter": (
        "from collections import Counter\n    return Counter(x)",
        "f('aa').most_common() == [('a', 2)]",
    ),
    "a named tuple": ("return Pair(*x)", "f([1, 2]).left == 1 and f([1, 2]) == (1, 2)"),
    "a dataclass of the prompt": ("return Point(x)", "f(3) == Point(3) and f(3).far() == 6"),
    "one that changes": ("x.at = 7\n    return x", "f(Point(3)) == Point(7)"),
    "an array": ("from array import array\n    return array('i', x)", "f([1, 2])[1] == 2"),
    "a date": ("from datetime import date\n    return date(*x)", "f([2020, 2, 29]).year == 2020"),
    "a fraction": ("from fractions import Fraction\n    return Fraction(x, 4)", "f(2) == 0.5"),
    "a generator": ("yield from x", "list(f([1, 2])) == [1, 2]"),
    "one without an end": ("from itertools import count\n    return count(x)", "next(f(4)) == 4"),
    "a function": ("return lambda y: x + y", "f(1)(2) == 3"),
    "what another function gives": ("return x(3)", "f(lambda y: 2 * y) == 6"),
    "its argument, in order": ("x.sort()", "(y := [2, 1], f(y)) and y == [1, 2]"),
    "one within": ("x[0].append(1)", "(y := [[0]], f(y)) and y == [[0, 1]]"),
    "a value that is waited for": ("return x or 0", "f([]) == 0 and f(2**70) == 2**70"),
}
ERRORS = ("class Own(ValueError): pass\n    raise Own('no')", "raise ValueError('no')")


def _given(body, asked):
    prompt = (
        "from collections import namedtuple\nfrom dataclasses import dataclass\n\n\n"
        "Pair = namedtuple('Pair', 'left right')\n@dataclass\nclass Point:\n    at: int\n\n"
        "    def far(self):\n        return 2 * self.at\n\n\ndef f(x):\n"
    )
    return f"    {body}\n", ProgramTests(f"def check(f):\n    {asked}\n", prompt, "f")


@pytest.mark.parametrize("name", OTHERS)
def test_a_right_program_passes_whatever_it_gives(name):
    body, asked = OTHERS[name]
    assert SCORE.passes(*_given(body, f"assert {asked}"))


@pytest.mark.parametrize("body", ERRORS)
def test_an_error_is_the_one_that_is_awaited_with_its_words(body):
    asked = "try: f(0)\n    except ValueError as e: assert str(e) == 'no'\n    else: assert False"
    assert SCORE.passes(*_given(body, asked))
    assert not SCORE.passes(*_given(body, asked.replace("'no'", "'yes'")))


def test_a_program_that_runs_beside_its_tests_does_not_pass_by_ending_well():
    for status in range(3):
        body = f"import os\n    return iter('') if x else os._exit({status})"
        assert not SCORE.passes(*_given(body, "assert list(f(1)) == []; assert f(0) == 1"))


def test_what_fails_behind_a_right_function_shows_its_use_alone():
    shown = "```python\ndef area(r):\n    return 3.1416 * r * r\n\n{}\n```"
    for line in ("print(area(float(input())))", "assert area(1) == 3", "area('one')"):
        assert SCORE.passes(shown.format(line), REFERENCE)


def test_a_prompt_without_tests_is_refused_before_anything_is_decoded():
    with pytest.raises(ValueError, match="prompt 1 has no tests"):
        check_references("pass_at_1", [[REFERENCE], ["return 1"]])
    with pytest.raises(ValueError, match="tests of prompt 0 are no Python"):
        PassAt1().check([[ProgramTests("def check(", PROMPT, "area")]])


def test_values_that_tests_take_for_plain_ones_pass_from_the_program_to_its_tests():
    prompt = "from collections import Counter, namedtuple\n\n\ndef f(x):\n"
    tests = (
        "def check(g):\n    assert g([1, 1]) == {1: 2} and g((2, 3)) == (2, 3) and g(4j) == 4j\n"
        "    assert list(g('ab')) == ['a', 'b'] and f(None) is None and g(2**70) == 2**70\n"
        "    try:\n        g(0)\n    except ZeroDivisionError:\n        return\n    assert False\n"
    )
    answer = (
        "    kinds = {list: Counter, tuple: lambda x: namedtuple('Pair', 'a b')(*x), str: iter}\n"
        "    return 1 / x if x == 0 else kinds.get(type(x), lambda x: x)(x)\n"
    )
    assert SCORE.passes(answer, ProgramTests(tests, prompt, "f"))


def test_rows_of_a_wheel_are_read_from_the_cache(tmp_path, monkeypatch):
    row = {"task_id": "a/0", "prompt": PROMPT, "entry_point": "area", "test": TESTS}
    data = gzip.compress(json.dumps(row).encode() + b"\n")
    digest = hashlib.sha256(data).hexdigest()
    file = tmp_path / "data" / digest[:12] / "rows.jsonl.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path))
    source = RowSource("wheel", wheel=WheelFile("mine==1.0", "inside/rows.jsonl.gz", digest))
    assert load_rows(source, "mine") == [row]
    told = {"fields": {"id": "task_id"}, "reference": "test", "scores": ("pass_at_1",)}
    task = Task("mine", source, ("{prompt}",), **told)
    with pytest.raises(ValueError, match=r"task\.run_code=true"):
        task.read_examples()
    task = replace(task, run_code=True)
    (example,) = task.read_examples()
    assert example.id == "a/0" and task.data_label == "mine==1.0 rows.jsonl.gz"
    assert SCORE.passes(RIGHT["a fenced block"], example.references[0][0])


# An act that comes to its end, which it should not, has ``won``, unless it sets that itself; its
# function is right only then. {home}, {secret}, {pid}, {port}, {path} are the caller's: a folder, a
# file in it, a process, a port and a socket that listen. Where a worker holds nothing these harm no
# more than those: none of them signals all processes.
PAST_THE_HOOK = {
    "overwrites a file as a history": "import readline; readline.write_history_file(r'{secret}')",
    "signals by a descriptor": "import signal; signal.pidfd_send_signal(os.pidfd_open({pid}), 9)",
    "limits another process": "import resource as r; r.prlimit({pid}, r.RLIMIT_CPU, (0, 0))",
    "slows other processes": "os.setpriority(os.PRIO_USER, os.getuid(), 19)",
    "deletes a file in an interpreter without the hook": (
        "try: import _interpreters as s\nexcept ImportError: import _xxsubinterpreters as s\n"
        "s.run_string(s.create(), \"import os; os.remove(r'{secret}')\"); won = False"
    ),
    "makes a database": "import sqlite3; sqlite3.connect(r'{home}/x').execute('begin immediate')",
    "makes a pipe with a name": "os.mkfifo('/tmp/{mark}')",
    "deletes shared memory": "import _posixshmem; _posixshmem.shm_unlink('/{shared}')",
}
HARM = {
    "deletes a file": "os.remove(r'{secret}')",
    "deletes a file once the lists are empty": (
        "import __main__ as m; m.REFUSED = (); m.WRITES = 0; os.remove(r'{secret}')"
    ),
    "deletes all": "import shutil; shutil.rmtree(r'{home}')",
    "overwrites a file": "open(r'{secret}', 'w').write('x')",
    "truncates a file": "os.truncate(r'{secret}', 0)",
    "reads a file": "open(r'{secret}').read()",
    "reads who the users are": "open('/etc/passwd').read()",
    "lists a folder": "os.listdir(r'{home}')",
    "lists the processes": "os.listdir('/proc/1')",
    "reads through a link": "os.symlink(r'{secret}', 'x'); open('x').read()",
    "takes a second name of a file": "os.link(r'{secret}', 'x')",
    "writes beside itself": "open('{mark}', 'w').write('x')",
    "makes a folder": "os.mkdir('{mark}')",
    "writes to shared memory": "open('/dev/shm/{mark}', 'w').write('x')",
    "writes for temporary use": "open('/tmp/{mark}', 'w').write('x')",
    "fills the disk": "f = open('{mark}', 'wb'); f.write(bytes(1 << 27))",
    "could change Python's own files": "os.open(os.__file__, os.O_WRONLY)",
    "could add to what Python starts with": (
        "import sysconfig\nos.open(sysconfig.get_path('stdlib'), os.O_RDWR | os.O_TMPFILE)"
    ),
    "changes a mode": "os.chmod(r'{secret}', 0o777)",
    "connects to a port": "import socket; socket.create_connection(('127.0.0.1', {port}), 1)",
    "connects to a socket's file": "import socket as s; s.socket(s.AF_UNIX).connect(r'{path}')",
    "connects to a socket without a file": (
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0{mark}{port}')"
    ),
    "sends a packet out": (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "s.sendto(b'x', ('192.0.2.1', 9))"
    ),
    "signals a process": "os.kill({pid}, 9)",
    "starts a program": "import subprocess; subprocess.Popen(['sleep', '30'])",
    "stays in a thread": (
        "import threading as t, time; t.Thread(target=time.sleep, args=(30,)).start()"
    ),
    "takes memory": "x = bytearray(1 << 29)",
    "takes memory as a file": (
        "m = os.memfd_create('x'); os.ftruncate(m, 1 << 29); os.write(m, b'x')"
    ),
    "raises its limits": "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1 << 20, 1 << 20))",
    "becomes root": "os.setuid(0)",
    "changes its root": "os.chroot('/lib')",
    "finds an open folder": QUIETLY.format("os.fchdir(n); won = True"),
    "finds the hook among all objects": (
        "import gc\nfor f in gc.get_objects():\n"
        "  if getattr(f, '__name__', '') == 'hook': f.__defaults__ = ((), 0)\n"
        "os.remove(r'{secret}')"
    ),
    "finds the hook in a trace": (
        "try: os.remove(r'{secret}')\n"
        "except PermissionError as e: e.__traceback__.tb_next.tb_frame.f_globals.clear()\n"
        "import builtins; builtins.PermissionError = str; os.remove(r'{secret}')"
    ),
    "deletes a file below Python": C + "won = c.unlink(rb'{secret}') == 0",
    "watches a folder": C + "won = c.inotify_add_watch(c.inotify_init(), rb'{home}', 4095) >= 0",
    "signals its parent and group": "os.kill(os.getppid(), 9); os.killpg(0, 9)",
    "signals below Python": C + "won = c.kill({pid}, 9) == 0",
    "forks and stays": "import time; os.fork() or time.sleep(30)",
    "forks below Python": C + "won = (c.fork() or c.sleep(30)) >= 0",
    "forks twice and is nobody's child": (
        "import time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(30)"
    ),
    "spawns a program": "won = os.waitpid(os.posix_spawn('/bin/true', ['x'], {{}}), 0)[1] == 0",
    "becomes a program": "os.execv('/bin/sh', ['sh', '-c', 'sleep 30'])",
    "stays past its time": (
        "import signal, time; signal.signal(14, signal.SIG_IGN); signal.setitimer(0, 0)\n"
        "time.sleep(30)"
    ),
    "takes memory that stays": C + "won = c.shmget({port}, 4096, 0o1666) >= 0; won = False",
    "becomes root of a namespace": C + "won = c.unshare(0x10000000) == 0",
    "unmounts": C + "won = c.umount2(b'/usr/lib', 2) == 0",
    "traces its parent": C + "won = c.ptrace(16, os.getppid(), 0, 0) == 0",
    "reads its parent's memory": "open(f'/proc/{{os.getppid()}}/mem', 'rb').seek(1 << 20)",
    "reads its parent's memory by a call": C
    + (
        "b = ctypes.create_string_buffer(8); v = (ctypes.c_size_t * 2)(ctypes.addressof(b), 8)\n"
        "won = c.process_vm_readv(os.getppid(), v, 1, v, 1, 0) > 0"
    ),
    "takes its parent's files": C
    + ("p = c.syscall(434, os.getppid(), 0); won = c.syscall(438, p, 0, 0) >= 0"),
    "ends well": "os._exit(0)",
    "ends well at its exit": "import atexit; atexit.register(os._exit, 0); raise SystemExit(0)",
    "says that it passed": (
        "print('passed')\n" + QUIETLY.format("os.write(n, b'passed\\n')") + "os._exit(0)"
    ),
    "is equal to everything": (
        "class All(float):\n  def __eq__(self, other): return True\n"
        "  __sub__ = __abs__ = __lt__ = lambda *_: All(9)\n  __hash__ = None\n"
        "area = lambda r: All(9)"
    ),
    "runs in the judge": (  # and says what that says of right programs
        "class Ends:\n  def __reduce__(self): return exec, (FOUND,)\narea = lambda r: Ends()\n"
        "FOUND = 'import os, sys; f = sys._getframe()\\nwhile \"done\" not in f.f_locals:' "
        "' f = f.f_back\\nos._exit(f.f_locals[\"done\"])'"
    ),
    "ends the judge by an error": (
        "class SystemExit(Exception): pass\ndef area(r): raise SystemExit(0)"
    ),
    "ends the judge by a signal": "os.kill(os.getppid(), 2); os.kill(os.getppid(), 15)",
    "changes the judge's names": (
        "import __main__ as m\n"
        "m.run_tests_on_calls = m.limit_and_filter_process = lambda *_: None\n"
        "m.run_and_exit_process = m.PlainValueUnpickler = m.limit_and_filter_process\n"
        "import builtins, sys; builtins.abs = lambda x: 0; sys.modules['pickle'] = m; won = False"
    ),
    "is of a plain type that it gave other methods": (
        "s = lambda text: b'\\x8c' + bytes([len(text)]) + text.encode()\n"
        "g = lambda kind: s('builtins') + s(kind) + b'\\x93'\n"
        "f = g('complex')\n"
        "other = s('__eq__') + g('int') + s('__abs__') + g('float') + s('__sub__') + f\n"
        "made = f + b'N}}(' + other + b'u\\x86b)R'\n"
        "sent = b'\\x80\\x04N.' + 9 * (b'\\x80\\x04' + made + b'.')\n"
        + QUIETLY.format("os.write(n, sent)")
        + "import time; time.sleep(30)"
    ),
    "looks for the tests": (
        "import sys; f = sys._getframe()\nwhile f:\n"
        "  won |= '0' + '.01' in str((f.f_locals, f.f_globals)); f = f.f_back\n"
        "won |= b'0' + b'.01' in open(0, 'rb').read()"
    ),
    "answers without an end": (
        "os.dup2(os.open('/dev/zero', 0), 1)\n"
        + QUIETLY.format("[os.write(n, b'\\x80\\x04]' * 999) for _ in range(99999)]")
    ),
} | PAST_THE_HOOK
QUICK = (
    "reads a file", "deletes a file below Python", "signals below Python", "runs in the judge",
    "is of a plain type that it gave other methods",
)  # fmt: skip


class World:
    """What a program could harm."""

    def __init__(self, folder, process):
        self.folder, self.process, self.path = folder, process, folder / "socket"
        self.listening = [socket.socket(), *(socket.socket(socket.AF_UNIX) for _ in range(2))]
        self.listening[0].bind(("127.0.0.1", 0))
        self.port = self.listening[0].getsockname()[1]
        self.listening[1].bind(str(self.path))
        self.listening[2].bind(f"\0{MARK}{self.port}")
        for each in self.listening:
            each.listen()
            each.setblocking(False)
        self.home = folder / "home"
        self.home.mkdir()
        self.secret = self.home / "secret"
        self.secret.write_text("secret")
        self.shared = Path("/dev/shm") / f"{MARK}{self.port}"
        self.shared.touch()
        self.before = self.state()

    def state(self):
        """All that must not change."""
        shared = Path("/proc/sysvipc/shm")
        files = [(each, each.read_bytes(), each.stat().st_mode) for each in self.home.iterdir()]
        return (
            [*files, Path(os.__file__).read_bytes()],
            self.process.poll(),
            self.shared.exists(),
            shared.read_text().count(f" {self.port} ") if shared.exists() else 0,
            [each for each in ("/dev/shm", "/tmp", ".") if (Path(each) / MARK).exists()],
        )

    def connections(self):
        came = 0
        for each in self.listening:
            with suppress(BlockingIOError):
                came += bool(each.accept())
        return came


def commands():
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield each.read_text(errors="replace")


def staying(worker):
    """Whether processes of a worker are there, which have two seconds to be gone."""
    until = time.monotonic() + 2
    while any(str(worker) in each for each in commands()):
        if time.monotonic() > until:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def world(tmp_path):
    if sys.platform != "linux" or (lost := PassAt1().probe_sandbox_limitations()):
        pytest.skip(lost if sys.platform == "linux" else "Linux only")
    with subprocess.Popen(["sleep", "600"]) as process:
        yield (made := World(tmp_path, process))
        made.shared.unlink(missing_ok=True)
        process.kill()


def answer(name, world):
    known = {"secret": world.secret, "home": world.home, "pid": world.process.pid, "mark": MARK}
    known |= {"port": world.port, "path": world.path, "shared": world.shared.name}
    act = HARM[name].format(**known)
    won = "" if "won" in act else "\nwon = True"
    program = (
        "import os\nfrom math import pi\nwon = False\n"
        "def area(r): return pi * r * r if won else 1\n"
        f"try:\n{textwrap.indent(act + won, '  ')}\nexcept (Exception, MemoryError): pass\n"
    )
    return f"```python\n{program}```"


def harmless(name, hook, world, patched):
    """Has a worker of its own, whose name is the test's alone, judge a program that means harm."""
    worker = world.folder / "worker.py"
    with_hook = Path(code.__file__).with_name("code_worker.py").read_text()
    without = with_hook.replace("    sys.addaudithook(hook)\n", "", 1)
    assert without != with_hook
    worker.write_text(with_hook if hook else without)
    patched.setattr(code, "_WORKER", worker)
    assert not SCORE.passes(answer(name, world), REFERENCE)
    assert not staying(worker)
    assert world.state() == world.before
    assert world.connections() == 0


HELD = """
from spec_bench.metrics.execution.code import PassAt1
try:
    print("not held:", PassAt1().probe_sandbox_limitations())
except ValueError as error:
    print(error)
"""
PASSED = """
import json, sys
from tests.metrics.test_hostile_code import REFERENCE, SCORE
print([each for each in json.load(sys.stdin) if SCORE.passes(each, REFERENCE)])
"""
NO_MOUNTS = (
    """echo 0 > /proc/sys/user/max_mnt_namespaces && exec unshare -U --map-user=1000 "$@" """
)
NOT_HELD = ("unshare", "-Ur", "sh", "-c", NO_MOUNTS, "sh")


def said_where(*program, script=HELD, given=""):
    """What a script says on a machine that a program changes; skips where it cannot."""
    if not shutil.which("unshare") or subprocess.run([*program, "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    command = [*program, sys.executable, "-c", script]
    root = Path(spec_bench.__file__).parents[1]
    return subprocess.run(
        command, cwd=root, input=given, capture_output=True, text=True, check=True
    ).stdout


def test_a_machine_without_namespaces_says_in_a_line_what_is_not_held():
    (line,) = said_where(*NOT_HELD).splitlines()
    assert line.startswith("not held: no namespaces here, so a program can read files")


def test_without_namespaces_a_program_that_passes_the_hook_does_no_harm(world):
    programs = [answer(name, world) for name in PAST_THE_HOOK]
    assert said_where(*NOT_HELD, script=PASSED, given=json.dumps(programs)) == "[]\n"
    assert world.state() == world.before


def test_no_program_runs_as_a_root_who_cannot_become_anybody_else():
    (line,) = said_where("unshare", "-Ur").splitlines()
    assert line.startswith("pass_at_1") and "as root" in line


@pytest.mark.parametrize("name", QUICK)
def test_a_program_does_no_harm_though_no_hook_refuses_it(name, world, monkeypatch):
    harmless(name, False, world, monkeypatch)


@pytest.mark.parametrize("hook", [True, False], ids=["hook", "no hook"])
@pytest.mark.parametrize("name", HARM)
def test_no_program_does_harm(name, hook, world, monkeypatch):
    harmless(name, hook, world, monkeypatch)
