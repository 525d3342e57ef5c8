"""From samples to joules, and whose GPU is whose: pure functions on literal data."""

import pytest

from spec_bench.measure.energy.counters import Gpu, job_gpus, visible_gpus
from spec_bench.measure.energy.meters import UnmeteredError
from spec_bench.measure.energy.nvidia_smi import integral_j, largest_gap_s, summed_j

TIMES = [0.0, 1.0, 2.0, 4.0]
POWER = [100.0, 200.0, 200.0, 0.0]
GPUS = [Gpu(0, "GPU-aaa1"), Gpu(1, "GPU-aab2"), Gpu(2, "GPU-ccc3")]


def test_the_integral_is_the_area_of_the_trapezoids():
    assert integral_j(TIMES, POWER, 0.0, 4.0) == 150 + 200 + 200


def test_the_ends_of_a_window_are_interpolated():
    assert integral_j(TIMES, POWER, 0.5, 1.5) == 0.5 * 175 + 0.5 * 200
    assert integral_j(TIMES, POWER, 2.5, 3.5) == (150 + 50) / 2
    assert integral_j(TIMES, POWER, 1.0, 2.0) == 200


def test_samples_that_do_not_reach_over_the_window_give_no_number():
    for begin_s, end_s in [(-0.1, 1.0), (1.0, 4.1)]:
        with pytest.raises(UnmeteredError, match="do not reach"):
            integral_j(TIMES, POWER, begin_s, end_s)
    with pytest.raises(UnmeteredError):
        integral_j([], [], 0.0, 1.0)


def test_the_papers_sum_takes_each_sample_for_a_second():
    assert summed_j(TIMES, POWER, 0.5, 4.0) == 400
    assert summed_j(TIMES, POWER, 1.0, 1.5) == 200
    assert summed_j(TIMES, POWER, 2.5, 3.5) == 0


def test_the_largest_gap_is_of_samples_that_the_window_touches():
    assert largest_gap_s(TIMES, 0.5, 1.5) == 1.0
    assert largest_gap_s(TIMES, 0.5, 2.5) == 2.0


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-aab", [1]),
        ("GPU-ccc3,0", [2, 0]),
        ("1,-1,2", [1]),
        ("0,7,1", [0]),
        ("GPU-aa", []),
        ("0,0", []),
        ("", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_shows(visible, indices):
    assert [gpu.index for gpu in visible_gpus(GPUS, visible)] == indices


def test_the_jobs_gpus_are_at_its_place_among_the_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    assert job_gpus(GPUS, None, (1,)) == [GPUS[1]]
    assert job_gpus(GPUS, None, None) == [GPUS[2], GPUS[1]]
    assert job_gpus(GPUS, ("0", "GPU-ccc3"), (1,)) == [GPUS[0], GPUS[2]]


@pytest.mark.parametrize(
    ("visible", "devices", "message"),
    [("", None, "no GPU"), ("MIG-1234", None, "MIG"), (None, ("5",), "there are: 0, 1, 2")],
)
def test_no_gpu_to_add_up_is_a_reason(monkeypatch, visible, devices, message):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UnmeteredError, match=message):
        job_gpus(GPUS, devices, None)
