"""What passes and caches must do on a GPU, seen on a simulated one."""

import torch

from spec_bench.core.transfer import forget_constants
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder
from spec_bench.engine.cache import CachePool, SlotCache
from spec_bench.engine.hugging_face import HuggingFaceModel
from spec_bench.engine.model import ForwardTimer, set_switches
from spec_bench.engine.static_pass import near_tie_gap
from spec_bench.measure.provenance import torch_state
from tests.families import VOCAB, decoder_settings, random_requests, tiny_pair
from tests.simcuda import DEVICE, SimCuda

GREEDY = SamplingSettings(temperature=0)
GROWING = (("ar", None), ("sd", "2"), ("rsd_c", "2-1"), ("rsd_s", "3x3"), ("mcsd", "2-2-2"))


def on_device():
    pair = tiny_pair.__wrapped__("llama")
    return [HuggingFaceModel(model.module.to(DEVICE), VOCAB, DEVICE) for model in pair]


def test_no_replaced_cache_stays_alive_when_trees_grow():
    with SimCuda() as sim:
        target, draft = on_device()
        pool = CachePool()
        decoders = [
            build_decoder(
                decoder_settings(name, spec), target, [draft][: name != "ar"], GREEDY, 2, pool
            )
            for name, spec in GROWING
        ]
        torch.zeros(1, device=DEVICE)
        forget_constants()
        before = sim.allocated
        for decoder in decoders:
            decoder.generate(random_requests(2, 3), seed=0)
        largest = max(decoder.slots_needed(2, 3) for decoder in decoders)
        expected = 2 * largest * (target.bytes_per_slot + draft.bytes_per_slot)
        held = sum(
            pool.cache(*role, 1, 1).bytes for role in (("target", target), ("draft 0", draft))
        )
        assert held == expected
        forget_constants()  # what never changes stays, and is no cache's
        assert sim.allocated - before <= 1.05 * expected


def test_a_mask_is_not_copied_in_every_layer_and_a_commit_brings_nothing_to_the_device():
    with SimCuda(watch="engine/cache.py") as sim:
        target, draft = on_device()
        decoder = build_decoder(decoder_settings("rsd_s"), target, [draft], GREEDY, 2)
        sim.reset()
        answers = decoder.generate(random_requests(2, 8), seed=0)
        assert sum(step.accepted for answer in answers for step in answer.steps) > 0
        masked = {kind for kind in sim.attention if "mask" in kind}
        assert masked
        assert all("aligned" in kind for kind in masked), sim.attention
        uploads = {line for line in sim.h2d if line != "?"}
        source = SlotCache.commit.__code__
        inside = range(source.co_firstlineno, source.co_firstlineno + 25)
        assert not [line for line in uploads if int(line.rsplit(":", 1)[1]) in inside]


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
    set_switches()
    state = torch_state()
    assert "cudnn" not in state["attention_kernels"]
    assert "memory_efficient" in state["attention_kernels"]
    assert state["tf32"] is False
    assert state["bf16_reduced_precision_reduction"] is False


def test_near_ties_are_as_wide_as_the_dtypes_steps():
    assert near_tie_gap(torch.float32, 20.0) == 1e-4
    assert near_tie_gap(torch.bfloat16, 16.0) == 0.25
    assert near_tie_gap(torch.bfloat16, 0.0) == 1e-4
