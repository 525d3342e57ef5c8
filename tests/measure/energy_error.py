"""Ways to use nvidia-smi on known curves, 3 min: ``python -m tests.measure.energy_error``."""

import json
import os
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

from spec_bench.measure.energy import build_meter
from tests.measure.stand_ins import VARIABLE, Curve, install

WINDOW_S, WINDOWS = 2.5, 12
METERS = {
    "nvidia_smi, 5 ms": {"meter": "nvidia_smi", "period_s": 0.005},
    "nvidia_smi, 50 ms": {"meter": "nvidia_smi"},
    "paper": {"meter": "paper"},
}
CURVES = {
    "steady 250 W": Curve("steady", low_w=250.0),
    "ramp of 20 W/s from 100 W": Curve("ramp"),
    "square 100/300 W, period 1 s": Curve("square"),
    "square 100/300 W, period 0.7 s": Curve("square", period_s=0.7),
}


def measured(curve):
    """(joules, joules expected) of each window, a list a meter; starts are spread over a second."""
    os.environ[VARIABLE] = json.dumps({"curves": [asdict(curve)]})
    meters = [build_meter({**m, "idle_s": 0}) for m in METERS.values()]
    found = [[] for _ in meters]
    for meter in meters:
        meter.open()
    for number in range(WINDOWS):
        time.sleep(number / WINDOWS)
        for meter in meters:
            meter.begin()
        begin_s = time.time()
        time.sleep(WINDOW_S)
        # The slowest to answer last: what a meter waits for must not lengthen another's window.
        for meter, list_ in zip(meters, found, strict=True):
            reading = meter.end()
            assert reading.energy_j is not None, reading.note
            # A meter that ends later has the rest of its window to answer for.
            list_.append((reading.energy_j, curve.energy_j(begin_s, begin_s + reading.window_s)))
    for meter in meters:
        meter.stop()
    return found


def line(name, found):
    """A row of the table: mean size of a window's error, the worst one, all windows together."""
    cells = []
    for pairs in found:
        each = [joules / expected_j - 1 for joules, expected_j in pairs]
        mean, worst = sum(map(abs, each)) / len(each), max(each, key=abs)
        together = sum(joules for joules, _ in pairs) / sum(expected for _, expected in pairs) - 1
        cells.append(f"{100 * mean:.2f}, {100 * worst:+.2f}, {100 * together:+.2f}")
    return f"| {name} | {' | '.join(cells)} |"


def main():
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder))
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        print(f"| power | {' | '.join(METERS)} |")
        print("| --- " * (1 + len(METERS)) + "|")
        for name, curve in CURVES.items():
            print(line(name, measured(replace(curve, origin_s=time.time()))), flush=True)


if __name__ == "__main__":
    main()
