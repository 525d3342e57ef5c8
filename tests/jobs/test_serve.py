"""Servers are started, asked, and ended with whoever wanted them, however he ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from spec_bench.serve.command import PLAIN, ServingEngine, _up, read_engine
from spec_bench.server.endpoint import Server
from spec_bench.settings.configs import conf_dir
from tests.jobs.processes import alive, gone
from tests.jobs.tiny import overrides, rows_of
from tests.listening import listening

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
    """Processes that are called with this folder: keepers, jobs, servers."""
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
    taken = f"command._free_port = lambda: {port};" if port else ""
    program = (
        "import sys; from pathlib import Path; import spec_bench.serve.command as command;"
        "from spec_bench.settings.configs import conf_dirs;"
        f"command.conf_dirs = lambda: [*conf_dirs(), Path({str(tmp_path)!r})];"
        "from spec_bench.system.signals import orderly\n"
        f"{taken}\nwith orderly('interrupted'): sys.exit(command.main(sys.argv[1:]))"
    )
    (tmp_path / "server").mkdir(exist_ok=True)
    (tmp_path / "server" / "toy.yaml").write_text(ENGINE.format(python=sys.executable))
    job = [*overrides(family, tmp_path / "results"), "server.wait_s=0", "prompts=2", "warmup=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-c", program, "toy", "--logs", str(tmp_path / "logs"), *job, *more],
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


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_command_however_it_ends(tmp_path, family, pids, how):
    run = started(tmp_path, family, "--with", "silent")
    end = time.monotonic() + 120
    while len(pids()) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    assert all(map(alive, pids()))
    run.send_signal(how)
    run.communicate(timeout=60)
    assert run.returncode != 0
    assert gone(pids())


def asked(tmp_path, method):
    """Requests that a server has seen."""
    log = tmp_path / "logs" / f"{method}.log"
    return log.read_text().count("asked as target-") if log.exists() else 0


def in_the_middle(run, tmp_path):
    """Waits until the slow server has been asked twice."""
    end = time.monotonic() + 300
    while asked(tmp_path, "slow") < 2 and run.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert run.poll() is None


def keeper_of(tmp_path, log):
    (found,) = (
        pid
        for pid in left_running(tmp_path)
        if f"keeper.py\0{log}\0" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_job_ends_before_the_servers_that_it_asks_however_the_command_ends(
    tmp_path, family, pids, how
):
    run = started(tmp_path, family, "--with", "slow", "prompts=8")
    in_the_middle(run, tmp_path)
    run.send_signal(how)
    run.communicate(timeout=60)
    assert run.returncode == (-how if how == signal.SIGKILL else 128 + how)
    assert gone(pids())
    assert gone(left_running(tmp_path))
    assert not list((tmp_path / "results").rglob("results.csv"))
    assert not list((tmp_path / "results").rglob("*trace*"))


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["server", "job"])
def test_a_keeper_that_is_killed_leaves_nothing_running(tmp_path, family, pids, whose):
    run = started(tmp_path, family, "--with", "slow", "prompts=8")
    in_the_middle(run, tmp_path)
    log = str(tmp_path / "logs" / "slow.log") if whose == "server" else ""
    os.kill(keeper_of(tmp_path, log), signal.SIGKILL)
    run.communicate(timeout=120)
    assert run.returncode != 0
    assert gone(pids())
    assert gone(left_running(tmp_path))
    if whose == "job":
        assert not list((tmp_path / "results").rglob("results.csv"))
        return
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    assert (rows["ar"]["status"], rows["toy_slow"]["status"]) == ("complete", "failed")
    assert "the server has ended: asked as target-" in rows["toy_slow"]["reason"]


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
            with closing(Server(url, name, "", answer_s=5)) as server:
                assert _up(server, named) == up


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
    assert run.returncode == 1
    assert complained.count("\n") == 1
    assert "broken ended with status 1: no such model" in complained


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "server").iterdir()))
def test_every_engine_that_ships_fills_in_every_place(name):
    engine = read_engine(name)
    assert isinstance(engine, ServingEngine)
    places = {"model": "M", "port": "1", "name": "N", "requests": "2", "slots": "3", "draft": "D"}
    for method in (PLAIN, *engine.speculation):
        command = engine.command(method, places, None)
        assert command[0] == engine.program
        assert {"M", "N"} <= {*command}
        assert not any("{" + place + "}" in each for each in command for place in places)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lama_cpp"], "did you mean llama_cpp?"),
        (["llama_cpp", "pair=embedded"], "llama.cpp serves a GGUF file"),
        (["vllm", "--with", "telepathy"], "--with takes ngram, suffix"),
        (["llama_cpp", "--model", "x.gguf", "--with", "draft_model", "pair.draft=null"], "--draft"),
        (["vllm", "--speed"], "no option --speed"),
        (["vllm", "--api-key=sk-1"], "no option --api-key=***"),
        (["vllm", "--arguments=--api-key sk-1"], "SPEC_BENCH_SERVER_KEY"),
        (["vllm", "--program", "no/such/vllm"], "program 'no/such/vllm' is not there: --program"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments, said, capsys):
    from spec_bench.serve.command import main

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
    from spec_bench.serve.command import main

    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path))
    models = tmp_path / "models"
    (models / "smollm2").mkdir(parents=True)
    (models / "smollm2" / "config.json").write_text("{}")
    asked = ["llama_cpp", "pair=smollm2", "--program", "no/such/server"]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert f"make smollm2 leaves {models / 'smollm2.gguf'}" in said
    (models / "smollm2.gguf").touch()
    assert main(asked) == 2
    assert "no/such/server" in capsys.readouterr().err  # all else is there
