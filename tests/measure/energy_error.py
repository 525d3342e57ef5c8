"""Ways to use nvidia-smi on known curves, 7 min: ``python -m tests.measure.energy_error``."""

import json
import os
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from tests.measure.conftest import opened, window
from tests.measure.stand_ins import VARIABLE, Curve, install

WINDOW_S, WINDOWS = 2.5, 12
METERS = {
    "nvidia_smi, 5 ms": ("nvidia_smi", {"period_s": 0.005}),
    "nvidia_smi, 50 ms": ("nvidia_smi", {}),
    "paper": ("paper", {}),
}
CURVES = {
    "steady 250 W": Curve("steady", low_w=250.0),
    "ramp of 20 W/s from 100 W": Curve("ramp"),
    "square 100/300 W, period 1 s": Curve("square"),
    "square 100/300 W, period 0.7 s": Curve("square", period_s=0.7),
}


def measured(name, settings, curve):
    """Joules and joules expected of each window; starts are spread over a second."""
    os.environ[VARIABLE] = json.dumps({"curves": [asdict(curve)]})
    with opened(name, **settings) as meter:
        for number in range(WINDOWS):
            time.sleep(number / WINDOWS)
            reading, begin_s, end_s = window(meter, WINDOW_S)
            assert reading.energy_j is not None, reading.note
            yield reading.energy_j, curve.energy_j(begin_s, end_s)


def cell(pairs):
    """In percent: mean size of a window's error, the worst one, all windows together."""
    each = [joules / expected_j - 1 for joules, expected_j in pairs]
    mean, worst = sum(map(abs, each)) / len(each), max(each, key=abs)
    joules, expected_j = map(sum, zip(*pairs, strict=True))
    return f"{100 * mean:.2f}, {100 * worst:+.2f}, {100 * (joules / expected_j - 1):+.2f}"


if __name__ == "__main__":
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder))
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        print(f"| power | {' | '.join(METERS)} |\n{'| --- ' * (1 + len(METERS))}|")
        for said, curve in CURVES.items():
            played = replace(curve, origin_s=time.time())
            cells = (cell([*measured(*meter, played)]) for meter in METERS.values())
            print(f"| {said} | {' | '.join(cells)} |", flush=True)
