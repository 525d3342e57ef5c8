"""What a keeper keeps ends with it, and with whoever wanted it, whatever is killed first."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from spec_bench.serve import keeper
from tests.jobs.processes import alive, gone

KEEPER = str(keeper.__file__)
# Starts a child in a session of its own, says both ids, and lives on.
PARENT = """
import os, subprocess, time, pathlib, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
path = pathlib.Path(sys.argv[1])
path.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
path.with_suffix(".part").rename(path)
time.sleep(float(sys.argv[2]))
"""


@contextmanager
def kept(*command, log=""):
    with subprocess.Popen(
        [sys.executable, KEEPER, log, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as keeping:
        try:
            yield keeping
        finally:
            keeping.kill()


def ids_in(file):
    end = time.monotonic() + 60
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_kept_ignores_no_signal(number):
    asks = f"import signal; print(signal.getsignal({int(number)}) == signal.SIG_IGN)"
    with kept(sys.executable, "-c", asks) as keeping:
        assert keeping.stdout is not None
        assert keeping.stdout.read().split() == [b"False"]


def test_a_child_in_a_session_of_its_own_ends_with_whoever_wanted_its_parent(tmp_path):
    with kept(sys.executable, "-c", PARENT, str(tmp_path / "ids"), "600") as keeping:
        ids = ids_in(tmp_path / "ids")
        assert all(map(alive, ids))
        assert keeping.stdin is not None
        keeping.stdin.close()
        assert keeping.wait(30) == 0
        assert gone(ids)


def test_a_child_in_a_session_of_its_own_ends_with_its_parent(tmp_path):
    with kept(sys.executable, "-c", PARENT, str(tmp_path / "ids"), "0") as keeping:
        ids = ids_in(tmp_path / "ids")
        assert keeping.wait(30) == 0
        assert gone(ids)


def test_what_is_kept_ends_with_a_keeper_that_is_killed(tmp_path):
    with kept(sys.executable, "-c", PARENT, str(tmp_path / "ids"), "600") as keeping:
        parent, child = ids_in(tmp_path / "ids")
        keeping.kill()
        try:
            assert gone([parent])
        finally:
            os.kill(child, signal.SIGKILL)  # nobody is left who knows of it


def test_a_keeper_that_is_terminated_goes_on_keeping(tmp_path):
    with kept(sys.executable, "-c", PARENT, str(tmp_path / "ids"), "1") as keeping:
        ids = ids_in(tmp_path / "ids")
        keeping.terminate()
        assert keeping.wait(30) == 0
        assert gone(ids)


def test_what_died_of_a_signal_has_a_status_that_is_none_of_success():
    with kept("sh", "-c", "kill -9 $$") as keeping:
        assert keeping.wait(30) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_block_leaves_nothing_running_where_its_keeper_is_killed(tmp_path, number):
    program = (
        "import os, sys, time; from pathlib import Path; from spec_bench.serve import keeper;"
        "from spec_bench.serve.command import kept; keeper.adopt()\n"
        f"with kept([sys.executable, '-c', {PARENT!r}, {str(tmp_path / 'ids')!r}, '600']) as k:\n"
        f"    while not Path({str(tmp_path / 'ids')!r}).exists(): time.sleep(0.02)\n"
        f"    os.kill(k.pid, {int(number)})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    assert done.returncode == 0
    assert gone(ids_in(tmp_path / "ids"))


def test_what_is_held_ends_after_what_asks_it_where_the_command_is_killed(tmp_path):
    """As a job and the server that it asks: none is asked once it has ended."""
    order = tmp_path / "order"
    says = (
        "import signal, sys, time, pathlib\n"
        "def end(*_):\n"
        "    time.sleep(float(sys.argv[2]))\n"
        f"    open({str(order)!r}, 'a').write(sys.argv[1] + chr(10)); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(tmp_path)!r}, sys.argv[1]).touch(); time.sleep(600)\n"
    )
    program = (
        "import os, signal, sys, time; from pathlib import Path;"
        "from spec_bench.serve.command import kept\n"
        f"start = [sys.executable, '-c', {says!r}]\n"
        "with kept([*start, 'server', '0']) as server:\n"
        "    with kept([*start, 'job', '0.5'], held=[server.stdin.fileno()]):\n"
        f"        while not all(Path({str(tmp_path)!r}, each).exists() for each in "
        "('server', 'job')): time.sleep(0.02)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    end = time.monotonic() + 30
    while (not order.exists() or order.read_text().count("\n") < 2) and time.monotonic() < end:
        time.sleep(0.02)
    assert order.read_text().split() == ["job", "server"]
