"""Servers are started, asked, and ended with whoever wanted them, however he ends."""

import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from spec_bench.serve import command, supervisor
from spec_bench.serve.command import PLAIN, ServingEngine, _is_up, read_serving_engine
from spec_bench.server.endpoint import ServerClient
from spec_bench.settings.configs import get_conf_dir
from tests.commands import serve as main
from tests.jobs.tiny import overrides, rows_of
from tests.listening import listening
from tests.warm import alive, until


def gone(pids):
    return until(lambda: not any(map(alive, pids)), 20)


ROOT = Path(__file__).resolve().parents[2]
ENGINE = """
title: Toy
kind: openai
program: {python}
arguments: [-m, tests.jobs.serving_engine, "{{port}}", "{{name}}"]
speculation:
  fast: [speculates]
  silent: [silent]
  broken: [broken]
  slow: [slow]
  mortal: [mortal]
"""


def left_running(folder):
    """Processes that are called with this folder: supervisors, jobs, servers."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in line.read_bytes() and alive(int(line.parent.name)):
                found.append(int(line.parent.name))
    return found


@pytest.fixture
def pids(tmp_path, monkeypatch):
    folder = tmp_path / "pids"
    folder.mkdir()
    monkeypatch.setenv("PIDS", str(folder))

    def found():
        return [int(pid) for file in folder.iterdir() for pid in file.read_text().split()]

    yield found
    for pid in found():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def started(tmp_path, family, *more, port=None):
    """``serve toy`` with an engine of its own, on the tiny family."""
    taken = f"command._find_free_port = lambda: {port};" if port else ""
    program = (
        "import sys; from pathlib import Path; import spec_bench.serve.command as command;"
        "from spec_bench.__main__ import run_command;"
        "from spec_bench.system.signals import exits_in_one_line\n"
        f"{taken}\nwith exits_in_one_line('interrupted'):"
        " sys.exit(run_command('serve', sys.argv[1:]))"
    )
    engine = tmp_path / "toy.yaml"
    engine.write_text(ENGINE.format(python=sys.executable))
    job = [*overrides(family, tmp_path / "results"), "server.wait_s=0", "prompts=2", "warmup=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-c", program, str(engine), "--logs", str(tmp_path / "logs"), *job, *more],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_a_plain_server_and_one_that_speculates_make_rows_and_end(
    tmp_path, family, pids, monkeypatch
):
    monkeypatch.setenv("SPEC_BENCH_SERVER_KEY", "sk-0123")
    run = started(tmp_path, family, "--with", "fast", "--arguments", "--api-key sk-0123")
    said, complained = run.communicate(timeout=300)
    assert run.returncode == 0, said + complained
    assert "Toy, fast: up after" in said
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert "sk-0123" not in said + complained
    assert b"sk-0123" not in written
    assert b"--api-key ***" in written
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    assert set(rows) == {"ar", "toy_fast"}
    assert float(rows["toy_fast"]["block_efficiency"]) > float(rows["ar"]["block_efficiency"])
    assert len(pids()) == 4
    assert gone(pids())


def asked(tmp_path, method):
    log = tmp_path / "logs" / f"{method}.log"
    return log.read_text().count("asked as target-") if log.exists() else 0


def in_the_middle(run, tmp_path):
    assert until(lambda: asked(tmp_path, "slow") >= 2 or run.poll() is not None, 300)
    assert run.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["silent", "slow"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_behind_their_job_with_the_command_however_it_ends(
    tmp_path, family, pids, method, how
):
    run = started(tmp_path, family, "--with", method, "prompts=8")
    if method == "slow":
        in_the_middle(run, tmp_path)
    assert until(lambda: len(pids()) == 4, 120)
    assert all(map(alive, pids()))
    run.send_signal(how)
    run.communicate(timeout=60)
    assert run.returncode == (-how if how == signal.SIGKILL else 128 + how)
    assert gone(pids())
    assert gone(left_running(tmp_path))
    assert not list((tmp_path / "results").rglob("results.csv"))
    assert not list((tmp_path / "results").rglob("*trace*"))


@pytest.mark.slow
def test_a_server_that_ends_in_the_middle_fails_its_row_in_its_own_words(tmp_path, family, pids):
    run = started(tmp_path, family, "--with", "mortal", "prompts=8", "server.wait_s=0.2")
    run.communicate(timeout=300)
    assert run.returncode == 1
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    assert (rows["ar"]["status"], rows["toy_mortal"]["status"]) == ("complete", "failed")
    assert "the server has ended: out of memory" in rows["toy_mortal"]["reason"]
    assert asked(tmp_path, "mortal") == 3
    assert gone(pids())
    assert gone(left_running(tmp_path))


class Stranger(BaseHTTPRequestHandler):
    posted: ClassVar = []

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "toy"}]}')

    def do_POST(self):
        self.posted.append(self.path)

    def log_message(self, *_):
        pass


def test_a_server_without_the_name_that_was_drawn_for_ours_is_not_up():
    with listening(Stranger) as url:
        for name, named, up in (("target-0", True, False), ("toy", True, True), ("x", False, True)):
            with closing(ServerClient(url, name, "", answer_timeout_s=5)) as server:
                assert _is_up(server, named) == up


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "said"),
    [((), "plain ended with status 1: "), (("--arguments", "silent"), "plain is silent after 6 s")],
)
def test_a_stranger_on_the_port_is_not_measured(tmp_path, family, pids, more, said):
    with listening(Stranger) as url:
        port = url.removesuffix("/v1").rpartition(":")[2]
        run = started(tmp_path, family, "--patience", "6", *more, port=port)
        _, complained = run.communicate(timeout=120)
    assert run.returncode == 1
    assert complained.count("\n") == 1
    assert said in complained
    assert not Stranger.posted
    assert gone(pids())


@pytest.mark.slow
def test_a_server_that_does_not_come_up_is_one_line(tmp_path, family):
    run = started(tmp_path, family, "--with", "broken")
    _, complained = run.communicate(timeout=120)
    assert (run.returncode, complained.count("\n")) == (1, 1)
    assert "broken ended with status 134 (Aborted): no such model" in complained


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in Path(command.__file__).parent.glob("engines/*.yaml"))
)
def test_every_engine_that_ships_fills_in_every_place(name):
    engine = read_serving_engine(name)
    assert isinstance(engine, ServingEngine)
    places = {"model": "M", "port": "1", "name": "N", "requests": "2", "slots": "3", "draft": "D"}
    for method in (PLAIN, *engine.speculation):
        words = engine.build_command(method, places, None)
        assert words[0] == engine.program
        assert {"M", "N"} <= {*words}
        assert not any("{" + place + "}" in each for each in words for place in places)


def test_an_engine_is_a_name_or_a_file_and_anything_else_is_refused_with_the_names(tmp_path):
    own = tmp_path / "toy.yaml"
    own.write_text(ENGINE.format(python="python"))
    assert read_serving_engine(str(own)).title == "Toy"
    with pytest.raises(ValueError, match=r"llama_cpp, sglang, vllm, or a YAML file; got 'vlm'"):
        read_serving_engine("vlm")
    own.write_text("title: Toy\nkind: toy\n")
    with pytest.raises(ValueError, match=r"toy\.yaml: kind must be one of openai, llama_cpp"):
        read_serving_engine(str(own))


def test_vllm_is_started_so_that_it_takes_all_texts_that_end_a_humaneval_answer():
    stops = yaml.safe_load((get_conf_dir() / "task" / "humaneval.yaml").read_text())["stop"]
    assert int(read_serving_engine("vllm").environment["VLLM_MAX_STOP_STRINGS"]) >= len(stops) > 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lama_cpp"], "did you mean llama_cpp?"),
        (["llama_cpp", "pair=embedded"], "llama.cpp serves a GGUF file"),
        (["vllm", "--with", "telepathy"], "--with takes ngram, suffix"),
        (["llama_cpp", "--model", "x.gguf", "--with", "draft_model", "pair.draft=null"], "--draft"),
        (["vllm", "--speed"], "no flag --speed"),
        (["vllm", "--api-key=sk-1"], "no flag --api-key"),
        (["vllm", "--arguments=--api-key sk-1"], "SPEC_BENCH_SERVER_KEY"),
        (["vllm", "--program", "no/such/vllm"], "program 'no/such/vllm' is not there: --program"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments, said, capsys):
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    complained = capsys.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1


def test_the_gguf_file_beside_a_fetched_model_is_served_and_its_place_is_told(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path))
    models = tmp_path / "models"
    (models / "smollm2").mkdir(parents=True)
    (models / "smollm2" / "config.json").write_text("{}")
    asked = ["llama_cpp", "pair=smollm2", "--program", "no/such/server"]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert str(models / "smollm2") in said and "make smollm2" in said
    (models / "smollm2.gguf").touch()
    assert main(asked) == 2
    assert "no/such/server" in capsys.readouterr().err  # all else is there


KEEPER = str(supervisor.__file__)
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
    until(file.exists)
    return [int(pid) for pid in file.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_kept_ignores_no_signal(number):
    asks = f"import signal; print(signal.getsignal({int(number)}) == signal.SIG_IGN)"
    with kept(sys.executable, "-c", asks) as keeping:
        assert keeping.stdout.read().split() == [b"False"]


@pytest.mark.parametrize(
    ("seconds", "act"),
    [
        ("600", lambda keeping: keeping.stdin.close()),  # whoever wanted it has gone
        ("0", lambda keeping: None),  # it ends by itself
        ("1", lambda keeping: keeping.terminate()),  # the supervisor goes on keeping
    ],
)
def test_a_child_in_a_session_of_its_own_ends_with_its_parent(tmp_path, seconds, act):
    with kept(sys.executable, "-c", PARENT, str(tmp_path / "ids"), seconds) as keeping:
        ids = ids_in(tmp_path / "ids")
        assert seconds == "0" or all(map(alive, ids))
        act(keeping)
        assert keeping.wait(30) == 0
        assert gone(ids)


def test_what_is_kept_ends_with_a_supervisor_that_is_killed(tmp_path):
    with kept(sys.executable, "-c", PARENT, str(tmp_path / "ids"), "600") as keeping:
        parent, child = ids_in(tmp_path / "ids")
        keeping.kill()
        try:
            assert gone([parent])
        finally:
            os.kill(child, signal.SIGKILL)  # nobody is left who knows of it


def test_what_died_of_a_signal_has_a_status_that_is_none_of_success():
    with kept("sh", "-c", "kill -9 $$") as keeping:
        assert keeping.wait(30) == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_block_leaves_nothing_running_where_its_supervisor_is_killed(tmp_path, number):
    program = (
        "import os, sys, time; from pathlib import Path; from spec_bench.serve import supervisor;"
        "from spec_bench.serve.command import running_process; supervisor.adopt_orphans()\n"
        f"command = [sys.executable, '-c', {PARENT!r}, {str(tmp_path / 'ids')!r}, '600']\n"
        "with running_process(command) as k:\n"
        f"    while not Path({str(tmp_path / 'ids')!r}).exists(): time.sleep(0.02)\n"
        f"    os.kill(k.pid, {int(number)})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    assert done.returncode == 0
    assert gone(ids_in(tmp_path / "ids"))


def test_what_is_held_ends_after_what_asks_it_where_the_command_is_killed(tmp_path):
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
        "from spec_bench.serve.command import running_process\n"
        f"start = [sys.executable, '-c', {says!r}]\n"
        "with running_process([*start, 'server', '0']) as server:\n"
        "    held = [server.stdin.fileno()]\n"
        "    with running_process([*start, 'job', '0.5'], held_descriptors=held):\n"
        f"        while not all(Path({str(tmp_path)!r}, each).exists() for each in "
        "('server', 'job')): time.sleep(0.02)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=120)
    until(lambda: order.exists() and order.read_text().count("\n") == 2, 30)
    assert order.read_text().split() == ["job", "server"]
