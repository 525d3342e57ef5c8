"""What goes to the device in one copy comes out as it went in."""

import torch

from spec_bench.core.host_device import (
    HostDeviceInts,
    cached_constant,
    clear_cached_constants,
    copy_to_device,
)
from spec_bench.engine.recorder import GraphRecorder
from tests.simcuda import DEVICE, SimCuda


def test_parts_of_any_type_go_in_one_copy_that_nobody_waits_for():
    parts = [
        torch.tensor([[True, False, True]]),
        torch.tensor([1.5, -2.25], dtype=torch.float64),
        torch.tensor([], dtype=torch.long),
        torch.tensor([[7], [-9]]),
    ]
    with SimCuda() as sim:
        there = copy_to_device((), DEVICE, parts)
        assert (sim.h2d, sim.waits) == (1, 0)
        assert all(part.device == DEVICE for part in there)
        assert [part.tolist() for part in there] == [part.tolist() for part in parts]
        assert [part.dtype for part in there] == [part.dtype for part in parts]


def test_known_numbers_are_copied_once_and_what_follows_from_them_never():
    with SimCuda() as sim:
        numbers = HostDeviceInts([3, 5])
        copy_to_device([numbers, HostDeviceInts([[1, 2]])], DEVICE)
        assert numbers.plus(2).get_tensor(DEVICE).tolist() == [5, 7] == numbers.plus(2)
        assert numbers.repeat_interleave(2).get_tensor(DEVICE).tolist() == [3, 3, 5, 5]
        assert sim.h2d == 1


def test_a_constant_is_made_once_a_device_and_type():
    cpu = torch.device("cpu")
    made = [cached_constant(((value,),), cpu) for value in (1, True, 1.0)]
    assert [one.dtype for one in made] == [torch.long, torch.bool, torch.float32]
    assert cached_constant(((1,),), cpu) is made[0]


def test_what_a_recording_reads_is_not_given_up_with_other_constants():
    with SimCuda():
        recorder = GraphRecorder(DEVICE)
        recorder.record_graph(lambda: (cached_constant((3, 1, 4), DEVICE) + 1,))
        (read,) = recorder.constants
        clear_cached_constants()
        assert cached_constant((3, 1, 4), DEVICE) is not read
        assert read.tolist() == [3, 1, 4]
