"""One iteration of a decoder on the simulated device, counted by what it is spent on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from spec_bench.decode import beam_decoder
from spec_bench.decode.beam_decoder import BeamDecoder
from spec_bench.records.types import Request
from tests.simcuda.mode import SimCuda

PHASES = ("draft", "sampling", "target", "verify", "rest")


@dataclass(frozen=True)
class Counts:
    """What one iteration asked of the device.

    Attributes:
        launches: kernels by phase: the drafts' passes, growing the tree, the target's pass, the
            walk, all else.
        uploads: copies to the device.
        downloads: copies to the host.
        waits: how often the host stood still until the device had nothing left to do.
        behind: how often it waited for an earlier iteration while the device was at a later one.
    """

    launches: dict[str, int]
    uploads: int
    downloads: int
    waits: int
    behind: int


def counted(sim: SimCuda, built: Any, requests: list[Request], heads: Any = None) -> Counts:
    """Counts an iteration of all rows, the third, when every constant is on the device.

    Constants belong to shapes, and beams and guesses come in many: so all is decoded once before.

    Args:
        sim: the mode, entered.
        built: a decoder on the simulated device.
        requests: one a row, none of which ends within three iterations.
        heads: its draft heads, if it has some.
    """
    built.generate(requests, seed=0)
    with torch.inference_mode(), _phases(sim, built, heads):
        active = built.begin(requests, seed=0)
        for _ in range(3):
            sim.reset()
            sim.phase = "rest"
            built.step(active)
            assert all(row.finish is None for row in active)
    downloads = sum(n for (_, what, _), n in sim.syncs.items() if what == "copy to host")
    downloads += sim.late_downloads
    launches = {phase: sim.launches[phase] for phase in PHASES}
    return Counts(launches, sum(sim.h2d.values()), downloads, sim.waits, sim.behind)


@contextmanager
def _phases(sim: SimCuda, built: Any, heads: Any) -> Iterator[None]:
    """Names what runs, for as long as an iteration is counted."""

    def named(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            before, sim.phase = sim.phase, phase
            try:
                return function(*args, **kwargs)
            finally:
                sim.phase = before

        return run

    parts = [(built.target, "forward", "target")]
    parts += [(draft, "forward", "draft") for draft in built.drafts]
    # Neither EAGLE's nor DFlash's heads are called as modules.
    for name in (
        "forward",
        "fuse",
        "step",
        "logits",
        "fed_back",
        "context",
        "context_kept",
        "turn",
        "outputs",
    ):
        if hasattr(heads, name):
            parts.append((heads, name, "draft"))
    if isinstance(built, BeamDecoder):
        parts += [(beam_decoder, "verify", "verify"), (built, "_draft", "sampling")]
    else:
        parts += [(built._scorer, "score", "target"), (built, "walk", "verify")]
    with ExitStack() as stack:
        for owner, name, phase in parts:
            whole = named(getattr(owner, name), phase)
            stack.enter_context(mock.patch.object(owner, name, whole))
        if not isinstance(built, BeamDecoder):
            kind = type(built.policy)  # frozen, so the class is what can be changed
            stack.enter_context(mock.patch.object(kind, "plant", named(kind.plant, "sampling")))
        yield
