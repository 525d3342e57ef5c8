"""The stand-in for ``nvidia-smi`` on PATH."""

import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, replace

import pytest

from spec_bench.measure.energy import build_meter
from tests.measure.stand_ins import VARIABLE, install


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


@contextmanager
def opened(name, ordinals=None, **settings):
    meter = build_meter({"meter": name, "idle_s": 0, **settings}, ordinals)
    meter.open()
    try:
        yield meter
    finally:
        meter.stop()


def window(meter, seconds=0.0, meanwhile=lambda: None):
    """A window, with its begin and end in seconds since the epoch, as close as can be told."""
    marks, mark = [], type(meter).mark

    def marked():
        before_s = time.time()
        found = mark(meter)
        marks.append(found if isinstance(found, float) else before_s)
        return found

    meter.mark = marked
    meter.begin_window()
    time.sleep(seconds)
    meanwhile()
    reading = meter.end_window()
    del meter.mark
    return reading, marks[0] if marks else None, marks[-1] if marks else None
