"""Memory bandwidth by a buffer of the model's size."""

import itertools

import pytest
import torch
from torch import nn

from spec_bench.measure import roofline as bandwidth
from spec_bench.measure.roofline import (
    LEAST_BYTES,
    MOST_BYTES,
    fastest_stream,
    free_bytes,
    measured_bandwidth,
)


@pytest.fixture
def streamed(monkeypatch):
    """What was streamed: bytes and dtype, in half a second each."""
    found = []

    def stream(device, dtype, size, repeats, now_s):
        found.append((size, dtype))
        return size, 0.5

    monkeypatch.setattr(bandwidth, "fastest_stream", stream)
    monkeypatch.setattr(bandwidth, "free_bytes", lambda device: 2**40)
    bandwidth._measured.cache_clear()
    return found


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    bandwidth._measured.cache_clear()


def test_the_buffer_is_as_large_as_the_weights_within_limits(streamed):
    model = nn.Linear(1024, 1024, bias=False, dtype=torch.bfloat16)
    assert measured_bandwidth(model) == 2 * 2 * 2**20
    assert measured_bandwidth(model) == 2 * 2 * 2**20  # from memory
    measured_bandwidth(nn.Linear(2, 2))
    with torch.device("meta"):
        measured_bandwidth(nn.Linear(2**17, 2**13))
    sizes = [size for size, _ in streamed]
    assert sizes == [2 * 2**20, LEAST_BYTES, MOST_BYTES]
    assert streamed[0][1] == torch.bfloat16


def test_without_room_or_weights_there_is_none(monkeypatch):
    monkeypatch.setattr(bandwidth, "free_bytes", lambda device: LEAST_BYTES)
    bandwidth._measured.cache_clear()
    assert measured_bandwidth(nn.Linear(2, 2)) is None
    assert measured_bandwidth(nn.Identity()) is None


def test_a_real_buffer_is_gone_through_at_a_plausible_rate():
    bandwidth._measured.cache_clear()
    rate = measured_bandwidth(nn.Linear(512, 1024))
    assert rate is not None
    assert 1e7 < rate < 1e13


def test_the_shortest_of_all_ways_through_a_buffer_counts():
    lengths_s = [9.0, 4.0, 9.0, 5.0, 9.0, 8.0]  # two of sum, product, copy
    clock = itertools.accumulate(part for length_s in lengths_s for part in (0.0, length_s))
    cpu = torch.device("cpu")
    assert fastest_stream(cpu, torch.bfloat16, 2**16, 2, lambda: next(clock)) == (2**16, 4.0)


def test_some_memory_is_free_on_the_cpu():
    assert free_bytes(torch.device("cpu")) > 2**20
