"""Printed commands on published pairs, run as a user would; ``make rehearse`` runs them all."""

import os
import subprocess
import sys

import pytest

from tests.hub.commands import ROOT, Command, few_of_each, printed_commands
from tests.hub.models import published_pairs
from tests.hub.rehearsal import Notes, Outcome

PAPERS = ("rsd", "mcsd", "dsbd", "redrafter", "beyond", "eagle", "today")


def test_every_table_prints_commands_and_each_is_collected_once():
    commands = printed_commands()
    texts = [command.text for command in commands]
    places = {place for command in commands for place in command.places}
    assert len(texts) == len(set(texts))
    assert {f"list {paper}" for paper in PAPERS} | {"docs/training.md", "refusal"} <= places
    assert {f"table rsd/{number}" for number in range(1, 55)} <= places


def test_every_printed_command_on_a_published_pair_names_the_gpu():
    published = {pair["name"] for pair in published_pairs()}
    named = [
        each
        for each in printed_commands()
        if published & {*each.settings.get("pair", "").split(",")}
    ]
    assert len(named) > 100
    assert [each.text for each in named if each.settings.get("engine") != "cuda"] == []


def rehearsed(folder, *words):
    """What the script prints; it must have run every command."""
    # HF_* are read when the libraries are imported: a process of its own.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/check/rehearse.py", "--folder", str(folder), *words],
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "HTTP Request" not in done.stdout
    return done.stdout


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_commands_of_each_paper_end_in_rows_after_the_printed_training(tmp_path, count):
    printed = printed_commands()
    trained = "name=redrafter_vicuna_7b_blocks4"
    own = [
        *(each.first_job().text for each in few_of_each(printed, 3) if trained in each.text),
        *(each.first_job().text for each in few_of_each(printed, count) if each.recipe),
    ]
    assert len(own) == count * len(PAPERS) + 1
    (tmp_path / "commands").write_text("".join(f"{text}\n" for text in own))
    said = rehearsed(tmp_path, "--of", str(tmp_path / "commands"))
    assert f"{len(own)} commands tried, {len(own)} run, 0 refused, 0 failed" in said
    for paper in PAPERS:
        assert f" {paper}/" in said  # rows stand in its tables or figures
    assert len((tmp_path / "outcomes.jsonl").read_text().splitlines()) == len(own)


@pytest.mark.slow
def test_three_sweeps_of_each_paper_end_in_rows_and_are_not_run_again(tmp_path):
    said = rehearsed(tmp_path, "--each", "3")
    count = 3 * (len(PAPERS) + 1)  # the trainings', too
    assert f"{count} commands tried, {count} run, 0 refused, 0 failed" in said
    again = rehearsed(tmp_path, "--each", "3")
    assert again.count("before ") == count


def test_a_rehearsal_goes_on_behind_what_has_run(tmp_path):
    done, failed, cut = (Command(f"spec-bench rsd={each}", ()) for each in "abc")
    notes = Notes(tmp_path / "outcomes.jsonl")
    notes.add(Outcome(done, "rows", "9 rows", 1.5, 1.0), whole=False)
    notes.add(Outcome(failed, "failed", "status 1", 1.5, 1.0), whole=True)
    with notes.file.open("a") as lines:
        lines.write('{"text": "spec-bench rsd=c", "ki')
    assert notes.ran([done, failed, cut], whole=False) == [
        Outcome(done, "rows", "9 rows", 1.5, 1.0)
    ]
    assert notes.ran([done], whole=True) == []
