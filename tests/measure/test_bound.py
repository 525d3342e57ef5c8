"""Bound over measured: literal bytes of two models; bandwidth; a share where the GPU is known."""

import dataclasses
from types import SimpleNamespace

import pytest

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.jobs.rows.collect import bound_columns
from spec_bench.measure.roofline import (
    NOMINAL,
    ModelCost,
    Pass,
    bound_over_measured,
    bytes_moved,
    model_cost,
    moved_bytes,
    nominal_bandwidth,
)
from spec_bench.records.types import Generation, StepRecord
from tests.families import decoder_settings, random_requests, tiny_pair

TARGET = ModelCost(weight_bytes=1000, lookup_bytes=1, slot_bytes=10, logit_bytes=100)
DRAFT = dataclasses.replace(TARGET, weight_bytes=50, slot_bytes=2)
ONE = Generation(
    "p", (1, 2, 3), "length", (StepRecord(3, 3, 1, 2), StepRecord(0, 0, 0, 1)), 0.0, 2.0, 0.5, 1.5
)


# Two layers of width 64, 512 tokens, float32. Llama: 128 wide gated feed-forward, four heads.
LLAMA_READ = 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64 + 512 * 64
# OPT: biases everywhere, feed-forward of 256, two norms a layer and one at the end.
OPT_LAYER = 4 * 64 * 64 + 2 * 64 * 256
OPT_READ = 2 * (OPT_LAYER + 4 * 64 + 256 + 64 + 2 * 2 * 64) + 2 * 64 + 512 * 64
SLOT_BYTES = 2 * 2 * 64 * 4


def cost_of(name):
    model = load_model(ModelSpec(f"random:{name}"))
    return model_cost(model.module, model.bytes_per_slot)


def test_a_pass_of_llama_reads_weights_once_and_only_the_rows_looked_up():
    cost = cost_of("llama_tiny")
    assert cost.weight_bytes == 4 * LLAMA_READ == 460_032
    tokens, context = 3, 10
    moved = 460_032 + tokens * (64 * 4 + SLOT_BYTES) + context * SLOT_BYTES + tokens * 512 * 4
    assert bytes_moved(cost, Pass(tokens, context, logits=tokens)) == moved == 480_256


def test_opts_table_is_its_lm_head_and_only_its_positions_are_looked_up():
    cost = cost_of("opt_tiny")
    assert cost.weight_bytes == 4 * OPT_READ == 531_456
    assert cost.lookup_bytes == 64 * 4
    moved = 531_456 + 3 * (64 * 4 + SLOT_BYTES) + 10 * SLOT_BYTES + 1 * 512 * 4
    assert bytes_moved(cost, Pass(3, 10, logits=1)) == moved == 547_584


def test_a_gpu_is_known_by_what_the_driver_calls_it():
    assert nominal_bandwidth("NVIDIA H200") == NOMINAL["H200"]
    assert nominal_bandwidth("NVIDIA A100-SXM4-80GB") == NOMINAL["A100"]
    assert nominal_bandwidth("NVIDIA H100 80GB HBM3") == NOMINAL["H100"]
    assert nominal_bandwidth("NVIDIA RTX A6000") == NOMINAL["A6000"]
    assert nominal_bandwidth("NVIDIA L40S") is None  # another card
    assert nominal_bandwidth("cpu") is None


def test_a_prompts_bytes_are_weights_context_nodes_and_logits_of_every_call():
    # Six tokens of prompt: five are in the cache at the first call, seven at the second.
    first, second = 1000 + 4 * 11 + 5 * 10 + 4 * 100, 1000 + 11 + 7 * 10 + 100
    level = 50 + 3 + 5 * 2 + 100
    assert moved_bytes(ONE, 6, TARGET, [DRAFT]) == first + second + 3 * level
    assert moved_bytes(ONE, 6, TARGET, [], head_bytes=7.0) == first + second + 14


def test_rows_that_decode_together_share_the_reading_of_the_weights():
    alone, four = (moved_bytes(ONE, 6, TARGET, [DRAFT], batch=batch) for batch in (1, 4))
    assert alone - four == 0.75 * (2 * 1000 + 3 * 50)


def test_the_share_is_of_the_seconds_of_decoding_and_starved_passes_lower_it():
    assert bound_over_measured(1000.0, [ONE], 1000.0) == 0.5
    # The event pair around a pass spans a wait for launches: host overhead stays, this halves.
    starved = dataclasses.replace(ONE, decode_s=4.0, target_s=3.0, draft_s=1.0)
    assert 1 - (starved.target_s + starved.draft_s) / starved.decode_s == 0.0
    assert bound_over_measured(1000.0, [starved], 1000.0) == 0.25
    assert bound_over_measured(1000.0, [], 1000.0) is None


def test_a_row_has_it_on_a_known_gpu_only():
    target, draft = tiny_pair("llama")
    decoder = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings(0.0))
    requests = random_requests(1, 6)
    answers = decoder.generate(requests, seed=0)
    lengths = {each.prompt_id: len(each.prompt_ids) for each in requests}
    found = bound_columns(decoder, answers, lengths, "NVIDIA H200")
    assert found["bound_over_measured"] > 0
    slower = bound_columns(decoder, answers, lengths, "NVIDIA A100-SXM4-80GB")
    ratio = slower["bound_over_measured"] / found["bound_over_measured"]
    assert ratio == pytest.approx(4.8 / 2.0)
    calls = sum(len(each.steps) for each in answers)
    seconds = sum(each.decode_s for each in answers)
    bound_s = found["moved_bytes"] * calls / 4.8e12
    assert found["bound_over_measured"] == pytest.approx(bound_s / seconds, rel=1e-4)


def test_on_any_device_a_row_has_a_calls_bytes_and_the_bandwidth_that_was_measured():
    target, draft = tiny_pair("llama")
    plain = build_decoder(decoder_settings("ar"), target, [], SamplingSettings(0.0))
    sd = build_decoder(decoder_settings("sd"), target, [draft], SamplingSettings(0.0))
    requests = random_requests(1, 6)
    lengths = {each.prompt_id: len(each.prompt_ids) for each in requests}
    own, more = (
        bound_columns(each, each.generate(requests, seed=0), lengths, "cpu") for each in (plain, sd)
    )
    assert own.keys() == more.keys() == {"moved_bytes", "bandwidth_bytes_per_s"}
    weights = sum(each.nbytes for each in target.module.parameters())
    assert own["moved_bytes"] < more["moved_bytes"]
    assert 0.5 * weights < own["moved_bytes"] < 2 * weights
    assert own["bandwidth_bytes_per_s"] == more["bandwidth_bytes_per_s"] > 1e6


def test_what_other_code_decodes_has_neither():
    foreign = SimpleNamespace(target=object(), drafts=[], rows=1)
    assert bound_columns(foreign, [ONE], {"p": 6}, "NVIDIA H200") == {}
