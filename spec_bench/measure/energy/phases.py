"""Where in a sensor's cycle a window starts.

An A100 or H100 samples its power for 25 of every 100 ms (Yang, Adamek and Armour, "Part-time Power
Measurements: nvidia-smi's Lack of Attention", arXiv:2312.02741, Section 4). A load that keeps step
with that cycle is always seen in the same 25 ms. Windows that start at evenly spread delays see all
of it between them; a cell has many windows, so none is decoded twice for this.
"""

from __future__ import annotations


def phase_delay_s(window: int, spread_s: float) -> float:
    """How long to wait before a window, so that any number of windows are evenly spread.

    The van der Corput sequence in base 2: 0, 1/2, 1/4, 3/4, 1/8, ... of ``spread_s``.

    Args:
        window: its number, from 0.
        spread_s: the sensor's cycle, in seconds; 0 gives no delay.
    """
    fraction, step = 0.0, 0.5
    while window:
        window, bit = divmod(window, 2)
        fraction += bit * step
        step /= 2
    return fraction * spread_s
