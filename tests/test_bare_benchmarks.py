"""The GPU benchmarks start beside a bare torch and transformers, in a small tree, by the clock."""

import csv
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare import absent_modules
from tests.committed import committed_files

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
BARE = ROOT / "tests" / "bare.py"


def parts(out):
    return runpy.run_path(str(SCRIPTS / "gpu/bench.py"))["parts"](out)


REHEARSED = [name for name, (_, tiny) in parts(ROOT).items() if tiny]


@pytest.mark.slow
@pytest.mark.parametrize("name", REHEARSED)
def test_a_part_runs_without_any_package_but_torch_and_transformers(name, tmp_path):
    script, *given = parts(tmp_path)[name][1]
    command = [sys.executable, str(BARE), str(SCRIPTS / script), *given]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    written = list(tmp_path.glob("*.csv"))
    assert written
    for path in written:
        with path.open() as stream:
            rows = list(csv.DictReader(stream))
        assert rows


def test_what_torch_requires_is_kept_and_what_only_the_environment_has_is_not():
    absent = absent_modules()
    assert {"hydra", "omegaconf", "pydantic", "pandas", "matplotlib", "scipy"} <= absent
    assert not {"torch", "transformers", "numpy", "yaml", "tokenizers"} & absent


def test_the_tree_that_the_benchmarks_need_is_under_60_mib():
    files = [ROOT / name for name in committed_files()]
    assert sum(file.stat().st_size for file in files if file.is_file()) < 60 * 2**20


def verdicts(folder):
    return list(runpy.run_path(str(SCRIPTS / "gpu/bench.py"))["verdicts"](folder))


def test_verdicts_name_wrong_answers_refusals_and_recordings_that_are_no_gain(tmp_path):
    head = "device,decoder,spec,token_rate,refused\n"
    (tmp_path / "random-x-static.csv").write_text(
        head + "H200,ar,-,100,0\nH200,sd,3,90,0\nH200,mcsd,2-1,50,2\n"
    )
    (tmp_path / "random-x-none.csv").write_text(head + "H200,ar,-,80,0\nH200,sd,3,95,0\n")
    (tmp_path / "gpu-correct.csv").write_text(
        "device,dtype,compile,batch,decoder,wrong,p_value\nH200,bfloat16,static,4,rsd_s,2,\n"
    )
    assert verdicts(tmp_path) == [
        "WRONG: rsd_s (bfloat16, static, batch 4): 2",
        "REFUSED: static passes in 1 rows of random-x-static.csv",
        "SLOWER: 1 of 3 rows of random-x-static.csv than without recording",
    ]


def test_without_anything_wrong_there_is_no_verdict(tmp_path):
    (tmp_path / "random-x-static.csv").write_text(
        "device,decoder,spec,token_rate,refused\nH200,ar,-,100,0\n"
    )
    assert verdicts(tmp_path) == []


def test_a_probe_that_fails_ends_the_first_call(tmp_path):
    """No GPU is in sight: the probe says so, and nothing else is started."""
    command = [sys.executable, str(SCRIPTS / "gpu/bench.py"), "first", "--out", str(tmp_path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "no GPU" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("FAILED: probe (status 2")
    assert "no verdict against it" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["probe.log"]


def test_a_part_that_dies_is_named_and_the_others_run(tmp_path, monkeypatch, capfd):
    (tmp_path / "dead.py").write_text("raise SystemExit('an assert of the device')\n")
    (tmp_path / "well.py").write_text("print('measured')\n")
    main = runpy.run_path(str(SCRIPTS / "gpu/bench.py"))["main"]
    planted = {name: ([str(tmp_path / f"{name}.py")], []) for name in ("dead", "well")}
    monkeypatch.setitem(main.__globals__, "parts", lambda out: planted)
    out = tmp_path / "out"
    assert main(["all", "--out", str(out)]) == 1
    said = capfd.readouterr().out
    assert "measured" in said
    assert said.splitlines()[-1].startswith("FAILED: dead (status 1")
    assert main(["all", "--out", str(out), "--minutes", "0"]) == 1
    assert "NOT RUN: dead" in capfd.readouterr().out.splitlines()[-1]
    (tmp_path / "dead.py").write_text("")
    assert main(["all", "--out", str(out)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "no verdict against it"
