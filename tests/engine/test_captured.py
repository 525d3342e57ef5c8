"""What is compiled or recorded of models, and what a GPU's passes must do, as simulated.

A compiled pass is the same model; long prompts run in chunks, over one attention, in memory that
stays flat.
"""

import gc
import logging
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

from spec_bench.core.host_device import clear_cached_constants
from spec_bench.decode import recording
from spec_bench.decode.config import build_decoder
from spec_bench.engine.attention import install_grouped_attention
from spec_bench.engine.cache import CachePool, SlotCache
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model import ForwardTimer, set_cuda_precision_flags
from spec_bench.engine.recorder import GraphRecorder, explain_no_recording, near_tie_gap
from spec_bench.engine.split_attention import FROM
from spec_bench.engine.tree_pass import PREFILL_CHUNK, compute_next_logits
from spec_bench.measure.provenance import collect_torch_state
from spec_bench.records.types import Request
from tests.families import (
    GREEDY,
    NEEDS_COMPILER,
    VOCAB,
    built,
    decoder_settings,
    pair_of,
    random_requests,
    tiny_model,
    tiny_pair,
)
from tests.simcuda import DEVICE, SimCuda


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": "llama"}, ""),
        ({"model_type": "phi3"}, "'phi3' is not known to record; known: gpt_neox, llama"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic"}}, "'dynamic' wait"),
        ({"model_type": "qwen3", "rope_parameters": {"rope_type": "yarn"}}, ""),
    ],
)
def test_only_models_that_never_wait_are_recorded(settings, reason):
    said = explain_no_recording(SimpleNamespace(**settings))
    assert reason in said
    assert bool(said) == bool(reason)


def test_after_a_recording_that_failed_the_next_one_is_made_and_the_stream_is_the_old():
    with SimCuda() as sim:
        stream = torch.cuda.current_stream()
        recorder = GraphRecorder(DEVICE)
        ones, two = torch.ones(2, device=DEVICE), torch.zeros(2, device=DEVICE)

        def waits():
            if sim.tape is not None:
                float((ones + 1).sum())

        with pytest.raises(RuntimeError, match="stream is capturing"):
            recorder.record_graph(waits)
        assert torch.cuda.current_stream() is stream
        graph = recorder.record_graph(lambda: two.copy_(ones + 1))
        ones.fill_(4)
        graph.replay()
        assert two.tolist() == [5, 5]


def test_a_pool_that_lost_its_last_graph_is_not_used_again():
    with SimCuda():
        recorder = GraphRecorder(DEVICE)
        for _ in range(2):
            recorder.record_graph(lambda: None)


def test_iterations_whose_passes_cannot_be_fused_are_recorded_as_they_are(monkeypatch, caplog):
    def cannot(*_, **__):
        raise RuntimeError("Cannot find a working triton installation")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: cannot)
    monkeypatch.setattr(recording, "CANARY_TOKENS", 2)
    with SimCuda(), caplog.at_level(logging.WARNING):
        decoder = built("ar", pair_of("static_inductor", DEVICE))
        decoder.check_and_reserve(random_requests(1, 4))
        decoder.record_graphs(random_requests(1, 4))
        assert decoder.recordings.graphs
    assert caplog.text.count("not fused: Cannot find a working triton") == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dynamo", pytest.param("inductor", marks=NEEDS_COMPILER)])
def test_captured_tokens_equal_plain_tokens_without_recompiling_as_sequences_grow(how):
    torch._dynamo.reset()
    pair = tiny_pair("llama")
    captured = [HuggingFaceModel(m.module, VOCAB, m.device, how) for m in pair]
    requests = random_requests(6, 16)
    for name, rows in (("ar", 1), ("rsd_s", 1), ("rsd_s", 3)):
        answers = {}
        for label, (target, draft) in (("plain", pair), (how, captured)):
            decoder = build_decoder(decoder_settings(name), target, [draft], GREEDY, rows)
            batches = [requests[i : i + rows] for i in range(0, len(requests), rows)]
            answers[label] = [g.tokens for b in batches for g in decoder.generate(b, 0)]
        assert answers["plain"] == answers[how]
        graphs = counters["stats"]["unique_graphs"]
        decoder.generate(random_requests(rows, 24), 0)
        assert counters["stats"]["unique_graphs"] == graphs > 0


def test_a_block_compiled_for_one_model_serves_no_other_that_computes_something_else():
    torch._dynamo.reset()
    target, _ = tiny_pair("llama")
    other = deepcopy(target.module)
    for part in other.modules():
        if hasattr(part, "act_fn"):
            part.act_fn = torch.nn.ReLU()  # which the graph has for good, as it has no weight
    for module in (deepcopy(target.module), other):
        model = HuggingFaceModel(module, VOCAB, target.device, "dynamo")
        with torch.inference_mode():
            plain = module(torch.arange(6).unsqueeze(0)).logits[0, -1]
        torch.testing.assert_close(compute_next_logits(model, list(range(6))), plain)


def test_all_blocks_of_a_model_are_compiled_as_one():
    torch._dynamo.reset()
    counters.clear()
    target, _ = tiny_pair("llama")  # which other tests may have changed: a new module of its kind
    module = type(target.module)(target.module.config).eval()
    model = HuggingFaceModel(module, VOCAB, target.device, "dynamo")
    assert model.blocks == 3
    compute_next_logits(model, [1, 2, 3])
    assert counters["stats"]["unique_graphs"] == 1


GROWING = (("ar", None), ("sd", "2"), ("rsd_c", "2-1"), ("rsd_s", "3x3"), ("mcsd", "2-2-2"))


def test_no_replaced_cache_stays_alive_when_trees_grow():
    with SimCuda() as sim:
        target, draft = pair_of("none", DEVICE, torch.float32)
        pool = CachePool()
        decoders = [
            build_decoder(
                decoder_settings(name, spec), target, [draft][: name != "ar"], GREEDY, 2, pool
            )
            for name, spec in GROWING
        ]
        torch.zeros(1, device=DEVICE)
        clear_cached_constants()
        before = sim.allocated
        for decoder in decoders:
            decoder.generate(random_requests(2, 3), seed=0)
        largest = max(decoder.count_slots_per_row(2, 3) for decoder in decoders)
        expected = 2 * largest * (target.bytes_per_slot + draft.bytes_per_slot)
        held = sum(
            pool.get_or_grow_cache(*role, 1, 1).bytes
            for role in (("target", target), ("draft 0", draft))
        )
        assert held == expected
        clear_cached_constants()  # what never changes stays, and is no cache's
        assert sim.allocated - before <= 1.05 * expected


def test_a_mask_is_not_copied_in_every_layer_and_a_commit_brings_nothing_to_the_device(monkeypatch):
    monkeypatch.delattr(SlotCache, "commit")  # which takes nodes from the host
    with SimCuda() as sim:
        target, draft = pair_of("none", DEVICE, torch.float32)
        decoder = build_decoder(decoder_settings("rsd_s"), target, [draft], GREEDY, 2)
        sim.reset()
        answers = decoder.generate(random_requests(2, 8), seed=0)
        assert sum(step.accepted for answer in answers for step in answer.steps) > 0
        masked = {kind for kind in sim.attention if "mask" in kind}
        assert masked
        assert all("aligned" in kind for kind in masked), sim.attention


def test_a_timer_records_on_its_own_gpus_stream(monkeypatch):
    asked, streams = [], []
    with SimCuda():
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or 7)
        record = torch.cuda.Event.record
        monkeypatch.setattr(
            torch.cuda.Event, "record", lambda event, on: streams.append(on) or record(event)
        )
        timer = ForwardTimer(torch.device("cuda:1"))
        timer.start()
        timer.stop()
        assert timer.take_s() >= 0
    assert asked == [torch.device("cuda:1")] * 2
    assert streams == [7, 7]


def test_no_pass_plans_attention_anew_or_adds_coarsely_and_a_run_says_so():
    set_cuda_precision_flags()
    state = collect_torch_state()
    assert "cudnn" not in state["attention_kernels"]
    assert "memory_efficient" in state["attention_kernels"]
    assert state["tf32"] is False
    assert state["bf16_reduced_precision_reduction"] is False


def test_near_ties_are_as_wide_as_the_dtypes_steps():
    assert near_tie_gap(torch.float32, 20.0) == 1e-4
    assert near_tie_gap(torch.bfloat16, 16.0) == 0.25
    assert near_tie_gap(torch.bfloat16, 0.0) == 1e-4


def grouped_model(length, seed):
    """8 key heads, 32 query heads, tiny; on the simulated device."""
    torch.manual_seed(seed)
    module = tiny_model("llama", hidden_size=256, intermediate_size=16, num_hidden_layers=1,
                        num_attention_heads=32, num_key_value_heads=8,
                        max_position_embeddings=length + 64).to(DEVICE)  # fmt: skip
    assert install_grouped_attention(module)
    return HuggingFaceModel(module, VOCAB, DEVICE)


SLOW = [pytest.param(length, marks=pytest.mark.slow) for length in (2048, 32768)]


@pytest.mark.parametrize("length", [1100, *SLOW])
@pytest.mark.parametrize("name", ["ar", "rsd_s"])
def test_a_long_prompt_runs_in_chunks_and_decodes_in_flat_memory(name, length):
    chunks, live, peaks = [], [], []
    with SimCuda() as sim, torch.inference_mode():
        pair = [grouped_model(length, seed) for seed in range(2)]
        forward = pair[0].forward

        def noted(*given, **named):
            chunks.extend([given[2].shape[1]] * named.get("prefill", False))
            return forward(*given, **named)

        pair[0].forward = noted
        decoder = built(name, pair, GREEDY, spec={"rsd_s": "3x2"}.get(name))
        prompt = tuple(7 * i % VOCAB for i in range(length - 24))
        (row,) = decoder.prefill_requests([Request("p", prompt, 20)], seed=0)
        sim.attention.clear()
        while row.finish is None and len(live) < 5:
            gc.collect()  # tensors held by circles go whenever they are looked for
            sim.peak = before = sim.allocated
            decoder.step([row])
            peaks.append(sim.peak - before)
            gc.collect()
            live.append(sim.allocated)
        cache = pair[0].allocate(1, 8).bytes // 8 * length
    split = {"efficient: no mask, torch.float32", "efficient: mask float32 aligned"}
    assert set(sim.attention) == (split if length - 25 >= FROM else {"mask float32 aligned"})
    assert sum(chunks) == length - 25
    assert max(chunks) <= PREFILL_CHUNK < length
    # By the third iteration every constant is on the device.
    assert max(live[2:]) - min(live[2:]) <= 0.01 * cache
    # A pass copies no cache: keys and values for each query head would be four times it.
    assert max(peaks[2:]) < cache
    assert max(peaks[2:]) <= 1.1 * min(peaks[2:])
