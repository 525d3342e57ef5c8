"""SQL that a model may write by accident or by design: it is run, and nothing comes of it."""

import hashlib
import shutil
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from spec_bench.metrics.execution import ExecutionAccuracy
from spec_bench.metrics.execution.sql import SqlProcess
from spec_bench.records.types import SqlReference
from tests.metrics.hostile import FILES, HARMLESS_FIRST, HOSTILE, MEMORY, PARSER, TIME, WRITES

DATABASES = Path(__file__).parents[2] / "spec_bench" / "embedded" / "tasks" / "spider" / "database"
LIMIT_S = 0.2
KILL_S = 30.0  # after the limit, at most: the alarm, the kill, a new process, on a busy machine


def contents(folder):
    """The digest of every file below a folder."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the databases, alone in a folder."""
    return Path(shutil.copytree(DATABASES, tmp_path_factory.mktemp("hostile") / "database"))


@pytest.fixture(scope="module")
def process():
    with SqlProcess() as process:
        yield process


def run(process, folder, sql):
    database = folder / "school" / "school.sqlite"
    return process.run(database, sql.replace("{folder}", str(folder)), LIMIT_S, 100)


def test_all_of_it_together_scores_nothing_and_leaves_every_database_as_it_was(folder):
    before, began = contents(folder), time.monotonic()
    gold = SqlReference("SELECT name FROM pupil", folder / "school" / "school.sqlite")
    answers = [sql.replace("{folder}", str(folder)) for sql in HOSTILE.values()]
    found = ExecutionAccuracy(LIMIT_S).columns([*answers, gold], [[gold]] * (len(answers) + 1))
    assert contents(folder) == before
    # Only the honest answer at the end is right: the process that runs it has been replaced.
    assert found["execution_accuracy"].value == 1 / (len(answers) + 1)
    assert found["execution_timeouts"].value >= len(TIME)
    failed = found["execution_errors"].value + found["execution_timeouts"].value
    assert failed >= len(HOSTILE) - len(HARMLESS_FIRST) - len(MEMORY)
    assert time.monotonic() - began < (len(TIME) + len(MEMORY)) * (LIMIT_S + KILL_S)


@pytest.mark.parametrize("name", [*WRITES, *FILES])
def test_the_process_itself_refuses_what_is_not_reading(name, process, folder):
    before = contents(folder)
    outcome = run(process, folder, (WRITES | FILES)[name])
    assert outcome.rows == ()
    if name != "reindex":  # there is no index, so that nothing has to be refused
        assert outcome.status == "error"
    assert contents(folder) == before


@pytest.mark.parametrize("name", TIME)
def test_a_query_ends_at_its_limit(name, process, folder):
    began = time.monotonic()
    assert run(process, folder, TIME[name]).status == "timeout"
    assert time.monotonic() - began < LIMIT_S + KILL_S


@pytest.mark.parametrize("name", PARSER)
def test_a_text_that_is_no_statement_is_no_result(name, process, folder):
    outcome = run(process, folder, PARSER[name])
    assert outcome.rows == ()
    if name != "only semicolons":  # SQLite takes them for a statement that does nothing
        assert outcome.status == "error"


def peak_kib(pid):
    """The most memory that a process has had resident; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


@contextmanager
def peaks_of(process):
    """Peaks of the processes that run the queries, read again and again while they live."""
    peaks, ended = [0], threading.Event()

    def watch():
        while not ended.wait(0.002):
            worker = process._process
            peaks.append(0 if worker is None else peak_kib(worker.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def test_a_query_that_wants_much_memory_does_not_get_it(folder):
    with SqlProcess() as process, peaks_of(process) as peaks:
        for sql in MEMORY.values():
            run(process, folder, sql)
    assert 1 << 12 < max(peaks) < 1 << 20


def test_a_process_that_was_killed_is_replaced(folder):
    with SqlProcess() as process:
        assert run(process, folder, TIME["one long call"]).reason.startswith("killed")
        assert len(run(process, folder, "SELECT name FROM pupil").rows) == 40


def test_a_process_that_dies_is_an_error_and_is_replaced(folder):
    with SqlProcess(memory_bytes=1 << 26) as process:
        rows = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t LIMIT 1000000) "
        died = process.run(
            folder / "school" / "school.sqlite",
            rows + "SELECT max(x) FROM (SELECT x, hex(randomblob(1000)) h FROM t ORDER BY h)",
            20.0,
            100,
        )
        assert (died.status, died.reason) == ("error", "the process died with status 1")
        assert len(run(process, folder, "SELECT name FROM pupil").rows) == 40
