"""The stand-in for ``nvidia-smi`` on PATH."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from tests.measure.energy_curves import Curve
from tests.measure.energy_smi import VARIABLE, install

PlayPower = Callable[..., list[Curve]]


@pytest.fixture
def play_power(tmp_path, monkeypatch):
    """Puts a machine with one GPU a curve on PATH; the curves come back with their origin."""

    def play(*curves, **plan):
        install(tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        origin_s = time.time() - 10
        played = [replace(curve, origin_s=origin_s) for curve in curves]
        plan["curves"] = [asdict(curve) for curve in played]
        monkeypatch.setenv(VARIABLE, json.dumps(plan))
        return played

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return play


def kill_meter(file):
    """Ends a stand-in that ``dies_of`` this file; nothing is sampled afterwards."""
    file.touch()
    while file.exists():
        time.sleep(0.01)
