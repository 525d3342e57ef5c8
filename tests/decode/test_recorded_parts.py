"""Parts of an iteration recorded on a simulated GPU draw what calls draw."""

import dataclasses
import itertools
import logging

import pytest
import torch

from spec_bench.core.draws import run_part
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.recorded_parts import RecordedDraws, RowParts
from tests.engine import test_static_passes as static_passes
from tests.families import OURS, random_requests
from tests.simcuda import DEVICE, SimCuda
from tests.simcuda.counted import counted

FAST = {("rsd_s", 3, 1.0), ("sd", 1, 0.0)}
CASES = [
    pytest.param(name, rows, law, marks=[] if (name, rows, law) in FAST else pytest.mark.slow)
    for name in OURS
    for rows in (1, 3)
    for law in (0.0, 1.0)
]
# Their trees have another form in every iteration or come from beams; or their host is not behind.
LONG = ("dflash", "dflash_block", "pard", "p_eagle")
CALLED = {
    "beam_sampling", "beam_search", "dflash_ddtree", "dsbd", "dsbd_one_cache", "dyspec", "eagle2",
    "eagle3", "lookup_or_draft", "lookup_vote", "opt_tree", "prompt_lookup", "redrafter",
    "redrafter_typical", "sd_dynamic", "suffix_decoding", "suffix_lookup", "token_recycling",
}  # fmt: skip


def built(name, rows, law, how, device):
    sampling = SamplingSettings(temperature=law, top_p=0.95 if law else 1.0)
    return static_passes.built(name, static_passes.pair_of(how, device), rows, sampling)


@pytest.mark.parametrize(("name", "rows", "law"), CASES)
def test_recorded_parts_draw_the_cpus_tokens_and_are_replayed(name, rows, law):
    tokens = 64 if name in LONG else 24  # no row may end while replays are counted
    requests = [
        dataclasses.replace(each, max_new_tokens=tokens, stop_ids=())
        for each in random_requests(rows, 24)
    ]
    plain = built(name, rows, law, "none", torch.device("cpu"))
    expected = [answer.tokens for answer in plain.generate(requests, seed=0)]
    with SimCuda() as sim:
        decoder = built(name, rows, law, "static", DEVICE)
        answers = [
            [answer.tokens for answer in decoder.generate(requests, seed=0)] for _ in range(2)
        ]
        assert answers == [expected] * 2
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


def test_a_part_that_hangs_on_the_host_is_called_and_a_line_says_so(caplog):
    host = itertools.count()

    def part(draws, given):
        return given + draws._uniforms(3) + next(host)

    with SimCuda(), caplog.at_level(logging.WARNING), torch.inference_mode():
        model, _ = static_passes.pair_of("static", DEVICE)
        parts, rows = RowParts(model.static), generators()
        given = torch.zeros((2, 3), dtype=torch.float64, device=DEVICE)
        found = [run_part(RecordedDraws(rows, parts), "part", part, given).cpu() for _ in range(4)]
        shape = {"dtype": torch.float64, "device": DEVICE}
        same = generators()
        expected = [
            [torch.rand(3, generator=each, **shape).cpu() for each in same] for _ in range(4)
        ]
    for answer, row in zip(found, expected, strict=True):
        torch.testing.assert_close(answer.frac(), torch.stack(row))
    assert "a replay's answer is not a call's" in caplog.text
    assert len(model.static.refusals) == 1


def test_noise_whose_amount_hangs_on_the_tree_is_not_recorded():
    def part(draws, given):
        return given + draws.gumbel(given, [1, 2])

    with SimCuda(), torch.inference_mode():
        model, _ = static_passes.pair_of("static", DEVICE)
        parts, rows, same = RowParts(model.static), generators(), generators()
        given = torch.zeros((2, 2, 4), dtype=torch.float64, device=DEVICE)
        for _ in range(3):
            noise = run_part(RecordedDraws(rows, parts), "part", part, given).cpu()
            first = torch.rand((1, 4), generator=same[0], dtype=torch.float64, device=DEVICE)
            torch.rand((2, 4), generator=same[1], dtype=torch.float64, device=DEVICE)
            assert torch.equal(noise[0, :1], -torch.log(-torch.log(first.cpu())))
    assert model.static.refusals == ["how much it draws hangs on the tree"]


def test_a_part_replays_only_with_the_tree_that_it_was_recorded_with():
    with SimCuda(), torch.inference_mode():
        model, _ = static_passes.pair_of("static", DEVICE)
        parts, rows = RowParts(model.static), generators()
        for turn, nodes in enumerate([1] * 5 + [3] * 5 + [1, 3]):
            draws, ones = RecordedDraws(rows, parts), torch.ones((2, nodes), device=DEVICE)
            tree = run_part(draws, "root", lambda _, given: [given + 1], turn * ones)

            def level(_, given, tree=tree):
                return tree[0].sum(dim=1) + given

            found = run_part(draws, 0, level, ones[:, 0], of=tree)
            assert found.tolist() == [nodes * (turn + 1) + 1] * 2
    assert model.static.refusals == []
