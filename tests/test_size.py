"""The house stays small enough to read: lines of Python are bounded, and the bounds only fall."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Lines at most. A change that deletes lowers its bound. One that raises it says in the changelog
# what users get for it.
MOST = {"spec_bench": 44_210, "tests": 29_650, "scripts": 7_370}
SLACK = 500  # lines that may be missing before the bound has to follow
LONGEST = 600  # lines of one file: one subject that reads as a story


@pytest.mark.parametrize("folder", MOST)
def test_lines_stay_below_a_bound_that_follows_them_down(folder):
    lines = sum(path.read_text("utf-8").count("\n") for path in (ROOT / folder).rglob("*.py"))
    assert lines <= MOST[folder], f"{folder} has {lines} lines: delete some"
    assert lines >= MOST[folder] - SLACK, f"lower MOST[{folder!r}] to {lines}"


@pytest.mark.parametrize("folder", ["spec_bench", "scripts"])
def test_a_file_is_short_enough_to_be_read_at_once(folder):
    lines = {path: path.read_text("utf-8").count("\n") for path in (ROOT / folder).rglob("*.py")}
    assert not [f"{path.relative_to(ROOT)}: {n}" for path, n in lines.items() if n > LONGEST]
