"""What a run says of the checkout that it ran from."""

import subprocess

import pytest

from spec_bench.measure.provenance import git_state


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "code.py").write_text("x = 1\n")
    for words in (["init"], ["add", "."], ["commit", "-m", "one"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)
    return tmp_path


def test_new_results_are_no_change_of_a_checkout(checkout):
    (checkout / "results").mkdir()
    (checkout / "results" / "results.csv").write_text("run_id\n")
    state = git_state(checkout)
    assert state is not None
    assert len(state["revision"]) == 40
    assert state["dirty"] is False


def test_code_that_differs_from_the_revision_is_a_change(checkout):
    (checkout / "code.py").write_text("x = 2\n")
    assert git_state(checkout) is not None
    assert git_state(checkout)["dirty"] is True  # type: ignore[index]


def test_a_folder_of_no_checkout_has_no_state(tmp_path):
    assert git_state(tmp_path) is None
