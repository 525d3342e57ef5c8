"""A python without the packages: one line that names the first of them and says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HIDING = """
import runpy, sys
HIDDEN = sys.argv.pop(1)
class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name == HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hiding())
sys.path.insert(0, %r)
runpy.run_module("spec_bench", run_name="__main__", alter_sys=True)
"""


def said(*words, folder):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def check(done, package=""):
    assert done.returncode == 2
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    for part in (package, "source .venv/bin/activate", "make env"):
        assert part in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("spec_bench", "prompts=3"),
        ("spec_bench", "--help"),
        ("spec_bench", "compare", "a", "b"),
        ("spec_bench.report", "sweep", "default"),
        ("spec_bench.train", "head=medusa"),
        ("spec_bench.audit",),
    ],
    ids=" ".join,
)
def test_a_python_without_packages_is_one_line_that_says_how_to_get_them(words, tmp_path):
    check(said("-S", "-m", *words, folder=tmp_path))


@pytest.mark.parametrize("package", ["hydra", "torch"])
def test_a_package_that_is_missing_is_named(package, tmp_path):
    (tmp_path / "hiding.py").write_text(HIDING % str(ROOT))
    check(said("hiding.py", package, "prompts=1", "sink=quiet", folder=tmp_path), repr(package))
