"""Servers are started, asked, and ended with whoever wanted them, however he ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spec_bench.serve.engines import PLAIN, ServingEngine, read_engine
from spec_bench.settings.configs import conf_dir
from tests.jobs.tiny import overrides, rows_of

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """
title: Toy
kind: openai
program: {python}
arguments: [-m, tests.jobs.serving_engine, "{{port}}"]
served: toy
speculation:
  fast: [speculates]
  silent: [silent]
  broken: [broken]
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pids: list[int], patience_s: float = 20) -> bool:
    end = time.monotonic() + patience_s
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    folder = tmp_path / "pids"
    folder.mkdir()
    monkeypatch.setenv("PIDS", str(folder))

    def found() -> list[int]:
        return [int(pid) for file in folder.iterdir() for pid in file.read_text().split()]

    yield found
    for pid in found():
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def started(tmp_path: Path, family: Path, *more: str) -> subprocess.Popen[str]:
    """``serve toy`` with an engine of its own, on the tiny family."""
    program = (
        "import sys; from pathlib import Path; import spec_bench.serve.engines as engines;"
        "from spec_bench.settings.configs import conf_dirs;"
        f"engines.conf_dirs = lambda: [*conf_dirs(), Path({str(tmp_path)!r})];"
        "from spec_bench.serve.command import main; sys.exit(main(sys.argv[1:]))"
    )
    (tmp_path / "server").mkdir(exist_ok=True)
    (tmp_path / "server" / "toy.yaml").write_text(ENGINE.format(python=sys.executable))
    job = [*overrides(family, tmp_path / "results"), "server.wait_s=0", "prompts=2", "warmup=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-c", program, "toy", "--logs", str(tmp_path / "logs"), *more, *job],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.slow
def test_a_plain_server_and_one_that_speculates_make_rows_and_end(
    tmp_path: Path, family: Path, pids: Callable[[], list[int]]
) -> None:
    run = started(tmp_path, family, "--with", "fast")
    said, complained = run.communicate(timeout=300)
    assert run.returncode == 0, said + complained
    assert "Toy, fast: up after" in said
    rows = {row["decoder"]: row for row in rows_of(tmp_path / "results")}
    assert set(rows) == {"ar", "toy_fast"}
    assert float(rows["toy_fast"]["block_efficiency"]) > float(rows["ar"]["block_efficiency"])
    assert len(pids()) == 4
    assert gone(pids())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_command_however_it_ends(
    tmp_path: Path, family: Path, pids: Callable[[], list[int]], how: signal.Signals
) -> None:
    run = started(tmp_path, family, "--with", "silent")
    end = time.monotonic() + 120
    while len(pids()) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    assert all(map(alive, pids()))
    run.send_signal(how)
    run.communicate(timeout=60)
    assert run.returncode != 0
    assert gone(pids())


@pytest.mark.slow
def test_a_server_that_does_not_come_up_is_one_line(tmp_path: Path, family: Path) -> None:
    run = started(tmp_path, family, "--with", "broken")
    _, complained = run.communicate(timeout=120)
    assert run.returncode == 1
    assert complained.count("\n") == 1
    assert "broken ended with status 1: no such model" in complained


@pytest.mark.parametrize("name", sorted(path.stem for path in (conf_dir() / "server").iterdir()))
def test_every_engine_that_ships_fills_in_every_place(name: str) -> None:
    engine = read_engine(name)
    assert isinstance(engine, ServingEngine)
    places = {"model": "M", "port": "1", "requests": "2", "slots": "3", "draft": "D"}
    for method in (PLAIN, *engine.speculation):
        command = engine.command(method, places, None)
        assert command[0] == engine.program
        assert "M" in command
        assert not any("{" + place + "}" in each for each in command for place in places)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lama_cpp"], "did you mean llama_cpp?"),
        (["llama_cpp", "pair=embedded"], "llama.cpp serves a GGUF file"),
        (["vllm", "--with", "telepathy"], "--with takes ngram, suffix"),
        (["llama_cpp", "--model", "x.gguf", "--with", "draft_model", "pair.draft=null"], "--draft"),
        (["vllm", "--speed"], "no option --speed"),
        (["vllm", "--program", "no/such/vllm"], "program 'no/such/vllm' is not there: --program"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from spec_bench.serve.command import main

    try:
        status: object = main(arguments)
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    complained = capsys.readouterr().err
    assert said in complained
    assert complained.count("\n") == 1


def test_the_gguf_file_beside_a_fetched_model_is_served_and_its_place_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from spec_bench.serve.command import main

    monkeypatch.setenv("SPEC_BENCH_CACHE", str(tmp_path))
    models = tmp_path / "models"
    (models / "smollm2").mkdir(parents=True)
    asked = ["llama_cpp", "pair=smollm2", "--program", "no/such/server"]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert f"make smollm2 leaves {models / 'smollm2.gguf'}" in said
    (models / "smollm2.gguf").touch()
    assert main(asked) == 2
    assert "no/such/server" in capsys.readouterr().err  # all else is there
