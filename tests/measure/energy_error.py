"""Reported over true joules by meter: ``python -m tests.measure.energy_error``.

Simulated: windows of a cell take turns with another cell's, in a few seconds however long they are.
"""

import os

from tests.measure.made_up import Decoder, decode, machine, metered
from tests.measure.stand_ins import Curve

METERS = {
    "paper": {},
    "nvidia_smi, 5 ms": {"period_s": 0.005},
    "nvidia_smi, 50 ms": {},
    "nvml": {},
}
CURVES = {
    "steady 250 W": Curve("steady", low_w=250.0),
    "ramp of 2 W/s from 100 W": Curve("ramp", slope_w_per_s=2.0),
    "square 100/300 W, period 0.7 s": Curve("square", period_s=0.7),
}
CELLS = ((1, 0.3), (100, 0.3), (1, 1.0), (1, 2.5), (100, 2.5), (1, 10.0), (1, 60.0), (100, 60.0))


def share(said, curve, windows, window_s):
    """A cell's joules over what the curve says; empty where it has too few seconds for any."""
    with machine(curve) as clock, metered(said.partition(",")[0], **METERS[said]) as metering:
        decoder = Decoder(clock, 0.0, window_s)
        done = decode(metering, decoder, windows)
    joules = sum(each.energy_j for each in done)
    return f"{joules / decoder.true_j:.2f}" if joules else ""


if __name__ == "__main__":
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    print(f"| power | a cell of | {' | '.join(METERS)} |\n{'| --- ' * (2 + len(METERS))}|")
    for name, curve in CURVES.items():
        for cell in CELLS:
            shares = " | ".join(share(said, curve, *cell) for said in METERS)
            of = "{} windows of {:g} s".format(*cell).replace("1 windows", "1 window")
            print(f"| {name} | {of} | {shares} |", flush=True)
