"""On a GPU the host is one iteration behind: same tokens, no uploads, and the device never idle.

What the device sends is read only after its event, which the simulated device holds the host to:
until then the copy holds NaN.
"""

import dataclasses
from unittest import mock

import pytest
import torch

from spec_bench.decode.decoder import Launched
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
ASKS = {"sd_dynamic"}
FAST = {("rsd_s", 2, "static", 1.0), ("eagle_rsd_s", 2, "none", 0.0)}
CASES = [
    pytest.param(name, *case, marks=[] if (name, *case) in FAST else pytest.mark.slow)
    for name in OURS
    if name not in TOGETHER
    for case in ((1, "static", 0.0), (2, "static", 1.0), (2, "none", 0.0))
]


def asked(count=4):
    """Requests of different lengths; a stop token ends some of them where nobody can know it."""
    return [
        dataclasses.replace(each, max_new_tokens=20 + 3 * i, stop_ids=(7,) if i % 2 else ())
        for i, each in enumerate(random_requests(count, 32))
    ]


def calls(found):
    """What each target call brought; how many of its nodes were fillers only a CPU counts."""
    return [[(step.accepted, step.delivered) for step in each.steps] for each in found]


@pytest.mark.parametrize(("name", "rows", "how", "law"), CASES)
def test_rows_that_come_and_go_decode_the_cpus_tokens(name, rows, how, law):
    plain = built(name, rows, law, "none", torch.device("cpu"))
    expected = plain.generate(asked(), seed=0)
    with SimCuda() as sim:
        decoder = built(name, rows, law, how, DEVICE)
        for _ in range(2):
            sim.reset()
            found = decoder.generate(asked(), seed=0)
            assert [each.tokens for each in found] == [each.tokens for each in expected]
            assert calls(found) == calls(expected)
        assert sim.behind > 0


@pytest.mark.parametrize(
    ("name", "rows", "law"),
    [
        pytest.param(name, rows, law, marks=[] if (name, rows) == ("sd", 4) else pytest.mark.slow)
        for name in OURS
        for rows, law in ((1, 1.0), (4, 0.3))
    ],
)
def test_an_iteration_takes_one_copy_each_way_and_one_wait(name, rows, law):
    """A host that is behind uploads nothing and never leaves the device idle.

    A chain that stops where the draft doubts asks behind each level whether another pass is wanted,
    which hangs on the last one's numbers.
    """
    requests = [
        dataclasses.replace(each, max_new_tokens=64, stop_ids=())
        for each in random_requests(rows, 64)
    ]
    with SimCuda() as sim:
        decoder = built(name, rows, law, "none", DEVICE)
        counts = counted(sim, decoder, requests)
    together = name in TOGETHER
    assert counts[:2] == (together, 1)
    assert counts.behind == (not together)
    assert together <= counts.waits <= (1 + decoder.depth if name in ASKS else together)


def test_what_is_read_before_it_has_arrived_is_seen():
    def early(launched):
        return (launched._home if launched._home is not None else launched.judged.message).tolist()

    with SimCuda(), mock.patch.object(Launched, "read", early):
        decoder = built("sd", 1, 0.0, "none", DEVICE)
        with pytest.raises(ValueError, match=r"cannot convert float NaN|no law"):
            decoder.generate(asked(1), seed=0)


def test_an_iteration_in_vain_gives_its_random_numbers_back():
    requests = [dataclasses.replace(each, stop_ids=(7,)) for each in asked()]
    plain = built("sd", 2, 1.0, "none", torch.device("cpu"))
    expected = plain.generate(requests, seed=0)
    with SimCuda(), mock.patch.object(Launched, "take_back", return_value=None):
        decoder = built("sd", 2, 1.0, "none", DEVICE)
        found = decoder.generate(requests, seed=0)
    assert [each.tokens for each in found] != [each.tokens for each in expected]


@pytest.mark.parametrize(("stops", "vain"), [((), False), ((7,), True)])
def test_no_iteration_is_in_vain_but_of_rows_that_a_stop_token_ends(stops, vain):
    requests = [dataclasses.replace(each, stop_ids=stops) for each in asked(2)]
    taken = mock.patch.object(Launched, "take_back", autospec=True, side_effect=Launched.take_back)
    with SimCuda() as sim, taken as back:
        decoder = built("sd", 2, 1.0, "none", DEVICE)
        decoder.generate(requests, seed=0)
        assert sim.behind > 0
    assert (back.call_count > 0) == vain
