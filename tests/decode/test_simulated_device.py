"""On a simulated GPU: no operation mixes devices, whole iterations are replayed, what a graph gets
wrong is refused by the canary, and every decoder emits the CPU's tokens.

What the device sends is read only after its event, which the simulated device holds the host to:
until then the copy holds NaN.
"""

import logging
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from spec_bench.core.draws import SeededSource
from spec_bench.core.host_device import HostDeviceInts
from spec_bench.core.predrawn import DrawRecorder, PredrawnSource
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode import recording
from spec_bench.decode.decoder import Decoder
from spec_bench.decode.recording import (
    GraphCache,
    IterationGraph,
    length_buckets,
    round_up_to_bucket,
)
from spec_bench.draft.cached_head import HeadCacheDraftState
from spec_bench.draft.language_model import LanguageModelDraftState
from spec_bench.engine.cache import SlotCache
from spec_bench.engine.recorder import GraphRecorder
from spec_bench.jobs.sweep.plan import estimate_decoder_graph_bytes
from spec_bench.records.types import PromptError
from spec_bench.system.errors import DeviceLostError
from tests import families
from tests.families import OURS, pair_of, random_requests
from tests.simcuda import DEVICE, SimCuda, counted
from tests.simcuda.graphs import SimPool

# They keep beams, or the host decides in the middle of a tree.
EAGER = {
    "beam_sampling", "beam_search", "dsbd", "dsbd_one_cache", "dyspec", "lookup_or_draft",
    "sd_dynamic",
}  # fmt: skip
ASKS = {"dyspec", "sd_dynamic"}
BROAD = (
    "ar", "sd", "rsd_c", "rsd_s", "traversal", "opt_tree", "eagle3", "medusa", "redrafter", "mtp",
    "dflash", "prompt_lookup",
)  # fmt: skip
FAST = {
    ("rsd_s", 3, 1.0), ("sd", 1, 0.0), ("prompt_lookup", 1, 1.0),
    ("dsbd", 3, 1.0), ("sd", 1, 1.0),
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


def prepared(decoder, requests):
    decoder.check_and_reserve(requests)
    decoder.record_graphs(requests)
    return decoder


def endless(rows, tokens):
    return [replace(each, max_new_tokens=tokens) for each in random_requests(rows, tokens)]


def asked(count=4):
    """Requests of different lengths; a stop token ends some of them where nobody can know it."""
    return [
        replace(each, max_new_tokens=20 + 3 * i, stop_ids=(7,) if i % 2 else ())
        for i, each in enumerate(random_requests(count, 32))
    ]


def calls(found):
    """What each target call brought; how many of its nodes were fillers only a CPU counts."""
    return [[(step.accepted, step.delivered) for step in each.steps] for each in found]


@pytest.fixture
def short(monkeypatch):
    """A canary that takes little time."""
    monkeypatch.setattr(recording, "CANARY_TOKENS", 4)
    monkeypatch.setattr(recording, "CANARY_ANSWERS", 1)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("name", "rows", "law"),
    [
        *cases((1, 0.0), (1, 1.0), (3, 0.0), (3, 1.0)),
        *cases((4, 0.0), (4, 1.0), (16, 0.0), (16, 1.0), names=BROAD),
    ],
)
def test_rows_that_come_and_go_are_replayed_and_decode_the_cpus_tokens(name, rows, law):
    requests = endless(rows, 24) if name in EAGER else asked(rows + 2)
    expected = built(name, rows, law, "none", "cpu").generate(requests, seed=0)
    with SimCuda():
        decoder = prepared(built(name, rows, law, "static", DEVICE), requests)
        if name not in EAGER:
            assert decoder.recordings.refusal == ""
            decoder.iteration_counts.__init__()
        found = decoder.generate(requests, seed=0)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert calls(found) == calls(expected)
    if name not in EAGER:
        assert decoder.iteration_counts.recorded_share_text == "recorded"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("name", "rows", "law"), cases((1, 1.0), (4, 0.3)))
def test_an_iteration_takes_one_copy_each_way_and_one_wait(name, rows, law):
    """Recorded, it is one replay beside; what asks on the way waits once a level."""
    with SimCuda() as sim:
        decoder = built(name, rows, law, "none", DEVICE)
        counts = counted(sim, decoder, endless(rows, 32))
        assert counts[:2] == (1, 1)
        assert 1 <= counts.waits <= (1 + decoder.depth if name in ASKS else 1)
        if name in EAGER:
            return
        decoder = prepared(built(name, rows, law, "static", DEVICE), endless(rows, 32))
        assert counted(sim, decoder, endless(rows, 32)) == (1, 1, 1, 0, 1)


GROWN = {"eye", "zeros_like", "logical_or_", "ones_like"}  # parents and ancestors, level by level


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("name", "grown"), [("sd", set()), ("rsd_c", set()), ("rsd_s", GROWN)])
def test_what_the_passes_over_a_tree_share_is_made_once_and_constants_never(name, grown):
    with SimCuda() as sim:
        decoder = prepared(built(name, 1, 1.0, "static", DEVICE), endless(1, 32))
        graph = decoder.recordings.find_graph(HostDeviceInts([3]))
        sim.reset()
        with torch.inference_mode():
            graph._iteration()
        made = {operator for operator, count in sim.ops.items() if count}
    assert not made & {"cos", "sin", "neg", "arange", "zeros", "bitwise_not"}  # turns, masks
    assert sim.ops["lt"] == 3  # one of them says which slots are committed
    assert made & GROWN <= grown


def latched(graph, *given):
    """The numbers are those that it was recorded with."""
    with mock.patch.object(
        HostDeviceInts, "read_from_buffer", lambda own, at, most: read_at(own, at.clone(), most)
    ):
        made(graph, *given)


def unsynchronised(graph, *given):
    """A later part of the host's numbers never comes."""
    made(graph, *given)
    graph._host_views[0] = graph._host_views[0].clone()


def swapped(graph, known):
    for each in known:
        each.reverse()
    return run(graph, known)


def elsewhere(own, made, requests):
    """The cache moves, and nobody says so."""
    cache = own._decoder._scorer.cache
    cache._allocate(cache.rows, cache.slots)
    return canary(own, made, requests)


def undrawn(own, generators, graph):
    """Random numbers are those of the iteration before."""
    held = None if graph is None else graph.numbers.clone()
    drawn = draws(own, generators, graph)
    if held is not None:
        graph.numbers.copy_(held)
    return drawn


def uncommitted(own, lengths, nodes):
    """A recording misses the last thing that it should do."""
    if not torch.cuda.is_current_stream_capturing():
        commit_all(own, lengths, nodes)


def fewer_nodes(graph, known):
    """A replay says of every tree that it has one node less."""
    lines = run(graph, known)
    if not graph.is_called:
        for line in lines:
            line[1 + 3 * (graph.layout.depth + 1)] -= 1
    return lines


def unlikely(graph, known):
    """A replay says of every token that it was certain."""
    lines, width = run(graph, known), graph.layout.depth + 1
    if not graph.is_called:
        for line in lines:
            line[1 + 2 * width : 1 + 3 * width] = [0.0] * width
    return lines


def in_the_pool(own, hidden, path, accepted):
    """What waits for the next iteration lies where graphs share their memory."""
    observe_path(own, hidden, path, accepted)
    own._pending_hidden = own._pending_hidden.clone()


read_at, made, run = HostDeviceInts.read_from_buffer, IterationGraph.__init__, IterationGraph.replay
canary, draws, commit_all = (
    GraphCache._describe_wrong_graph_token,
    Decoder._make_source,
    SlotCache.commit_all,
)
observe_path = HeadCacheDraftState.observe_path
FAULTS = {
    "a latch": (IterationGraph, "__init__", latched),
    "a stale length": (IterationGraph, "__init__", unsynchronised),
    "rows swapped": (IterationGraph, "replay", swapped),
    "a moved address": (GraphCache, "_describe_wrong_graph_token", elsewhere),
    "a number drawn twice": (Decoder, "_make_source", undrawn),
    "a commit left out": (SlotCache, "commit_all", uncommitted),
    "sizes of trees": (IterationGraph, "replay", fewer_nodes),
    "likelihoods": (IterationGraph, "replay", unlikely),
    "a shared pool": (HeadCacheDraftState, "observe_path", in_the_pool),
}  # fmt: skip


IN_THE_FUNCTION = ("a latch", "rows swapped", "a number drawn twice")  # called, it is wrong as well
QUICK = ("a latch", "sizes of trees", "likelihoods")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=[] if each in QUICK else pytest.mark.slow) for each in FAULTS],
)
def test_the_canary_refuses_what_a_graph_gets_wrong_and_the_tokens_are_right(
    fault, monkeypatch, caplog
):
    monkeypatch.setattr(recording, "CANARY_TOKENS", 8)
    monkeypatch.setattr(recording, "CANARY_ANSWERS", 1)
    name = {"a shared pool": "eagle3", "a commit left out": "rsd_s"}.get(fault, "sd")
    requests = asked(12)[9:]
    expected = built(name, 2, 1.0, "none", "cpu").generate(requests, seed=0)
    with SimCuda(), caplog.at_level(logging.WARNING):
        with mock.patch.object(*FAULTS[fault]):
            decoder = prepared(built(name, 2, 1.0, "static", DEVICE), requests)
        said = "an eager pass's" if fault in IN_THE_FUNCTION else "of the same pass called"
        assert said in decoder.recordings.refusal
        assert f"{name} is not recorded: " in caplog.text
        found = decoder.generate(requests, seed=0)
    assert [each.tokens for each in found] == [each.tokens for each in expected]


@pytest.mark.usefixtures("short")
def test_a_replay_whose_logits_are_no_numbers_is_an_error_that_names_the_prompt():
    with SimCuda():
        decoder = prepared(built("sd", 1, 1.0, "static", DEVICE), asked(1))
        assert decoder.recordings.graphs
        decoder.target.module.lm_head.weight.data.fill_(torch.nan)
        with pytest.raises(PromptError, match="NaN") as caught:
            decoder.generate(asked(1), seed=0)
    assert decoder.iteration_counts.recorded > 0
    assert caught.value.prompt_id == asked(1)[0].prompt_id


@pytest.mark.usefixtures("short")
def test_a_number_of_rows_that_cannot_be_recorded_leaves_the_others_recorded(caplog):
    def lacks(graph, decoder, rows, *more):
        if rows == 1:
            raise torch.OutOfMemoryError("it has no room")
        made(graph, decoder, rows, *more)

    with SimCuda(), mock.patch.object(IterationGraph, "__init__", lacks):
        decoder = prepared(built("sd", 3, 1.0, "static", DEVICE), asked(3))
        assert {rows for rows, _ in decoder.recordings.graphs} == {3}
    assert "no room" in decoder.recordings.refusal
    assert "sd is not recorded: 1 rows: it has no room" in caplog.text


def test_an_error_that_takes_the_gpu_ends_the_job_in_one_line():
    def asserts(graph, known):
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with ...")

    with (
        SimCuda(),
        mock.patch.object(IterationGraph, "replay", asserts),
        pytest.raises(DeviceLostError, match=r"device-side assert triggered: .* the same command"),
    ):
        prepared(built("sd", 1, 1.0, "static", DEVICE), asked(1))


@pytest.mark.usefixtures("short")
def test_a_jobs_last_answer_is_compared_with_the_called_functions(caplog):
    with SimCuda():
        decoder = prepared(built("sd", 1, 1.0, "static", DEVICE), asked(1))
        answers = decoder.generate(asked(1), seed=0)
        recorded = decoder.iteration_counts.recorded
        decoder.recordings.log_replay_difference(asked(1), answers, 0)
        assert decoder.recordings.refusal == ""
        assert decoder.iteration_counts.recorded == recorded
        other = [replace(each, tokens=(*each.tokens[:-1], each.tokens[-1] + 1)) for each in answers]
        decoder.recordings.log_replay_difference(asked(1), other, 0)
    assert f"token {len(answers[0].tokens)} of an answer" in decoder.recordings.refusal
    assert "sd was recorded wrongly" in caplog.text


@pytest.mark.usefixtures("short")
def test_longer_requests_in_a_cache_that_has_room_are_recorded_anew():
    with SimCuda():
        decoder = prepared(built("ar", 1, 0.0, "static", DEVICE), asked(1))
        first = decoder.recordings
        prepared(decoder, asked(1))
        assert decoder.recordings is first
        longer = [replace(each, max_new_tokens=80) for each in asked(1)]
        decoder._scorer.cache.grow_and_clear(1, 200)  # as for another decoder
        decoder._cache_states = [(id(decoder._scorer.cache), decoder._scorer.cache.growth_count)]
        prepared(decoder, longer)
        assert max(most for _, most in decoder.recordings.graphs) > max(
            most for _, most in first.graphs
        )


def test_drafts_that_only_a_graph_misses_are_seen_in_greedy_answers_too(monkeypatch):
    monkeypatch.setattr(recording, "CANARY_TOKENS", 24)
    monkeypatch.setattr(recording, "CANARY_ANSWERS", 1)
    commit = LanguageModelDraftState.commit

    def missed(own, lengths, nodes, path, depth):
        commit(own, lengths, nodes, path, depth)
        if torch.cuda.is_current_stream_capturing():  # and the keys of what was accepted are lost
            for cache in own._caches:
                cache.move_slots(path[:, :1], lengths.get_tensor(DEVICE).view(-1, 1))

    with SimCuda(), mock.patch.object(LanguageModelDraftState, "commit", missed):
        decoder = prepared(built("sd", 1, 0.0, "static", DEVICE), asked(12)[11:])
    assert "target calls" in decoder.recordings.refusal
    assert "of the same pass called" in decoder.recordings.refusal


@pytest.mark.parametrize("nudged", [(1, 2, 3, 9), (1, 9, 9, 9)])
def test_answers_that_part_much_earlier_than_nudged_ones_are_refused(nudged):
    # called, replayed, eagerly, nudged up and down
    tokens = (1, 9, 9, 8), (1, 9, 9, 8), (1, 2, 3, 4), nudged, nudged
    answers = [[SimpleNamespace(tokens=each, steps=[1], log_likelihood=0.0)] for each in tokens]
    with (
        SimCuda(),
        mock.patch.object(recording, "CANARY_ANSWERS", 1),
        mock.patch.object(GraphCache, "_decode_batches", side_effect=answers),
        mock.patch.object(recording, "near_tie_gap", return_value=1e9),
    ):
        refused = prepared(built("sd", 1, 0.0, "static", DEVICE), asked(1)).recordings.refusal
    said = "1 rows over 21 tokens: answers part from eager passes' after 1 tokens in all, with "
    assert refused == (f"{said}nudged numbers after 3" if nudged[1] == 2 else "")


@pytest.mark.usefixtures("short")
def test_what_cannot_be_recorded_runs_eagerly_and_says_why(caplog):
    def waits(own, function):
        return record(own, lambda: (function(), float(torch.ones(1, device=DEVICE).sum())))

    record, requests = GraphRecorder.record_graph, asked(2)
    expected = built("sd", 1, 1.0, "none", "cpu").generate(requests, seed=0)
    with SimCuda() as sim, caplog.at_level(logging.WARNING):
        stream = torch.cuda.current_stream()
        with mock.patch.object(GraphRecorder, "record_graph", waits):
            decoder = prepared(built("sd", 1, 1.0, "static", DEVICE), requests)
        assert sim.stream is stream
        found = decoder.generate(requests, seed=0)
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert "not permitted when stream is capturing" in caplog.text
    assert decoder.iteration_counts.recorded == 0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("law", "gap"), [(0.0, 1e9), (1.0, 0.0)])
def test_a_tie_is_no_fault(law, gap):
    # called, replayed, eagerly, nudged up and down
    tokens = ((1, 2, 4), (1, 2, 4), (1, 2, 3), (1, law + 2, 3), (1, 2, 3))
    answers = [[SimpleNamespace(tokens=each, steps=[1] * 3, log_likelihood=0.0)] for each in tokens]
    with (
        SimCuda(),
        mock.patch.object(GraphCache, "_decode_batches", side_effect=answers),
        mock.patch.object(recording, "near_tie_gap", return_value=gap),
    ):
        assert prepared(built("sd", 1, law, "static", DEVICE), asked(1)).recordings.refusal == ""


@pytest.mark.usefixtures("short")
def test_a_cache_that_grows_has_no_graphs_of_its_former_place():
    with SimCuda():
        decoder = prepared(built("ar", 1, 0.0, "static", DEVICE), asked(1))
        assert decoder.recordings.graphs
        decoder.check_and_reserve([replace(each, max_new_tokens=60) for each in asked(1)])
        assert decoder.recordings is None


@pytest.mark.usefixtures("short")
def test_a_cache_that_grows_takes_its_graphs_along():
    with SimCuda():
        decoder = prepared(built("sd", 1, 1.0, "static", DEVICE), asked(1))
        assert decoder.recordings.graphs
        longer = [replace(each, max_new_tokens=60) for each in asked(1)]
        decoder.generate(longer, seed=0)
        assert decoder.recordings is None
        prepared(decoder, longer)
        decoder.iteration_counts.__init__()
        decoder.generate(longer, seed=0)
        assert decoder.iteration_counts.recorded_share_text == "recorded"


def test_a_graph_is_of_64_256_1024_tokens_or_a_power_of_two():
    lengths = (1, 64, 65, 256, 257, 1024, 1025, 2048, 2049)
    assert [*map(round_up_to_bucket, lengths)] == [64, 64, 256, 256, 1024, 1024, 2048, 2048, 4096]


def test_a_graph_serves_rows_and_lengths_that_it_reaches():
    own = GraphCache.__new__(GraphCache)
    own.graphs, own.min_bucket, own._split_from = (
        {(1, 64): "a", (4, 64): "b", (4, 256): "c"},
        0,
        200,
    )
    asked = ([10], [10, 64], [65], [1, 201], [1] * 5, [300], [200, 210])
    assert [own.find_graph(HostDeviceInts(each)) for each in asked] == [
        "a",
        "b",
        "c",
        "c",
        None,
        None,
        None,
    ]
    own.min_bucket = 256
    assert own.find_graph(HostDeviceInts([10])) == "c"


def test_graphs_serve_lengths_in_few_steps():
    assert length_buckets(1, 300) == [64, 256, 300]
    assert length_buckets(100, 300) == [256, 300]
    assert length_buckets(900, 5000) == [1024, 2048, 4096, 5000]
    assert length_buckets(1, 40) == [40]


@pytest.mark.parametrize("positions", [1, 3])
def test_numbers_drawn_before_are_those_that_an_iteration_asks_for(positions):
    def generators():
        return [torch.Generator().manual_seed(row) for row in range(2)]

    def iteration(draws):
        gumbel = draws.gumbel(torch.zeros((2, 1, 5), dtype=torch.float64))
        law = torch.full((2, 5), 0.2, dtype=torch.float64)
        place = draws.prepare_positions(positions)
        drawn = [place.sample_at(level, law) for level in range(positions)]
        walk = draws.verdict([2, 1])
        return [gumbel, *drawn, walk.token(law)]

    noted, right = DrawRecorder(generators()), SeededSource(generators())
    expected = iteration(right)
    iteration(noted)
    count = 5 + positions + 4
    assert sum(count for _, count in noted.requests) == count
    before = PredrawnSource(generators(), (2, count))
    before.draw_requested(noted.requests)
    torch.testing.assert_close(iteration(before), expected, rtol=0, atol=0)
    for draws in (right, before):
        draws.advance([1, 2])
    states = [[each.get_state() for each in draws.generators] for draws in (right, before)]
    torch.testing.assert_close(*states)


def test_a_gpus_generator_comes_back_by_its_offset_and_draws_nothing_again():
    with SimCuda() as sim:
        one, other = (torch.Generator(DEVICE).manual_seed(3) for _ in range(2))
        draws = SeededSource([one])
        draws.prepare_positions(4)
        sim.reset()
        draws.advance([2])
        assert sum(sim.ops.values()) == 0
        expected = [
            torch.rand(1, generator=other, device=DEVICE, dtype=torch.float64).item()
            for _ in range(3)
        ]
        assert (
            torch.rand(1, generator=one, device=DEVICE, dtype=torch.float64).item() == expected[2]
        )


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


@pytest.mark.parametrize("name", ["rsd_s", "rsd_c"])
def test_a_plan_counts_what_graphs_keep(name, monkeypatch):
    monkeypatch.setattr(GraphCache, "_describe_wrong_graph_token", lambda *_: "")
    with SimCuda():
        decoder = prepared(built(name, 3, 1.0, "static", DEVICE), endless(3, 4))
        graphs = decoder.recordings.graphs
        kept = max(each.numbers.nbytes for each in graphs.values())
        kept += sum(
            each._device_ints.nbytes + each._packed_verdicts.nbytes for each in graphs.values()
        )
    tokens = max(most for _, most in graphs)
    planned = estimate_decoder_graph_bytes(
        decoder.policy, decoder.settings, decoder.target.vocab_size, 3, tokens
    )
    assert kept <= planned <= 1.05 * kept
