"""On a simulated GPU no operation mixes devices, and every decoder emits the CPU's tokens."""

import pytest
import torch

from spec_bench.core.warp import SamplingSettings
from tests.engine.test_static_passes import built, pair_of
from tests.families import OURS, random_requests
from tests.simcuda import DEVICE, SimCuda
from tests.simcuda.pools import SimPool

# One of each kind of drafter and of walk, at the batch size and law where most can go wrong.
FAST = {("rsd_s", 4, 1.0), ("dsbd", 4, 1.0), ("medusa", 4, 0.3), ("ar", 1, 0.0)}
CASES = [
    pytest.param(name, rows, law, marks=[] if (name, rows, law) in FAST else pytest.mark.slow)
    for name in OURS
    for rows in (1, 4)
    for law in (0.0, 0.3, 1.0)
]


def tokens(name, rows, law, device):
    """What a decoder answers to requests of unequal length and end, on a device."""
    sampling = SamplingSettings(temperature=law, top_p=0.95 if law else 1.0)
    decoder = built(name, pair_of("none", device, torch.float32), rows, sampling)
    requests = random_requests(5, 4)
    requests = requests if rows > 1 else requests[3:]
    return [answer.tokens for answer in decoder.generate(requests, seed=0)]


@pytest.mark.parametrize(("name", "rows", "law"), CASES)
def test_tokens_of_a_simulated_gpu_equal_the_cpus(name, rows, law):
    expected = tokens(name, rows, law, torch.device("cpu"))
    with SimCuda() as sim:
        assert tokens(name, rows, law, DEVICE) == expected
        assert sum(sim.ops.values()) > 300
        assert sum(sim.h2d.values()) > 0


def test_mixing_devices_is_refused_as_cuda_refuses_it():
    with SimCuda(watch="test_simulated_device") as sim:
        there = torch.ones(3, device="cuda")
        assert (there + torch.tensor(2.0)).tolist() == [3, 3, 3]
        with pytest.raises(RuntimeError, match="on one device"):
            there + torch.ones(3)
        assert not sim.h2d
        assert int(there.sum()) == 3
        (line,) = (line for what, line in sim.syncs if what == "_local_scalar_dense")
        assert "test_simulated_device.py" in line


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
