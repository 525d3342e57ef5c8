"""What an iteration asks of a GPU: a copy each way at most, one wait, few launches beside passes.

A chain that stops where the draft doubts asks once more a level: whether another pass of the draft
is wanted hangs on the last one's numbers, and not to pass is what stopping is for. Dynamic trees do
not ask: their number of nodes is known, and how they hang together stays on the device.

Launches are counted eagerly, at the models' own decoder trees; models are tiny, and counts do not
depend on widths.
"""

from __future__ import annotations

import dataclasses

import pytest

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.hugging_face import HuggingFaceModel
from tests.decode.test_one_behind import TOGETHER
from tests.families import VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import heads_of
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
    "eagle_traversal": ("eagle_25", 380),
    "eagle2": ("4x3@8", 120),
    "eagle3": ("4x3@8", 120),
    "mtp": ("3", 60),
    "dflash": ("5", 60),
    "pard": ("5", 60),
    "p_eagle": ("5", 60),
    "dflash_block": ("5", 150),
    "dflash_ddtree": ("4x3@8", 120),
    "sequoia": (None, 120),
    "opt_tree": ("4x3@8", 120),
    "dyspec": ("4x3@8", 160),
    "sd_dynamic": ("3", 60),
    "lookup_or_draft": (None, 120),
    "top_and_sample": (None, 120),
    "own_blocks": ("3", 60),
    "token_recycling": ("mc_sim_7b_63", 120),
    # A position's number is a call of its own, in every row, as plain decoding draws it.
    "prompt_lookup": (None, 60),
    "lookup_vote": (None, 60),
    "suffix_lookup": (None, 60),
    "suffix_decoding": (None, 60),
    # What a node passes on depends on what was passed on to it, level by level.
    "block": (None, 90),
    "traversal": (None, 210),
    "traversal_paths": (None, 270),
    # Eight levels of the choice's law, one after the other.
    "optimal": (None, 620),
    "beam_sampling": ("4", 160),
    # A layer's law depends on which beams of the one before stand, trial by trial.
    "beam_search": ("4", 40),
    "dsbd": ("4x2@0.9", 680),
    "dsbd_one_cache": ("4x2@0.9", 680),
}
ASKS = {"sd_dynamic"}  # behind every level; all others wait but for the copy to the host
A_ROW = {
    "prompt_lookup": 11,
    "lookup_vote": 11,
    "suffix_lookup": 17,
    "suffix_decoding": 17,
}  # launches of the walk that each row adds
SAMPLING = 60  # a level
# Sorts and sums over all parents: truncated Gumbel values, joint laws, two kinds of child.
WIDE = 90
WIDE_SAMPLING = {"rsd_s": WIDE, "eagle_rsd_s": WIDE, "dsbd": WIDE, "top_and_sample": WIDE}
WIDE_SAMPLING |= {"dsbd_one_cache": WIDE}
# What is kept is sorted and laid out anew; by a gain, or with what was drawn, at more length.
WIDE_SAMPLING |= {
    "eagle2": WIDE,
    "eagle3": WIDE,
    "dflash_ddtree": WIDE,
    "opt_tree": 110,
    "dyspec": 110,
}
WIDE_SAMPLING |= {"lookup_or_draft": 70}
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
        heads = heads_of(settings["drafter"], 32, VOCAB)
        heads = heads and heads.to(DEVICE)
        drafts = pair[1:] if kind in ("language_model", "lookup_or_model", "pard") else []
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
    follows = name not in TOGETHER
    assert (counts.uploads, counts.downloads, counts.behind) == (1 - follows, 1, follows)
    assert 1 - follows <= counts.waits <= (1 + depth if name in ASKS else 1 - follows)
    judged = counts.launches["rest" if name == "beam_search" else "verify"]  # which judges nothing
    assert 0 < judged <= VERIFY[name][1] + rows * A_ROW.get(name, 4)
    a_level = WIDE_SAMPLING.get(name, SAMPLING)
    assert counts.launches["sampling"] <= (a_level + rows) * max(depth, 1)
