"""Joules per token by all meters side by side, rehearsed on tiny models."""

from __future__ import annotations

import csv
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests import bare
from tests.measure.conftest import PlayPower
from tests.measure.energy_curves import Curve

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu" / "energy.py"


def rows_of(folder: Path, *arguments: str) -> list[dict[str, str]]:
    output = folder / "energy.csv"
    command = [sys.executable, bare.__file__, str(SCRIPT), "--tiny", "--output", str(output)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    with output.open() as stream:
        return list(csv.DictReader(stream))


def test_it_runs_beside_a_bare_torch_and_says_why_there_are_no_joules(
    tmp_path: Path,
) -> None:
    rows = rows_of(tmp_path)
    named = [(row["decoder"], row["lossless"], row["meter"]) for row in rows]
    assert named == [
        *[("ar", "exact", "none"), ("ar", "exact", "rapl")],
        *[("sd:3", "simulated", "none"), ("sd:3", "simulated", "rapl")],
    ]
    for row in rows:
        assert float(row["token_rate"]) > 0
        assert row["windows"] == "2"
        assert row["delivered_tokens"] == "24"
    assert {row["energy_j_per_token"] for row in rows if row["meter"] == "none"} == {""}
    assert rows[0]["reason"] == "no meter (2 of 2 windows)"


def test_meters_of_the_same_windows_agree_on_a_steady_power(
    tmp_path: Path, play_power: PlayPower, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_power(Curve("steady", low_w=400.0))
    output = tmp_path / "energy.csv"
    meters = ["--meters", "nvidia_smi", "paper", "--decoders", "ar"]
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script adds to it
    runpy.run_path(str(SCRIPT))["main"](["--tiny", "--output", str(output), *meters])
    smi, paper = csv.DictReader(output.read_text().splitlines())
    assert float(smi["mean_power_w"]) == pytest.approx(400.0, rel=0.02)
    assert float(smi["idle_power_w"]) == pytest.approx(400.0, rel=0.02)
    assert float(paper["idle_power_w"]) == pytest.approx(400.0, rel=0.02)
    assert float(smi["energy_j_per_token"]) == pytest.approx(
        400.0 * 2 * float(smi["mean_window_s"]) / 24, rel=0.02
    )
