"""The Pareto front: which points no other beats, for either direction of either axis."""

import pytest

from spec_bench.report.data.statistics import front

# Speed to the right, score upwards: 0 is slow and good, 3 fast and bad, 2 beaten by 1.
POINTS = [(1.0, 9.0), (3.0, 7.0), (2.0, 6.0), (5.0, 1.0)]


@pytest.mark.parametrize(
    ("points", "higher_x", "higher_y", "expected"),
    [
        (POINTS, True, True, [0, 1, 3]),
        (POINTS[::-1], True, True, [3, 2, 0]),  # along x, whatever the order given
        (POINTS, True, False, [3]),  # the fastest has the lowest y as well
        (POINTS, False, True, [0]),
        (POINTS, False, False, [0, 2, 3]),
        ([(1.0, 1.0), (1.0, 1.0)], True, True, [0]),  # of equal points the first
        ([(1.0, 1.0), (1.0, 2.0)], True, True, [1]),
        ([(1.0, 2.0), (2.0, 2.0)], True, True, [1]),
        ([(1.0, 2.0), (2.0, 2.0)], False, True, [0]),
        ([(0.5, 0.5)], False, False, [0]),
        ([], True, True, []),
    ],
)
def test_the_front_is_what_no_other_point_beats(points, higher_x, higher_y, expected):
    assert front(points, higher_x=higher_x, higher_y=higher_y) == expected
