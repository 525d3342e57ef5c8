"""The GPU benchmarks start beside a bare torch and transformers, in a small tree, by the clock."""

from __future__ import annotations

import csv
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bare import absent_modules

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
BARE = ROOT / "tests" / "bare.py"
PAIRS = {"llama2_7b-static", "llama2_7b-none"}  # whose papers' tables have expectations


def parts(out: Path) -> dict[str, tuple[list[str], list[str]]]:
    return runpy.run_path(str(SCRIPTS / "gpu/bench.py"))["parts"](out)


REHEARSED = [name for name, (_, tiny) in parts(ROOT).items() if tiny]


@pytest.mark.slow  # the energy part runs so among the fast tests, too: test_gpu_energy.py
@pytest.mark.parametrize("name", REHEARSED)
def test_a_part_runs_without_any_package_but_torch_and_transformers(
    name: str, tmp_path: Path
) -> None:
    script, *given = parts(tmp_path)[name][1]
    if name in PAIRS:
        given += ["--expect", "H200"]
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
        if name in PAIRS:  # what is expected stands beside what was measured
            told = [row for row in rows if row["expected_ms"]]
            assert len(told) == len(rows) == 33
            for row in told:
                assert float(row["expected_ms"]) >= float(row["expected_bound_ms"]) > 0
                assert float(row["iteration_ms"]) > 0


def test_what_torch_requires_is_kept_and_what_only_the_environment_has_is_not() -> None:
    absent = absent_modules()
    assert {"hydra", "omegaconf", "pydantic", "pandas", "matplotlib", "scipy"} <= absent
    assert not {"torch", "transformers", "numpy", "yaml", "tokenizers"} & absent


def test_the_tree_that_the_benchmarks_need_is_under_60_mib() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    size = sum((ROOT / name).stat().st_size for name in listed if name and (ROOT / name).is_file())
    assert size < 60 * 2**20
