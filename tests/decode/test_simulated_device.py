"""On a simulated GPU: no operation mixes devices, parts are recorded, the host is one iteration
behind, and every decoder emits the CPU's tokens.

What the device sends is read only after its event, which the simulated device holds the host to:
until then the copy holds NaN.
"""

import itertools
import logging
from dataclasses import replace
from unittest import mock

import pytest
import torch

from spec_bench.core.draws import run_part
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.decoder import Launched
from spec_bench.decode.recorded_parts import RecordedDraws, RowParts
from tests import families
from tests.families import OURS, pair_of, random_requests
from tests.simcuda import DEVICE, SimCuda, counted
from tests.simcuda.graphs import SimPool

# The host searches the text, asks in the middle of a tree, or keeps beams or tables.
TOGETHER = {
    "beam_sampling", "beam_search", "dsbd", "dsbd_one_cache", "dyspec", "lookup_or_draft",
    "lookup_vote", "prompt_lookup", "sd_dynamic", "suffix_decoding", "suffix_lookup",
    "token_recycling",
}  # fmt: skip
# Their trees have another form in every iteration or come from beams; or their host is not behind.
CALLED = TOGETHER | {
    "dflash_ddtree", "eagle2", "eagle3", "opt_tree", "redrafter", "redrafter_typical",
}  # fmt: skip
ASKS = {"sd_dynamic"}
LONG = ("dflash", "dflash_block", "pard", "p_eagle")
FAST = {
    ("rsd_s", 3, 1.0), ("sd", 1, 0.0), ("dsbd", 3, 1.0), ("rsd_s", 2, "static", 1.0),
    ("eagle_rsd_s", 2, "none", 0.0), ("sd", 4, 0.3),
}  # fmt: skip


def cases(*each, names=OURS):
    """Every decoder with each of some settings; a few of them are quick."""
    return [
        pytest.param(name, *case, marks=[] if (name, *case) in FAST else pytest.mark.slow)
        for name in names
        for case in each
    ]


def built(name, rows, law, how, device):
    sampling = SamplingSettings(temperature=law, top_p=0.95 if law else 1.0)
    return families.built(name, pair_of(how, device), sampling, rows)


def endless(rows, tokens):
    return [replace(each, max_new_tokens=tokens) for each in random_requests(rows, tokens)]


@pytest.mark.parametrize(("name", "rows", "law"), cases((1, 0.0), (1, 1.0), (3, 0.0), (3, 1.0)))
def test_recorded_parts_draw_the_cpus_tokens_and_are_replayed(name, rows, law):
    requests = endless(rows, 64 if name in LONG else 24)  # none ends while replays are counted
    plain = built(name, rows, law, "none", "cpu")
    expected = [answer.tokens for answer in plain.generate(requests, seed=0)]
    with SimCuda() as sim:
        decoder = built(name, rows, law, "static", DEVICE)
        for _ in range(2):
            assert [each.tokens for each in decoder.generate(requests, seed=0)] == expected
        assert decoder.target.static.refusals == []
        if name in CALLED:
            return
        counts = counted(sim, decoder, requests)
    assert counts[:4] == (0, 1, 0, 1)
    # The root, every level and the walk are one replay each, like each pass of a model.
    passes = 1 + decoder.draft_calls * len(decoder.drafts)
    assert counts.replays == passes + 2 + decoder.depth


def generators(rows=2):
    return [torch.Generator(device=DEVICE).manual_seed(row) for row in range(rows)]


@pytest.fixture
def parts():
    """Of a model on the simulated device."""
    with SimCuda(), torch.inference_mode():
        model, _ = pair_of("static", DEVICE)
        yield RowParts(model.static)


def test_a_part_that_hangs_on_the_host_is_called_and_a_line_says_so(parts, caplog):
    host = itertools.count()

    def part(draws, given):
        return given + draws._uniforms(3) + next(host)

    rows, same, shape = generators(), generators(), {"dtype": torch.float64, "device": DEVICE}
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            given = torch.zeros((2, 3), **shape)
            answer = run_part(RecordedDraws(rows, parts), "part", part, given).cpu()
            expected = torch.stack([torch.rand(3, generator=each, **shape).cpu() for each in same])
            torch.testing.assert_close(answer.frac(), expected)
    assert "a replay's answer is not a call's" in caplog.text
    assert len(parts.passes.refusals) == 1


def test_noise_whose_amount_hangs_on_the_tree_is_not_recorded(parts):
    def part(draws, given):
        return given + draws.gumbel(given, [1, 2])

    rows, same = generators(), generators()
    given = torch.zeros((2, 2, 4), dtype=torch.float64, device=DEVICE)
    for _ in range(3):
        noise = run_part(RecordedDraws(rows, parts), "part", part, given).cpu()
        first = torch.rand((1, 4), generator=same[0], dtype=torch.float64, device=DEVICE)
        torch.rand((2, 4), generator=same[1], dtype=torch.float64, device=DEVICE)
        assert torch.equal(noise[0, :1], -torch.log(-torch.log(first.cpu())))
    assert parts.passes.refusals == ["how much it draws hangs on the tree"]


def test_a_part_replays_only_with_the_tree_that_it_was_recorded_with(parts):
    rows = generators()
    for turn, nodes in enumerate([1] * 5 + [3] * 5 + [1, 3]):
        draws, ones = RecordedDraws(rows, parts), torch.ones((2, nodes), device=DEVICE)
        tree = run_part(draws, "root", lambda _, given: [given + 1], turn * ones)

        def level(_, given, tree=tree):
            return tree[0].sum(dim=1) + given

        found = run_part(draws, 0, level, ones[:, 0], of=tree)
        assert found.tolist() == [nodes * (turn + 1) + 1] * 2
    assert parts.passes.refusals == []


def asked(count=4):
    """Requests of different lengths; a stop token ends some of them where nobody can know it."""
    return [
        replace(each, max_new_tokens=20 + 3 * i, stop_ids=(7,) if i % 2 else ())
        for i, each in enumerate(random_requests(count, 32))
    ]


def calls(found):
    """What each target call brought; how many of its nodes were fillers only a CPU counts."""
    return [[(step.accepted, step.delivered) for step in each.steps] for each in found]


BEHIND = [name for name in OURS if name not in TOGETHER]


@pytest.mark.parametrize(
    ("name", "rows", "how", "law"),
    cases((1, "static", 0.0), (2, "static", 1.0), (2, "none", 0.0), names=BEHIND),
)
def test_rows_that_come_and_go_decode_the_cpus_tokens(name, rows, how, law):
    expected = built(name, rows, law, "none", "cpu").generate(asked(), seed=0)
    with SimCuda() as sim:
        decoder = built(name, rows, law, how, DEVICE)
        for _ in range(2):
            sim.reset()
            found = decoder.generate(asked(), seed=0)
            assert [each.tokens for each in found] == [each.tokens for each in expected]
            assert calls(found) == calls(expected)
        assert sim.behind > 0


@pytest.mark.parametrize(("name", "rows", "law"), cases((1, 1.0), (4, 0.3)))
def test_an_iteration_takes_one_copy_each_way_and_one_wait(name, rows, law):
    """A host that is behind uploads nothing and never leaves the device idle.

    A chain that stops where the draft doubts asks behind each level whether another pass is wanted,
    which hangs on the last one's numbers.
    """
    with SimCuda() as sim:
        decoder = built(name, rows, law, "none", DEVICE)
        counts = counted(sim, decoder, endless(rows, 64))
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
    requests = [replace(each, stop_ids=(7,)) for each in asked()]
    expected = built("sd", 2, 1.0, "none", "cpu").generate(requests, seed=0)
    with SimCuda(), mock.patch.object(Launched, "take_back", return_value=None):
        found = built("sd", 2, 1.0, "none", DEVICE).generate(requests, seed=0)
    assert [each.tokens for each in found] != [each.tokens for each in expected]


@pytest.mark.parametrize(("stops", "vain"), [((), False), ((7,), True)])
def test_no_iteration_is_in_vain_but_of_rows_that_a_stop_token_ends(stops, vain):
    requests = [replace(each, stop_ids=stops) for each in asked(2)]
    taken = mock.patch.object(Launched, "take_back", autospec=True, side_effect=Launched.take_back)
    with SimCuda() as sim, taken as back:
        built("sd", 2, 1.0, "none", DEVICE).generate(requests, seed=0)
        assert sim.behind > 0
    assert (back.call_count > 0) == vain


def test_mixing_devices_is_refused_as_cuda_refuses_it():
    with SimCuda() as sim:
        there = torch.ones(3, device="cuda")
        assert (there + torch.tensor(2.0)).tolist() == [3, 3, 3]
        with pytest.raises(RuntimeError, match="on one device"):
            there + torch.ones(3)
        assert not sim.h2d
        assert int(there.sum()) == 3
        assert sim.syncs["_local_scalar_dense"] == 1


def recorded(pool, work):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        return graph, work()


def test_a_replay_overwrites_what_a_later_recording_left_in_its_pool():
    with SimCuda(), torch.inference_mode():
        one, other = torch.cuda.graph_pool_handle(), torch.cuda.graph_pool_handle()
        given = torch.ones(3, device=DEVICE)
        first, kept = recorded(one, lambda: (given + 1) * 2)
        _, left = recorded(one, lambda: given * 7)
        _, apart = recorded(other, lambda: given * 7)
        assert (left.tolist(), apart.tolist()) == ([7, 7, 7], [7, 7, 7])
        first.replay()
        assert kept.tolist() == [4, 4, 4]
        assert left.tolist() == [2, 2, 2]  # where the sum lay, which nothing needed any more
        assert apart.tolist() == [7, 7, 7]


def test_a_pool_gives_out_the_least_block_that_fits_and_joins_its_neighbours():
    pool = SimPool()

    def taken(units):
        return pool.moved(torch.zeros(512 * units, dtype=torch.uint8), ())

    def free(tensor):
        pool.freed(tensor.untyped_storage()._cdata)
        return tensor.data_ptr()

    wide, _, narrow, last, _ = (taken(units) for units in (4, 1, 2, 1, 1))
    start, least, after = free(wide), free(narrow), last.data_ptr()
    assert taken(1).data_ptr() == least  # two units are free there, four at the start
    assert taken(3).data_ptr() == start
    assert free(last) == after
    assert taken(2).data_ptr() == least + 512  # what was left of two, and the one behind it
    assert abs(taken(2049).data_ptr() - start) > 2 * 2**20  # larger blocks lie apart
