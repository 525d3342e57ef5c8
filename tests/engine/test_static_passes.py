"""Static passes answer as the module does, on a CPU and recorded on a simulated GPU."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.cache import CachePool
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.static_pass import (
    CHECKS,
    Buffers,
    Kind,
    Recorder,
    StaticPass,
    slot_steps,
    why_not_recorded,
)
from tests.engine.test_compiled import NEEDS_COMPILER
from tests.families import OURS, VOCAB, decoder_settings, random_requests, tiny_pair
from tests.heads import heads_of
from tests.simcuda import SimCuda

WARM = SamplingSettings(temperature=1.0, probability_dtype="float64")
FAST = {("rsd_s", 3), ("dsbd", 3), ("redrafter", 1)}
RSD_TREES = {
    "ar": ["-"],
    "sd": ["2", "3", "4", "5"],
    "spectr": ["2x2", "3x2", "3x3", "4x3", "5x4", "7x4", "6x5", "12x5"],
    "rsd_c": [
        "2-1", "2-2", "3-1", "2-2-2", "3-1-1", "4-1-1", "2-2-2-2", "5-1-1-1", "7-1-1-1",
        "2-2-2-2-2", "6-1-1-1-1", "12-1-1-1-1",
    ],
    "rsd_s": ["2x2", "3x2", "3x3", "4x3", "5x4", "7x4", "6x5", "12x5"],
}  # fmt: skip
CASES = [
    pytest.param(name, rows, marks=[] if (name, rows) in FAST else pytest.mark.slow)
    for name in OURS
    for rows in (1, 3)
]


def pair_of(how, device="cpu", dtype=torch.float64):
    where = torch.device(device)
    pair = tiny_pair.__wrapped__("llama", dtype)
    return [HuggingFaceModel(model.module.to(where), VOCAB, where, how) for model in pair]


def built(name, pair, rows, sampling=WARM):
    settings = decoder_settings(name)
    kind = settings["drafter"]["kind"]
    heads = heads_of(settings["drafter"], 32, VOCAB)
    heads = heads and heads.to(pair[0].device, pair[0].dtype)
    drafts = pair[1:] if kind in ("language_model", "lookup_or_model", "pard") else []
    return build_decoder(settings, pair[0], drafts, sampling, rows, heads=heads)


def tokens(decoder, count=4, new=12):
    requests = random_requests(count, new)
    batches = [requests[i : i + decoder.rows] for i in range(0, count, decoder.rows)]
    return [answer.tokens for batch in batches for answer in decoder.generate(batch, seed=0)]


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_every_decoder_draws_the_same_tokens_through_static_passes(name, rows):
    """Pending tokens and forests of several lengths share one pass, one after the other."""
    static = pair_of("static")
    decoder = built(name, static, rows)
    expected = tokens(built(name, pair_of("none"), rows), 3)
    # The kinds of pass recur, so that all are past their checks at last.
    answers = [tokens(decoder, 3) for _ in range(CHECKS + 1)]
    assert answers == [expected] * len(answers)
    counts = static[0].static.counts
    assert min(counts.static, counts.captures) > 0
    assert not static[0].static.refusals


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("name", ["ar", "rsd_s"])
def test_fused_static_passes_draw_the_same_tokens_from_few_graphs(name):
    torch._dynamo.reset()
    expected = tokens(built(name, pair_of("none"), 1), 3)
    pair = pair_of("static_inductor")
    decoder = built(name, pair, 1)
    answers = [tokens(decoder, 3) for _ in range(CHECKS + 1)]
    assert answers == [expected] * len(answers)
    assert pair[0].static.counts.static > 0 == len(pair[0].static.refusals)
    graphs = counters["stats"]["unique_graphs"]
    assert 0 < graphs < sum(model.static.counts.captures for model in pair)
    assert not counters["graph_break"]


def test_static_passes_that_cannot_be_fused_are_recorded_as_they_are(monkeypatch, caplog):
    def cannot(*_, **__):
        raise RuntimeError("Cannot find a working triton installation")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: cannot)
    expected = tokens(built("ar", pair_of("none"), 1), 2)
    (target, _) = pair_of("static_inductor")
    with caplog.at_level(logging.WARNING):
        decoder = built("ar", [target], 1)
        assert [tokens(decoder, 2) for _ in range(CHECKS + 1)] == [expected] * (CHECKS + 1)
    assert caplog.text.count("not fused: Cannot find a working triton") == 1
    assert target.static.counts.static > 0 == len(target.static.refusals)


def replayed(name, rows):
    expected = tokens(built(name, pair_of("none"), rows), rows, 4)
    with SimCuda() as sim:
        pair = pair_of("static", "cuda:0")
        decoder = built(name, pair, rows)
        for _ in range(CHECKS):
            assert tokens(decoder, rows, 4) == expected
        assert pair[0].static.refusals == []
        sim.reset()
        for model in pair:
            model.static.counts.static = model.static.counts.eager = 0
        answers = decoder.generate(random_requests(rows, 4), seed=0)
        steps = max(len(answer.steps) for answer in answers)
        calls = [model.static.counts.static for model in pair]
        assert calls == [steps, steps * decoder.draft_calls * len(decoder.drafts)]
        assert sim.replays == sum(calls)
        assert [model.static.counts.eager for model in pair] == [0, 0]


def test_a_recorded_step_is_one_replay_of_the_target_and_one_a_level_of_the_draft():
    replayed("rsd_s", 2)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["ar", "sd", "spectr", "rsd_c", "rsd_s", "mcsd"])
def test_every_recorded_decoder_draws_the_cpus_tokens(name, rows):
    replayed(name, rows)


def test_a_recording_that_missed_a_buffer_is_caught_and_the_pass_stays_eager(monkeypatch, caplog):
    """The positions, say, were copied into the recording and never read again."""
    fill = Buffers.fill
    monkeypatch.setattr(
        Buffers, "fill", lambda own, t, p, s, v: fill(own, t, torch.zeros_like(p), s, v)
    )
    expected = tokens(built("ar", pair_of("none"), 1), 2)
    static = pair_of("static")
    with caplog.at_level(logging.WARNING):
        assert tokens(built("ar", static, 1), 2) == expected
    counts = static[0].static.counts
    assert counts.static == 0 < counts.eager
    (line,) = (record.message for record in caplog.records if "stays eager" in record.message)
    assert "logits differ" in line


def test_what_cannot_be_recorded_stays_eager_and_says_why(caplog):
    with SimCuda(), caplog.at_level(logging.WARNING):
        (target, _) = pair_of("static", "cuda:0")
        (made,) = target.static._ways

        def waits(*given):
            outputs = made(*given)
            float(outputs[0].sum())
            return outputs

        target.static._ways = [waits]
        decoder = built("ar", [target], 1)
        decoder.generate(random_requests(1, 4), seed=0)
    assert target.static.counts.static == 0 < target.static.counts.eager
    assert "not permitted when stream is capturing" in caplog.text


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
    said = why_not_recorded(SimpleNamespace(**settings))
    assert reason in said
    assert bool(said) == bool(reason)


def test_passes_go_on_being_recorded_when_a_cache_grows():
    """With the cache goes its last graph, and torch gives up a pool that has none."""
    with SimCuda():
        (target, _) = pair_of("static", "cuda:0")
        decoder = built("ar", [target], 1)
        for length in (20, 40, 70, 110):
            (request,) = random_requests(1, 8)
            request = replace(request, prompt_ids=tuple(i % VOCAB for i in range(length)))
            before = target.static.counts.static
            for _ in range(2):
                decoder.generate([request], seed=0)
            assert target.static.counts.static > before, f"a prompt of {length} tokens"
    assert not target.static.refusals


def test_after_a_recording_that_failed_the_next_one_is_made_and_the_stream_is_the_old():
    with SimCuda() as sim:
        stream = torch.cuda.current_stream()
        recorder = Recorder(torch.device("cuda:0"))
        ones = torch.ones(2, device="cuda:0")

        def waits():
            if sim.tape is not None:
                float((ones + 1).sum())
            return (ones + 1,)

        with pytest.raises(RuntimeError, match="stream is capturing"):
            recorder.record(waits)
        assert torch.cuda.current_stream() is stream
        graph, (two,) = recorder.record(lambda: (ones + 1,))
        ones.fill_(4)
        graph.replay()
        assert two.tolist() == [5, 5]


def test_nothing_is_made_while_sequences_grow_once_it_was_prepared():
    target, draft = pair_of("static", dtype=torch.float32)
    decoder = built("rsd_s", [target, draft], 2)
    decoder.reserve(decoder.slots_needed(8, 100))
    tokens(decoder, 2, 4)
    decoder.pool.prepare(2)
    made = [model.static.counts.captures for model in (target, draft)]
    decoder.generate(random_requests(2, 100), seed=0)
    assert [model.static.counts.captures for model in (target, draft)] == made


def test_slots_are_read_in_few_steps_between_the_shortest_and_the_longest_sequence():
    assert slot_steps(1, 300) == [64, 256, 300]
    assert slot_steps(100, 300) == [256, 300]
    assert slot_steps(900, 5000) == [1024, 2048, 4096, 5000]
    assert slot_steps(1, 40) == [40]


def test_a_pass_that_keeps_the_outputs_of_another_is_told_apart_from_a_fresh_one():
    """The outputs of a replay are overwritten by the next one, on a CPU as on a GPU."""
    buffers = Buffers.standing_in(Kind(1, 2, 8, ()), 9, torch.device("cpu"))
    made = StaticPass(buffers, lambda own: (own.tokens * 2,))
    ones = torch.ones((1, 2), dtype=torch.long)
    seen = torch.ones((1, 2, 3), dtype=torch.bool)
    first = made.run(ones, ones, ones, seen)[0]
    made.run(3 * ones, ones, ones, seen)
    assert first.tolist() == [[6, 6]]


def test_a_smaller_batch_runs_in_the_rows_of_a_larger_one_and_large_passes_by_the_module():
    (target, _) = pair_of("static")
    cache = target.allocate(16, 2000)
    kinds = [target.static.kind(cache, rows, 5, 300, ()) for rows in (1, 2, 4, 5, 16)]
    assert [kind.rows for kind in kinds] == [1, 4, 4, 16, 16]
    assert {kind[1:] for kind in kinds} == {(8, 1024, ())}
    assert target.static.kind(cache, 16, 33, 300, ()) is None  # 1,024 tokens
    assert target.static.kind(target.allocate(17, 2000), 17, 1, 300, ()) is None
    assert target.static.kind(target.allocate(3, 2000), 2, 1, 300, ()).rows == 3


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_published_trees_of_a_job_need_few_kinds_of_pass(rows):
    """The 33 trees of RSD's tables; their decoders share one pool of caches."""
    pair = pair_of("static", dtype=torch.float32)
    sampling, pool = SamplingSettings(temperature=0.3), CachePool()
    built = [
        build_decoder(decoder_settings(name, spec), pair[0], pair[1:], sampling, rows, pool)
        for name, specs in RSD_TREES.items()
        for spec in specs
    ]
    requests = [
        replace(request, prompt_ids=tuple(i % VOCAB for i in range(20 + 3 * number)))
        for number, request in enumerate(random_requests(rows, 40))
    ]
    for decoder in built:
        decoder.reserve(decoder.slots_needed(20 + 3 * rows, 40))
    short = [replace(request, max_new_tokens=4) for request in requests]
    for decoder in built:
        decoder.generate(short, 0)
    pool.prepare(rows, 20)
    made = [model.static.counts.captures for model in pair]
    print(f"{rows} rows: {made} kinds")
    assert max(made) <= 40
    for decoder in built[:: 1 if rows == 1 else 8]:
        decoder.generate(requests, 0)
    assert [model.static.counts.captures for model in pair] == made
