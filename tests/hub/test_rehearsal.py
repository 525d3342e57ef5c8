"""Printed commands on published pairs, run as a user would; ``make rehearse`` runs them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub.commands import ROOT, printed_commands

PAPERS = ("rsd", "mcsd", "dsbd", "redrafter")


def test_every_table_prints_commands_and_each_is_collected_once() -> None:
    commands = printed_commands()
    texts = [command.text for command in commands]
    places = {place for command in commands for place in command.places}
    assert len(texts) == len(set(texts))
    assert {f"list {paper}" for paper in PAPERS} | {"conf/README.md", "refusal"} <= places
    assert {f"table rsd/{number}" for number in range(1, 55)} <= places


@pytest.mark.parametrize("each", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_printed_commands_of_each_paper_end_in_rows_after_the_printed_training(
    each: int, tmp_path: Path
) -> None:
    # HF_* are read when the libraries are imported: a process of its own.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    words = ["--each", str(each), "--brief", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/rehearse.py", *words],
        env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    count = each * (len(PAPERS) + 1)  # the training's, too
    assert f"{count} commands tried, {count} run, 0 refused, 0 failed" in done.stdout
    for paper in PAPERS:
        assert f" {paper}/" in done.stdout  # rows stand in its tables or figures
    assert "HTTP Request" not in done.stdout
