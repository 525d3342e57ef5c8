"""One iteration of a decoder on the simulated device: copies, waits and replays."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Counts(NamedTuple):
    uploads: int  # copies to the device
    downloads: int  # copies to the host
    waits: int  # how often the host stood still until the device had nothing left to do
    # How often it waited for an earlier iteration while the device was at a later one.
    behind: int
    replays: int  # of recordings


def counted(sim, built, requests):
    """Counts an iteration of all rows, the third, when every constant is on the device.

    Constants belong to shapes, and beams and guesses come in many: so all is decoded once before.

    Args:
        sim: the mode, entered.
        built: a decoder on the simulated device.
        requests: one a row, none of which ends within three iterations.
    """
    built.generate(requests, seed=0)
    with torch.inference_mode():
        active = built.begin(requests, seed=0)
        for _ in range(3):
            sim.reset()
            built.step(active)
            assert all(row.finish is None for row in active)
    downloads = sum(n for (what, _), n in sim.syncs.items() if what == "copy to host")
    uploads = sum(sim.h2d.values())
    return Counts(uploads, downloads + sim.late_downloads, sim.waits, sim.behind, sim.replays)
