"""Bound over measured: literal bytes of two models; bandwidth; a share where the GPU is known."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.jobs.job.results import build_roofline_columns
from spec_bench.measure import bandwidth, roofline
from spec_bench.measure.bandwidth import measure_bytes_per_s
from spec_bench.measure.roofline import ForwardPassByteCounts, count_decode_bytes
from spec_bench.records.types import Generation, StepRecord
from tests.families import decoder_settings, random_requests, tiny_pair

TARGET = ForwardPassByteCounts(weight_bytes=1000, lookup_bytes=1, slot_bytes=10, logit_bytes=100)
DRAFT = dataclasses.replace(TARGET, weight_bytes=50, slot_bytes=2)
STEPS = (StepRecord(3, 3, 1, 2), StepRecord(0, 0, 0, 1))
ONE = Generation("p", (1, 2, 3), "length", STEPS, 0.0, 2.0, 0.5, 1.5)

# Two layers of width 64, 512 tokens, float32. Llama: 128 wide gated feed-forward, four heads.
LLAMA_READ = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 + 512 * 64
# OPT: biases everywhere, feed-forward of 256, two norms a layer and one at the end. Its table is
# its lm head, and only its positions are looked up.
OPT_LAYER = 4 * 64 * 64 + 2 * 64 * 256
OPT_READ = 2 * (OPT_LAYER + 4 * 64 + 256 + 64 + 2 * 2 * 64) + 2 * 64 + 512 * 64
SLOT_BYTES = 2 * 2 * 64 * 4


@pytest.mark.parametrize(
    ("name", "read", "weights", "logits", "total"),
    [("llama_tiny", LLAMA_READ, 460_032, 3, 480_256), ("opt_tiny", OPT_READ, 531_456, 1, 547_584)],
)
def test_a_pass_reads_weights_once_and_only_the_rows_looked_up(name, read, weights, logits, total):
    model = load_model(ModelSpec(f"random:{name}"))
    cost = roofline.count_model_bytes(model.module, model.bytes_per_slot)
    assert cost.weight_bytes == 4 * read == weights
    assert cost.lookup_bytes == 64 * 4
    moved = weights + 3 * (64 * 4 + SLOT_BYTES) + 10 * SLOT_BYTES + logits * 512 * 4
    assert roofline.count_pass_bytes(cost, 3, 10, logits) == moved == total


def test_a_gpu_is_known_by_what_the_driver_calls_it():
    told = {"NVIDIA H200": "H200", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA RTX A6000": "A6000"}
    told |= {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA L40S": None, "cpu": None}
    assert [bandwidth.look_up_nominal_bytes_per_s(name) for name in told] == [
        bandwidth.NOMINAL.get(k) for k in told.values()
    ]


def test_a_prompts_bytes_are_weights_context_nodes_and_logits_of_every_call():
    # Six tokens of prompt: five are in the cache at the first call, seven at the second.
    first, second = 1000 + 4 * 11 + 5 * 10 + 4 * 100, 1000 + 11 + 7 * 10 + 100
    level = 50 + 3 + 5 * 2 + 100
    assert count_decode_bytes(ONE, 6, TARGET, [DRAFT]) == first + second + 3 * level
    assert count_decode_bytes(ONE, 6, TARGET, [], head_bytes=7.0) == first + second + 14


def test_rows_that_decode_together_share_the_reading_of_the_weights():
    alone, four = (
        count_decode_bytes(ONE, 6, TARGET, [DRAFT], batch_size=batch) for batch in (1, 4)
    )
    assert alone - four == 0.75 * (2 * 1000 + 3 * 50)


def test_the_share_is_of_the_seconds_of_decoding_and_starved_passes_lower_it():
    assert roofline.compute_bound_over_measured_time(1000.0, [ONE], 1000.0) == 0.5
    # The event pair around a pass spans a wait for launches: this halves.
    starved = dataclasses.replace(ONE, decode_s=4.0, target_s=3.0, draft_s=1.0)
    assert roofline.compute_bound_over_measured_time(1000.0, [starved], 1000.0) == 0.25
    assert roofline.compute_bound_over_measured_time(1000.0, [], 1000.0) is None


@pytest.fixture(scope="module")
def answered():
    """By decoder, itself and its answers; and the prompts' lengths."""
    target, draft = tiny_pair("llama")
    requests, greedy = random_requests(1, 6), SamplingSettings(0.0)
    found = {}
    for name, drafts in {"ar": [], "sd": [draft]}.items():
        decoder = build_decoder(decoder_settings(name), target, drafts, greedy)
        found[name] = decoder, decoder.generate(requests, seed=0)
    return found, {each.prompt_id: len(each.prompt_ids) for each in requests}


def test_a_row_has_it_on_a_known_gpu_only(answered):
    (decoder, answers), lengths = answered[0]["sd"], answered[1]
    names = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
    found, slower = (build_roofline_columns(decoder, answers, lengths, name) for name in names)
    ratio = slower["bound_over_measured"] / found["bound_over_measured"]
    assert ratio == pytest.approx(4.8 / 2.0)
    calls = sum(len(each.steps) for each in answers)
    seconds = sum(each.decode_s for each in answers)
    bound_s = found["moved_bytes"] * calls / 4.8e12
    assert found["bound_over_measured"] == pytest.approx(bound_s / seconds, rel=1e-4)


def test_on_any_device_a_row_has_a_calls_bytes_and_the_bandwidth_that_was_measured(answered):
    own, more = (build_roofline_columns(*each, answered[1], "cpu") for each in answered[0].values())
    assert own.keys() == more.keys() == {"moved_bytes", "bandwidth_bytes_per_s"}
    target = answered[0]["ar"][0].target
    weights = sum(each.nbytes for each in target.module.parameters())
    assert own["moved_bytes"] < more["moved_bytes"]
    assert 0.5 * weights < own["moved_bytes"] < 2 * weights
    assert own["bandwidth_bytes_per_s"] == more["bandwidth_bytes_per_s"] > 1e6


def test_what_other_code_decodes_has_neither():
    foreign = SimpleNamespace(target=object(), drafts=[], rows=1)
    assert build_roofline_columns(foreign, [ONE], {"p": 6}, "NVIDIA H200") == {}


@pytest.fixture(autouse=True)
def forgotten():
    bandwidth._measure_bytes_per_s_once.cache_clear()
    yield
    bandwidth._measure_bytes_per_s_once.cache_clear()


def test_the_buffer_is_as_large_as_the_weights_within_limits(monkeypatch):
    streamed = []

    def stream(device, dtype, size, repeats, now_s):
        streamed.append((size, dtype))
        return size, 0.5

    monkeypatch.setattr(bandwidth, "time_fastest_kernel", stream)
    monkeypatch.setattr(bandwidth, "get_free_bytes", lambda device: 2**40)
    model = nn.Linear(1024, 1024, bias=False, dtype=torch.bfloat16)
    assert measure_bytes_per_s(model) == 2 * 2 * 2**20
    assert measure_bytes_per_s(model) == 2 * 2 * 2**20  # from memory
    measure_bytes_per_s(nn.Linear(2, 2))
    with torch.device("meta"):
        measure_bytes_per_s(nn.Linear(2**17, 2**13))
    assert [size for size, _ in streamed] == [
        2 * 2**20,
        bandwidth.MIN_BUFFER_BYTES,
        bandwidth.MAX_BUFFER_BYTES,
    ]
    assert streamed[0][1] == torch.bfloat16


def test_a_real_buffer_has_a_plausible_rate_and_none_without_room_or_weights(monkeypatch):
    assert 1e7 < measure_bytes_per_s(nn.Linear(512, 1024)) < 1e13
    assert measure_bytes_per_s(nn.Identity()) is None
    monkeypatch.setattr(bandwidth, "get_free_bytes", lambda device: bandwidth.MIN_BUFFER_BYTES)
    bandwidth._measure_bytes_per_s_once.cache_clear()
    assert measure_bytes_per_s(nn.Linear(2, 2)) is None


def test_the_shortest_of_all_ways_through_a_buffer_counts():
    lengths_s = [9.0, 4.0, 9.0, 5.0, 9.0, 8.0]  # two of sum, product, copy
    clock = itertools.accumulate(part for length_s in lengths_s for part in (0.0, length_s))
    cpu = torch.device("cpu")
    assert bandwidth.time_fastest_kernel(cpu, torch.bfloat16, 2**16, 2, lambda: next(clock)) == (
        2**16,
        4.0,
    )
