"""What a plan says of memory is what is alive when the job decodes."""

import gc

import pytest
import torch

from spec_bench.core.transfer import forget_constants
from spec_bench.core.warp import SamplingSettings
from spec_bench.decode.config import build_decoder, read_decoder
from spec_bench.engine.cache import CachePool
from spec_bench.engine.loading import ModelSpec, load_model
from spec_bench.jobs.config.pair import EngineSettings, PairSettings
from spec_bench.jobs.sweep.plan import job_memory
from spec_bench.jobs.work.prompts import slots_of
from spec_bench.records.types import Request
from tests.families import decoder_names, decoder_settings, tiny_pair
from tests.heads import heads_of

GREEDY = SamplingSettings(temperature=0)
# Each takes more slots than the one before, so that every cache is replaced four times.
GROWING = (("ar", None), ("sd", "2"), ("rsd_c", "3-1"), ("rsd_s", "3x3"), ("mcsd", "3-3-2"))
PROMPT, NEW, ROWS = 157, 3, 3


def live_bytes():
    """Of all tensors' memory on the CPU, each storage once."""
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


HERE = {*decoder_names()} - {"served"}  # by a server


@pytest.mark.parametrize("name", sorted(HERE))
def test_a_decoders_room_follows_from_its_settings(name):
    settings, (target, draft) = decoder_settings(name), tiny_pair("llama")
    heads = heads_of(settings["drafter"], 32, target.vocab_size)
    drafts = [draft] if read_decoder(settings).drafts else []
    built = build_decoder(settings, target, drafts, GREEDY, heads=heads)
    assert slots_of(read_decoder(settings), 17, 9) == built.slots_needed(17, 9)


@pytest.mark.slow
def test_live_storages_of_five_growing_decoders_are_what_the_plan_says(family):
    pair = PairSettings(target=str(family / "target"), draft=str(family / "draft"))
    slots = max(slots_of(read_decoder(decoder_settings(*each)), PROMPT, NEW) for each in GROWING)
    planned = job_memory(pair, EngineSettings("cpu", "float32"), slots, ROWS)
    assert planned.weights_bytes and planned.cache_bytes
    forget_constants()
    before = live_bytes()
    target, draft = (load_model(ModelSpec(path)) for path in (pair.target, str(pair.draft)))
    weights = live_bytes() - before
    assert weights == pytest.approx(planned.weights_bytes, rel=0.05)
    pool = CachePool()
    decoders = [
        build_decoder(
            decoder_settings(*each), target, [draft][: each[0] != "ar"], GREEDY, ROWS, pool
        )
        for each in GROWING
    ]
    asked = [Request(str(row), tuple(range(3, 3 + PROMPT)), NEW) for row in range(ROWS)]
    seen = []
    for decoder in decoders:
        decoder.generate(asked, seed=0)
        forget_constants()  # what never changes stays, and is no cache's
        seen.append(live_bytes() - before - weights)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(planned.cache_bytes, rel=0.05)
    assert weights + seen[-1] == pytest.approx(
        planned.weights_bytes + planned.cache_bytes, rel=0.05
    )
