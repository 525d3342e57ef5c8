"""What an iteration asks of a GPU: one copy each way, one wait, and few launches beside the passes.

Dynamic trees ask once more, and wait: how many nodes each level keeps is known only when all levels
are drafted, and the host must know it to lay the tree out. Without asking, every level would be as
wide as the whole tree, which the target would verify.

Launches are counted eagerly, at the models' own decoder trees; models are tiny, and counts do not
depend on widths.
"""

from __future__ import annotations

import dataclasses

import pytest

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from tests.families import VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import HEADS
from tests.simcuda import DEVICE, SimCuda
from tests.simcuda.counted import Counts, counted

# Launches of the walk at one row: every further row draws its own random numbers, a launch more.
VERIFY = {
    "ar": ("-", 40),
    "sd": ("3", 60),
    "specinfer": ("2-2-2", 120),
    "mcsd": ("4-1-1", 120),
    "mcsd_wor": ("4-1-1", 120),
    "mcns": ("4-1-1", 120),
    "rsd_c": ("2-2-2", 120),
    "rsd_s": ("4x3", 120),
    "spectr": ("4x3", 160),
    "medusa": ("mc_sim_7b_63", 120),
    "medusa_typical": ("mc_sim_7b_63", 120),
    "redrafter": ("8x5", 120),
    "redrafter_typical": ("8x5", 120),
    "eagle": ("eagle_25", 160),
    "eagle_rsd_s": ("5x5", 160),
    "eagle2": ("4x3@8", 120),
    "eagle3": ("4x3@8", 120),
    "sequoia": (None, 120),
    "top_and_sample": (None, 120),
    # A position's number is a call of its own, in every row, as plain decoding draws it.
    "prompt_lookup": (None, 60),
    "suffix": (None, 60),
    # What a node passes on depends on what was passed on to it, level by level.
    "block": (None, 90),
    "traversal": (None, 280),
    # Eight levels of the choice's law, one after the other.
    "optimal": (None, 620),
    "beam_sampling": ("4", 160),
    # A layer's law depends on which beams of the one before stand, trial by trial.
    "dsbd": ("4x2@0.9", 680),
}
ASKS = {"eagle2": 2, "eagle3": 2}  # copies to the host, each with a wait; of all others one
A_ROW = {"prompt_lookup": 11, "suffix": 17}  # launches of the walk that each row adds
SAMPLING = 60  # a level
EAGLE_HEAD = 80  # its own level, which is no pass of a module
# Sorts and sums over all parents: truncated Gumbel values, joint laws, two kinds of child.
WIDE = 90
WIDE_SAMPLING = {"rsd_s": WIDE, "eagle_rsd_s": WIDE, "dsbd": WIDE, "top_and_sample": WIDE}
WIDE_SAMPLING |= {"eagle2": WIDE, "eagle3": WIDE}  # what is kept is sorted and laid out anew
FAST = {("rsd_s", 4, 1.0)}
CASES = [
    pytest.param(name, rows, law, marks=[] if (name, rows, law) in FAST else pytest.mark.slow)
    for name in VERIFY
    for rows in (1, 4)
    for law in (0.0, 0.3, 1.0)
]


def iteration(name: str, rows: int, law: float) -> tuple[Counts, int]:
    """One iteration's counts, and the levels that it drafted."""
    with SimCuda() as sim:
        pair = [
            HuggingFaceModel(model.module.to(DEVICE), VOCAB, DEVICE)
            for model in tiny_pair.__wrapped__("llama")
        ]
        settings = decoder_settings(name, VERIFY[name][0])
        kind = settings["drafter"]["kind"]
        heads = HEADS[kind](32, VOCAB).to(DEVICE) if kind in HEADS else None
        drafts = pair[1:] if kind in ("language_model", "lookup_or_model") else []
        sampling = SamplingSettings(temperature=law, top_p=0.9 if law else 1.0)
        built = build_decoder(settings, pair[0], drafts, sampling, rows, heads=heads)
        requests = [
            dataclasses.replace(request, max_new_tokens=40, stop_ids=())
            for request in random_requests(rows, 40)
        ]
        return counted(sim, built, requests, heads), built.depth


@pytest.mark.parametrize(("name", "rows", "law"), CASES)
def test_an_iteration_takes_one_copy_each_way_one_wait_and_few_launches(
    name: str, rows: int, law: float
) -> None:
    counts, depth = iteration(name, rows, law)
    asks = ASKS.get(name, 1)
    assert (counts.uploads, counts.downloads, counts.waits) == (1, asks, asks)
    assert 0 < counts.launches["verify"] <= VERIFY[name][1] + rows * A_ROW.get(name, 4)
    a_level = WIDE_SAMPLING.get(name, SAMPLING)
    a_level += EAGLE_HEAD if name.startswith("eagle") else 0
    assert counts.launches["sampling"] <= (a_level + rows) * max(depth, 1)
