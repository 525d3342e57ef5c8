"""On a GPU the host is one iteration behind: same tokens, no uploads, and the device never idle.

What the device sends is read only after its event, which the simulated device holds the host to:
until then the copy holds NaN.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest
import torch

from spec_bench.decode.launched import Launched
from spec_bench.records.types import Generation
from tests.decode.test_recorded_parts import built
from tests.families import OURS, random_requests
from tests.simcuda import DEVICE, SimCuda
from tests.simcuda.counted import counted

# The host searches the text, asks in the middle of a tree, or keeps beams or tables.
TOGETHER = {
    "beam_sampling", "beam_search", "dsbd", "dsbd_one_cache", "dyspec", "lookup_or_draft",
    "lookup_vote", "prompt_lookup", "sd_dynamic", "suffix_decoding", "suffix_lookup",
    "token_recycling",
}  # fmt: skip
FAST = {("rsd_s", 2, "static", 1.0), ("eagle_rsd_s", 2, "none", 0.0)}
CASES = [
    pytest.param(name, *case, marks=[] if (name, *case) in FAST else pytest.mark.slow)
    for name in OURS
    if name not in TOGETHER
    for case in ((1, "static", 0.0), (2, "static", 1.0), (2, "none", 0.0))
]


def asked(count: int = 4) -> list[Any]:
    """Requests of different lengths; a stop token ends some of them where nobody can know it."""
    return [
        dataclasses.replace(each, max_new_tokens=20 + 3 * i, stop_ids=(7,) if i % 2 else ())
        for i, each in enumerate(random_requests(count, 32))
    ]


def calls(found: list[Generation]) -> list[list[tuple[int, int]]]:
    """What each target call brought; how many of its nodes were fillers only a CPU counts."""
    return [[(step.accepted, step.delivered) for step in each.steps] for each in found]


@pytest.mark.parametrize(("name", "rows", "how", "law"), CASES)
def test_rows_that_come_and_go_decode_the_cpus_tokens(
    name: str, rows: int, how: str, law: float
) -> None:
    plain, _ = built(name, rows, law, "none", torch.device("cpu"))
    expected = plain.generate(asked(), seed=0)
    with SimCuda() as sim:
        decoder, _ = built(name, rows, law, how, DEVICE)
        for _ in range(2):
            sim.reset()
            found = decoder.generate(asked(), seed=0)
            assert [each.tokens for each in found] == [each.tokens for each in expected]
            assert calls(found) == calls(expected)
        assert sim.behind > 0


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("eagle2", "redrafter")] + ["sd"],
)
def test_no_iteration_in_the_middle_uploads_or_leaves_the_device_idle(name: str) -> None:
    requests = [dataclasses.replace(each, max_new_tokens=40, stop_ids=()) for each in asked(2)]
    with SimCuda() as sim:
        decoder, heads = built(name, 2, 1.0, "none", DEVICE)
        counts = counted(sim, decoder, requests, heads)
    assert (counts.uploads, counts.downloads, counts.waits, counts.behind) == (0, 1, 0, 1)


def test_what_is_read_before_it_has_arrived_is_seen() -> None:
    def early(launched: Launched) -> Any:
        return (launched._home if launched._home is not None else launched.judged.message).tolist()

    with SimCuda(), mock.patch.object(Launched, "read", early):
        decoder, _ = built("sd", 1, 0.0, "none", DEVICE)
        with pytest.raises(ValueError, match=r"cannot convert float NaN|no law"):
            decoder.generate(asked(1), seed=0)


def test_an_iteration_in_vain_gives_its_random_numbers_back() -> None:
    requests = [dataclasses.replace(each, stop_ids=(7,)) for each in asked()]
    plain, _ = built("sd", 2, 1.0, "none", torch.device("cpu"))
    expected = plain.generate(requests, seed=0)
    with SimCuda(), mock.patch.object(Launched, "take_back", return_value=None):
        decoder, _ = built("sd", 2, 1.0, "none", DEVICE)
        found = decoder.generate(requests, seed=0)
    assert [each.tokens for each in found] != [each.tokens for each in expected]


@pytest.mark.parametrize(("stops", "vain"), [((), False), ((7,), True)])
def test_no_iteration_is_in_vain_but_of_rows_that_a_stop_token_ends(
    stops: tuple[int, ...], vain: bool
) -> None:
    requests = [dataclasses.replace(each, stop_ids=stops) for each in asked(2)]
    taken = mock.patch.object(Launched, "take_back", autospec=True, side_effect=Launched.take_back)
    with SimCuda() as sim, taken as back:
        decoder, _ = built("sd", 2, 1.0, "none", DEVICE)
        decoder.generate(requests, seed=0)
        assert sim.behind > 0
    assert (back.call_count > 0) == vain
