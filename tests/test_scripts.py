"""Scripts lie in five workshops, each is named in their README, and none hides a module."""

import importlib.metadata
import re
import runpy
import shutil
import subprocess
import sys
from functools import reduce
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

from scripts.check import mutants, recount
from spec_bench.records import parquet
from tests.said import naming

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(path.relative_to(ROOT) for path in (ROOT / "scripts").glob("*/*.py"))
README = (ROOT / "scripts" / "README.md").read_text("utf-8")


def test_the_readme_names_every_script_once_and_no_other_and_those_that_can_be_run_as_commands():
    named = re.findall(r"^\| `(?:python3? )?(scripts/\w+/\w+\.py)", README, re.MULTILINE)
    assert sorted(named) == [path.as_posix() for path in SCRIPTS]
    for path in SCRIPTS:
        runs = '__name__ == "__main__"' in (ROOT / path).read_text("utf-8")
        assert runs == bool(re.search(rf"`python3? {path.as_posix()}", README)), path


def test_a_script_does_not_hide_a_module_from_those_that_it_imports():
    taken = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
    assert not {path.stem for path in SCRIPTS} & taken


@pytest.mark.parametrize("name", ["flips", "kills"])
def test_a_script_finds_this_checkouts_package_by_itself(name, tmp_path):
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(ROOT / 'scripts' / 'check' / name)!r} + '.py')\n"
        "print(sys.modules['spec_bench'].__file__)\n"
    )
    command = [sys.executable, "-E", "-c", code]  # without PYTHONPATH
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == ROOT / "spec_bench" / "__init__.py"


@pytest.mark.slow
def test_a_job_lies_twelve_frames_deep_and_a_temperature_and_a_prompt_pass_six_forms():
    script = str(ROOT / "scripts" / "check" / "forms.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    numbers = [int(n) for n in re.findall(r"^(\d+) (?:frames|forms)", done.stdout, re.MULTILINE)]
    assert numbers[0] <= 12 and max(numbers[1:]) <= 6 and len(numbers) == 3


@pytest.mark.slow
def test_damages_dying_writers_full_disks_and_clocks_cost_nothing_that_was_measured():
    few = ["--damages", "40", "--writers", "4", "--sizes", "3", "--clocks", "8"]
    command = [sys.executable, str(ROOT / "scripts/check/faults.py"), *few]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_interval_of_an_earlier_version_is_made_again_and_a_number_is_not(tmp_path, capsys):
    kept = ROOT / "results" / "embedded" / "mcsd-acceptance"
    for name in ("results.csv", "records.parquet"):
        shutil.copy(kept / name, tmp_path)
    table = tmp_path / "results.csv"
    rows = pd.read_csv(table, dtype=str, keep_default_na=False)
    rows = rows.iloc[[0, 3, 7]].reset_index(drop=True)
    today = rows.copy()
    rows.loc[1, "block_efficiency_low"] = "1.9"
    rows.loc[2, "token_rate"] = "1000.0"
    rows.to_csv(table, index=False)
    assert recount.main([str(tmp_path), "--write"]) == 1
    said = capsys.readouterr().out
    assert "block_efficiency_low is" in said and "token_rate is" in said
    assert "1 numbers differ, 1 ends (now written)" in said
    written = pd.read_csv(table, dtype=str, keep_default_na=False)
    assert written.loc[1].equals(today.loc[1]) and written.loc[2, "token_rate"] == "1000.0"
    parquet.require_unaltered_tables(tmp_path / "records.parquet")


@pytest.mark.slow
def test_the_numbers_and_intervals_in_git_are_those_that_todays_code_makes_of_their_records(capsys):
    assert recount.main([str(ROOT / "results")]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_made_up_decoders_stand_in_for_a_jobs_where_its_own_work_is_timed():
    command = [sys.executable, str(ROOT / "scripts/bench/prompts.py"), "--job", "2", "2"]
    last = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    seconds, report_s, mib = map(float, last[-2].split())
    assert 0 < seconds < 600 and 0 < report_s < 600 and mib > 100


def test_every_function_that_a_sweeps_seconds_are_split_by_exists():
    for place in runpy.run_path(str(ROOT / "scripts" / "bench" / "sweep.py"))["TIMED"]:
        module, _, path = place.partition(":")
        assert callable(reduce(getattr, path.split("."), import_module(module))), place


def test_every_mutants_old_text_stands_once_where_it_is_to_be_broken(tmp_path):
    found = mutants.read_mutants()  # raises where a text is gone, or a test
    assert len(found) > 50
    other, text = tmp_path / "mutants.yaml", mutants.MUTANTS.read_text("utf-8")
    other.write_text(text.replace(found[0].old, "no such text"), encoding="utf-8")
    with pytest.raises(ValueError, match=naming(found[0].name)):
        mutants.read_mutants(other)
