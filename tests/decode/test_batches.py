"""Same seed, same tokens: whatever batch, order of prompts, other name, or second process."""

import os
import socket
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as started
from scipy.stats import chisquare

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode import loop, rows
from spec_bench.decode.rows import BatchClock, Row
from spec_bench.engine.model import ForwardOutput
from spec_bench.records.types import Request
from tests.families import DECODERS, GREEDY, VOCAB, built, pair_of, random_requests, tiny_pair
from tests.said import naming

LAW = SamplingSettings(temperature=0.9, top_p=0.95, probability_dtype="float64")
EAGLE = {"eagle": "chain_5", "eagle2": "3x3@6", "eagle3": "3x3@6", "eagle_rsd_s": "2x3"}
EAGLE |= {"eagle_traversal": "chain_5", "mtp": None, "dflash": None, "dflash_ddtree": None}
EAGLE |= {"p_eagle": None}
HEADS = ("medusa", "medusa_typical", "redrafter", "redrafter_typical", "redrafter apart")
BEAMS = ("beam_sampling", "dsbd", "beam_search")
FAST = ("ar", "rsd_s", "beam_search", "redrafter apart")
NAMES = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
    for name in (*DECODERS, *BEAMS, *HEADS, *EAGLE)
]
REQUESTS = [
    Request(r.prompt_id, r.prompt_ids, 3 + 6 * (index % 4))
    for index, r in enumerate(random_requests(10, 1))
]


def answers(name, rows, queue, requests=REQUESTS, seed=3):
    """Decodes in batches of ``queue`` requests, ``rows`` at a time; by prompt."""
    # float64 leaves no room for the rounding differences between shapes of matrix products.
    decoder = built(name, tiny_pair("llama", torch.float64), LAW, rows, EAGLE.get(name))
    return {
        generation.prompt_id: generation
        for start in range(0, len(requests), queue)
        for generation in decoder.generate(requests[start : start + queue], seed)
    }


def told(found):
    return {name: (each.tokens, each.steps) for name, each in found.items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_continuous_batch_decodes_every_prompt_as_alone_in_any_order(name):
    alone = answers(name, 1, 1)
    continuous = answers(name, 3, len(REQUESTS))
    assert list(continuous) == [r.prompt_id for r in REQUESTS]
    assert told(continuous) == told(alone)
    assert told(answers(name, 4, 4, REQUESTS[::-1])) == told(alone)


def test_another_seed_gives_other_tokens():
    assert told(answers("rsd_s", 4, 10)) != told(answers("rsd_s", 4, 10, seed=4))


@pytest.mark.parametrize("spec", ["2-2-1", "4-1-1", "3"])
def test_mcsd_without_replacement_and_rsd_c_are_the_same_decoder(spec):
    pair = tiny_pair("llama", torch.float64)
    one, other = (
        [each.tokens for each in built(name, pair, LAW, 4, spec).generate(REQUESTS, 3)]
        for name in ("mcsd_wor", "rsd_c")
    )
    assert one == other


@pytest.mark.parametrize("name", ["sd", "spectr", "rsd_c", "rsd_s"])
def test_sampled_continuations_follow_the_targets_law_through_the_cache(name):
    pair = tiny_pair("llama", torch.float64)
    settings = SamplingSettings(temperature=1.0, top_k=2, probability_dtype="float64")
    decoder = built(name, pair, settings, 200, {"sd": "1", "rsd_c": "2"}.get(name, "2x1"))
    prompt, length, samples = (5,), 3, 4000  # a longer one would be prefilled for every sample
    counts = Counter()
    for start in range(0, samples, 200):
        requests = [Request(f"{start + row}", prompt, length) for row in range(200)]
        counts.update(g.tokens for g in decoder.generate(requests, seed=0))
    law = {(): 1.0}
    for _ in range(length):
        law = {
            (*tokens, token): chance * prob
            for tokens, chance in law.items()
            for token, prob in enumerate(top_two(pair[0].module, [*prompt, *tokens]))
            if prob > 0
        }
    assert len(law) == 8
    assert set(counts) <= set(law)
    expected = [chance * samples for chance in law.values()]
    assert chisquare([counts[tokens] for tokens in law], expected).pvalue > 1e-6


def top_two(module, tokens):
    with torch.inference_mode():
        logits = module(torch.tensor([tokens])).logits[0, -1]
    kept = torch.full_like(logits, -torch.inf)
    best = logits.topk(2)
    kept[best.indices] = best.values
    return kept.softmax(-1).tolist()


def test_stop_tokens_and_limits_end_an_answer_where_autoregressive_decoding_does():
    request = random_requests(4, 16)[3]
    full = built("ar", tiny_pair("llama"), GREEDY).generate([request], 0)[0]
    assert (full.finish, len(full.tokens)) == ("length", 16)
    stop = full.tokens[7]
    stopping = Request(request.prompt_id, request.prompt_ids, 16, (stop,))
    for name in ("ar", "sd", "rsd_s"):
        (generation,) = built(name, tiny_pair("llama"), GREEDY).generate([stopping], 0)
        assert generation.finish == "stop"
        assert generation.tokens == full.tokens[: full.tokens.index(stop) + 1]


def test_records_add_up():
    decoder = built("rsd_s", tiny_pair("llama"), LAW, 4, "3x2")
    for generation in decoder.generate(random_requests(4, 16), 0):
        assert sum(step.delivered for step in generation.steps) == len(generation.tokens)
        for step in generation.steps:
            assert (step.nodes, step.depth) == (6, 2)
            assert 0 <= step.accepted <= 2
            assert 1 <= step.delivered <= step.accepted + 1
        assert 0 < generation.draft_s + generation.target_s < generation.decode_s


@pytest.mark.parametrize(("name", "spec"), [("rsd_c", f"{VOCAB + 5}"), ("rsd_s", f"{VOCAB + 5}x2")])
def test_widths_beyond_the_vocabulary_are_cut_to_the_support(name, spec):
    settings = SamplingSettings(temperature=1.0, top_k=3)
    decoder = built(name, tiny_pair("llama"), settings, 1, spec)
    assert len(decoder.generate(random_requests(1, 16), 0)[0].tokens) == 16


@pytest.mark.parametrize("rows", [1, 3])
def test_nodes_of_merged_paths_are_those_verified_without_copies(rows):
    decoder = built("traversal_paths", tiny_pair("llama"), GREEDY, rows)  # all paths are copies
    steps = [step for each in decoder.generate(REQUESTS[:3], 0) for step in each.steps]
    assert {step.nodes for step in steps} == {decoder.depth}


def test_a_continuous_batch_needs_fewer_target_passes_than_a_static_one():
    decoder, passes = built("ar", tiny_pair("llama"), LAW, 3), {}
    for queue in (3, len(REQUESTS)):
        heard = mock.Mock()
        for start in range(0, len(REQUESTS), queue):
            decoder.generate(REQUESTS[start : start + queue], 3, heard)
        passes[queue] = heard.call_count
    assert passes[len(REQUESTS)] < 0.8 * passes[3]


@pytest.mark.parametrize("queue", [4, len(REQUESTS)])
def test_seconds_add_up_and_no_request_is_faster_than_its_own_share(queue):
    generations = answers("sd", 4, queue).values()
    for generation in generations:
        own = generation.prefill_s + generation.decode_s
        assert generation.latency_s >= 0.9 * own, "a row shares the seconds, it waits for all"
        assert generation.draft_s + generation.target_s <= generation.decode_s * 1.001
    longest = max(generations, key=lambda g: len(g.steps))
    assert longest.latency_s > min(g.latency_s for g in generations)


def test_no_requests_are_no_generations():
    assert built("ar", tiny_pair("llama"), LAW, 2).generate([], 0) == []


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request("long", tuple(range(50)) * 3, 10), ("'long'", "160 positions", "128")),
        (Request("void", (), 3), ("'void'",)),
        (Request("odd", (1, VOCAB), 3), ("'odd'", f"token {VOCAB}")),
    ],
)
def test_a_request_that_does_not_fit_is_refused_before_anything_is_decoded(request_, said):
    decoder = built("ar", tiny_pair("llama"), LAW, 2)
    with pytest.raises(ValueError, match=naming(*said)):
        decoder.generate([*REQUESTS[:2], request_], 0)


def test_a_tree_needs_positions_behind_the_answer():
    decoder = built("sd", tiny_pair("llama"), LAW, 1)
    room = 128 - 10 - decoder.depth
    decoder.refuse_unfit_prompts([Request("fits", (1,) * room, 10)])
    with pytest.raises(ValueError, match=naming("'long'", "129 positions", "128")):
        decoder.refuse_unfit_prompts([Request("long", (1,) * (room + 1), 10)])
    decoder.drafts = [SimpleNamespace(max_positions=60)]  # the draft's own limit counts, too
    with pytest.raises(ValueError, match=naming("'fits'", "128 positions", "60")):
        decoder.refuse_unfit_prompts([Request("fits", (1,) * room, 10)])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ar", "sd", "rsd_s", "dsbd", "medusa", "redrafter"])
def test_two_hundred_prompts_decode_alike_at_every_batch_size(name):
    requests = random_requests(200, 12, seed=7)
    one, *others = (told(answers(name, rows, rows if rows == 1 else 200, requests))
                    for rows in (1, 8, 32))  # fmt: skip
    assert len({tokens for tokens, _ in one.values()}) > 150
    assert others == [one, one]


def test_seconds_and_latency_of_rows_that_come_and_go(monkeypatch):
    """A prefill takes 100 s, an iteration 1 s, a meter's start 10 s and its end another 10."""
    clock = SimpleNamespace(now_s=0.0)

    def takes(seconds, does=lambda *_: None):
        def then(*given):
            clock.now_s += seconds
            return does(*given)

        return then

    decoder = built("ar", tiny_pair("llama"), GREEDY, 2)
    monkeypatch.setattr(rows.time, "perf_counter", lambda: clock.now_s)
    waited = []  # for this device, whenever the clock is read where nothing is decoded
    monkeypatch.setattr(loop, "wait_for_device", waited.append)
    decoder.take_forward_s = lambda: (0.25, 0.5)  # until each of two pauses, or of a prefill
    decoder.join, decoder.step = takes(100, decoder.join), takes(1, decoder.step)
    requests = [Request(name, (1, 2), count) for name, count in zip("abc", (1, 4, 2), strict=True)]
    meter = SimpleNamespace(begin_window=takes(10), end_window=takes(10))
    found = decoder.generate(requests, 0, meter=meter)
    assert [*map(str, waited)] == ["cpu"] * 6  # at both ends of each prefill and of decoding
    # a and b take an iteration together; c joins; b and c take two; b takes one alone.
    assert [each.prefill_s for each in found] == [100.0] * 3
    assert [each.decode_s for each in found] == pytest.approx([0.5, 2.5, 1.0])
    assert [each.latency_s for each in found] == [211.0, 314.0, 102.0]
    assert sum(each.draft_s for each in found) == pytest.approx(2 * 0.25)
    assert sum(each.target_s for each in found) == pytest.approx(2 * 0.5)


def test_forward_seconds_of_a_prompt_are_not_those_of_its_answer():
    """A prompt takes 12 s, 5 and 7 of them in passes; its one token 4 s, 1 and 2 in passes."""
    readings, passes = iter([0.0, 12.0, 12.0, 16.0]), iter([(5.0, 7.0), (1.0, 2.0)])
    clock = BatchClock(lambda: next(readings), lambda: next(passes))
    row = SimpleNamespace(finish="length")
    clock.share_prefill_wall_time([row])
    clock.start_decoding()
    clock.share_step_wall_time([row])
    clock.pause_decoding()
    assert clock.get_row_seconds(row) == (12.0, 4.0, 1.0, 2.0)


@pytest.mark.parametrize(
    ("limit", "stop", "emitted", "delivered", "finish"),
    [
        (3, (), [7, 8, 9, 7, 8], [7, 8, 9], "length"),
        (10, (8,), [7, 8, 9], [7, 8], "stop"),
        (3, (9,), [7, 8, 9], [7, 8, 9], "stop"),  # ended by itself at the limit
    ],
)
def test_accepted_counts_the_whole_block_and_delivered_what_limit_and_stop_left(
    limit, stop, emitted, delivered, finish
):
    row = Row(Request("p", (1, 2), limit, stop), torch.Generator(), [1, 2])
    row.commit(emitted, [-1.0] * len(emitted), nodes=6, depth=4)
    (step,) = row.steps
    assert (step.accepted, step.delivered) == (len(emitted) - 1, len(delivered))
    assert (row.delivered, row.finish) == (delivered, finish)
    assert row.log_likelihood == -len(delivered)


DISTURBED = 0.1  # a hundred times what another order of a sum could do
TREES = ["sd", "rsd_s", "mcsd", "sd_dynamic", "dyspec", "opt_tree", "traversal_paths", "eagle3"]
WARM = SamplingSettings(temperature=1.0)


def disturb(model, generator):
    """Adds noise to every logit, as another order of a sum does."""
    forward = model.forward

    def noisy(*given, **named):
        output = forward(*given, **named)
        noise = torch.randn(output.logits.shape, generator=generator) * DISTURBED
        return ForwardOutput(output.logits + noise, output.hidden)

    model.forward = noisy


def tokens(name, disturbed):
    pair = pair_of("none", dtype=torch.float32)
    if disturbed:
        generator = torch.Generator().manual_seed(7)
        for model in pair:
            disturb(model, generator)
    decoder = built(name, pair, GREEDY if name == "beam_search" else WARM, 3)
    return [answer.tokens for answer in decoder.generate(random_requests(6, 24), seed=0)]


def work(rank, port, names, folder):
    """One process; the second is disturbed."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {name: tokens(name, disturbed=rank == 1) for name in names}
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def together(names, folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started.spawn(work, (port, names, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("names", [TREES, ["dsbd", "beam_search"]], ids=["trees", "beams"])
def test_both_deliver_what_the_first_delivers_alone(names, tmp_path):
    alone = {name: tokens(name, disturbed=False) for name in names}
    first, second = together(names, tmp_path)
    assert first == second == alone


def test_disturbed_logits_alone_give_other_tokens():
    assert tokens("rsd_s", disturbed=True) != tokens("rsd_s", disturbed=False)
